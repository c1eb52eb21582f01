"""The training loop of a run: from its current step to the last one, a divergence, or a reason to stop."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ettsweep.run import Diverged, Run
from ettsweep.trainer.models.model_cost import peak_flops, train_flops_per_sample
from ettsweep.trainer.training.run_logger import RunLogger
from ettsweep.trainer.training.runtime_settings import RuntimeSettings
from ettsweep.trainer.training.schedule import lr_at
from ettsweep.trainer.training.step_buffer import DRAIN_STEPS, StepBuffer
from ettsweep.trainer.training.step_timing import Timings
from ettsweep.trainer.training.stream import SharedClock, TrainingStream, WaitTimer
from ettsweep.trainer.training.trainer import Trainer

DRAIN_S = 5.0
"""Seconds after which buffered values are written even after few steps, to show progress."""


@dataclass(frozen=True)
class LoopEnd:
    """How the loop ended at `step`: stopped, diverged, or else finished."""

    step: int
    stopped: bool = False
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


def train(loop: "TrainingLoop", stream: TrainingStream) -> None:
    """Train a run by itself, from its next step to its end.

    Raises:
        StorageError: metrics or a checkpoint cannot be written.
        LostProcessError: another process of the group is gone.
    """
    loop.stop_if_asked()
    while loop.end is None:
        loop.record_step(*loop.trainer.train_step(loop.lr, stream))
        if loop.evaluates:
            with loop.timings.not_training():
                metrics = loop.trainer.evaluate()
            loop.record_evaluation(metrics)
        loop.finish_step()


class TrainingLoop:
    """The work of a run between its steps: record them, notice a divergence, save, and stop on request.

    All processes of a group do this together. So they agree after each step, between the hosts, on everything that
    depends on a clock or a signal. Raises the errors of `train`.

    Args:
        trainer: the run's objects, at the step to continue from.
        logger: receives metrics, timings and checkpoints.
        settings: with the checkpoint intervals.
        timings: see `start_timings`.
        wait_timer: of the training data.
        run: has requests to stop.

    Attributes:
        end: how the run ended; None before.
        evaluates: whether an evaluation follows the last step.
    """

    def __init__(
        self,
        trainer: Trainer,
        logger: RunLogger,
        settings: RuntimeSettings,
        timings: Timings,
        wait_timer: WaitTimer,
        run: Run,
    ) -> None:
        self.trainer, self.timings = trainer, timings
        self.end: LoopEnd | None = None
        self.evaluates = False
        self._logger, self._settings, self._wait_timer, self._run = logger, settings, wait_timer, run
        self._last_step = trainer.spec.schedule.last_step
        self._buffer = StepBuffer(trainer.spec.precision, trainer.group)
        self._saved_s = self._drained_s = time.monotonic()
        self._waited_s = wait_timer.total_s()
        self._stop = self._saves = False

    def stop_if_asked(self) -> None:
        """End the run before its next step if a stop is requested."""
        self._stop, _, _ = self._poll_processes()
        self._end_if_over()

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return lr_at(self.trainer.step + 1, self.trainer.spec.lr, self.trainer.spec.schedule)

    def record_step(self, loss: Tensor, grad_norm: Tensor, loss_scale: Tensor) -> None:
        """Record the next step, from `Trainer.train_step`, and decide what follows."""
        trainer, schedule = self.trainer, self.trainer.spec.schedule
        self._buffer.add(trainer.step + 1, self.lr, loss, grad_norm, loss_scale)
        trainer.step = step = trainer.step + 1
        self._stop, saves, drains = self._poll_processes()
        every = self._settings.checkpoint_every_steps
        self._saves = (saves or bool(every and step % every == 0)) and step < self._last_step
        self.evaluates = step % schedule.eval_every == 0 or step == self._last_step
        if self.evaluates or self._saves or self._stop or drains or len(self._buffer) >= DRAIN_STEPS:
            # Drain before a checkpoint: never save a diverged state, or a step that is missing in the metrics.
            try:
                self._drain()
            except Diverged:
                self.end, self.evaluates = LoopEnd(self._run.last_step, diverged=True), False

    def record_evaluation(self, metrics: Mapping[str, float]) -> None:
        """Record the evaluation after the last step, from `Trainer.evaluate`."""
        step, self.evaluates = self.trainer.step, False
        lr = lr_at(step, self.trainer.spec.lr, self.trainer.spec.schedule)
        self._logger.log(
            f"step {step}/{self._last_step}  lr {lr:.3g}  " + "  ".join(f"{k} {v:.4g}" for k, v in metrics.items())
        )
        try:
            self._logger.metrics([{"step": step, **metrics}])
        except Diverged:
            self.end = LoopEnd(step, diverged=True)

    def finish_step(self) -> None:
        """Save the state after the last step if due, and end the run if it is over."""
        if self.end is not None:
            return
        if self._saves:
            with self.timings.not_training():
                self._logger.checkpoint(self.trainer)
            self._saved_s = time.monotonic()
        self._end_if_over()

    def _end_if_over(self) -> None:
        step = self.trainer.step
        if step == self._last_step:
            self.end = LoopEnd(step)
        elif self._stop:
            self._logger.checkpoint(self.trainer)
            self._logger.wait_saved()
            self.end = LoopEnd(step, stopped=True)

    def _drain(self) -> None:
        """Write the buffered steps.

        Raises:
            Diverged: the run has diverged, at the last recorded step.
        """
        if lines := self._buffer.drain():
            self._drained_s = time.monotonic()
            self._logger.metrics(lines)
            step, cuda = lines[-1]["step"], self.trainer.device.type == "cuda"
            memory_bytes = torch.cuda.max_memory_allocated(self.trainer.device) if cuda else None
            # The drain has synchronised the device, so its events are complete.
            before_s, self._waited_s = self._waited_s, self._wait_timer.total_s()
            self._logger.timing(self.timings.line(step, self._last_step, self._waited_s - before_s, memory_bytes))

    def _poll_processes(self) -> tuple[bool, bool, bool]:
        """Return whether to stop, to save, and to drain: the same in all processes."""
        now_s = time.monotonic()
        stops, saves, drains = self.trainer.group.all_max(
            self._run.should_stop,
            now_s - self._saved_s >= self._settings.checkpoint_every_s,
            now_s - self._drained_s >= DRAIN_S,
        )
        return bool(stops), bool(saves), bool(drains)
