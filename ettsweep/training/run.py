"""One run: a run folder and an attempt go in, a result, a failure or a checkpoint comes out."""

import contextlib
import os
import platform
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from ettsweep import __version__
from ettsweep.errors import CorruptError, DataMissingError, EttsweepError, InputError
from ettsweep.files import Json, read_lines
from ettsweep.models.architectures import architecture, model_name
from ettsweep.models.build import speed_up
from ettsweep.models.cost import train_flops_per_sample
from ettsweep.models.shapes import parameter_count
from ettsweep.registry import resolve
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.scaling.strategies import strategy_name
from ettsweep.spec import ModelSpec, RunSpec
from ettsweep.tasks.base import Loading, Share, Task
from ettsweep.tasks.data import said
from ettsweep.tasks.kinds import check_data, score, task_kind
from ettsweep.training import checkpoint
from ettsweep.training.distributed import ALONE, Group, LostPeerError, is_sharded, watching
from ettsweep.training.execution import Execution
from ettsweep.training.loop import LoopEnd, Stop, Trainer, run_loop, timings_of
from ettsweep.training.memory import fitting_micro_batch, naming_the_batch
from ettsweep.training.network import initial_network
from ettsweep.training.optimizer import build_optimizer
from ettsweep.training.precision import loss_scaler, set_matmul_precision
from ettsweep.training.record import Record
from ettsweep.training.sinks import open_sinks
from ettsweep.training.spikes import count_spikes

LARGE_PARAMETERS = 1e9
"""Parameters above which a run on several devices is sharded, and activations are computed again: 16 bytes for each of
them are a fifth of a large GPU."""

COMPILE_FLOPS = 1e16
"""Work of a run above which compiling its model pays: some minutes of a GPU at a tenth of its peak."""


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


def train_run(
    run: RunDir,
    attempt: Attempt,
    device: torch.device,
    execution: Execution,
    poll: Callable[[], Stop | None],
    group: Group = ALONE,
) -> Stop | None:
    """Train a claimed run to its end, or to where `poll` says to stop.

    Args:
        run: the run folder, with its spec.
        attempt: this owner's attempt; all files go there until the result.
        device: where this process trains.
        execution: how.
        poll: asked at each step boundary.
        group: the processes that train the run together; all of them call this.

    Returns:
        Why the run stopped early, or None: it is finished, or it failed and failure.json says why.

    Raises:
        StorageError: not even the failure could be recorded.
        LostPeerError: another process of the group is gone, and it has not said why.
    """
    record = Record(attempt, group.rank)
    try:
        return _train(run, attempt, device, execution, poll, group, record)
    except LostPeerError as error:
        record.log(str(error))
        if attempt.failure() is None:
            attempt.fail("lost", str(error))
        raise
    except EttsweepError as error:
        record.log(f"failed: {error}")
        attempt.fail("error", str(error))
        _break_up(group, error)
    except Exception as error:
        details = traceback.format_exc()
        record.log(f"failed: {details}")
        attempt.fail("error", _reason(error), details)
        _break_up(group, error)
    finally:
        record.close()
    return None


