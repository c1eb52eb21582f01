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
    for earlier in _earlier_attempts(run, attempt):
        if execution := earlier.execution():
            # Older records have no threads of their own; the claim has those of the slot.
            execution = {"threads": earlier.claim().get("threads")} | execution
            return execution if execution.get("processes") == group.world_size else {}
    return {}


def _earlier_attempts(run: RunDir, attempt: Attempt) -> list[Attempt]:
    return [run.attempt(number) for number in reversed(run.attempt_numbers()) if number < attempt.number]


def resume(run: RunDir, attempt: Attempt, group: ProcessGroup, logger: RunLogger, trainer: Trainer) -> None:
    """Load the newest usable checkpoint of earlier attempts, if any, into the trainer and the logger's history.

    The leader reads it and distributes it; all processes of the group must call this. A run without checkpoint starts
    at step 0.
    """
    earlier = _earlier_attempts(run, attempt)
    newest = next(_usable_checkpoints(earlier, trainer, logger), None) if group.is_leader else None
    message = group.broadcast(newest and {"history": newest[2]})
    if message is None:
        if earlier:
            logger.log("no usable checkpoint: starts at step 0")
        return
    logger.history = message["history"]
    checkpoint.restore(newest and newest[1], trainer)
    if newest:  # only the leader has it
        parent, _, _ = newest
        trainer.spent = parent.time_spent(trainer.step)
        attempt.record_resume(parent.number, trainer.step)
        logger.log(f"resumed from attempt {parent.number} at step {trainer.step}")


def _usable_checkpoints(attempts: Iterable[Attempt], trainer: Trainer, logger: RunLogger) -> Iterator[Usable]:
    """Yield attempts with a usable checkpoint, that checkpoint, and the metrics up to it."""
    for attempt in attempts:
        try:
            saved = checkpoint.load_checkpoint(attempt)
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
    earlier = attempt.parent()
    if earlier is None:
        return
    defaults = {"ensemble": 1}  # a run alone records none
    previous, current = (defaults | each.claim() | each.execution() for each in (earlier, attempt))
    draws = architecture(spec.model).draws_randomly(spec.model)
    for key in (
        *("device_name", "threads", "instruction_set", "torch", "ettsweep", "processes", "micro_batch"),
        *("compile", "activation_checkpointing", "sharded", "ensemble", "data"),
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
