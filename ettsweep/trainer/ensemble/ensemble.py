"""An ensemble: runs of one recipe that train in one stack, each from its own step to its own end."""

import contextlib
import os
import signal
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from ettsweep.call import Ended, failure_code, failure_text
from ettsweep.errors import EttsweepError, error_line
from ettsweep.run import Run
from ettsweep.trainer.ensemble.stack import Stack
from ettsweep.trainer.models.registry import architecture
from ettsweep.trainer.training.async_checkpoint import AsyncCheckpointWriter
from ettsweep.trainer.training.distributed import SINGLE_PROCESS
from ettsweep.trainer.training.memory import fitting_runs, release_memory
from ettsweep.trainer.training.run import RunInTraining, spec_of
from ettsweep.trainer.training.runtime_settings import RuntimeSettings
from ettsweep.trainer.training.stream import SharedClock, Streams, TrainingStream, close_streams


def train_ensemble(
    runs: Sequence[Run], device: torch.device, settings: RuntimeSettings, ended: Ended, workers: int = 1
) -> None:
    """Train runs of one recipe in stacks, as many at once as fit into memory, each from its own step to its own end.

    Args:
        runs: the runs.
        device: of this process.
        settings: of the launch profile.
        ended: called with each run that has ended.
        workers: number of workers that share the memory of this machine.
    """
    spec = spec_of(runs[0])
    size = (
        max(1, fitting_runs(spec, device, settings.micro_batch, workers)) if architecture(spec.model).can_stack else 1
    )
    for start in range(0, len(runs), size):
        members, writer, clock = runs[start : start + size], AsyncCheckpointWriter(), SharedClock(size)
        each = settings.for_stack(len(members)) if len(members) > 1 else settings
        with contextlib.closing(writer):
            trainings = [RunInTraining(run, device, each, SINGLE_PROCESS, writer, clock) for run in members]
            Ensemble(trainings, clock, ended).train()
        release_memory(device)