def _break_up(group: Group, error: Exception) -> None:
    """End a group after an error of this process: the others wait for it, and learn that it is gone."""
    if group.world > 1:
        raise LostPeerError(f"this process failed: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"


def _train(
    run: RunDir,
    attempt: Attempt,
    device: torch.device,
    execution: Execution,
    poll: Callable[[], Stop | None],
    group: Group,
    record: Record,
) -> Stop | None:
    spec = run.spec()
    record.log(f"run {run.id} attempt {attempt.number} on {device}, pid {os.getpid()}")

    def warn(text: str) -> None:
        record.log(f"warning: {text}")

    execution = _fitting(spec, device, execution, group, _before(run, attempt, group))
    trainer = _resumed(run, attempt, group, record, lambda: prepare(spec, device, execution, group, record.skip))
    how = execution_facts(execution, group) | {"data": _agreed(trainer.task.fingerprint, group)}
    if group.leads:
        attempt.record_execution(how)
        for key, difference in _differences(attempt):
            warn(f"{difference}: {_consequence(spec, key)}")
        record.sinks = open_sinks(execution.sinks, run.path.parent.parent, run.id, _facts(spec), trainer.step, warn)
    speed_up(trainer.model, compile_blocks=bool(execution.compile), recompute=bool(execution.activation_checkpointing))
    group.agree(0)  # all have come this far: what follows waits for each, and not for ever
    with naming_the_batch(spec, trainer.share, device), watching() if group.world > 1 else contextlib.nullcontext():
        trainer.network = group.wrap(trainer.model)
        trainer.settle()
        timings = timings_of(trainer, execution)
        end = run_loop(trainer, record, execution, timings, poll)
        # How far beyond a divergence the weights went depends on when it was seen.
        finished = end.stop is None and not end.diverged
        together = group.leads or is_sharded(trainer.model)
        weights = checkpoint.weights_sha256(trainer.model) if finished and together else None
    if end.stop is not None:
        record.log(f"stopped at step {end.step}: {end.stop}")
        if group.leads:
            attempt.fail("interrupted", str(end.stop))
        return end.stop
    if not group.leads:
        return None
    if attempt.superseded():
        record.log("another attempt has taken the run over")
        return Stop.SUPERSEDED
    told = {"weights_sha256": weights, "execution": how} | timings.summary()
    result = summarise(trainer, record.history, end, attempt) | told
    finished = run.finish(result, record.history)
    ending = f"diverged at step {end.step}" if end.diverged else "finished"
    record.log(ending if finished else "another attempt finished first")
    return None


def _agreed(fingerprint: str, group: Group) -> str:
    """Return the fingerprint of the data.

    Raises:
        DataMissingError: the processes of the run do not have the same.
    """
    number = int(fingerprint or "0", 16)
    least, most = group.agree(-number, number)
    if -least != most:
        raise DataMissingError("the nodes of this run have different data under the same path")
    return fingerprint


def _before(run: RunDir, attempt: Attempt, group: Group) -> Json:
    """Return how the newest attempt before this one was trained, if it was by as many processes."""
    for number in reversed([n for n in run.numbers() if n < attempt.number]):
        if how := run.attempt(number).execution():
            return how if how.get("processes") == group.world else {}
    return {}


def _fitting(spec: RunSpec, device: torch.device, execution: Execution, group: Group, before: Json) -> Execution:
    """Return the execution with all that was left open: how it is sharded and compiled, and cut into micro-batches."""
    if spec.batch_size < group.world:
        raise InputError(f"{group.world} devices cannot share a batch of {spec.batch_size}")
    if execution.compile is None:
        pays = device.type == "cuda" and train_flops(spec) > COMPILE_FLOPS
        execution = replace(execution, compile=pays)
    execution = settled(spec.model, execution, group)
    local = -(-spec.batch_size // group.world)  # the largest part: all are cut alike
    asked = execution.micro_batch or before.get("micro_batch")
    fits = partial(fitting_micro_batch, spec, local, device, execution, group.world)
    size = min(asked, local) if isinstance(asked, int) else fits()
    return replace(execution, micro_batch=-group.agree(-size)[0])  # the least of all


def settled(model: ModelSpec, execution: Execution, group: Group) -> Execution:
    """Return the execution with what the size of the model decides; bits depend on it, so no machine counts."""
    large = parameter_count(model) > LARGE_PARAMETERS
    sharded, recompute = (
        large if asked is None else asked for asked in (execution.sharded, execution.activation_checkpointing)
    )
    return replace(execution, sharded=sharded and group.world > 1, activation_checkpointing=recompute)


def train_flops(spec: RunSpec) -> float:
    """Return the FLOPs of a whole run."""
    return float(train_flops_per_sample(spec.model)) * spec.batch_size * spec.schedule.last_step


def _resumed(run: RunDir, attempt: Attempt, group: Group, record: Record, prepared: Callable[[], Trainer]) -> Trainer:
    """Return the trainer of a run where its last usable checkpoint left it.

    The leader says which that may be. Each process loads it, or its part; where one of them cannot, none goes on there.
    """
    trainer = prepared()

    def warn(text: str) -> None:
        record.log(f"warning: {text}; not used")

    earlier = [run.attempt(number) for number in reversed(run.numbers()) if number < attempt.number]
    found = checkpoint.candidates(earlier if group.leads else (), warn)
    while (told := group.share(_told(next(found, None)))) is not None:
        parent = run.attempt(int(told["parent"]))
        problem = ""
        try:
            saved = checkpoint.load(parent, told["index"], group)
            history = checkpoint.history(saved, parent)
            checkpoint.restore(saved, trainer)
        except FileNotFoundError as error:
            problem = f"{error.filename}: is gone"
        except CorruptError as error:
            problem = str(error)
        if any(group.agree(bool(problem))):
            warn(problem or f"the checkpoint of attempt {parent.number} cannot be used by another process")
            trainer = prepared()  # part of it may have been restored
            continue
        record.history = history
        trainer.wall_s = _wall_s(parent, trainer.step)
        if group.leads:
            attempt.resume_from(parent.number, trainer.step)
            record.log(f"resumed from attempt {parent.number} at step {trainer.step}")
        return trainer
    if earlier:
        record.log("no checkpoint to go on from: starts at step 0")
    return trainer


def _told(candidate: tuple[Attempt, Json | None] | None) -> Json | None:
    return None if candidate is None else {"parent": candidate[0].number, "index": candidate[1]}


def prepare(
    spec: RunSpec,
    device: torch.device,
    execution: Execution = Execution(),  # noqa: B008 (frozen)
    group: Group = ALONE,
    skipped: Callable[[str], None] = print,
) -> Trainer:
    """Build the objects of a run at step 0, on the device.

    Args:
        spec: the run.
        device: of this process.
        execution: how it trains.
        group: the processes that train the run together.
        skipped: told of samples that are left out, and why.
    """
    torch.manual_seed(spec.seed)
    set_matmul_precision(spec.precision)
    model = initial_network(spec, device, group, sharded=bool(execution.sharded))
    share = Share(spec.batch_size, group.rank, group.world, execution.micro_batch)
    data = said(spec.task.kind, execution.data)
    loading = Loading(execution.loader_workers, execution.corrupt_images, skipped, data)
    task = build_task(spec, device, share, loading)
    scaler = loss_scaler(spec.precision, device)
    return Trainer(spec, model, model, task, build_optimizer(model, spec), scaler, device, share, group)


def build_task(spec: RunSpec, device: torch.device, share: Share, loading: Loading) -> Task:
    """Return the task of a run, with its data on hand.

    Raises:
        DataMissingError: they are not there, or are not those that the run was made for.
    """
    check_data(spec.task, spec.model, loading.data)
    task: Task = resolve(task_kind(spec.task).load)(spec.task, spec.model, spec.seed, device, share, loading)
    return task


def execution_facts(execution: Execution, group: Group) -> Json:
    """Return what of an execution can change the last bits of a run."""
    return {
        "processes": group.world,
        "micro_batch": execution.micro_batch,
        "compile": execution.compile,
        "activation_checkpointing": execution.activation_checkpointing,
        "sharded": bool(execution.sharded),
    }


def _facts(spec: RunSpec) -> Json:
    """Return what a chart of a run is labelled with."""
    return {"model": model_name(spec.model), "strategy": strategy_name(spec.strategy.s)} | {
        name: getattr(spec, name) for name in ("lr", "wd", "seed", "batch_size", "precision")
    }


def summarise(trainer: Trainer, history: list[Json], end: LoopEnd, attempt: Attempt) -> Json:
    """Return the content of result.json."""
    spec = trainer.spec
    evaluations = [line for line in history if "val_loss" in line]
    result: Json = {"status": "diverged" if end.diverged else "done"}
    for name, best in (("accuracy", max), ("loss", min), ("bits", min)):
        values = [line.get(f"val_{name}") for line in evaluations]
        result[f"best_{name}"] = best((value for value in values if value is not None), default=None)
        result[f"final_{name}"] = values[-1] if values and not end.diverged else None
    result["score"] = None if end.diverged else result[score(spec.task).metric]
    if end.diverged:
        result["diverged_step"] = end.step
    wall_s = max(trainer.wall_s, 1e-9)
    return {
        **result,
        **count_spikes(history, spec),
        "steps": end.step,
        "wall_s": trainer.wall_s,
        "device_s": trainer.wall_s * trainer.group.world,
        "steps_per_s": end.step / wall_s,
        "corrupt_images": len(attempt.skipped()),
        "attempts": attempt.number,
        "environment": environment(trainer.device),
    }


def _wall_s(attempt: Attempt, step: int) -> float:
    """Return the seconds that the lineage of an attempt had spent by a step."""
    spent = [t["wall_s"] for t in read_lines(attempt.timings_path) if t.get("step", 0) <= step]
    if spent:
        return float(spent[-1])
    parent = attempt.parent()
    return _wall_s(parent, step) if parent else 0.0


def _consequence(spec: RunSpec, key: str) -> str:
    """Return what comes of it that a run goes on in another way than it was trained before.

    Raises:
        DataMissingError: its data are others now, which it cannot go on with.
    """
    changed = task_kind(spec.task).changed
    if key == "data" and changed is not None:
        raise DataMissingError(changed)
    if key in ("processes", "micro_batch", "compile") and architecture(spec.model).draws(spec.model):
        return "dropout draws otherwise from here on, as with another seed"
    return "metrics can differ in the last bits from an undisturbed run's"


def _differences(attempt: Attempt) -> Iterator[tuple[str, str]]:
    """Yield what of an attempt is not as in the one that it goes on from: its name, and in words."""
    earlier = attempt.parent()
    if earlier is None:
        return
    before, now = earlier.claim() | earlier.execution(), attempt.claim() | attempt.execution()
    for key in (
        *("device_name", "threads", "instruction_set", "torch", "ettsweep"),
        *("processes", "micro_batch", "compile", "activation_checkpointing", "sharded", "data"),
    ):
        if key in before and before[key] != now.get(key):
            yield key, f"{key} was {before.get(key)}, is {now.get(key)}"
