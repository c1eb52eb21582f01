"""From names, fields and key=value to a recipe."""

from collections.abc import Sequence
from typing import Any

from ettsweep.config import split_override
from ettsweep.errors import InputError, located
from ettsweep.models.architectures import model_spec
from ettsweep.schema import Frozen, Positive, validate
from ettsweep.spec import OneTask, Recipe
from ettsweep.tasks.kinds import check_fits, steps_per_epoch, task_spec


def with_sets(where: str, overrides: Sequence[str]) -> str:
    """Return where data are from, with what was set in them."""
    return f"{where} with --set {' '.join(overrides)}" if overrides else where


def resolve_recipe(
    model: str | dict[str, Any],
    task: str | dict[str, Any],
    recipe: dict[str, Any],
    overrides: Sequence[str],
    where: str,
) -> Recipe:
    """Return the recipe with presets filled in and `key=value` overrides applied, checked by the schema.

    Raises:
        InputError: an unknown name or key, or a value that the schema refuses.
    """
    with located(where):
        data: dict[str, Any] = {
            **recipe,
            "model": model_spec(model).model_dump() if isinstance(model, str) else dict(model),
            "task": task_spec(task).model_dump() if isinstance(task, str) else dict(task),
        }
    for override in overrides:
        apply_override(data, override)
    where = with_sets(where, overrides)
    _resolve_epochs(data, where)
    resolved = validate(Recipe, data, where)
    with located(where):
        check_fits(resolved.task, resolved.model, resolved.batch_size)
    return resolved


EPOCHS = {
    "epochs": "total_steps",
    "warmup_epochs": "warmup_steps",
    "eval_every_epochs": "eval_every",
    "stop_epoch": "stop_step",
}
"""Fields of a schedule that may be given in epochs, and may be fractions; a run is counted in steps."""


class _Epoch(Frozen):
    """What the steps of an epoch follow from."""

    task: OneTask
    batch_size: Positive


def _resolve_epochs(data: dict[str, Any], where: str) -> None:
    """Turn what a schedule says in epochs into steps of the task and the batch size."""
    schedule = data.get("schedule")
    if not isinstance(schedule, dict) or not EPOCHS.keys() & schedule.keys():
        return
    given = {name: schedule[name] for name in EPOCHS if name in schedule}
    parts = {name: data[name] for name in _Epoch.model_fields if name in data}
    epoch = validate(_Epoch, parts, where)
    with located(where):
        steps = steps_per_epoch(epoch.task, epoch.batch_size)
    data["schedule"] = schedule = {key: value for key, value in schedule.items() if key not in given}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e9:
            raise InputError(f"{where}: schedule.{name}: a number of epochs is expected, got {value!r}")
        if EPOCHS[name] in schedule:
            raise InputError(f"{where}: schedule: {name} and {EPOCHS[name]} say the same; give one of them")
        schedule[EPOCHS[name]] = round(value * steps)


def apply_override(data: dict[str, Any], override: str) -> None:
    """Set `a.b=value` in nested plain data; the schema judges key and value afterwards."""
    key, value = split_override(override)
    if key in ("lr", "wd", "seed", "strategy"):
        option = {"lr": "--lr-range", "wd": "--wd-range", "seed": "--seeds", "strategy": "--strategy"}[key]
        raise InputError(f"--set {override}: {key} belongs to the point, not to the recipe; use {option}")
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
