"""The recipe of a grid file, resolved: names, epochs, and `key=value` overrides."""

from collections.abc import Sequence
from copy import deepcopy
from fractions import Fraction
from typing import Any

from ettsweep.config import options_by_key, set_nested, split_override
from ettsweep.console import format_count
from ettsweep.errors import InputError
from ettsweep.runs.spec import Block
from ettsweep.schema import Source, locating, validate
from ettsweep.trainer.models.registry import model_spec
from ettsweep.trainer.recipe import TransformerRecipe
from ettsweep.trainer.specs import EPOCH_KEYS, STEPS_FIELD_OF, ScheduleSpec
from ettsweep.trainer.tasks.registry import steps_per_epoch, task_spec


def resolve_recipe(block: Block, overrides: Sequence[str], location: str) -> TransformerRecipe:
    """Return the validated recipe of a grid file.

    Args:
        block: the block `recipe:`, with model and task, each a name or a mapping of fields.
        overrides: `key=value` for dotted keys of the recipe.
        location: the file, for error messages.

    Raises:
        InputError: an unknown name or key, or an invalid value.
    """
    source, model, task = Source(location, options_by_key(overrides)), block["model"], block["task"]
    with locating(source):
        data = {
            **deepcopy(block),  # overrides change it, and `_check_lengths` needs the file's
            "model": model_spec(model).model_dump() if isinstance(model, str) else dict(model),
            "task": task_spec(task).model_dump() if isinstance(task, str) else dict(task),
        }
    for override in overrides:
        apply_override(data, override)
    if "schedule" in data:
        data["schedule"] = _epochs_to_steps(data["schedule"], block.get("schedule"), data, source)
    return validate(TransformerRecipe, data, source, EPOCH_KEYS)


def recipe_problems(block: Block, overrides: Sequence[str], location: str) -> list[str]:
    """Return the problems of the recipe in a file with other problems: a user sees all at once.

    Arguments are those of `resolve_recipe`, unchecked. Valid placeholders replace names of models and tasks, and
    schedules in epochs, which need the other problems fixed first.
    """
    if not block:
        return []
    model, task = block.get("model"), block.get("task")
    data = {
        **deepcopy(block),
        "model": dict(model) if isinstance(model, dict) else model_spec("vit-digits"),
        "task": dict(task) if isinstance(task, dict) else task_spec("digits"),
    }
    try:
        for override in overrides:
            apply_override(data, override)
        if isinstance(schedule := data.get("schedule"), dict) and _has_epochs(schedule):
            data["schedule"] = _PLACEHOLDER_SCHEDULE
        validate(TransformerRecipe, data, Source(location, options_by_key(overrides)), EPOCH_KEYS)
    except InputError as error:
        # A line for each problem, to list them with those of the rest of the file.
        return str(error).splitlines()
    return []


_PLACEHOLDER_SCHEDULE = ScheduleSpec(total_steps=1, warmup_steps=0, eval_every=1)


def _epochs_to_steps(schedule: object, file_schedule: object, data: dict[str, Any], source: Source) -> object:
    """Return a schedule with its epochs converted to steps.

    Args:
        schedule: of the file, with overrides.
        file_schedule: without them.
        data: the recipe, for task and batch size.
        source: of the data, for messages.

    Raises:
        InputError: another part of the recipe is invalid, a value is not a number of epochs or below a step, or lengths
            contradict each other.
    """
    if not isinstance(schedule, dict):
        return schedule
    steps = _steps_per_epoch(schedule, data, source)
    converted = _in_steps(schedule, steps, source)
    _check_lengths(schedule, converted, file_schedule, source)
    return converted


def _in_steps(schedule: dict[str, Any], steps: int, source: Source) -> dict[str, Any]:
    """Return the fields of a schedule, with epochs converted to steps."""
    converted = {name: value for name, value in schedule.items() if name not in STEPS_FIELD_OF}
    for name, field in STEPS_FIELD_OF.items():
        if name not in schedule:
            continue
        value, at = schedule[name], f"{source.of(('schedule', name))}: schedule"
        # bool is a subclass of int: `yes` would be one epoch.
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e9:
            raise InputError(f"{at}.{name}: a number of epochs is expected, got {value!r}")
        if field in converted:  # else the order of keys would decide
            raise InputError(f"{at}: {name} and {field} set the same value; drop one")
        converted[field] = round(value * steps)
        if not converted[field] and name != "warmup_epochs":
            raise InputError(f"{at}.{name}: must be at least one step, which is {1 / steps:.3g} epochs, got {value:g}")
    return converted


