"""Environment variables of jobs. Their values may be secrets: they are stored in one private file, and never shown."""

import re
import shlex
from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer

from ettsweep.config import HIDDEN_VALUE


def _check_variables(value: object) -> object:
    """Reject invalid variables, with messages that do not contain their values."""
    if not isinstance(value, dict):
        raise ValueError("names with their values are expected, such as {NCCL_SOCKET_IFNAME: ib0}")
    if problems := [problem for name, entry in value.items() if (problem := _find_problem(name, entry))]:
        raise ValueError("; ".join(problems))
    return value


def _find_problem(name: object, value: object) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        return f"{str(name).partition('=')[0]!r} is not a variable name"
    # 1.10 would become 1.1, and 1e3 become 1000.0.
    if isinstance(value, float):
        return f"{name}: YAML may not read this number as it is written; put it in quotes"
    if not isinstance(value, str | int) or not (value == "" or str(value).isprintable()):
        return f"{name}: a word or a number on one line is expected"
    return ""


Variables = Annotated[
    dict[str, str | int | bool],
    BeforeValidator(_check_variables),
    PlainSerializer(lambda variables: dict.fromkeys(variables, HIDDEN_VALUE)),
    Field(repr=False),
]
"""Values by name; serialised or printed, it shows the names only."""


def export_lines(variables: Mapping[str, str | int]) -> str:
    """Return shell lines that export variables."""
    # YAML's `true` must not become Python's `True`.
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in variables.items()}
    return "".join(f"export {name}={shlex.quote(text)}\n" for name, text in texts.items())
