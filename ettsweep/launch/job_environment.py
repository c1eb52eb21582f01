"""Variables of a job: their values may be secrets, and are neither shown nor kept but in one file of their owner's."""

import re
import shlex
from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer

from ettsweep.config import HIDDEN


def _check(value: object) -> object:
    """Refuse what is no variable, in words without a value."""
    if not isinstance(value, dict):
        raise ValueError("names with their values are expected, such as {OMP_PLACES: cores}")
    if problems := [problem for name, entry in value.items() if (problem := _wrong(name, entry))]:
        raise ValueError("; ".join(problems))
    return value


def _wrong(name: object, value: object) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        return f"{str(name).partition('=')[0]!r} is not a variable name"
    if isinstance(value, float):
        return f"{name}: YAML may not read this number as it is written; put it in quotes"
    if not isinstance(value, str | int) or not (value == "" or str(value).isprintable()):
        return f"{name}: a word or a number on one line is expected"
    return ""


Variables = Annotated[
    dict[str, str | int | bool],
    BeforeValidator(_check),
    PlainSerializer(lambda variables: dict.fromkeys(variables, HIDDEN)),
    Field(repr=False),
]
"""Values by name; written as plain data, or shown, it has the names alone."""


def exports(variables: Mapping[str, str | int]) -> str:
    """Return lines with which a shell hands variables to what it starts."""
    # What YAML read as true was written so, and not as Python says it.
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in variables.items()}
    return "".join(f"export {name}={shlex.quote(text)}\n" for name, text in texts.items())
