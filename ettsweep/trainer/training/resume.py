"""Resuming a run from the checkpoint of an earlier attempt, and what has changed since then."""

from collections.abc import Iterable, Iterator

from ettsweep.errors import CorruptError, DataMissingError
from ettsweep.files import Json
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.trainer.models.registry import architecture
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.tasks.registry import task_kind
from ettsweep.trainer.training import checkpoint
from ettsweep.trainer.training.distributed import ProcessGroup
from ettsweep.trainer.training.run_logger import RunLogger
from ettsweep.trainer.training.trainer import Trainer

Usable = tuple[Attempt, checkpoint.CheckpointState, list[Json]]
"""An attempt, its checkpoint, and the metrics up to it."""


def previous_execution(run: RunDir, attempt: Attempt, group: ProcessGroup) -> Json:
    """Return the execution record of the newest earlier attempt; empty if there is none.

    Its thread count, micro-batch size and so on keep a resume bit-exact. They do not carry over to another number of
    processes, so the record is empty in that case too.
    """
    for earlier in [*_earlier_attempts(run, attempt), *_kept_attempts(run)]:
        if execution := earlier.execution():
            # Older records have no threads of their own; the claim has those of the slot.
            execution = {"threads": earlier.claim().get("threads")} | execution
            return execution if execution.get("processes") == group.world_size else {}
    return {}


def _earlier_attempts(run: RunDir, attempt: Attempt) -> list[Attempt]:
    return [run.attempt(number) for number in reversed(run.attempt_numbers()) if number < attempt.number]


def resume(run: RunDir, attempt: Attempt, group: ProcessGroup, logger: RunLogger, trainer: Trainer) -> None:
    """Load the newest usable checkpoint of earlier attempts, if any, into the trainer and the logger's history.

    Without any, it is that of the run which this one continues, whose metrics become its own. The leader reads it and
    distributes it; all processes of the group must call this. A run without checkpoint starts at step 0.
    """
    earlier = _earlier_attempts(run, attempt)
    newest, is_own = None, True
    if group.is_leader:
        newest = next(_usable_checkpoints(earlier, trainer, logger), None)
        if newest is None:
            is_own = False
            newest = next(_kept_checkpoints(run, trainer, logger), None)
    message = group.broadcast(newest and {"history": newest[2], "continues": not is_own})
    if message is None:
        if continued := trainer.spec.continued:
            shorter, step = continued
            logger.log(f"run {shorter.run_id} has no usable checkpoint of step {step}: starts at step 0")
        elif earlier:
            logger.log("no usable checkpoint: starts at step 0")
        return
    logger.history = message["history"]
    checkpoint.restore(newest and newest[1], trainer)
    _record_source(attempt, newest, is_own, logger, trainer)
    if message["continues"] and trainer.step == trainer.spec.schedule.kept_step:
        logger.keep_checkpoint(trainer)  # the loop, which keeps it after that step, does not take it again


def _record_source(attempt: Attempt, newest: Usable | None, is_own: bool, logger: RunLogger, trainer: Trainer) -> None:
    """Record which checkpoint was loaded; only the leader knows."""
    if newest and is_own:
        parent, _, _ = newest
        trainer.spent = parent.time_spent(trainer.step)
        attempt.record_resume(parent.number, trainer.step)
        logger.log(f"resumed from attempt {parent.number} at step {trainer.step}")
    elif newest:
        kept, _, lines = newest
        attempt.append(attempt.metrics_path, lines)
        attempt.record_continuation(kept.run.name, kept.number, trainer.step)
        logger.log(f"continues run {kept.run.name} at step {trainer.step}")


def _kept_attempts(run: RunDir) -> list[Attempt]:
    """Return the attempts of the run that this one continues which have a checkpoint for it."""
    continued = run.spec().continued
    return RunDir(run.path.parent / continued[0].run_id).kept_attempts() if continued else []


def _kept_checkpoints(run: RunDir, trainer: Trainer, logger: RunLogger) -> Iterator[Usable]:
    """Yield usable checkpoints of the run that this one continues, with the metrics that this run would have so far."""
    every = trainer.spec.schedule.eval_every
    for attempt, saved, lines in _usable_checkpoints(_kept_attempts(run), trainer, logger, kept=True):
        # A run that ends in its plateau is evaluated there.
        yield attempt, saved, [line for line in lines if "loss" in line or line["step"] % every == 0]


def _usable_checkpoints(
    attempts: Iterable[Attempt], trainer: Trainer, logger: RunLogger, *, kept: bool = False
) -> Iterator[Usable]:
    """Yield attempts with a usable checkpoint, which may be the kept one, that checkpoint, and the metrics up to it."""
    for attempt in attempts:
        try:
            saved = checkpoint.load_checkpoint(attempt, kept=kept)
            checkpoint.check_fits(saved, trainer)
            yield attempt, saved, checkpoint.load_history(saved, attempt)
        except FileNotFoundError:
            continue
        except CorruptError as error:
            logger.log(f"warning: {error}; not used")  # an older attempt may have a good one


def environment_changes(spec: TransformerRun, attempt: Attempt) -> Iterator[str]:
    """Yield a warning for each difference to the attempt that this one resumed from, with its consequence.

    Raises:
        DataMissingError: the tokens of a text task have changed, so that the run cannot be resumed.
    """
    earlier = RunDir(attempt.run).source(attempt)
    if earlier is None:
        return
    # A run alone records no pack mode, but computes the bits of an exact pack.
    defaults = {"pack_mode": "exact"}
    previous, current = (defaults | each.claim() | each.execution() for each in (earlier, attempt))
    draws = architecture(spec.model).draws_randomly(spec.model)
    for key in (
        *("device_name", "threads", "instruction_set", "torch", "ettsweep", "processes", "micro_batch"),
        *("compile", "activation_checkpointing", "sharded", "pack_mode", "data"),
    ):
        if key not in previous or previous[key] == current.get(key):
            continue
        if key == "data" and (changed := task_kind(spec.task).data_changed_message) is not None:
            raise DataMissingError(changed)
        consequence = "metrics may differ in the last bits from those of an uninterrupted run"
        if key == "data":
            consequence = "from here on the run sees other images, or the same images in another order"
        if draws and key in ("processes", "micro_batch", "compile"):
            consequence = "dropout draws differently from here on, as with another seed"
        yield f"{key} was {previous[key]}, is {current.get(key)}: {consequence}"
