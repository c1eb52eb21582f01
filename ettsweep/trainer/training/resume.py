"""Execution of an earlier attempt at a run, and changes since then."""

from collections.abc import Iterator

from ettsweep.errors import DataMissingError
from ettsweep.files import Json
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.trainer.models.registry import architecture
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.tasks.registry import task_kind
from ettsweep.trainer.training.distributed import ProcessGroup


def previous_execution(run: RunDir, attempt: Attempt, group: ProcessGroup) -> Json:
    """Return the execution record of the newest earlier attempt; empty if there is none.

    Its thread count, micro-batch size and so on keep a resume bit-exact. For another number of processes they do not
    apply, and the record is empty.
    """
    for number in sorted(run.attempt_numbers(), reverse=True):
        if number >= attempt.number:
            continue
        earlier = run.attempt(number)
        if execution := earlier.execution():
            return execution if execution.get("processes") == group.world_size else {}
    return {}


def environment_changes(spec: TransformerRun, attempt: Attempt) -> Iterator[str]:
    """Yield a warning for each difference to the resumed attempt, with its consequence.

    Raises:
        DataMissingError: the tokens of a text task have changed, so the run cannot resume.
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
