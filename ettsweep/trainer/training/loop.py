"""The training loop of a run: from its current step to the last one, a divergence, or a reason to stop."""

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import torch

from ettsweep.files import finite
from ettsweep.runs.stop import STOP_REASONS, StopReason
from ettsweep.trainer.models.model_cost import peak_flops, train_flops_per_sample
from ettsweep.trainer.training.coroutine import EvaluationRequest, Request, SharedClock, StepRequest, TrainingStream
from ettsweep.trainer.training.run_logger import RunLogger
from ettsweep.trainer.training.runtime_settings import RuntimeSettings
from ettsweep.trainer.training.schedule import lr_at
from ettsweep.trainer.training.step_buffer import DRAIN_STEPS, StepBuffer, trailing_overflows
from ettsweep.trainer.training.step_timing import Timings
from ettsweep.trainer.training.trainer import Trainer

DRAIN_S = 5.0
"""Seconds after which buffered values are written even if few steps are done, so that progress is visible."""


@dataclass(frozen=True)
class LoopEnd:
    """How the loop ended at `step`: stopped, diverged, or, if neither, finished."""

    step: int
    stop: StopReason | None = None
    diverged: bool = False


def start_timings(trainer: Trainer, settings: RuntimeSettings, clock: SharedClock) -> Timings:
    """Start the timings of a run on all of its devices, and reset the peak of the memory statistics."""
    spec, device = trainer.spec, trainer.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    peak = settings.peak_flops
    if device.type == "cuda":
        peak = peak or peak_flops(torch.cuda.get_device_name(device), spec.precision)
    return Timings(
        samples_per_step=spec.batch_size,
        flops_per_sample=train_flops_per_sample(spec.model),
        peak_flops=None if peak is None else peak * trainer.group.world_size,
        devices=trainer.group.world_size,
        spent_before=trainer.spent,
        first_step=trainer.step,
        clock=clock,
    )


def run_loop(
    trainer: Trainer,
    stream: TrainingStream,
    logger: RunLogger,
    settings: RuntimeSettings,
    timings: Timings,
    poll: Callable[[], StopReason | None],
) -> Generator[Request, Any, LoopEnd]:
    """Train until the last step, a divergence, or a reason to stop; yields a request for each step and evaluation.

    All processes of a group run this together and must yield the same requests. So they agree after each step, between
    the hosts, on everything that depends on a clock or a signal.

    Args:
        trainer: the run's objects, at the step to continue from.
        stream: its training data.
        logger: receives metrics, timings and checkpoints; its history is that up to the trainer's step.
        settings: give the checkpoint intervals.
        timings: see `start_timings`.
        poll: returns the reason to stop now, or None.

    Raises:
        StorageError: metrics or a checkpoint cannot be written.
        LostProcessError: another process of the group is gone.
    """
    spec, schedule, group = trainer.spec, trainer.spec.schedule, trainer.group
    last_step = schedule.last_step
    buffer = StepBuffer(spec.precision, trailing_overflows(logger.history), group)
    saved_s = drained_s = time.monotonic()
    waited_s = stream.wait_timer.total_s()

    def drain() -> int | None:
        nonlocal drained_s, waited_s
        lines, diverged_step = buffer.drain()
        if lines:
            drained_s = time.monotonic()
            logger.metrics(lines)
            step, cuda = lines[-1]["step"], trainer.device.type == "cuda"
            memory_bytes = torch.cuda.max_memory_allocated(trainer.device) if cuda else None
            # The drain has synchronised the device, so its events are complete.
            before_s, waited_s = waited_s, stream.wait_timer.total_s()
            logger.timing(timings.line(step, last_step, waited_s - before_s, memory_bytes))
        return diverged_step

    def poll_processes() -> tuple[StopReason | None, bool, bool]:
        """Return why to stop, whether to save, and whether to drain: the same in all processes."""
        now_s, stop = time.monotonic(), poll()
        code, saves, drains = group.all_max(
            STOP_REASONS.index(stop) + 1 if stop else 0,  # the maximum wins, see StopReason
            now_s - saved_s >= settings.checkpoint_every_s,
            now_s - drained_s >= DRAIN_S,
        )
        return STOP_REASONS[code - 1] if code else None, bool(saves), bool(drains)

    stop, _, _ = poll_processes()  # a run stopped before its first step takes none
    while trainer.step < last_step and stop is None:
        step = trainer.step + 1
        lr = lr_at(step, spec.lr, schedule)
        buffer.add(step, lr, *(yield StepRequest(trainer, stream, lr)))
        trainer.step = step
        stop, saves, drains = poll_processes()
        every = settings.checkpoint_every_steps
        saves = (saves or bool(every and step % every == 0)) and step < last_step
        evaluates = step % schedule.eval_every == 0 or step == last_step
        if evaluates or saves or stop or drains or len(buffer) >= DRAIN_STEPS:
            # Drain before a checkpoint: a diverged state must not be saved, nor a step that is not in the metrics.
            diverged_step = drain()
            if diverged_step is not None:
                return LoopEnd(diverged_step, diverged=True)
        if evaluates:
            with timings.not_training():
                line = finite({"step": step, **(yield EvaluationRequest(trainer, stream))})
            logger.metrics([line])
            logger.log(
                f"step {step}/{last_step}  lr {lr:.3g}  "
                + "  ".join(f"{k} {v:.4g}" for k, v in line.items() if isinstance(v, float))
            )
            if line["val_loss"] is None and step == last_step:  # earlier, the next training loss shows it
                return LoopEnd(step, diverged=True)
        if saves:
            with timings.not_training():
                logger.checkpoint(trainer)
            saved_s = time.monotonic()
    if trainer.step == last_step:
        return LoopEnd(last_step)
    if stop is not StopReason.SUPERSEDED:  # then another attempt owns the run
        logger.checkpoint(trainer)
        logger.wait_saved()
    return LoopEnd(trainer.step, stop=stop)
