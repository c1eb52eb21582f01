"""The training loop: from a step to the end of the run, or to where it is told to stop."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from ettsweep.files import finite
from ettsweep.rundir import Attempt
from ettsweep.spec import RunSpec
from ettsweep.tasks.base import Task
from ettsweep.training import checkpoint
from ettsweep.training.metrics import DRAIN_STEPS, StepBuffer, trailing_overflows
from ettsweep.training.optimizer import set_lr
from ettsweep.training.precision import autocast
from ettsweep.training.schedule import lr_at

DRAIN_S = 5.0
"""Seconds after which slow steps are drained too, so that progress shows."""


class Stop(StrEnum):
    """Why a run should end before its last step."""

    TERMINATED = "terminated"
    OUT_OF_TIME = "out of time or preempted"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"


@dataclass(frozen=True)
class CheckpointPolicy:
    """When to save; it never changes the numbers. `every_s` seconds, and every `every_steps` steps if given."""

    every_s: float = 300.0
    every_steps: int | None = None


@dataclass(frozen=True)
class LoopEnd:
    """How the loop ended: at `step`, told to stop, diverged there, or neither (finished)."""

    step: int
    stop: Stop | None = None
    diverged: bool = False


@dataclass
class Trainer:
    """The objects of one run in training; `step` is the last one done and `wall_s` the seconds spent so far."""

    spec: RunSpec
    model: nn.Module
    task: Task
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    device: torch.device
    step: int = 0
    wall_s: float = 0.0

    def train_step(self, lr: float, inputs: Tensor, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Take one optimizer step; return loss, gradient norm before clipping and loss scale, all on the device."""
        set_lr(self.optimizer, lr)
        with autocast(self.spec.precision, self.device):
            loss = self.task.loss(self.model(inputs), batch)
        loss_scale = self.scaler.scale(torch.ones((), device=self.device))
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.scaler.unscale_(self.optimizer)
        parameters = list(self.model.parameters())
        grad_norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if self.spec.optimizer.clip_norm is not None:
            nn.utils.clip_grads_with_norm_(parameters, self.spec.optimizer.clip_norm, grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return loss, grad_norm, loss_scale

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return val_loss (mean cross-entropy, nats) and val_accuracy (fraction) over the validation set."""
        self.model.eval()
        sums = torch.zeros(3, dtype=torch.float64, device=self.device)
        for batch in self.task.validation():
            with autocast(self.spec.precision, self.device):
                outputs = self.model(batch.inputs)
            sums += self.task.measure(outputs, batch)
        self.model.train()
        loss, correct, count = sums.tolist()
        return {"val_loss": loss / count, "val_accuracy": correct / count}


def run_loop(
    trainer: Trainer,
    attempt: Attempt,
    history: list[dict[str, Any]],
    policy: CheckpointPolicy,
    poll: Callable[[], Stop | None],
    log: Callable[[str], None],
) -> LoopEnd:
    """Train until the last step, a divergence, or a reason to stop.

    Args:
        trainer: the run, after `trainer.step` steps.
        attempt: where metrics, timings and checkpoints go.
        history: metrics so far; what is drained is added to it.
        policy: when to save a checkpoint.
        poll: asked at each step boundary whether to stop.
        log: takes one line of text.

    Raises:
        StorageError: metrics or a checkpoint cannot be written.
    """
    spec, schedule = trainer.spec, trainer.spec.schedule
    last_step = schedule.last_step
    buffer = StepBuffer(spec.precision, trailing_overflows(history))
    started_s = saved_s = drained_s = time.monotonic()
    wall_before_s, first_step = trainer.wall_s, trainer.step

    def drain() -> int | None:
        nonlocal drained_s
        drained = buffer.drain()
        if drained.lines:
            drained_s = time.monotonic()
            trainer.wall_s = wall_before_s + drained_s - started_s
            attempt.append(attempt.metrics_path, drained.lines)
            history.extend(drained.lines)
            step = drained.lines[-1]["step"]
            rate = (step - first_step) / max(1e-9, drained_s - started_s)
            timing = {
                "step": step,
                "progress": step / last_step,
                "wall_s": trainer.wall_s,
                "steps_per_s": rate,
            }
            attempt.append(attempt.timings_path, [timing])
        return drained.diverged_step

    def save() -> None:
        nonlocal saved_s
        checkpoint.save(attempt, trainer.step, trainer.model, trainer.optimizer, trainer.scaler, history)
        saved_s = time.monotonic()

    batches = trainer.task.batches(trainer.step + 1)
    while trainer.step < last_step:
        stop = poll()
        if stop is not None:
            diverged_step = drain()
            if diverged_step is not None:
                return LoopEnd(diverged_step, diverged=True)
            if stop is not Stop.SUPERSEDED:
                save()
            return LoopEnd(trainer.step, stop=stop)
        step = trainer.step + 1
        lr = lr_at(step, spec.lr, schedule)
        batch = next(batches)
        buffer.add(step, lr, *trainer.train_step(lr, batch.inputs, batch))
        trainer.step = step
        now_s = time.monotonic()
        evaluates = step % schedule.eval_every == 0 or step == last_step
        saves = now_s - saved_s >= policy.every_s or (policy.every_steps and step % policy.every_steps == 0)
        if evaluates or saves or len(buffer) >= DRAIN_STEPS or now_s - drained_s >= DRAIN_S:
            diverged_step = drain()
            if diverged_step is not None:
                return LoopEnd(diverged_step, diverged=True)
        if evaluates:
            line = finite({"step": step, **trainer.evaluate()})
            attempt.append(attempt.metrics_path, [line])
            history.append(line)
            log(
                f"step {step}/{last_step}  lr {lr:.3g}  "
                + "  ".join(f"{k} {v:.4g}" for k, v in line.items() if isinstance(v, float))
            )
            trainer.wall_s = wall_before_s + time.monotonic() - started_s
            if line["val_loss"] is None and step == last_step:  # earlier, the next training loss tells
                return LoopEnd(step, diverged=True)
        if saves and step < last_step:
            save()
    return LoopEnd(trainer.step)
