"""Whether data are what a task needs: what they are checked against, and who checks them."""

from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import NamedTuple

from ettsweep.doctor.checks import DoctorCheck
from ettsweep.errors import InputError
from ettsweep.runs.spec import ModelSpec, TaskSpec
from ettsweep.study.sweep_spec import SweepSpec
from ettsweep.trainer.tasks.data_location import resolve
from ettsweep.trainer.tasks.images.image_data import guess
from ettsweep.trainer.tasks.registry import task_kind, task_spec
from ettsweep.trainer.tasks.text.corpus_manifest import is_corpus


class DataRequirement(NamedTuple):
    """What a data set is to be good for: a task, and the model that is to read it, None where that is open."""

    task: TaskSpec
    model: ModelSpec | None


def subject(data: str, grid: SweepSpec | None, sets: Sequence[str], task: str | None) -> DataRequirement:
    """Return what a data set is checked against: a grid, else a task, else what it looks like.

    Raises:
        InputError: there is no such task, or its data come with a package.
    """
    if task is not None and (grid or sets):
        raise InputError("--task NAME cannot go with --model, --grid or --set: a grid says which task it is")
    if grid:
        requirement = DataRequirement(grid.recipe.task, grid.recipe.model)
    elif sets:
        raise InputError("--set changes a grid: say which, with one of --model NAME and --grid FILE")
    else:
        requirement = DataRequirement(
            task_spec(task or ("text" if is_corpus(Path(resolve(data))) else guess(data))), None
        )
    if task_kind(requirement.task).packaged:
        raise InputError(f"--data: task {requirement.task.kind} comes with a package and has no other data")
    return requirement


def examine_data(requirement: DataRequirement, data: str, samples: int | None = None) -> list[DoctorCheck]:
    """Return what a task's own examination of so many samples of a data set says, evenly spread; None means all."""
    doctor = task_kind(requirement.task).doctor
    assert doctor is not None
    rows: list[DoctorCheck] = resolve_name(doctor)(requirement.task, requirement.model, data, samples)
    return rows
