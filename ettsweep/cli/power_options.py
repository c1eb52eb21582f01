"""Options for lr and wd, which are typed as tables print them."""

from typing import Any

import typer

from ettsweep.powers import parse_number


def power_option(help: str) -> Any:
    """Return an option that takes a number or a power of two."""
    return typer.Option(help=help, parser=_number, metavar="NUMBER")


def _number(text: str) -> float:
    try:
        return parse_number(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no number, such as 0.01 or 2^-6") from None
