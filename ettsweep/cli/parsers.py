"""Parsers of options: paths, in which `~` stands for the home folder, and powers of two as tables print them, 2^-6."""

from pathlib import Path
from typing import Any

import typer

from ettsweep.errors import InputError
from ettsweep.files import expand_home
from ettsweep.powers import parse_number


def parse_path(value: str | Path) -> Path:
    """Return the path that an option names; `value` is a Path if it is the default."""
    return Path(parse_location(str(value)))


def parse_location(text: str) -> str:
    """Return the value of an option that may be a path or a name, such as hfds/OWNER/NAME, as text."""
    try:
        return expand_home(text)
    except InputError as error:
        raise typer.BadParameter(str(error)) from None


def power_option(help: str) -> Any:
    """Return a typer option for lr or wd, which accepts a number, such as 0.01, or a power of two, such as 2^-6."""
    return typer.Option(help=help, parser=_parse_power, metavar="NUMBER")


def _parse_power(text: str) -> float:
    try:
        return parse_number(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number such as 0.01 or 2^-6") from None