def _has_epochs(schedule: dict[str, Any]) -> bool:
    return bool(STEPS_FIELD_OF.keys() & schedule.keys())


def _steps_per_epoch(schedule: dict[str, Any], data: dict[str, Any], source: Source) -> int:
    """Return the steps of an epoch; 1 for a schedule that has no epochs.

    Raises:
        InputError: another part of the recipe is invalid, or it depends on the data.
    """
    if not _has_epochs(schedule):
        return 1
    # Steps per epoch depend on task and batch size.
    recipe = validate(TransformerRecipe, data | {"schedule": _PLACEHOLDER_SCHEDULE}, source, EPOCH_KEYS)
    with locating(source):
        return steps_per_epoch(recipe.task, recipe.batch_size)


def _check_lengths(schedule: dict[str, Any], converted: dict[str, Any], file_schedule: object, source: Source) -> None:
    """Check that warm-up and end of the run fit into the schedule; the message has the units of the schedule.

    A schedule in steps that no option changes is left to its schema.

    Args:
        schedule: in epochs or steps, with overrides.
        converted: the same in steps.
        file_schedule: without overrides; its share of warm-up is suggested.
        source: of the schedule, for messages.

    Raises:
        InputError: they do not.
    """

    def length(epochs: str) -> str:
        field = STEPS_FIELD_OF[epochs]
        if epochs in schedule:
            return f"{epochs} {schedule[epochs]:g} ({format_count(converted[field], 'step')})"
        return f"{field} {converted[field]}"

    total, warmup, stop = (converted.get(field) for field in ("total_steps", "warmup_steps", "stop_step"))
    in_epochs = STEPS_FIELD_OF.keys() & schedule.keys()
    if in_epochs and isinstance(stop, int) and isinstance(total, int) and stop > total:
        raise InputError(f"{source.of(('schedule',))}: schedule: {length('stop_epoch')} is beyond {length('epochs')}")
    if not (isinstance(warmup, int) and isinstance(total, int) and 0 < total <= warmup):
        return
    problem = f"schedule: {length('warmup_epochs')} must be below {length('epochs')}"
    shortening = [o for k, o in source.options.items() if k in (("schedule", "epochs"), ("schedule", "total_steps"))]
    if shortening and (share := _warmup_share(file_schedule)) is not None:
        # The option is the cause: the file's warm-up is shorter than the run.
        if "epochs" in schedule:
            remedy = f"--set schedule.warmup_epochs={float(share) * schedule['epochs']:.4g}"
        else:
            remedy = f"--set schedule.warmup_steps={int(share * total)}"
        raise InputError(f"{shortening[-1]}: {problem}; pass {remedy} for the file's share")
    if in_epochs:
        raise InputError(f"{source.of(('schedule',))}: {problem}")


def _warmup_share(schedule: object) -> Fraction | None:
    """Return the warm-up as a share of the run; None if it is not one, or in other units than the run."""
    fields = schedule if isinstance(schedule, dict) else {}
    for keys in (("epochs", "warmup_epochs"), ("total_steps", "warmup_steps")):
        total, warmup = map(fields.get, keys)
        if isinstance(total, int | float) and isinstance(warmup, int | float) and 0 <= warmup < total:
            return Fraction(warmup) / Fraction(total)  # exact: no step is lost to rounding
    return None


def apply_override(data: dict[str, Any], override: str) -> None:
    """Set `a.b=value` in nested plain data; the schema validates key and value later."""
    set_nested(data, *(pair := split_override(override)))
    *parents, last = pair[0].split(".")
    if parents == ["schedule"]:
        for lengths in STEPS_FIELD_OF.items():
            if last in lengths:  # a length in steps overrides one in epochs, and vice versa
                for name in {*lengths} - {last}:
                    data["schedule"].pop(name, None)
