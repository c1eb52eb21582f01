"""What runs in training ask for, turn by turn, and the clock of those who take turns.

A run in training is a generator (`run.py`): it yields what it wants next and is sent what came of that. Who gives the
turns (`ensemble/pack.py`) can so train one run, or many on the same batches.
"""

import contextlib
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch

from ettsweep.trainer.tasks.task import Batch, Task
from ettsweep.trainer.training.run_logger import RunLogger
from ettsweep.trainer.training.trainer import Trainer


class Stop(StrEnum):
    """Why a run should end before its last step; where processes have different reasons, the last one here counts."""

    TERMINATED = "terminated"
    OUT_OF_TIME = "out of time or preempted"
    PRUNED = "pruned"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"


STOPS = list(Stop)


class SharedClock:
    """Tells the seconds that each of those has had who take turns: time goes by at one over their number."""

    def __init__(self, members: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._members = max(1, members)
        self._told_s, self._since_s = 0.0, clock()

    def __call__(self) -> float:
        return self._told_s + (self._clock() - self._since_s) / self._members

    @property
    def members(self) -> int:
        """How many take turns."""
        return self._members

    @members.setter
    def members(self, members: int) -> None:
        self._told_s, self._since_s = self(), self._clock()
        self._members = max(1, members)


class WaitTimer:
    """Tells how long a device has had nothing to do since its data were not there."""

    def __init__(self, device: torch.device, clock: SharedClock) -> None:
        self._device = device
        self._clock = clock
        self._total_s = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event, float]] = []

    def __enter__(self) -> None:
        self._asked = self._now()

    def __exit__(self, *_: object) -> None:
        self._add(self._asked, 1.0)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Leave out what the device computes in the body, within a wait: it works on what is there."""
        start = self._now()
        try:
            yield
        finally:
            self._add(start, -1.0)

    def seconds(self) -> float:
        """Return each member's seconds of waiting so far; the device has done all that it was given."""
        events, self._events = self._events, []
        for before, after, weight in events:
            self._total_s += weight * float(before.elapsed_time(after)) / 1000
        return self._total_s

    def _now(self) -> "float | torch.cuda.Event":
        if self._device.type != "cuda":
            return self._clock()
        # The host runs ahead: what counts is the time between two marks in the device's own queue.
        mark: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        mark.record()
        return mark

    def _add(self, since: "float | torch.cuda.Event", sign: float) -> None:
        now = self._now()
        if isinstance(since, float) and isinstance(now, float):
            self._total_s += sign * (now - since)
        elif not isinstance(since, float) and not isinstance(now, float):
            self._events.append((since, now, sign / self._clock.members))


class TrainingStream:
    """The data that runs of one recipe and seed see from a step on: they go from batch to batch together.

    Attributes:
        task: opened for all of them.
        waiting: for its batches, so far.
        records: of all of them, which are told of samples that are left out.
    """

    def __init__(self, task: Task, first_step: int, waiting: WaitTimer, loggers: list[RunLogger]) -> None:
        self.task = task
        self.waiting = waiting
        self.loggers = loggers
        self._batches = task.batches(first_step)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """Return the next micro-batch."""
        with self.waiting:
            return next(self._batches)

    def close(self) -> None:
        """End what loads the batches."""
        if isinstance(self._batches, Generator):
            self._batches.close()


@dataclass(frozen=True)
class StepRequest:
    """A wish for an optimizer step at a learning rate; what comes is what `Trainer.train_step` returns."""

    trainer: Trainer
    stream: TrainingStream
    lr: float


@dataclass(frozen=True)
class EvaluationRequest:
    """A wish for the metrics of the validation set, as `Trainer.evaluate` returns them."""

    trainer: Trainer
    stream: TrainingStream


@dataclass(frozen=True)
class StartRequest:
    """What a run says once it has all that it needs; its clock starts when it goes on."""

    trainer: Trainer
    stream: TrainingStream


Request = StartRequest | StepRequest | EvaluationRequest

RunCoroutine = Generator[Request, Any, Stop | None]
"""A run in training, to its end: why it was stopped, or None."""