class Ensemble:
    """Trains runs together until all have ended.

    A run that diverges, fails or stops does not affect the others. If something shared fails, such as memory, the runs
    continue one after the other, and only a run at fault fails.

    Args:
        runs: of one recipe, whose settings are `RuntimeSettings.for_stack`.
        clock: of all runs.
        ended: called with each run that has ended.
    """

    def __init__(self, runs: Sequence[RunInTraining], clock: SharedClock, ended: Ended) -> None:
        self._runs, self._clock, self._ended = runs, clock, ended
        self._streams = Streams()
        self._stack: Stack | None = None
        self._evaluates_at_once = True

    def train(self) -> None:
        """Train the runs to their ends."""
        count = len(self._runs)
        remark = f"trains in a stack of {count} runs: not bit-exact, it rounds differently from a run alone"
        try:
            self._for_each(self._runs, lambda run: run.prepare(self._streams, remark if count > 1 else ""))
            self._for_each(self._runs, RunInTraining.start)
            self._for_each(self._runs, _stop_if_asked)
            try:
                while len(active := self._active()) > 1:
                    self._clock.begin_round(len(active))
                    self._take_step(active)
            except Exception as error:  # nothing has changed since the last step
                self._stack = None
                self._check_device()
                for run in self._active():
                    run.log(f"trains alone from step {run.trainer.step + 1} on: the stack failed, {error_line(error)}")
            while active := self._active():  # the last run, or all if the stack failed
                self._clock.begin_round(len(active))
                self._for_each(active[:1], _train_alone)
        finally:
            for run in self._active():
                run.close()
            close_streams(self._streams)

    def _active(self) -> list[RunInTraining]:
        return [run for run in self._runs if not run.is_over]

    def _for_each(self, runs: Iterable[RunInTraining], act: Callable[[RunInTraining], None]) -> None:
        """Act on each run that is not over; an error ends only its run."""
        for run in runs:
            if run.is_over:
                continue
            code, reason = 0, ""
            try:
                act(run)
            except Exception as error:
                run.is_over = True
                ours = isinstance(error, EttsweepError)
                run.log("failed: " + (str(error) if ours else traceback.format_exc()))
                code, reason = failure_code(error), failure_text(error)
            if run.is_over:
                run.close()
                self._ended(run.run, code, reason)
                self._check_device()

    def _check_device(self) -> None:
        """End this process if the device is broken, before another run fails for it; the others resume."""
        if self._runs[0].device.type == "cuda":
            try:
                torch.cuda.synchronize()
            except RuntimeError:
                os.kill(os.getpid(), signal.SIGKILL)

    def _take_step(self, active: Sequence[RunInTraining]) -> None:
        """Take and process a step of each run; raise if nothing has changed yet."""
        # Ended runs compute in vain until they are half of the stack: each size is traced again.
        if self._stack is None or 2 * len(active) <= len(self._stack.trainers):
            self._stack = Stack([run.trainer for run in active])
        slices = len(active[0].trainer.share.slices)
        batches = {stream: list(islice(stream, slices)) for stream in _streams_of(active)}
        losses, gradients = self._stack.gradients({run.trainer: batches[run.stream] for run in active})
        try:
            updates = self._stack.update(gradients, {run.trainer: run.loop.lr for run in active})
        except Exception as error:  # some parameters may have taken the step: no run can continue
            self._for_each(active, partial(_fail, error))
            return
        self._for_each(active, lambda run: run.loop.record_step(losses[run.trainer], *updates[run.trainer]))
        self._evaluate([run for run in active if not run.is_over and run.loop.evaluates])
        self._for_each(active, _finish_step)

    def _evaluate(self, runs: Sequence[RunInTraining]) -> None:
        with contextlib.ExitStack() as timers:
            for run in runs:
                timers.enter_context(run.loop.timings.not_training())
            sums = self._measure_at_once(runs)

        def evaluate(run: RunInTraining) -> None:
            with run.loop.timings.not_training():
                metrics = run.trainer.metrics(sums[run]) if run in sums else run.trainer.evaluate()
            run.loop.record_evaluation(metrics)

        self._for_each(runs, evaluate)

    def _measure_at_once(self, runs: Sequence[RunInTraining]) -> dict[RunInTraining, Tensor]:
        """Return each run's sums over the validation set; empty if each run must evaluate alone."""
        sums: dict[RunInTraining, Tensor] = {}
        if self._stack is None or not self._evaluates_at_once or len(runs) < 2:
            return sums
        try:
            slices = {stream: stream.task.validation() for stream in _streams_of(runs)}
            for batches in zip(*slices.values(), strict=True):
                batch_of = dict(zip(slices, batches, strict=True))
                outputs = self._stack.outputs({run.trainer: batch_of[run.stream] for run in runs})
                for run in runs:
                    measured = run.trainer.task.measure(outputs[run.trainer], batch_of[run.stream])
                    sums[run] = sums[run] + measured if run in sums else measured
        except Exception as error:
            self._evaluates_at_once = False
            for run in runs:
                run.log(f"evaluated alone from step {run.trainer.step} on: the stack failed, {error_line(error)}")
            return {}
        return sums


def _streams_of(runs: Iterable[RunInTraining]) -> list[TrainingStream]:
    """Return the streams of some runs, each once."""
    return list(dict.fromkeys(run.stream for run in runs))


def _stop_if_asked(run: RunInTraining) -> None:
    run.loop.stop_if_asked()  # a run stopped before its first step takes none
    if run.loop.end is not None:
        run.finish()


def _finish_step(run: RunInTraining) -> None:
    run.loop.finish_step()
    if run.loop.end is not None:
        run.finish()


def _train_alone(run: RunInTraining) -> None:
    shared = run.stream  # some steps ahead once another run has trained alone
    run.stream = TrainingStream(run.trainer.task, run.trainer.step + 1, shared.wait_timer, shared.loggers)
    with contextlib.closing(run.stream):
        run.train()
    run.finish()


def _fail(error: Exception, run: RunInTraining) -> None:
    raise error
