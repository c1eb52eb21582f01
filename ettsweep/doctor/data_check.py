"""Check a data set: choose its task and model, and run the task's checks."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name
from typing import NamedTuple

from ettsweep.doctor.checks import DoctorCheck
from ettsweep.errors import DataMissingError, InputError
from ettsweep.kinds.transformer import as_transformer
from ettsweep.runs.data_location import resolve_data
from ettsweep.study.sweep_spec import SweepSpec
from ettsweep.trainer.specs import ModelSpec, TaskSpec
from ettsweep.trainer.tasks.images.image_data import guess_task, with_own_counts
from ettsweep.trainer.tasks.images.image_task import ImageTask
from ettsweep.trainer.tasks.registry import task_kind, task_spec
from ettsweep.trainer.tasks.text.corpus_manifest import is_corpus


class DataRequirement(NamedTuple):
    """The task of a data set, and the model that reads it; None for any model."""

    task: TaskSpec
    model: ModelSpec | None


def resolve_requirement(data: str, grid: SweepSpec | None, sets: Sequence[str], task: str | None) -> DataRequirement:
    """Return the task and model of a data set: of a grid, else a task by name, else a guess.

    Raises:
        InputError: the options contradict each other, the task is unknown, or its data come with a package.
    """
    if task is not None and (grid or sets):
        raise InputError("leave out --task: a grid file, --model or --set has its own task")
    if grid:
        if (recipe := as_transformer(grid.recipe)) is None:
            raise InputError(f"{grid.recipe.info.labels.title} is not a model of the built-in trainer")
        requirement = DataRequirement(recipe.task, recipe.model)
    elif sets:
        raise InputError("--set needs a grid: give a grid file, or --model NAME")
    else:
        requirement = DataRequirement(_fitted_task(data) if task is None else task_spec(task), None)
    if not task_kind(requirement.task).data_kind(requirement.task):
        raise InputError(f"leave out --data: task {requirement.task.name} has its data from a package")
    return requirement


def _fitted_task(data: str) -> TaskSpec:
    """Return a guess of the data's task, with their own numbers of images."""
    path = resolve_data(data)
    guess = task_spec("text" if is_corpus(Path(path)) else guess_task(data))
    if isinstance(guess, ImageTask) and guess.accepts_any_images:
        with suppress(DataMissingError):  # the checks say so
            guess = with_own_counts(guess, path)
    return guess


def examine_data(requirement: DataRequirement, data: str, samples: int | None = None) -> list[DoctorCheck]:
    """Return the checks of a task on a data set.

    Args:
        requirement: task and model of the data.
        data: path of the data set.
        samples: number of samples to check, evenly spread; None for all.
    """
    doctor = task_kind(requirement.task).doctor
    assert doctor is not None
    rows: list[DoctorCheck] = resolve_name(doctor)(requirement.task, requirement.model, data, samples)
    return rows
