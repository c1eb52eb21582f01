"""Resolution of the recipe of a grid file: names, epochs, and `key=value` overrides."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from ettsweep.config import hide_secrets, source_with_overrides, split_override
from ettsweep.errors import InputError, with_source
from ettsweep.runs.spec import Recipe, ScheduleSpec
from ettsweep.schema import validate
from ettsweep.trainer.models.model_cost import check_size
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.tasks.registry import check_compatible, steps_per_epoch, task_spec


def resolve_recipe(
    recipe: dict[str, Any],
    model: str | dict[str, Any],
    task: str | dict[str, Any],
    overrides: Sequence[str],
    location: str,
) -> Recipe:
    """Return the validated recipe of a grid file.

    Args:
        recipe: the mapping under `recipe:`.
        model: name, or mapping of fields.
        task: name, or mapping of fields.
        overrides: `key=value` for dotted keys of the recipe.
        location: the file, for error messages.

    Raises:
        InputError: an unknown name or key, or a value that the schema refuses.
    """
    with with_source(location):
        data = {
            **deepcopy(recipe),  # overrides change it in place, and `_check_warmup` needs the file's schedule
            "model": model_spec(model).model_dump() if isinstance(model, str) else dict(model),
            "task": task_spec(task).model_dump() if isinstance(task, str) else dict(task),
        }
    for override in overrides:
        apply_override(data, override)
    location = source_with_overrides(location, overrides)
    if "schedule" in data:
        data["schedule"] = _epochs_to_steps(data["schedule"], data, location)
        _check_warmup(data["schedule"], recipe.get("schedule"), data, location)
    resolved = validate(Recipe, data, location, EPOCH_KEYS)
    with with_source(location):
        check_size(resolved.model, resolved.optimizer)
        check_compatible(resolved.task, resolved.model, resolved.batch_size)
    return resolved


def recipe_problems(
    recipe: object,
    model: object,
    task: object,
    overrides: Sequence[str],
    location: str,
) -> list[str]:
    """Return the problems of the recipe in a file that has other problems, so that a user sees all of them at once.

    Arguments are those of `resolve_recipe`, unchecked. Names of models and tasks, and schedules in epochs, are replaced
    by valid placeholders: they cannot be resolved before the other problems are fixed.
    """
    if not isinstance(recipe, dict):
        return []
    data = {
        **deepcopy(recipe),
        "model": dict(model) if isinstance(model, dict) else model_spec("vit-digits"),
        "task": dict(task) if isinstance(task, dict) else task_spec("digits"),
    }
    try:
        for override in overrides:
            apply_override(data, override)
        if isinstance(schedule := data.get("schedule"), dict) and STEPS_FIELD_OF.keys() & schedule.keys():
            data["schedule"] = _PLACEHOLDER_SCHEDULE
        validate(Recipe, data, source_with_overrides(location, overrides), EPOCH_KEYS)
    except InputError as error:
        # A line for each problem, so that they can be listed with those of the rest of the file.
        return str(error).splitlines()
    return []


STEPS_FIELD_OF = {
    "epochs": "total_steps",
    "warmup_epochs": "warmup_steps",
    "eval_every_epochs": "eval_every",
    "stop_epoch": "stop_step",
}
"""Schedule fields in epochs, which may be fractions, and the fields in steps that they are converted to."""

EPOCH_KEYS = [("schedule", name) for name in STEPS_FIELD_OF]
"""Their keys, which the schema does not know, for its hints on misspelt keys."""

_PLACEHOLDER_SCHEDULE = ScheduleSpec(total_steps=1, warmup_steps=0, eval_every=1)


def _epochs_to_steps(schedule: object, data: dict[str, Any], location: str) -> object:
    """Convert the epochs of a schedule to steps; `data` is the recipe, for task and batch size.

    Raises:
        InputError: another part of the recipe is invalid, or a value is not a number of epochs.
    """
    if not isinstance(schedule, dict) or not STEPS_FIELD_OF.keys() & schedule.keys():
        return schedule
    # Steps per epoch depend on task and batch size, so these have to be valid first.
    recipe = validate(Recipe, data | {"schedule": _PLACEHOLDER_SCHEDULE}, location, EPOCH_KEYS)
    with with_source(location):
        steps = steps_per_epoch(recipe.task, recipe.batch_size)
    converted = {key: value for key, value in schedule.items() if key not in STEPS_FIELD_OF}
    for name, field in STEPS_FIELD_OF.items():
        if name not in schedule:
            continue
        value = schedule[name]
        # bool is a subclass of int: YAML's `yes` would be one epoch.
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e9:
            raise InputError(f"{location}: schedule.{name}: a number of epochs is expected, got {value!r}")
        if field in converted:  # else the order of the keys would decide
            raise InputError(f"{location}: schedule: {name} and {field} set the same value; give one of them")
        converted[field] = round(value * steps)
    return converted


def _check_warmup(schedule: object, file_schedule: object, data: dict[str, Any], location: str) -> None:
    """Suggest a warm-up if overrides shorten the run to less than the warm-up of the file.

    Raises:
        InputError: they do.
    """
    try:
        original = validate(ScheduleSpec, _epochs_to_steps(file_schedule, data, location), location)
    except InputError:
        return  # the file's own schedule is invalid: validating the recipe reports it
    fields = schedule if isinstance(schedule, dict) else {}
    total, warmup = fields.get("total_steps"), original.warmup_steps
    if fields.get("warmup_steps") == warmup and isinstance(total, int) and 0 < total <= warmup:
        raise InputError(
            f"{location}: schedule: warmup_steps {warmup} must be below total_steps {total}; "
            f"--set schedule.warmup_steps={total * warmup // original.total_steps} keeps the share that the file has"
        )


OPTION_OF_KEY = {
    **{"lr": "--lr-range", "wd": "--wd-range", "strategy": "--strategy", "strategies": "--strategy"},
    **{"seed": "--seeds", "seeds": "--seeds", "data": "--data", "environment": "--launch-set"},
    **{"rule": "--rule", "confidence": "--confidence", "margin": "--margin"},
    "criterion": "--rule, --confidence and --margin",
}
"""Option to use instead, for keys that people try to change with --set and that are not part of the recipe."""


def apply_override(data: dict[str, Any], override: str) -> None:
    """Set `a.b=value` in nested plain data, in place; the schema validates key and value later.

    Raises:
        InputError: the key is, or resembles, one that another option sets.
    """
    from difflib import get_close_matches  # few commands need it, and imports at the top slow down all of them

    key, value = split_override(override)
    first = key.partition(".")[0]
    candidates = () if first in Recipe.model_fields else OPTION_OF_KEY
    if matches := get_close_matches(first, candidates, n=1, cutoff=0.8):
        raise InputError(
            f"--set {hide_secrets(override)}: {key} is not a field of the recipe; use {OPTION_OF_KEY[matches[0]]}"
        )
    *parents, last = key.split(".")
    for parent in parents:
        inner = data.setdefault(parent, {})
        if not isinstance(inner, dict):
            # `optimizer: sgd` is short for `optimizer: {kind: sgd}`.
            inner = data[parent] = {"kind": inner} if isinstance(inner, str) else {}
        data = inner
    if parents == ["schedule"]:
        for epochs, steps in STEPS_FIELD_OF.items():
            if last in (epochs, steps):  # a length in steps overrides one in epochs, and vice versa
                data.pop(epochs, None)
                data.pop(steps, None)
    data[last] = value
