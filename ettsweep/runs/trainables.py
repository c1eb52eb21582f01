"""The registry of trainables: those that ship, those of installed packages, and plugins that a user names."""

import os
from collections.abc import Collection
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pkgutil import resolve_name
from typing import Any

from pydantic import PlainValidator

from ettsweep.errors import InputError, error_line, unknown_name
from ettsweep.runs.trainable import BUILT_IN, Settings, Trainable

TRAINABLES = {
    BUILT_IN: "ettsweep.trainer.recipe:TransformerRecipe",
    "function": "ettsweep.worker.function:FunctionRecipe",
    "command": "ettsweep.worker.command.recipe:CommandRecipe",
}
"""`module:class` of each trainable that ships."""

IMPORTED = {"imported": "ettsweep.study.stated_scores:ImportedRecipe"}
"""`module:class` of runs that are not trained here, which no grid file can ask for."""

ENTRY_POINTS = "ettsweep.trainables"
"""Group of entry points by which an installed package adds trainables: NAME = module:class."""

PLUGINS_VARIABLE = "ETTSWEEP_PLUGINS"
"""Environment variable with the names of modules, with commas between, whose trainables are used as well.

They are executed, so that nothing on disk may name them: neither grid files nor run folders.
"""


@cache
def _added_trainables() -> dict[str, type[Trainable] | EntryPoint]:
    """Return the trainables of installed packages and plugins, by name.

    Raises:
        InputError: a plugin cannot be imported, or has no trainable.
    """
    added: dict[str, type[Trainable] | EntryPoint] = {}
    added |= {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    for name in filter(None, os.environ.get(PLUGINS_VARIABLE, "").split(",")):
        try:
            module = import_module(name)
        except Exception as error:  # of somebody's own code
            raise InputError(f"plugin {name}: cannot be imported: {error_line(error)}") from None
        classes = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, Trainable)]
        defaults = ((each.model_fields["trainable"].default, each) for each in classes)
        own = {default: each for default, each in defaults if isinstance(default, str) and each.__module__ == name}
        if not own:
            raise InputError(f"plugin {name}: it has no subclass of Trainable")
        added |= own
    return added


def trainable_names() -> tuple[str, ...]:
    """Return the names of all trainables: those that ship, then those of installed packages and plugins."""
    return (*TRAINABLES, *sorted(_added_trainables().keys() - TRAINABLES.keys()))


@cache
def trainable_class(name: str) -> type[Trainable]:
    """Return the class of a trainable by name.

    Raises:
        InputError: there is none, or its package cannot be imported.
    """
    if location := (TRAINABLES | IMPORTED).get(name):
        ours: type[Trainable] = resolve_name(location)
        return ours
    added = _added_trainables().get(name)
    if added is None:
        error = unknown_name("trainable", name, trainable_names())
        raise InputError(f"{error}; one of a plugin needs --plugin MODULE, before the command, or {PLUGINS_VARIABLE}")
    if isinstance(added, EntryPoint):
        try:
            loaded = added.load()
        except Exception as error:  # of somebody else's package
            raise InputError(f"trainable {name}: {added.value} cannot be imported: {error_line(error)}") from None
        if not (isinstance(loaded, type) and issubclass(loaded, Trainable)):
            raise InputError(f"trainable {name}: {added.value} is no subclass of Trainable")
        return loaded
    return added


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


def moved_settings(keys: Collection[str]) -> list[str]:
    """Return those of some unknown keys of a launch profile that were its fields and are now under `trainer`."""
    settings = trainable_class(BUILT_IN).settings if keys else Settings
    return sorted(set(keys) & (settings.model_fields.keys() - Settings.model_fields.keys()))
