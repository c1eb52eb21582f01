"""One run: a run folder and an attempt go in, a result, a failure or a checkpoint comes out."""

import contextlib
import logging
import os
import platform
import time
import traceback
from collections.abc import Callable, Iterator

import numpy as np
import torch

from ettsweep import __version__
from ettsweep.errors import CorruptError, EttsweepError
from ettsweep.files import Json, read_lines
from ettsweep.models.build import build_model
from ettsweep.models.initialisation import initialise
from ettsweep.rundir import Attempt, RunDir
from ettsweep.spec import DigitsTask, RunSpec
from ettsweep.tasks.base import Task
from ettsweep.tasks.registry import score
from ettsweep.training import checkpoint
from ettsweep.training.loop import CheckpointPolicy, LoopEnd, Stop, Trainer, run_loop
from ettsweep.training.optimizer import build_optimizer
from ettsweep.training.precision import loss_scaler
from ettsweep.training.spikes import count_spikes


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
    policy: CheckpointPolicy,
    poll: Callable[[], Stop | None],
) -> Stop | None:
    """Train a claimed run to its end, or to where `poll` says to stop.

    Args:
        run: the run folder, with its spec.
        attempt: this owner's attempt; all files go there until the result.
        device: where to train.
        policy: when to save checkpoints.
        poll: asked at each step boundary.

    Returns:
        Why the run stopped early, or None: it is finished, or it failed and failure.json says why.

    Raises:
        StorageError: not even the failure could be recorded.
    """
    with _log_file(attempt) as log:
        try:
            return _train(run, attempt, device, policy, poll, log)
        except EttsweepError as error:
            log(f"failed: {error}")
            attempt.fail("error", str(error))
        except Exception as error:
            details = traceback.format_exc()
            log(f"failed: {details}")
            attempt.fail("error", _reason(error), details)
    return None


def _reason(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"


def _train(
    run: RunDir,
    attempt: Attempt,
    device: torch.device,
    policy: CheckpointPolicy,
    poll: Callable[[], Stop | None],
    log: Callable[[str], None],
) -> Stop | None:
    spec = run.spec()
    log(f"run {run.id} attempt {attempt.number} on {device}, pid {os.getpid()}")
    trainer, history = prepare(spec, device), list[Json]()

    def warn(text: str) -> None:
        log(f"warning: {text}; not used")

    for parent, state, metrics in checkpoint.usable(run, attempt.number, device, warn):
        try:
            checkpoint.restore(state, trainer.model, trainer.optimizer, trainer.scaler)
        except CorruptError as error:
            warn(f"{run.attempt(parent).checkpoint_path}: {error}")
            trainer = prepare(spec, device)  # part of it may have been restored
            continue
        trainer.step = state["step"]
        history = metrics
        trainer.wall_s = _wall_s(run.attempt(parent), trainer.step)
        attempt.resume_from(parent, trainer.step)
        log(f"resumed from attempt {parent} at step {trainer.step}")
        for warning in _differences(run.attempt(parent), attempt):
            log(f"warning: {warning}: metrics can differ in the last bits from an undisturbed run's")
        break
    end = run_loop(trainer, attempt, history, policy, poll, log)
    if end.stop is not None:
        log(f"stopped at step {end.step}: {end.stop}")
        attempt.fail("interrupted", str(end.stop))
        return end.stop
    if attempt.superseded():
        log("another attempt has taken the run over")
        return Stop.SUPERSEDED
    finished = run.finish(summarise(trainer, history, end, attempt.number), history)
    ending = f"diverged at step {end.step}" if end.diverged else "finished"
    log(ending if finished else "another attempt finished first")
    return None


def prepare(spec: RunSpec, device: torch.device) -> Trainer:
    """Build the objects of a run at step 0, on the device."""
    torch.manual_seed(spec.seed)
    model = build_model(spec.model)
    initialise(model, spec.model, spec.strategy, spec.seed)
    model.to(device)
    task = build_task(spec, device)
    return Trainer(spec, model, task, build_optimizer(model, spec), loss_scaler(spec.precision, device), device)


def build_task(spec: RunSpec, device: torch.device) -> Task:
    """Return the task of a run, with its data on hand."""
    if isinstance(spec.task, DigitsTask):
        from ettsweep.tasks.digits import Digits

        return Digits(spec.task, spec.batch_size, spec.seed, device)
    from ettsweep.tasks.imagenet import ImageNet

    return ImageNet(spec.task, spec.model, spec.batch_size, spec.seed, device)


def summarise(trainer: Trainer, history: list[Json], end: LoopEnd, attempts: int) -> Json:
    """Return the content of result.json."""
    spec = trainer.spec
    evaluations = [line for line in history if "val_loss" in line]
    losses = [line["val_loss"] for line in evaluations if line["val_loss"] is not None]
    accuracies = [line["val_accuracy"] for line in evaluations if line["val_accuracy"] is not None]
    result: Json = {
        "status": "diverged" if end.diverged else "done",
        "best_accuracy": max(accuracies, default=None),
        "final_accuracy": evaluations[-1]["val_accuracy"] if evaluations and not end.diverged else None,
        "best_loss": min(losses, default=None),
        "final_loss": evaluations[-1]["val_loss"] if evaluations and not end.diverged else None,
    }
    result["score"] = None if end.diverged else result[score(spec.task).metric]
    if end.diverged:
        result["diverged_step"] = end.step
    wall_s = max(trainer.wall_s, 1e-9)
    return {
        **result,
        **count_spikes(history, spec),
        "steps": end.step,
        "wall_s": trainer.wall_s,
        "device_s": trainer.wall_s,
        "steps_per_s": end.step / wall_s,
        "samples_per_s": end.step * spec.batch_size / wall_s,
        # How far beyond a divergence the weights went depends on when it was seen.
        "weights_sha256": None if end.diverged else checkpoint.weights_sha256(trainer.model),
        "attempts": attempts,
        "environment": environment(trainer.device),
    }


def _wall_s(attempt: Attempt, step: int) -> float:
    """Return the seconds that the lineage of an attempt had spent by a step."""
    spent = [t["wall_s"] for t in read_lines(attempt.timings_path) if t.get("step", 0) <= step]
    if spent:
        return float(spent[-1])
    parent, _ = attempt.resumed_from()
    return _wall_s(attempt.run.attempt(parent), step) if parent else 0.0


def _differences(parent: Attempt, attempt: Attempt) -> Iterator[str]:
    before, now = parent.claim(), attempt.claim()
    for key in ("device_name", "threads", "instruction_set", "torch", "ettsweep"):
        if before.get(key) != now.get(key):
            yield f"{key} was {before.get(key)}, is {now.get(key)}"


@contextlib.contextmanager
def _log_file(attempt: Attempt) -> Iterator[Callable[[str], None]]:
    """Give a function that appends a dated line to log.txt; a full disk costs the line, not the run."""
    logger = logging.getLogger("ettsweep")

    def log(text: str) -> None:
        logger.info("%s %s", attempt.run.id, text)
        with contextlib.suppress(OSError), attempt.log_path.open("a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")

    yield log
