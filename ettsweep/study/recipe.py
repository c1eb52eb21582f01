"""The recipe of a grid file: names and epochs resolved, and `key=value` put in."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from ettsweep.config import hidden, split_override, with_sets
from ettsweep.errors import InputError, located
from ettsweep.runs.spec import Recipe, ScheduleSpec
from ettsweep.schema import validate
from ettsweep.trainer.models.model_cost import check_size
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.tasks.registry import check_fits, steps_per_epoch, task_spec


def resolve_recipe(
    written: dict[str, Any],
    model: str | dict[str, Any],
    task: str | dict[str, Any],
    overrides: Sequence[str],
    where: str,
) -> Recipe:
    """Return a file's recipe with model and task, which may be names, and `key=value` overrides, checked by the schema.

    Raises:
        InputError: an unknown name or key, or a value that the schema refuses.
    """
    with located(where):
        data = {
            **deepcopy(written),
            "model": model_spec(model).model_dump() if isinstance(model, str) else dict(model),
            "task": task_spec(task).model_dump() if isinstance(task, str) else dict(task),
        }
    for override in overrides:
        apply_override(data, override)
    where = with_sets(where, overrides)
    if "schedule" in data:
        data["schedule"] = _in_steps(data["schedule"], data, where)
        _check_warmup(data["schedule"], written.get("schedule"), data, where)
    resolved = validate(Recipe, data, where, IN_EPOCHS)
    with located(where):
        check_size(resolved.model, resolved.optimizer)
        check_fits(resolved.task, resolved.model, resolved.batch_size)
    return resolved


def recipe_problems(
    written: object,
    model: object,
    task: object,
    overrides: Sequence[str],
    where: str,
) -> list[str]:
    """Return what is wrong with the recipe of a file that is refused anyway, so that a user mends all of it at once.

    Another stands for a model, a task or a schedule that cannot be judged alone: a name, or a number of epochs.
    """
    if not isinstance(written, dict):
        return []
    data = {
        **deepcopy(written),
        "model": dict(model) if isinstance(model, dict) else model_spec("vit-digits"),
        "task": dict(task) if isinstance(task, dict) else task_spec("digits"),
    }
    try:
        for override in overrides:
            apply_override(data, override)
        if isinstance(schedule := data.get("schedule"), dict) and EPOCHS.keys() & schedule.keys():
            data["schedule"] = _SOME_SCHEDULE
        validate(Recipe, data, with_sets(where, overrides), IN_EPOCHS)
    except InputError as error:
        return str(error).splitlines()
    return []


EPOCHS = {
    "epochs": "total_steps",
    "warmup_epochs": "warmup_steps",
    "eval_every_epochs": "eval_every",
    "stop_epoch": "stop_step",
}
"""Fields of a schedule that may be given in epochs, and may be fractions; a run is counted in steps."""

IN_EPOCHS = [("schedule", name) for name in EPOCHS]

_SOME_SCHEDULE = ScheduleSpec(total_steps=1, warmup_steps=0, eval_every=1)


def _in_steps(schedule: object, data: dict[str, Any], where: str) -> object:
    """Return a schedule of a recipe with what it says in epochs in steps of the task and the batch size.

    Raises:
        InputError: what else the recipe says is wrong, or is no number of epochs.
    """
    if not isinstance(schedule, dict) or not EPOCHS.keys() & schedule.keys():
        return schedule
    rest = validate(Recipe, data | {"schedule": _SOME_SCHEDULE}, where, IN_EPOCHS)
    with located(where):
        steps = steps_per_epoch(rest.task, rest.batch_size)
    told = {key: value for key, value in schedule.items() if key not in EPOCHS}
    for name, field in EPOCHS.items():
        if name not in schedule:
            continue
        value = schedule[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e9:
            raise InputError(f"{where}: schedule.{name}: a number of epochs is expected, got {value!r}")
        if field in told:
            raise InputError(f"{where}: schedule: {name} and {field} say the same; give one of them")
        told[field] = round(value * steps)
    return told


def _check_warmup(schedule: object, written: object, data: dict[str, Any], where: str) -> None:
    """Say what to set where the run, a schedule in steps, is shortened to less than the warm-up that the file has.

    Raises:
        InputError: it is.
    """
    try:
        before = validate(ScheduleSpec, _in_steps(written, data, where), where)
    except InputError:
        return  # the schema has the words for what is left of it
    now = schedule if isinstance(schedule, dict) else {}
    total, warmup = now.get("total_steps"), before.warmup_steps
    if now.get("warmup_steps") == warmup and isinstance(total, int) and 0 < total <= warmup:
        raise InputError(
            f"{where}: schedule: warmup_steps {warmup} must be below total_steps {total}; "
            f"--set schedule.warmup_steps={total * warmup // before.total_steps} keeps the share that the file has"
        )


OPTIONS = {
    **{"lr": "--lr-range", "wd": "--wd-range", "strategy": "--strategy", "strategies": "--strategy"},
    **{"seed": "--seeds", "seeds": "--seeds", "data": "--data", "environment": "--launch-set"},
    **{"rule": "--rule", "confidence": "--confidence", "margin": "--margin"},
    "criterion": "--rule, --confidence and --margin",
}
"""What is set otherwise than by --set, and how."""


def apply_override(data: dict[str, Any], override: str) -> None:
    """Set `a.b=value` in nested plain data; the schema judges key and value afterwards.

    Raises:
        InputError: the key is, or is like, what an option is for.
    """
    from difflib import get_close_matches

    key, value = split_override(override)
    first = key.partition(".")[0]
    known = first in Recipe.model_fields
    if meant := get_close_matches(first, () if known else OPTIONS, n=1, cutoff=0.8):
        raise InputError(f"--set {hidden(override)}: {key} is not of the recipe; use {OPTIONS[meant[0]]}")
    *parents, last = key.split(".")
    for parent in parents:
        inner = data.setdefault(parent, {})
        if not isinstance(inner, dict):
            inner = data[parent] = {"kind": inner} if isinstance(inner, str) else {}
        data = inner
    if parents == ["schedule"]:
        for epochs, steps in EPOCHS.items():
            if last in (epochs, steps):  # the last word counts, in steps or in epochs
                data.pop(epochs, None)
                data.pop(steps, None)
    data[last] = value
