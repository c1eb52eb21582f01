"""Trains one claimed run: from a run folder and an attempt to a result, a failure or a checkpoint."""

import contextlib
import os
import platform
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pkgutil import resolve_name

import numpy as np
import torch

from ettsweep import __version__
from ettsweep.errors import DataMissingError, EttsweepError, LostProcessError, error_line
from ettsweep.files import Json
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.metric_loggers import MetricLoggers
from ettsweep.runs.result import make_result
from ettsweep.runs.stop import StopReason
from ettsweep.strategies.strategy import strategy_name
from ettsweep.trainer.ensemble.pack import Pack
from ettsweep.trainer.models.compiler import compile_blocks
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.tasks.registry import check_data, located_data, task_kind
from ettsweep.trainer.tasks.task import BatchShare, ComputeContext, LoaderSettings, Task
from ettsweep.trainer.training import checkpoint
from ettsweep.trainer.training.coroutine import RunCoroutine, StartRequest
from ettsweep.trainer.training.distributed import SINGLE_PROCESS, ProcessGroup, detect_lost_process, is_sharded
from ettsweep.trainer.training.loop import run_loop, start_timings
from ettsweep.trainer.training.memory import explain_out_of_memory
from ettsweep.trainer.training.optimizer import build_optimizer
from ettsweep.trainer.training.precision import set_matmul_precision
from ettsweep.trainer.training.resume import environment_changes, previous_execution, resume
from ettsweep.trainer.training.run_logger import RunLogger
from ettsweep.trainer.training.runtime_settings import RuntimeSettings
from ettsweep.trainer.training.trainer import Trainer, initial_network


