"""Where an earlier attempt at a run left off, and what is not as it was then."""

from collections.abc import Iterable, Iterator

from ettsweep.errors import CorruptError, DataMissingError
from ettsweep.files import Json
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.trainer.models.registry import architecture
from ettsweep.trainer.tasks.registry import task_kind
from ettsweep.trainer.training import checkpoint
from ettsweep.trainer.training.distributed import ProcessGroup
from ettsweep.trainer.training.run_logger import RunLogger
from ettsweep.trainer.training.trainer import Trainer


def trained_before(run: RunDir, attempt: Attempt, group: ProcessGroup) -> Json:
    """Return how the newest attempt before this one was trained, if it was by as many processes."""
    for earlier in _before(run, attempt):
        if execution := earlier.execution():
            execution = {"threads": earlier.claim().get("threads")} | execution
            return execution if execution.get("processes") == group.world else {}
    return {}


def _before(run: RunDir, attempt: Attempt) -> list[Attempt]:
    """Return the attempts before this one, the newest first."""
    return [run.attempt(number) for number in reversed(run.numbers()) if number < attempt.number]


def resume(run: RunDir, attempt: Attempt, group: ProcessGroup, logger: RunLogger, trainer: Trainer) -> None:
    """Have a run go on where its last usable checkpoint left it, if any; the leader reads it, and hands it out."""
    earlier = _before(run, attempt)
    newest = next(_usable(earlier, trainer, logger), None) if group.leads else None
    message = group.from_leader(newest and {"history": newest[2]})
    if message is None:
        if earlier:
            logger.log("no checkpoint to go on from: starts at step 0")
        return
    logger.history = message["history"]
    checkpoint.restore(newest and newest[1], trainer)
    if newest:
        parent, _, _ = newest
        trainer.spent = parent.spent(trainer.step)
        attempt.resume_from(parent.number, trainer.step)
        logger.log(f"resumed from attempt {parent.number} at step {trainer.step}")


def _usable(
    attempts: Iterable[Attempt], trainer: Trainer, logger: RunLogger
) -> Iterator[tuple[Attempt, checkpoint.CheckpointState, list[Json]]]:
    """Yield the attempts from whose checkpoints a run can go on, with these and the metrics up to them."""
    for attempt in attempts:
        try:
            saved = checkpoint.load(attempt)
            checkpoint.check_fits(saved, trainer)
            yield attempt, saved, checkpoint.history(saved, attempt)
        except FileNotFoundError:
            continue
        except CorruptError as error:
            logger.log(f"warning: {error}; not used")


def changes(spec: RunSpec, attempt: Attempt) -> Iterator[str]:
    """Say what of an attempt is not as in the one that it goes on from, and what comes of it.

    Raises:
        DataMissingError: its text has other tokens now, which it cannot go on with.
    """
    earlier = attempt.parent()
    if earlier is None:
        return
    defaults = {"pack_mode": "exact"}
    previous, current = (defaults | each.claim() | each.execution() for each in (earlier, attempt))
    draws = architecture(spec.model).draws(spec.model)
    for key in (
        *("device_name", "threads", "instruction_set", "torch", "ettsweep", "processes", "micro_batch"),
        *("compile", "activation_checkpointing", "sharded", "pack_mode", "data"),
    ):
        if key not in previous or previous[key] == current.get(key):
            continue
        if key == "data" and (changed := task_kind(spec.task).changed) is not None:
            raise DataMissingError(changed)
        consequence = "metrics can differ in the last bits from an undisturbed run's"
        if key == "data":
            consequence = "from here on it sees other images, or the same in another order"
        if draws and key in ("processes", "micro_batch", "compile"):
            consequence = "dropout draws otherwise from here on, as with another seed"
        yield f"{key} was {previous[key]}, is {current.get(key)}: {consequence}"
