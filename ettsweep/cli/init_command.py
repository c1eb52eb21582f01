"""The command init: write a commented grid file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ettsweep.cli.options import Data, Strategies
from ettsweep.cli.parsers import parse_path
from ettsweep.cli.prompts import suggest_command
from ettsweep.console import print_note
from ettsweep.errors import InputError
from ettsweep.files import naming_option, write_atomic

if TYPE_CHECKING:
    from ettsweep.schema import Key


def init(
    command: Annotated[
        str | None,
        typer.Option(
            help="Your own program with its arguments, in quotes, or a sweep file of Weights & Biases: sweeps "
            "that, instead of a model.",
            metavar="COMMAND",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model name, or WIDTHxDEPTH; by default one that fits the task."),
    ] = None,
    task: Annotated[str | None, typer.Option(help="Task, such as images or text.")] = None,
    data: Data = None,
    strategy: Strategies = None,
    lr_range: Annotated[
        str | None, typer.Option(help="Range of lr: low:high[:step] in log2 from the centre, or fixed.")
    ] = None,
    wd_range: Annotated[str | None, typer.Option(help="Range of wd, in the same form.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write; by default named after model and task, or program.", parser=parse_path, metavar="FILE"
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented grid file for a first sweep: of a model, fitted to the data, or of your own program."""
    from ettsweep.doctor.grid_template import next_commands, parse_axis, propose_grid, render_template
    from ettsweep.study.grid_file import typed_options

    ranges = {"lr": lr_range, "wd": wd_range}
    axes = {axis: parse_axis(text, f"--{axis}-range") for axis, text in ranges.items() if text is not None}
    options = typed_options(strategy or (), lr_range, wd_range)
    if command is not None:
        _check_alone({"--model": model, "--task": task, "--data": data, "--strategy": strategy})
        _init_command(command, axes, options, out, force)
        return
    name, grid = propose_grid(model, task, data)
    grid |= axes | ({"strategies": strategy} if strategy else {})
    path = _path_for(name, out)
    with suggest_command():
        text, sweep_spec = render_template(grid, path, options)
    _write(path, text, force)
    for line in next_commands(sweep_spec, path, data):
        print_note(line)


def _init_command(text: str, axes: dict[str, object], options: "dict[Key, str]", out: Path | None, force: bool) -> None:
    from ettsweep.doctor.command_template import find_metrics, notes, render_command_template
    from ettsweep.doctor.command_words import read_command

    command = read_command(text)
    path = _path_for(command.name, out)
    metrics = find_metrics(command)
    with suggest_command():
        content, runs = render_command_template(command, metrics, path, axes, options)
    _write(path, content, force)
    for line in notes(command, metrics, path, runs):
        print_note(line)


def _check_alone(options: dict[str, object]) -> None:
    """Check that no option of the models that ship is given with --command.

    Raises:
        InputError: one is.
    """
    if given := [option for option, value in options.items() if value]:
        raise InputError(
            f"--command: {', '.join(given)} is for the models that ship; leave it out: the program's own arguments say "
            "what it trains, and on what"
        )


def _path_for(name: str, out: Path | None) -> Path:
    """Return the file to write.

    Raises:
        InputError: it is a folder, or has a name that no sweep can have.
    """
    from ettsweep.study.sweep_updates import check_name

    path = out or Path(f"{name}.yaml")
    if path.is_dir():
        raise InputError(f"--out: {path} is a folder; name a file in it, such as {path / name}.yaml")
    for filename in (path.stem, path.name):  # the stem becomes the default name of the sweep
        check_name(filename, "--out")
    return path


def _write(path: Path, text: str, force: bool) -> None:
    with naming_option("--out", path.parent):
        if not write_atomic(path, text, exclusive=not force):
            raise InputError(f"{path} exists already: --force overwrites it, --out FILE writes another file")
