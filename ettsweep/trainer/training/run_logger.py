"""Output of a training run: metrics, timings, checkpoints, lines of text. Only rank 0 writes."""

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ettsweep.console import escape_control
from ettsweep.errors import error_line
from ettsweep.files import Json, append_text
from ettsweep.run import Run
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.metric_loggers import MetricLoggers
from ettsweep.trainer.training.async_checkpoint import AsyncCheckpointWriter
from ettsweep.trainer.training.trainer import Trainer


class RunLogger:
    """Writes the records of a run.

    Attributes:
        metric_loggers: TensorBoard and the like; None before they are opened, and in processes that write nothing.
    """

    def __init__(self, run: Run, attempt: Attempt, rank: int, checkpoint_writer: AsyncCheckpointWriter) -> None:
        self._run, self._attempt, self._rank = run, attempt, rank
        self._checkpoint_writer = checkpoint_writer
        self._wait_for_write: Callable[[], None] | None = None
        self._writes = rank == 0
        self._saved_step: int | None = None
        self.metric_loggers: MetricLoggers | None = None

    def metrics(self, lines: Sequence[Json]) -> None:
        """Record lines of metrics.

        Raises:
            Diverged: one of them shows that the run has diverged; later ones are dropped.
            OSError: they cannot be written.
        """
        try:
            self._run.write(lines)
        finally:
            for line in lines if self.metric_loggers else ():
                assert self.metric_loggers is not None
                if line["step"] <= self._run.last_step:
                    self.metric_loggers.write(line)

    def timing(self, line: Json) -> None:
        """Append a line to timings.jsonl."""
        if self._writes:
            self._attempt.append(self._attempt.timings_path, [line])

    def checkpoint(self, trainer: Trainer) -> None:
        """Save the state after the trainer's last step; a large one is written in the background, see `wait_saved`.

        Raises:
            OSError: this checkpoint, or the previous one, cannot be written; an earlier one is untouched.
        """
        if trainer.step != self._saved_step:  # a run may stop at a step that is saved already
            self.wait_saved()  # errors of the previous background write surface here
            self._wait_for_write = self._checkpoint_writer.save(self._run, trainer)
            self._saved_step = trainer.step

    def wait_saved(self) -> None:
        """Wait until the last checkpoint is on disk.

        Raises:
            OSError: it cannot be written.
        """
        # Reset before the wait: raise an error only once.
        if self._wait_for_write is not None:
            wait, self._wait_for_write = self._wait_for_write, None
            wait()

    def finish_saving(self) -> None:
        """Wait for a background write at the end of the run; log a failure instead of raising it."""
        try:
            self.wait_saved()
        except Exception as error:
            self.log(f"warning: the last checkpoint was not written: {error_line(error)}")

    def log(self, text: str) -> None:
        """Print a line with date and time; each of several runs has its own output."""
        if not self._writes:
            return
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {escape_control(text)}"
        with contextlib.suppress(OSError):  # a full disk costs the line, not the run
            if output := self._run.environment.get("ETTSWEEP_OUTPUT"):
                append_text(Path(output), f"{line}\n")
            else:
                print(line, flush=True)

    def skip(self, text: str) -> None:
        """Record a skipped sample, in any process."""
        self._attempt.record_skipped_sample(self._rank, text)

    def close(self) -> None:
        """Close the metric loggers, which may wait for their servers."""
        if self.metric_loggers:
            self.metric_loggers.close()
