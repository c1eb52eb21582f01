"""How fast a run trains: the lines of timings.jsonl, and what result.json says of an attempt."""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from ettsweep.files import Json
from ettsweep.runs.attempt import TimeSpent


def now_s(device: torch.device) -> float:
    """Return the time once a device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@dataclass
class Timings:
    """Clock of one attempt. Its figures are those of training alone: evaluation and checkpoints are left out.

    Call `line` right after metrics were drained and `not_training` right after a line: then the device has done
    what was asked of it, and no step's work falls into another interval.

    Attributes:
        samples_per_step: size of the global batch.
        flops_per_sample: of a training step.
        peak_flops: FLOP/s of all devices of the run together; None where it is not known.
        devices: of the run.
        before: what earlier attempts spent.
        first_step: steps done before this attempt.
        clock: tells this run's part of the seconds of each of its devices; figures of speed are by it.
        wall_clock: tells all of them.
    """

    samples_per_step: int
    flops_per_sample: int
    peak_flops: float | None
    devices: int
    before: TimeSpent
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
        """What was spent on the run so far, in all attempts and on everything."""
        wall_s, own_s = self.wall_clock() - self._wall_started_s, self.clock() - self._started_s
        return TimeSpent(self.before.wall_s + wall_s, self.before.device_s + self.devices * own_s)

    @contextlib.contextmanager
    def not_training(self) -> Iterator[None]:
        """Leave out the seconds that the body takes."""
        started_s = self.clock()
        try:
            yield
        finally:
            self._other_s += self.clock() - started_s

    def line(self, step: int, last_step: int, data_wait_s: float, memory_bytes: int | None) -> Json:
        """Return the line of timings.jsonl for the steps since the line before.

        Args:
            step: the last one done.
            last_step: of the run.
            data_wait_s: seconds since the line before in which the loop waited for the loader.
            memory_bytes: most that was taken of a device's memory so far; None on the CPU.

        Returns:
            step, progress, wall_s and device_s of all attempts, steps_per_s of this one with everything in it; and of
            the interval step_s, samples_per_s, utilisation (of the peak), data_wait (a share), memory_gib.
        """
        now_s, spent, steps = self.clock(), self.spent, step - self._step
        training_s = max(now_s - self._line_s - self._other_s, 1e-9)
        self._intervals.append((steps, training_s, data_wait_s))
        self._step, self._line_s, self._other_s, self._memory_bytes = step, now_s, 0.0, memory_bytes
        return {
            "step": step,
            "progress": step / last_step,
            "wall_s": spent.wall_s,
            "device_s": spent.device_s,
            "steps_per_s": (step - self.first_step) / max(spent.wall_s - self.before.wall_s, 1e-9),
            "step_s": training_s / steps,
            **self._speed(steps, training_s, data_wait_s),
        }

    def summary(self) -> Json:
        """Return what a line says of its interval for the whole attempt; step_s is the median over lines.

        An attempt without a line has nothing to say.
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