def environment(device: torch.device) -> Json:
    """Return device, threads and library versions, which may change the last bits of a run."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "device": str(device),
        "device_name": name,
        "threads": torch.get_num_threads(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "ettsweep": __version__,
        "python": platform.python_version(),
    }


@dataclass(frozen=True)
class ClaimedRun:
    """A run that this process has claimed, with the settings to train it.

    Attributes:
        run: the run's folder.
        attempt: the claimed attempt.
        device: of this process.
        settings: of the launch profile; `training_coroutine` resolves what is open.
        poll: called after each step; returns the reason to stop there, or None.
        group: the processes that train the run together.
    """

    run: RunDir
    attempt: Attempt
    device: torch.device
    settings: RuntimeSettings
    poll: Callable[[], StopReason | None]
    group: ProcessGroup = SINGLE_PROCESS


def train_run(
    run: RunDir,
    attempt: Attempt,
    device: torch.device,
    settings: RuntimeSettings,
    poll: Callable[[], StopReason | None],
    group: ProcessGroup = SINGLE_PROCESS,
) -> StopReason | None:
    """Train a claimed run without a pack, see `training_coroutine`; all processes of the group call this."""
    pack = Pack(device)
    (stop,) = pack.train([training_coroutine(ClaimedRun(run, attempt, device, settings, poll, group), pack)])
    return stop


def training_coroutine(claimed: ClaimedRun, pack: Pack) -> RunCoroutine:
    """Train a claimed run until it ends or `poll` returns a reason to stop; yields requests to the pack.

    Returns:
        Why the run stopped early; None if it is finished, or failed with the cause in failure.json.

    Raises:
        StorageError: not even the failure could be recorded.
        LostProcessError: another process of the group is gone, or this one failed and the others depend on it.
    """
    attempt, group = claimed.attempt, claimed.group
    logger = RunLogger(attempt, group.rank, pack.checkpoint_writer)
    try:
        return (yield from _train_attempt(claimed, pack, logger))
    except LostProcessError as error:
        logger.log(str(error))
        if attempt.failure() is None:
            attempt.record_failure("lost", str(error))
        raise
    except Exception as error:  # recorded, so that the other runs of this worker go on
        ours = isinstance(error, EttsweepError)
        # A traceback helps only with errors that are not the user's.
        details = "" if ours else traceback.format_exc()
        logger.log(f"failed: {details or error}")
        attempt.record_failure("error", str(error) if ours else error_line(error), details)
        if group.world_size > 1:  # end this process: only then do the others, which wait in a collective, notice
            raise LostProcessError(f"this process failed: {error_line(error)}") from error
    finally:
        pack.close_logger(logger)
    return None


def _train_attempt(claimed: ClaimedRun, pack: Pack, logger: RunLogger) -> RunCoroutine:
    run, attempt, device, group = claimed.run, claimed.attempt, claimed.device, claimed.group
    spec = run.spec()
    assert isinstance(spec, TransformerRun), "a run of this trainer"
    logger.log(f"run {run.id} attempt {attempt.number} on {device}, pid {os.getpid()}")

    def warn(text: str) -> None:
        logger.log(f"warning: {text}")

    previous = previous_execution(run, attempt, group)
    settings = pack.resolve_settings(spec, claimed.settings, group, previous, warn)
    torch.set_num_threads(settings.threads or 1)
    trainer = build_trainer(spec, device, settings, group)
    resume(run, attempt, group, logger, trainer)
    stream = pack.join_stream(trainer, logger, partial(open_task, spec, device, trainer.share, settings))
    trainer.task = stream.task
    trainer.model.recompute = bool(settings.activation_checkpointing)
    data = {"data": _check_same_data(trainer.task.fingerprint, group)}
    execution = settings.facts(group) | data | pack.facts(trainer)

    def not_compiled(reason: str) -> None:
        warn(reason)
        execution["compile"] = False  # a resume must not compile either, or its last bits would differ
        if group.is_leader:
            attempt.record_execution(execution)

    if settings.compile:
        compile_blocks(trainer.model, spec.recipe_key, not_compiled)
    if group.is_leader:
        attempt.record_execution(execution)
        for change in environment_changes(spec, attempt):
            warn(change)
        logger.metric_loggers = MetricLoggers(
            settings.sinks, run.path.parent.parent, run.id, _labels(spec), trainer.step, warn
        )
    for remark in filter(None, (pack.opening_remark, pack.no_stack_reason(trainer))):
        logger.log(remark)
    group.all_max(0)  # a barrier with a timeout: a process that failed above must not leave the others waiting in NCCL
    with explain_out_of_memory(trainer), _detect_lost_process(group):
        trainer.network = group.wrap(trainer.model)
        trainer.rebuild_gradient_buckets()
        yield StartRequest(trainer, stream)
        _start_s()
        timings = start_timings(trainer, settings, pack.clock)
        try:
            end = yield from run_loop(trainer, stream, logger, settings, timings, claimed.poll)
        finally:
            stream.loggers.remove(logger)
            logger.finish_saving()
        # No hash for a diverged run: its weights depend on how late the divergence was noticed.
        finished = end.stop is None and not end.diverged
        computes_weights = group.is_leader or is_sharded(trainer.model)
        weights = checkpoint.weights_sha256(trainer.model) if finished and computes_weights else None
    if end.stop is not None:
        logger.log(f"stopped at step {end.step}: {end.stop}")
        if group.is_leader:
            attempt.record_failure("interrupted", str(end.stop))
        return end.stop
    if not group.is_leader:
        return None
    if attempt.is_superseded():
        logger.log("another attempt has taken over the run")
        return StopReason.SUPERSEDED
    training_facts = {
        "environment": environment(device) | attempt.code(),
        "weights_sha256": weights,
        "execution": execution,
        "start_s": _start_s(),
    } | timings.summary()
    result = make_result(spec, logger.history, end.step, attempt, timings.spent, diverged=end.diverged)
    finished = run.finish(result | training_facts, logger.history)
    if pack.closing_remark:
        logger.log(pack.closing_remark)
    ending = f"diverged at step {end.step}" if end.diverged else "finished"
    logger.log(ending if finished else "another attempt finished first")
    return None


def prepare(
    spec: TransformerRun,
    device: torch.device,
    settings: RuntimeSettings = RuntimeSettings(),  # noqa: B008 (frozen)
    group: ProcessGroup = SINGLE_PROCESS,
) -> Trainer:
    """Build the trainer of a run at step 0, on the device, with its data.

    Raises:
        DataMissingError: the data are missing, or are not those of the spec.
    """
    trainer = build_trainer(spec, device, settings, group)
    trainer.task = open_task(spec, device, trainer.share, settings, print)
    return trainer


def build_trainer(
    spec: TransformerRun, device: torch.device, settings: RuntimeSettings, group: ProcessGroup
) -> Trainer:
    """Build the trainer of a run at step 0, on the device, without data."""
    torch.manual_seed(spec.seed)
    set_matmul_precision(spec.precision)
    model = initial_network(spec, device, group, sharded=bool(settings.sharded))
    share = BatchShare(spec.batch_size, group.rank, group.world_size, settings.micro_batch)
    return Trainer(spec, model, build_optimizer(model, spec), device, share, group)


def open_task(
    spec: TransformerRun,
    device: torch.device,
    share: BatchShare,
    settings: RuntimeSettings,
    warn: Callable[[str], None],
    compute_context: ComputeContext = contextlib.nullcontext,
) -> Task:
    """Open the data of a run.

    Args:
        spec: the run.
        device: receives the batches.
        share: this process's share of each batch.
        settings: give the path of the data and the loader's processes.
        warn: called with a line for each sample that is skipped.
        compute_context: see `LoaderSettings`.

    Raises:
        DataMissingError: the data are missing, or are not those of the spec.
    """
    data = located_data(spec.task, settings.data)
    check_data(spec.task, spec.model, data)
    loading = LoaderSettings(settings.loader_workers, settings.corrupt_images, warn, data, compute_context)
    task: Task = resolve_name(task_kind(spec.task).load)(spec.task, spec.model, spec.seed, device, share, loading)
    return task


@cache
def _start_s() -> float:
    """Return the CPU seconds of this process until the first call, at its first training step.

    They are about as many as pass until then on a machine that is free, without waits for a slot or for others.
    """
    return time.process_time()


def _check_same_data(fingerprint: str, group: ProcessGroup) -> str:
    """Return the fingerprint of the data after a check that all processes have the same.

    Raises:
        DataMissingError: the fingerprints differ.
    """
    number = int(fingerprint or "0", 16)
    # The maximum of -x is minus the minimum of x: all processes have the same x if minimum and maximum are equal.
    negated_min, largest = group.all_max(-number, number)
    if -negated_min != largest:
        raise DataMissingError("the nodes of this run have different data under the same path; copy one to all of them")
    return fingerprint


def _detect_lost_process(group: ProcessGroup) -> contextlib.AbstractContextManager[None]:
    return detect_lost_process() if group.world_size > 1 else contextlib.nullcontext()


def _labels(spec: TransformerRun) -> Json:
    return {"model": spec.labels.model, "strategy": strategy_name(spec.strategy.s)} | {
        name: getattr(spec, name) for name in ("lr", "wd", "seed", "batch_size", "precision")
    }
