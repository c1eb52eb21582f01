"""The batches of a run, and the seconds that it waits for them."""

import contextlib
import time
from collections.abc import Callable, Generator, Iterator

import torch

from ettsweep.trainer.tasks.task import Batch, Task
from ettsweep.trainer.training.run_logger import RunLogger


class SharedClock:
    """Clock of each run of an ensemble: seconds pass at one over the number of runs in training.

    Attributes:
        runs: number of runs in training.
    """

    def __init__(self, runs: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.runs = runs
        self._elapsed_s, self._updated_s = 0.0, clock()

    def __call__(self) -> float:
        return self._elapsed_s + (self._clock() - self._updated_s) / self.runs

    def begin_round(self, runs: int) -> None:
        """Begin a round in which some runs take a step."""
        # Settle the time so far at the old rate before the rate changes.
        self._elapsed_s, self._updated_s = self(), self._clock()
        self.runs = runs


class WaitTimer:
    """Measures how long a device idles because its next batch is not loaded yet; a context around each load."""

    def __init__(self, device: torch.device, clock: SharedClock) -> None:
        self._device = device
        self._clock = clock
        self._total_s = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event, float]] = []

    def __enter__(self) -> None:
        self._wait_start = self._now()

    def __exit__(self, *_: object) -> None:
        self._add(self._wait_start, 1.0)

    @contextlib.contextmanager
    def exclude_compute(self) -> Iterator[None]:
        """Subtract the device's computation in the body from the enclosing wait, such as augmentation of a batch."""
        start = self._now()
        try:
            yield
        finally:
            self._add(start, -1.0)

    def total_s(self) -> float:
        """Return each run's seconds of waiting so far; call it only after the device was synchronised."""
        events, self._events = self._events, []
        for before, after, weight in events:
            self._total_s += weight * float(before.elapsed_time(after)) / 1000
        return self._total_s

    def _now(self) -> "float | torch.cuda.Event":
        if self._device.type != "cuda":
            return self._clock()
        # The host runs ahead of the device, so idle time is that between two events in the device's own queue.
        mark: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        mark.record()
        return mark

    def _add(self, since: "float | torch.cuda.Event", sign: float) -> None:
        now = self._now()
        if isinstance(since, float) and isinstance(now, float):
            self._total_s += sign * (now - since)
        elif not isinstance(since, float) and not isinstance(now, float):
            self._events.append((since, now, sign / self._clock.runs))


class TrainingStream:
    """The batches of runs of one recipe and seed from some step on; each is loaded once for all of them.

    Attributes:
        task: the opened task, shared by all runs.
        wait_timer: measures the time spent on loading.
        loggers: loggers of all runs, which record skipped samples.
    """

    def __init__(self, task: Task, first_step: int, wait_timer: WaitTimer, loggers: list[RunLogger]) -> None:
        self.task = task
        self.wait_timer = wait_timer
        self.loggers = loggers
        self._batches = task.batches(first_step)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """Load and return the next micro-batch."""
        with self.wait_timer:
            return next(self._batches)

    def close(self) -> None:
        """Stop loading, and end the loader's processes."""
        if isinstance(self._batches, Generator):
            self._batches.close()


Streams = dict[tuple[int, int], TrainingStream]
"""The streams of runs of one recipe that train at once, by seed and first step."""


def close_streams(streams: Streams) -> None:
    """Stop loading for runs that have ended."""
    for stream in streams.values():
        stream.close()
