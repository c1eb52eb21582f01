"""Options for lr and wd, which accept powers of two as tables print them: 2^-6."""

from typing import Any

import typer

from ettsweep.powers import parse_number


def power_option(help: str) -> Any:
    """Return a typer option that accepts a number, such as 0.01, or a power of two, such as 2^-6."""
    return typer.Option(help=help, parser=_number, metavar="NUMBER")


def _number(text: str) -> float:
    try:
        return parse_number(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number; expected something like 0.01 or 2^-6") from None
