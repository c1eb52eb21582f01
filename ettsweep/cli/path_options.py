"""Parsers of options that are paths, in which `~` stands for the home folder."""

from pathlib import Path

import typer

from ettsweep.errors import InputError
from ettsweep.files import expand_home


def parse_path(value: str | Path) -> Path:
    """Return the path that an option names; `value` is a Path if it is the default."""
    return Path(parse_location(str(value)))


def parse_location(text: str) -> str:
    """Return the value of an option that may be a path or a name, such as hfds/OWNER/NAME, as text."""
    try:
        return expand_home(text)
    except InputError as error:
        raise typer.BadParameter(str(error)) from None
