"""The training loop: from a step to the end of the run, or to where it is told to stop."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor, nn

from ettsweep.files import finite
from ettsweep.models.blocks import Network
from ettsweep.models.build import example_inputs
from ettsweep.models.cost import peak_flops, train_flops_per_sample
from ettsweep.seeding import derive_seed
from ettsweep.spec import RunSpec
from ettsweep.tasks.base import Batch, Share, Task
from ettsweep.training.distributed import Group, is_sharded, rest, whole
from ettsweep.training.execution import Execution
from ettsweep.training.metrics import DRAIN_STEPS, StepBuffer, trailing_overflows
from ettsweep.training.optimizer import set_lr
from ettsweep.training.precision import autocast
from ettsweep.training.record import Record
from ettsweep.training.schedule import lr_at
from ettsweep.training.timing import Timings

DRAIN_S = 5.0
"""Seconds after which slow steps are drained too, so that progress shows."""


class Stop(StrEnum):
    """Why a run should end before its last step; where processes have different reasons, the last one here counts."""

    TERMINATED = "terminated"
    OUT_OF_TIME = "out of time or preempted"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"


STOPS = list(Stop)


@dataclass(frozen=True)
class LoopEnd:
    """How the loop ended: at `step`, told to stop, diverged there, or neither (finished)."""

    step: int
    stop: Stop | None = None
    diverged: bool = False


@dataclass
class Trainer:
    """The objects of one run in training.

    Attributes:
        model: the parameters, by name.
        network: what is called: the model, or what averages its gradients over the processes of the group.
        share: what this process trains on.
        step: the last one done.
        wall_s: seconds spent so far, in earlier attempts too.
    """

    spec: RunSpec
    model: Network
    network: nn.Module
    task: Task
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    device: torch.device
    share: Share
    group: Group
    step: int = 0
    wall_s: float = 0.0

    def settle(self) -> None:
        """Have more than two processes lay out their gradients, in a backward pass that counts for nothing.

        torch sums them in the order of the first backward pass from the second step on: what goes on at a checkpoint
        would take one step more in the other order than an undisturbed run.
        """
        if self.group.world <= 2 or is_sharded(self.model):
            return  # two numbers have one sum
        with autocast(self.spec.precision, self.device):
            outputs = self.network(*example_inputs(self.spec.model, len(self.share.slices[0]), self.device))
        outputs.sum().backward()
        self.optimizer.zero_grad(set_to_none=True)

    def seed_dropout(self, step: int) -> None:
        """Let what a model draws in a step depend on (seed, step, rank) alone."""
        if self.model.draws:
            torch.manual_seed(derive_seed(self.spec.seed, "dropout", step, self.share.rank))

    def train_step(self, lr: float, batches: Iterator[Batch]) -> tuple[Tensor, Tensor, Tensor]:
        """Take one optimizer step; nothing in it waits for the device.

        Args:
            lr: learning rate of the step.
            batches: gives the micro-batches of this process, as many as the share has slices.

        Returns:
            Loss (this process's part of the mean over the batch, times the number of processes), gradient norm before
            clipping, and loss scale, all on the device.
        """
        set_lr(self.optimizer, lr)
        loss = torch.zeros((), device=self.device)
        slices = self.share.slices
        for number in range(1, len(slices) + 1):
            batch = next(batches)
            last = number == len(slices)
            with contextlib.nullcontext() if last else self.group.accumulating(self.network):
                with autocast(self.spec.precision, self.device):
                    part = self.task.loss(self.network(*batch.inputs), batch)
                # The processes' gradients are averaged.
                part = part * (batch.share * self.share.world)
                self.scaler.scale(part).backward()  # type: ignore[no-untyped-call]
            loss = loss + part.detach()
        for _ in range(self._fewer_slices()):
            self.scaler.scale(self._go_along()).backward()  # type: ignore[no-untyped-call]
        loss_scale = self.scaler.scale(torch.ones((), device=self.device))
        self.scaler.unscale_(self.optimizer)
        parameters = list(self.model.parameters())
        grad_norm = whole(nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
        if self.spec.optimizer.clip_norm is not None:
            nn.utils.clip_grads_with_norm_(parameters, self.spec.optimizer.clip_norm, grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return loss, grad_norm, loss_scale

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return the task's metrics of the validation set; each process measures its part, each sample counts once."""
        self.model.eval()
        sums: Tensor | None = None
        slices = self.task.validation()
        for batch in self.group.abreast(slices) if is_sharded(self.model) else slices:
            if batch is None:
                self._go_along()
                continue
            with autocast(self.spec.precision, self.device):
                outputs = self.model(*batch.inputs)
            measured = self.task.measure(outputs, batch)
            sums = measured if sums is None else sums + measured
        self.model.train()
        rest(self.model)
        mine = [] if sums is None else sums.tolist()
        (size,) = self.group.agree(len(mine))
        return self.task.metrics(self.group.total(mine or [0.0] * size))

    def _fewer_slices(self) -> int:
        """Return how many micro-batches others have more than this process, which a sharded model goes through too."""
        if not is_sharded(self.model):
            return 0
        others = (replace(self.share, rank=rank) for rank in range(self.share.world))
        return max(len(share.slices) for share in others) - len(self.share.slices)

    def _go_along(self) -> Tensor:
        """Go through a sharded model with what counts for nothing, while others go through it with samples."""
        with autocast(self.spec.precision, self.device):
            outputs: Tensor = self.network(*example_inputs(self.spec.model, 1, self.device))
        return outputs.sum() * 0


class Awaited:
    """An iterator that knows how long the device has had nothing to do while its caller waited for it."""

    def __init__(self, batches: Iterator[Batch], device: torch.device) -> None:
        self._batches = batches
        self._device = device
        self._waited_s = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def __iter__(self) -> Iterator[Batch]:
        return self

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
    trainer: Trainer,
    record: Record,
    execution: Execution,
    timings: Timings,
    poll: Callable[[], Stop | None],
) -> LoopEnd:
    """Train until the last step, a divergence, or a reason to stop.

    All processes of a group come here together, and take the same turns: what depends on a clock or a signal is agreed
    on after each step, through the hosts alone.

    Args:
        trainer: the run, after `trainer.step` steps.
        record: where metrics, timings and checkpoints go, with the metrics so far.
        execution: when to save a checkpoint.
        timings: of the steps to come.
        poll: asked at each step boundary whether to stop.

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
        drained = buffer.drain()
        if drained.lines:
            drained_s = time.monotonic()
            record.metrics(drained.lines)
            step = drained.lines[-1]["step"]
            line = timings.line(step, last_step, batches.take_waited_s(), _peak_memory(trainer.device))
            trainer.wall_s = line["wall_s"]
            record.timing(line)
        return drained.diverged_step

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


def _peak_memory(device: torch.device) -> int | None:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
