"""One run: a run folder and an attempt go in, a result, a failure or a checkpoint comes out."""

import contextlib
import os
import platform
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pkgutil import resolve_name

import numpy as np
import torch

from ettsweep import __version__
from ettsweep.errors import DataMissingError, EttsweepError, LostProcessError, error_line
from ettsweep.files import Json
from ettsweep.runs.attempt import Attempt, TimeSpent
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.spikes import count_spikes
from ettsweep.strategies.strategy import strategy_name
from ettsweep.trainer.ensemble.pack import Pack
from ettsweep.trainer.models.compiler import compile_blocks
from ettsweep.trainer.models.registry import model_name
from ettsweep.trainer.tasks.data_location import said
from ettsweep.trainer.tasks.registry import check_data, task_kind
from ettsweep.trainer.tasks.task import BatchShare, LoaderSettings, Task, Working
from ettsweep.trainer.training import checkpoint
from ettsweep.trainer.training.coroutine import RunCoroutine, StartRequest, Stop
from ettsweep.trainer.training.distributed import ALONE, ProcessGroup, is_sharded, watching
from ettsweep.trainer.training.loggers import open_loggers
from ettsweep.trainer.training.loop import LoopEnd, run_loop, timings_of
from ettsweep.trainer.training.memory import naming_the_batch
from ettsweep.trainer.training.optimizer import build_optimizer
from ettsweep.trainer.training.precision import set_matmul_precision
from ettsweep.trainer.training.resume import changes, resume, trained_before
from ettsweep.trainer.training.run_logger import RunLogger
from ettsweep.trainer.training.runtime_settings import RuntimeSettings
from ettsweep.trainer.training.trainer import Trainer, initial_network


def environment(device: torch.device) -> Json:
    """Return what a resume on the CPU must share to be exact, and what a reader of the result wants to know."""
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
    """A run that this process has claimed, and how it is to train it.

    Attributes:
        poll: asked after each step whether the run is to stop there, and why.
        group: the processes that train it together.
    """

    run: RunDir
    attempt: Attempt
    device: torch.device
    settings: RuntimeSettings
    poll: Callable[[], Stop | None]
    group: ProcessGroup = ALONE


def train_run(
    run: RunDir,
    attempt: Attempt,
    device: torch.device,
    settings: RuntimeSettings,
    poll: Callable[[], Stop | None],
    group: ProcessGroup = ALONE,
) -> Stop | None:
    """Train a claimed run alone, see `training`; all processes of the group call this."""
    pack = Pack(device)
    (stop,) = pack.train([training(ClaimedRun(run, attempt, device, settings, poll, group), pack)])
    return stop


def training(claimed: ClaimedRun, pack: Pack) -> RunCoroutine:
    """Train a claimed run to its end, or to where `poll` says to stop, in turn with the others of a pack.

    Returns:
        Why the run stopped early, or None: it is finished, or it failed and failure.json says why.

    Raises:
        StorageError: not even the failure could be recorded.
        LostPeerError: another process of the group is gone, and it has not said why.
    """
    attempt, group = claimed.attempt, claimed.group
    logger = RunLogger(attempt, group.rank, pack.saver)
    try:
        return (yield from _training(claimed, pack, logger))
    except LostProcessError as error:
        logger.log(str(error))
        if attempt.failure() is None:
            attempt.fail("lost", str(error))
        raise
    except Exception as error:
        ours = isinstance(error, EttsweepError)
        details = "" if ours else traceback.format_exc()
        logger.log(f"failed: {details or error}")
        attempt.fail("error", str(error) if ours else error_line(error), details)
        if group.world > 1:  # the others wait for this process, and learn that it is gone
            raise LostProcessError(f"this process failed: {error_line(error)}") from error
    finally:
        pack.close(logger)
    return None


