"""The registry of trainables: the table of their classes, and what validates a field by it."""

from collections.abc import Collection
from functools import cache
from pkgutil import resolve_name
from typing import Any

from pydantic import PlainValidator

from ettsweep.errors import InputError, unknown_name
from ettsweep.runs.trainable import BUILT_IN, Settings, Trainable

TRAINABLES = {
    BUILT_IN: "ettsweep.trainer.recipe:TransformerRecipe",
    "function": "ettsweep.kinds.function:FunctionRecipe",
    "command": "ettsweep.kinds.command:CommandRecipe",
}
"""`module:class` of each trainable."""


@cache
def trainable_class(name: str) -> type[Trainable]:
    """Return the class of a trainable by name.

    Raises:
        InputError: there is none.
    """
    if name not in TRAINABLES:
        raise unknown_name("trainable", name, TRAINABLES)
    found: type[Trainable] = resolve_name(TRAINABLES[name])
    return found


def class_of(data: Any) -> type[Trainable]:
    """Return the trainable that plain data of a recipe or spec name.

    Raises:
        InputError: there is none of that name.
    """
    name = data.get("trainable", BUILT_IN) if isinstance(data, dict) else BUILT_IN
    return trainable_class(name if isinstance(name, str) else repr(name))


def _as_recipe(value: object) -> object:
    if isinstance(value, Trainable):
        return value
    try:
        return class_of(value).model_validate(value)
    except InputError as error:
        raise ValueError(str(error)) from None  # pydantic reports it with the other problems


Validated = PlainValidator(_as_recipe)
"""Validate a field by the class of the trainable that it names."""


def _as_settings(value: object) -> object:
    if value is None or isinstance(value, Settings):
        return value
    try:
        return class_of(value).settings.model_validate(value)
    except InputError as error:
        raise ValueError(str(error)) from None


ValidatedSettings = PlainValidator(_as_settings)
"""Validate a field by the settings of the trainable that it names; without a value, none is imported."""


def trainer_keys(keys: Collection[str]) -> list[str]:
    """Return those of some unknown keys of a launch profile that belong into its block `trainer`."""
    settings = trainable_class(BUILT_IN).settings if keys else Settings
    return sorted(set(keys) & (settings.model_fields.keys() - Settings.model_fields.keys()))
