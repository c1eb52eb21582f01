"""Whether data are what a task needs: what they are checked against, and who checks them."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ettsweep.doctor.checks import Check
from ettsweep.errors import InputError
from ettsweep.registry import resolve as imported
from ettsweep.spec import ModelSpec, TaskSpec
from ettsweep.sweep.gridfile import find_grid, load_request
from ettsweep.sweep.search import ANYWHERE
from ettsweep.tasks.data import resolve
from ettsweep.tasks.images.location import guess
from ettsweep.tasks.kinds import task_kind, task_spec
from ettsweep.tasks.text.manifest import is_corpus


class Subject(NamedTuple):
    """What a data set is to be good for: a task, and the model that is to read it, None where that is open."""

    task: TaskSpec
    model: ModelSpec | None


def subject(data: str, model: str | None, grid: Path | None, sets: Sequence[str], task: str | None) -> Subject:
    """Return what a data set is checked against: a grid, else a task, else what it looks like.

    Raises:
        InputError: there is no such grid or task, or its data come with a package.
    """
    if task is not None and (model or grid or sets):
        raise InputError("--task NAME cannot go with --model, --grid or --set: a grid says which task it is")
    if model or grid:
        recipe = load_request(grid or find_grid(str(model)), overrides=sets, start=ANYWHERE).recipe
        found = Subject(recipe.task, recipe.model)
    elif sets:
        raise InputError("--set changes a grid: say which, with one of --model NAME and --grid FILE")
    else:
        found = Subject(task_spec(task or ("text" if is_corpus(Path(resolve(data))) else guess(data))), None)
    if task_kind(found.task).packaged:
        raise InputError(f"--data: task {found.task.kind} comes with a package and has no other data")
    return found


def examine_data(meant: Subject, data: str, samples: int | None = None) -> list[Check]:
    """Return what a task's own examination of a data set says.

    Args:
        meant: what the data are to be good for.
        data: where they are.
        samples: how many of them to read, evenly spread; None for all.
    """
    doctor = task_kind(meant.task).doctor
    assert doctor is not None
    rows: list[Check] = imported(doctor)(meant.task, meant.model, data, samples)
    return rows
