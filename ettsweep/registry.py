"""Names of things that are imported when they are used: what a table of kinds says of torch, or of a layer above it."""

from importlib import import_module
from typing import Any


def resolve(name: str) -> Any:
    """Return what a `module:name` stands for."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
