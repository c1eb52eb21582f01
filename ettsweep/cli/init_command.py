"""The command init: write a commented grid file."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ettsweep.cli import completion
from ettsweep.cli.options import Data, Strategies
from ettsweep.cli.path_options import parse_path
from ettsweep.cli.prompts import suggest_command
from ettsweep.console import format_count, print_note
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
    from ettsweep.study.grid_file import typed_options
    from ettsweep.study.grid_template import parse_axis, propose_grid, render_template
    from ettsweep.study.sweep_updates import check_name
    from ettsweep.trainer.tasks.data_location import configured_data
    from ettsweep.trainer.tasks.images.image_task import ImageTask
    from ettsweep.trainer.tasks.registry import TASKS

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
    runs, steps = len(sweep_spec.specs()), sweep_spec.recipe.schedule.last_step
    print_note(f"wrote {path}: {format_count(runs, 'run')} of {format_count(steps, 'step')} to begin with")
    grid_task = sweep_spec.recipe.task
    if isinstance(grid_task, ImageTask) and grid_task.split_seed is not None:
        print_note(
            f"{data} has no validation images: {grid_task.val_size} of its {grid_task.train_size + grid_task.val_size} "
            f"images are held out, the same ones in every run; split_seed, val_size and train_size in {path} set which"
        )
    # The printed commands can be pasted: quote the path.
    options, kind = f"--grid {shlex.quote(str(path))}", sweep_spec.recipe.task.kind
    # Tasks whose data set ships with the package need no --data.
    if not TASKS[kind].comes_with_package:
        options += "" if configured_data(kind, sweep_spec.data) else " --data PATH"
        not_read = ": init has not read them" if data and not Path(data).exists() else ""
        print_note(f"`ettsweep doctor {options}` checks the data{not_read}")
    print_note(f"`ettsweep grid {options} --dry-run` prints the plan, `ettsweep grid {options}` trains it")
