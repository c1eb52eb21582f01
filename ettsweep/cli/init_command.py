"""The command init: write a commented grid file."""

from pathlib import Path
from typing import Annotated

import typer

from ettsweep.cli import completion
from ettsweep.cli.options import Data, Strategies
from ettsweep.cli.path_options import parse_path
from ettsweep.cli.prompts import suggest_command
from ettsweep.console import print_note
from ettsweep.errors import InputError
from ettsweep.files import naming_option, write_atomic


def init(
    model: Annotated[
        str | None,
        typer.Option(
            help="Model name, or WIDTHxDEPTH; by default one that fits the task.", autocompletion=completion.models
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Task, such as images or text.", autocompletion=completion.tasks)
    ] = None,
    data: Data = None,
    strategy: Strategies = None,
    lr_range: Annotated[
        str | None, typer.Option(help="Range of lr: low:high[:step] in log2 from the centre, or fixed.")
    ] = None,
    wd_range: Annotated[str | None, typer.Option(help="Range of wd, in the same form.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File to write; by default named after model and task.", parser=parse_path, metavar="FILE"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented grid file for a first sweep; with --data, its model and recipe fit the data set."""
    from ettsweep.doctor.grid_template import next_commands, parse_axis, propose_grid, render_template
    from ettsweep.study.grid_file import typed_options
    from ettsweep.study.sweep_updates import check_name

    name, grid = propose_grid(model, task, data)
    for axis, text in (("lr", lr_range), ("wd", wd_range)):
        if text is not None:
            grid[axis] = parse_axis(text, f"--{axis}-range")
    if strategy:
        grid["strategies"] = strategy
    path = out or Path(f"{name}.yaml")
    if path.is_dir():
        raise InputError(f"--out: {path} is a folder; name a file in it, such as {path / name}.yaml")
    for filename in (path.stem, path.name):  # the stem becomes the default name of the sweep
        check_name(filename, "--out")
    with suggest_command():
        text, sweep_spec = render_template(grid, path, typed_options(strategy or (), lr_range, wd_range))
    with naming_option("--out", path.parent):
        if not write_atomic(path, text, exclusive=not force):
            raise InputError(f"{path} exists already: --force overwrites it, --out FILE writes another file")
    for line in next_commands(sweep_spec, path, data):
        print_note(line)
