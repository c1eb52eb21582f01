"""Training speed: the lines of timings.jsonl, and the summary of an attempt in result.json."""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from ettsweep.files import Json
from ettsweep.runs.attempt import TimeSpent


def now_s(device: torch.device) -> float:
    """Return the time in seconds after all queued work of a device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@dataclass
class Timings:
    """Measures the speed of one attempt's training; evaluation and checkpoints are excluded.

    Call `line` right after metrics were drained, and `not_training` right after a line. Then the device is idle, and no
    step's work falls into another interval.

    Attributes:
        samples_per_step: size of the global batch.
        flops_per_sample: FLOPs of a training step per sample.
        peak_flops: FLOP/s of all devices of the run together; None if unknown.
        devices: number of devices of the run.
        spent_before: time that earlier attempts spent.
        first_step: steps done before this attempt.
        clock: seconds of this run's share of each device, which is less than wall time in an ensemble. Speeds are
            relative to it.
        wall_clock: seconds of wall time.
    """

    samples_per_step: int
    flops_per_sample: int
    peak_flops: float | None
    devices: int
    spent_before: TimeSpent
    first_step: int
    clock: Callable[[], float]
    wall_clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._wall_started_s = self.wall_clock()
        self._started_s = self._line_s = self.clock()
        self._step = self.first_step
        self._other_s = 0.0  # not training, since the last line
        self._intervals: list[tuple[int, float, float]] = []  # of each line: steps, training_s, data_wait_s
        self._memory_bytes: int | None = None

    @property
    def spent(self) -> TimeSpent:
        """Time spent on the run so far, in all attempts, including evaluation and checkpoints."""
        wall_s, own_s = self.wall_clock() - self._wall_started_s, self.clock() - self._started_s
        return TimeSpent(self.spent_before.wall_s + wall_s, self.spent_before.device_s + self.devices * own_s)

    @contextlib.contextmanager
    def not_training(self) -> Iterator[None]:
        """Exclude the duration of the body from training time."""
        started_s = self.clock()
        try:
            yield
        finally:
            self._other_s += self.clock() - started_s

    def line(self, step: int, last_step: int, data_wait_s: float, memory_bytes: int | None) -> Json:
        """Return the line of timings.jsonl for the steps since the previous line.

        Args:
            step: the last step done.
            last_step: last step of the run.
            data_wait_s: seconds since the previous line in which the loop waited for the loader.
            memory_bytes: peak memory of the device so far; None on the CPU.

        Returns:
            `step`, `progress` (0 to 1); `wall_s`, `device_s` over all attempts; `steps_per_s` of this attempt with
            evaluation and checkpoints; and for the interval `step_s`, `samples_per_s`, `utilisation` (share of peak
            FLOP/s), `data_wait` (share of training time) and `memory_gib`.
        """
        now_s, spent, steps = self.clock(), self.spent, step - self._step
        # 1e-9 guards the divisions below against an empty interval.
        training_s = max(now_s - self._line_s - self._other_s, 1e-9)
        self._intervals.append((steps, training_s, data_wait_s))
        self._step, self._line_s, self._other_s, self._memory_bytes = step, now_s, 0.0, memory_bytes
        return {
            "step": step,
            "progress": step / last_step,
            "wall_s": spent.wall_s,
            "device_s": spent.device_s,
            "steps_per_s": (step - self.first_step) / max(spent.wall_s - self.spent_before.wall_s, 1e-9),
            "step_s": training_s / steps,
            **self._speed(steps, training_s, data_wait_s),
        }

    def summary(self) -> Json:
        """Return the interval's entries of `line` for the whole attempt; `step_s` is the median over lines.

        All are None for an attempt without a line.
        """
        if not self._intervals:
            return dict.fromkeys(("step_s", "samples_per_s", "utilisation", "data_wait", "memory_gib"))
        step_s = statistics.median(training_s / steps for steps, training_s, _ in self._intervals)
        return {"step_s": step_s, **self._speed(*map(sum, zip(*self._intervals, strict=True)))}

    def _speed(self, steps: int, training_s: float, data_wait_s: float) -> Json:
        samples_per_s = steps * self.samples_per_step / training_s
        return {
            "samples_per_s": samples_per_s,
            "utilisation": self.flops_per_sample * samples_per_s / self.peak_flops if self.peak_flops else None,
            "data_wait": data_wait_s / training_s,
            "memory_gib": None if self._memory_bytes is None else self._memory_bytes / 2**30,
        }