def _training(claimed: ClaimedRun, pack: Pack, logger: RunLogger) -> RunCoroutine:
    run, attempt, device, group = claimed.run, claimed.attempt, claimed.device, claimed.group
    spec = run.spec()
    logger.log(f"run {run.id} attempt {attempt.number} on {device}, pid {os.getpid()}")

    def warn(text: str) -> None:
        logger.log(f"warning: {text}")

    previous = trained_before(run, attempt, group)
    settings = pack.settled(spec, claimed.settings, group, previous, warn)
    torch.set_num_threads(settings.threads or 1)
    trainer = assembled(spec, device, settings, group)
    resume(run, attempt, group, logger, trainer)
    stream = pack.join(trainer, logger, partial(open_task, spec, device, trainer.share, settings))
    trainer.task = stream.task
    trainer.model.recompute = bool(settings.activation_checkpointing)
    data = {"data": _agreed(trainer.task.fingerprint, group)}
    execution = settings.facts(group) | data | pack.facts(trainer)

    def not_compiled(reason: str) -> None:
        warn(reason)
        execution["compile"] = False
        if group.leads:
            attempt.record_execution(execution)

    if settings.compile:
        compile_blocks(trainer.model, spec.recipe_key, not_compiled)
    if group.leads:
        attempt.record_execution(execution)
        for change in changes(spec, attempt):
            warn(change)
        logger.sinks = open_loggers(settings.sinks, run.path.parent.parent, run.id, _labels(spec), trainer.step, warn)
    for remark in filter(None, (pack.opening, pack.in_turn(trainer))):
        logger.log(remark)
    group.agree(0)  # all have come this far: what follows waits for each, and not for ever
    with naming_the_batch(trainer), _together(group):
        trainer.network = group.wrap(trainer.model)
        trainer.lay_out_gradients()
        yield StartRequest(trainer, stream)
        timings = timings_of(trainer, settings, pack.clock)
        try:
            end = yield from run_loop(trainer, stream, logger, settings, timings, claimed.poll)
        finally:
            stream.loggers.remove(logger)
            logger.end_saving()
        # How far beyond a divergence the weights went depends on when it was seen.
        finished = end.stop is None and not end.diverged
        computes_weights = group.leads or is_sharded(trainer.model)
        weights = checkpoint.weights_sha256(trainer.model) if finished and computes_weights else None
    if end.stop is not None:
        logger.log(f"stopped at step {end.step}: {end.stop}")
        if group.leads:
            attempt.fail("interrupted", str(end.stop))
        return end.stop
    if not group.leads:
        return None
    if attempt.superseded():
        logger.log("another attempt has taken the run over")
        return Stop.SUPERSEDED
    training_facts = {
        "environment": environment(device),
        "weights_sha256": weights,
        "execution": execution,
    } | timings.summary()
    result = _summarise(spec, logger.history, end, attempt, timings.spent) | training_facts
    finished = run.finish(result, logger.history)
    if pack.closing:
        logger.log(pack.closing)
    ending = f"diverged at step {end.step}" if end.diverged else "finished"
    logger.log(ending if finished else "another attempt finished first")
    return None


def prepare(
    spec: RunSpec,
    device: torch.device,
    settings: RuntimeSettings = RuntimeSettings(),  # noqa: B008 (frozen)
    group: ProcessGroup = ALONE,
) -> Trainer:
    """Build the objects of a run at step 0, on the device, with its data.

    Raises:
        DataMissingError: the data are not there, or are not those that the run was made for.
    """
    trainer = assembled(spec, device, settings, group)
    trainer.task = open_task(spec, device, trainer.share, settings, print)
    return trainer


def assembled(spec: RunSpec, device: torch.device, settings: RuntimeSettings, group: ProcessGroup) -> Trainer:
    """Build the objects of a run at step 0, on the device, all but its data."""
    torch.manual_seed(spec.seed)
    set_matmul_precision(spec.precision)
    model = initial_network(spec, device, group, sharded=bool(settings.sharded))
    share = BatchShare(spec.batch_size, group.rank, group.world, settings.micro_batch)
    return Trainer(spec, model, build_optimizer(model, spec), device, share, group)


def open_task(
    spec: RunSpec,
    device: torch.device,
    share: BatchShare,
    settings: RuntimeSettings,
    skipped: Callable[[str], None],
    working: Working = contextlib.nullcontext,
) -> Task:
    """Open the data of a run; `skipped` is told of samples that are left out, and why, `working` see `Loading`.

    Raises:
        DataMissingError: they are not there, or are not those that the run was made for.
    """
    data = said(spec.task.kind, settings.data)
    check_data(spec.task, spec.model, data)
    loading = LoaderSettings(settings.loader_workers, settings.corrupt_images, skipped, data, working)
    task: Task = resolve_name(task_kind(spec.task).load)(spec.task, spec.model, spec.seed, device, share, loading)
    return task


def _agreed(fingerprint: str, group: ProcessGroup) -> str:
    """Return the fingerprint of the data.

    Raises:
        DataMissingError: the processes of the run do not have the same.
    """
    number = int(fingerprint or "0", 16)
    negated_min, largest = group.agree(-number, number)
    if -negated_min != largest:
        raise DataMissingError("the nodes of this run have different data under the same path")
    return fingerprint


def _together(group: ProcessGroup) -> contextlib.AbstractContextManager[None]:
    """Return a context in which an error may be that another process of the run is gone."""
    return watching() if group.world > 1 else contextlib.nullcontext()


def _labels(spec: RunSpec) -> Json:
    """Return what a chart of a run is labelled with."""
    return {"model": model_name(spec.model), "strategy": strategy_name(spec.strategy.s)} | {
        name: getattr(spec, name) for name in ("lr", "wd", "seed", "batch_size", "precision")
    }


def _summarise(spec: RunSpec, history: list[Json], end: LoopEnd, attempt: Attempt, spent: TimeSpent) -> Json:
    """Return what result.json says of a run, but for how it was trained."""
    evaluations = [line for line in history if "val_loss" in line]
    result: Json = {"status": "diverged" if end.diverged else "done"}
    for name, select in (("accuracy", max), ("loss", min), ("bits", min)):
        values = [line.get(f"val_{name}") for line in evaluations]
        result[f"best_{name}"] = select((value for value in values if value is not None), default=None)
        result[f"final_{name}"] = values[-1] if values and not end.diverged else None
    result["score"] = None if end.diverged else result[task_kind(spec.task).score.metric]
    if end.diverged:
        result["diverged_step"] = end.step
    return {
        **result,
        **count_spikes(history, spec),
        "steps": end.step,
        "wall_s": spent.wall_s,
        "device_s": spent.device_s,
        "steps_per_s": end.step / max(spent.wall_s, 1e-9),
        "corrupt_images": len(attempt.skipped()),
        "attempts": attempt.number,
    }
