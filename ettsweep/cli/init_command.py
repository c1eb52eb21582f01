"""The command init: write a commented grid file."""

from pathlib import Path
from typing import Annotated

import typer

from ettsweep.cli.parsers import parse_path
from ettsweep.console import print_note
from ettsweep.errors import InputError
from ettsweep.files import naming_option, write_atomic


def init(
    command: Annotated[
        str | None,
        typer.Option(
            help="Your own program with its arguments, in quotes, or a sweep file of Weights & Biases.",
            metavar="COMMAND",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model name, or WIDTHxDEPTH; by default vit-digits."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write; by default named after the model or program.", parser=parse_path, metavar="FILE"
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented grid file for your script or a model."""
    from ettsweep.doctor.command_words import read_command
    from ettsweep.doctor.grid_template import command_template, model_template

    if command is not None:
        if model is not None:
            raise InputError("pass either --command or --model")
        own = read_command(command)
        path = _path_for(own.name, out)
        text, notes = command_template(own, path)
    else:
        path = _path_for(model or "vit-digits", out)
        text, notes = model_template(model or "vit-digits", path)
    with naming_option("--out", path.parent):
        if not write_atomic(path, text, exclusive=not force):
            raise InputError(f"{path} already exists: pass --force to overwrite it, or --out FILE for another file")
    for line in notes:
        print_note(line)


def _path_for(name: str, out: Path | None) -> Path:
    """Return the file to write.

    Raises:
        InputError: it is a folder, or has a name that no sweep can have.
    """
    from ettsweep.study.sweep_store import check_name

    path = out or Path(f"{name}.yaml")
    if path.is_dir():
        raise InputError(f"--out: {path} is a folder; pass a file, such as {path / name}.yaml")
    for filename in (path.stem, path.name):  # the stem becomes the default name of the sweep
        check_name(filename, "--out")
    return path
