"""The logger of a run: metrics, timings, checkpoints and a text log. Only the leading process writes."""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence

from ettsweep.console import escape_control
from ettsweep.errors import error_line
from ettsweep.files import Json
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.metric_loggers import MetricLoggers
from ettsweep.trainer.training.async_checkpoint import AsyncCheckpointWriter
from ettsweep.trainer.training.trainer import Trainer


class RunLogger:
    """Keeps the history of a run in memory; the leader also writes it to the attempt's folder and to metric loggers.

    Attributes:
        history: metrics of all steps and evaluations so far.
        metric_loggers: TensorBoard and the like; None before they are opened, and in processes that write nothing.
    """

    def __init__(self, attempt: Attempt, rank: int, checkpoint_writer: AsyncCheckpointWriter) -> None:
        self._attempt = attempt
        self._rank = rank
        self._checkpoint_writer = checkpoint_writer
        self._wait_for_write: Callable[[], None] | None = None
        self._writes = rank == 0
        self._saved_step: int | None = None
        self.history: list[Json] = []
        self.metric_loggers: MetricLoggers | None = None

    def metrics(self, lines: Sequence[Json]) -> None:
        """Append lines to the history and to metrics.jsonl.

        Raises:
            StorageError: they cannot be written.
        """
        self.history.extend(lines)
        if self._writes and lines:
            self._attempt.append(self._attempt.metrics_path, lines)
            if self.metric_loggers:
                for line in lines:
                    self.metric_loggers.write(line)

    def timing(self, line: Json) -> None:
        """Append a line to timings.jsonl."""
        if self._writes:
            self._attempt.append(self._attempt.timings_path, [line])

    def checkpoint(self, trainer: Trainer) -> None:
        """Save the state after the trainer's last step; a large one is written in the background, see `wait_saved`.

        Raises:
            StorageError: this checkpoint, or the previous one, cannot be written; an earlier one is untouched.
        """
        if trainer.step != self._saved_step:  # a run may stop at a step that is saved already
            self.wait_saved()  # errors of the previous background write surface here
            self._wait_for_write = self._checkpoint_writer.save(self._attempt, trainer, self.history)
            self._saved_step = trainer.step

    def wait_saved(self) -> None:
        """Wait until the last checkpoint is on disk.

        Raises:
            StorageError: it cannot be written.
        """
        # Reset before the wait, so that an error is raised once only.
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
        """Append a line with date and time to log.txt; a full disk costs the line, not the run."""
        if not self._writes:
            return
        logging.getLogger("ettsweep").info("%s %s", self._attempt.run.name, escape_control(text))
        with contextlib.suppress(OSError):
            self._attempt.log(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")

    def skip(self, text: str) -> None:
        """Record a skipped sample, in any process."""
        self._attempt.record_skipped_sample(self._rank, text)

    def close(self) -> None:
        """Close the metric loggers, which may wait for their servers."""
        if self.metric_loggers:
            self.metric_loggers.close()
