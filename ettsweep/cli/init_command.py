"""The command init: a commented grid file that runs as it is."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ettsweep.cli import completion
from ettsweep.cli.options import Data, Strategies
from ettsweep.console import count, print_note
from ettsweep.errors import InputError
from ettsweep.files import chosen_by, write_atomic


def init(
    model: Annotated[
        str | None, typer.Option(help="Model name; proposed by default.", autocompletion=completion.models)
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Task, such as imagenet or text.", autocompletion=completion.tasks)
    ] = None,
    data: Data = None,
    strategy: Strategies = None,
    lr_range: Annotated[str | None, typer.Option(help="low:high[:step] in log2 from the centre, or fixed.")] = None,
    wd_range: Annotated[str | None, typer.Option(help="The same for wd.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; a name by model and task by default.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Write a commented grid file for a first sweep; with --data, one whose model and recipe fit these data."""
    from ettsweep.study.grid_template import parse_axis, propose, write_template
    from ettsweep.study.sweep_updates import check_name
    from ettsweep.trainer.tasks.data_location import said
    from ettsweep.trainer.tasks.registry import TASKS

    name, grid = propose(model, task, data)
    for axis, text in (("lr", lr_range), ("wd", wd_range)):
        if text is not None:
            grid[axis] = parse_axis(text, f"--{axis}-range")
    if strategy:
        grid["strategies"] = strategy
    path = out or Path(f"{name}.yaml")
    if path.is_dir():
        raise InputError(f"--out: {path} is a folder; name a file in it, such as {path / name}.yaml")
    for filename in (path.stem, path.name):
        check_name(filename, "--out")
    text, sweep_spec = write_template(grid, path)
    with chosen_by("--out", path.parent):
        if not write_atomic(path, text, exclusive=not force):
            raise InputError(f"{path} is there already: --force writes over it, --out FILE names another")
    runs, steps = len(sweep_spec.specs()), sweep_spec.recipe.schedule.last_step
    print_note(f"wrote {path}: {count(runs, 'run')} of {count(steps, 'step')} to begin with")
    options, kind = f"--grid {shlex.quote(str(path))}", sweep_spec.recipe.task.kind
    if not TASKS[kind].packaged:
        options += "" if said(kind, sweep_spec.data) else " --data PATH"
        not_read = ": init has not looked at them" if data and not Path(data).exists() else ""
        print_note(f"`ettsweep doctor {options}` examines the data{not_read}")
    print_note(f"`ettsweep grid {options} --dry-run` prints the plan, `ettsweep grid {options}` trains it")
