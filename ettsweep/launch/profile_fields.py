"""Field types of launch profiles, with messages that say what each expects."""

from typing import Annotated, Literal

from pydantic import AfterValidator

from ettsweep.schema import expect, home_expanded, is_whole

Devices = Annotated[
    list[int] | Literal["auto", "cpu"],
    expect(
        "auto, cpu or a list of GPU numbers",
        lambda v: v in ("auto", "cpu") or (isinstance(v, list) and bool(v) and all(is_whole(n, 0) for n in v)),
    ),
]


def _one_line(value: str) -> str:
    """Reject text that would end a line of the batch script."""
    if not value or not value.isprintable():
        raise ValueError(f"text on one line is expected, got {value!r}")
    return value


SingleLine = Annotated[str, AfterValidator(_one_line)]


def _expand_path(value: object) -> object:
    """Expand `~` where a value is a path, as of `output`; without a slash it may be a comment or an account."""
    return home_expanded(value) if isinstance(value, str) and "/" in value else value


SbatchValue = Annotated[
    str | int | float | bool,
    expect("a word or a number", lambda v: isinstance(v, str | int | float) and (v == "" or str(v).isprintable())),
    AfterValidator(_expand_path),
]
