"""The training loop: from a step to the end of the run, or to where it is told to stop."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

import torch

from ettsweep.files import finite
from ettsweep.models.cost import peak_flops, train_flops_per_sample
from ettsweep.tasks.base import Batch
from ettsweep.training.execution import Execution
from ettsweep.training.metrics import DRAIN_STEPS, StepBuffer, trailing_overflows
from ettsweep.training.record import Record
from ettsweep.training.schedule import lr_at
from ettsweep.training.timing import Timings
from ettsweep.training.trainer import Trainer

DRAIN_S = 5.0
"""Seconds after which slow steps are drained too, so that progress shows."""


class Stop(StrEnum):
    """Why a run should end before its last step; where processes have different reasons, the last one here counts."""

    TERMINATED = "terminated"
    OUT_OF_TIME = "out of time or preempted"
    PRUNED = "pruned"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"


STOPS = list(Stop)


@dataclass(frozen=True)
class LoopEnd:
    """How the loop ended: at `step`, told to stop, diverged there, or neither (finished)."""

    step: int
    stop: Stop | None = None
    diverged: bool = False


class Awaited(Iterator[Batch]):
    """An iterator that knows how long the device has had nothing to do while its caller waited for it."""

    def __init__(self, batches: Iterator[Batch], device: torch.device) -> None:
        self._batches = batches
        self._device = device
        self._waited_s = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def __next__(self) -> Batch:
        if self._device.type == "cuda":
            # The host runs ahead: what counts is the time between two marks in the device's own queue.
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            before.record()
            batch = next(self._batches)
            after.record()
            self._events.append((before, after))
            return batch
        asked_s = time.monotonic()
        batch = next(self._batches)
        self._waited_s += time.monotonic() - asked_s
        return batch

    def take_waited_s(self) -> float:
        """Return the seconds since the last time that this was asked; the device has done all that it was given."""
        waited_ms = sum(float(before.elapsed_time(after)) for before, after in self._events)
        waited_s = self._waited_s + waited_ms / 1000
        self._waited_s, self._events = 0.0, []
        return waited_s


def timings_of(trainer: Trainer, execution: Execution) -> Timings:
    """Return what tells how fast a run goes, on all of its devices together."""
    spec, device = trainer.spec, trainer.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    peak = execution.peak_flops
    if peak is None and device.type == "cuda":
        peak = peak_flops(torch.cuda.get_device_name(device), spec.precision)
    return Timings(
        samples_per_step=spec.batch_size,
        flops_per_sample=train_flops_per_sample(spec.model),
        peak_flops=None if peak is None else peak * trainer.group.world,
        before_s=trainer.wall_s,
        first_step=trainer.step,
    )


def run_loop(
    trainer: Trainer, record: Record, execution: Execution, timings: Timings, poll: Callable[[], Stop | None]
) -> LoopEnd:
    """Train until the last step, a divergence, or a reason to stop.

    All processes of a group come here together, and take the same turns: what depends on a clock or a signal is agreed
    on after each step, through the hosts alone.

    Raises:
        StorageError: metrics or a checkpoint cannot be written.
        LostPeerError: another process of the group is gone.
    """
    spec, schedule, group = trainer.spec, trainer.spec.schedule, trainer.group
    last_step = schedule.last_step
    buffer = StepBuffer(spec.precision, trailing_overflows(record.history), group)
    saved_s = drained_s = time.monotonic()
    batches = Awaited(trainer.task.batches(trainer.step + 1), trainer.device)

    def drain() -> int | None:
        nonlocal drained_s
        lines, diverged_step = buffer.drain()
        if lines:
            drained_s = time.monotonic()
            record.metrics(lines)
            step, cuda = lines[-1]["step"], trainer.device.type == "cuda"
            memory_bytes = torch.cuda.max_memory_allocated(trainer.device) if cuda else None
            line = timings.line(step, last_step, batches.take_waited_s(), memory_bytes)
            trainer.wall_s = line["wall_s"]
            record.timing(line)
        return diverged_step

    def ask() -> tuple[Stop | None, bool, bool]:
        """Return why to stop, whether to save, and whether to drain; the same on all processes."""
        now_s, stop = time.monotonic(), poll()
        code, saves, drains = group.agree(
            STOPS.index(stop) + 1 if stop else 0,
            now_s - saved_s >= execution.checkpoint_every_s,
            now_s - drained_s >= DRAIN_S,
        )
        return STOPS[code - 1] if code else None, bool(saves), bool(drains)

    stop, _, _ = ask()
    while trainer.step < last_step and stop is None:
        step = trainer.step + 1
        lr = lr_at(step, spec.lr, schedule)
        trainer.seed_dropout(step)
        buffer.add(step, lr, *trainer.train_step(lr, batches))
        trainer.step = step
        stop, saves, drains = ask()
        every = execution.checkpoint_every_steps
        saves = (saves or bool(every and step % every == 0)) and step < last_step
        evaluates = step % schedule.eval_every == 0 or step == last_step
        if evaluates or saves or stop or drains or len(buffer) >= DRAIN_STEPS:
            diverged_step = drain()
            if diverged_step is not None:
                return LoopEnd(diverged_step, diverged=True)
        if evaluates:
            with timings.not_training():
                line = finite({"step": step, **trainer.evaluate()})
            record.metrics([line])
            record.log(
                f"step {step}/{last_step}  lr {lr:.3g}  "
                + "  ".join(f"{k} {v:.4g}" for k, v in line.items() if isinstance(v, float))
            )
            if line["val_loss"] is None and step == last_step:  # earlier, the next training loss tells
                return LoopEnd(step, diverged=True)
        if saves:
            with timings.not_training():
                record.checkpoint(trainer)
            saved_s = time.monotonic()
    trainer.wall_s = timings.wall_s
    if trainer.step == last_step:
        return LoopEnd(last_step)
    if stop is not Stop.SUPERSEDED:
        record.checkpoint(trainer)
    return LoopEnd(trainer.step, stop=stop)
