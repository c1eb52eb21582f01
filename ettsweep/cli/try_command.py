"""The command try: check a script with five short runs at a sweep's centre."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ettsweep.cli.options import DEFAULT_RESULTS, Data, Form, Grid, LaunchOptions, Model, Results, Sets, Strategies
from ettsweep.cli.prompts import suggest_command
from ettsweep.console import Format, print_note, print_table

if TYPE_CHECKING:
    from ettsweep.study.tried import Outcome


def try_(
    *,
    grid: Grid = None,
    model: Model = None,
    strategy: Strategies = None,
    set_: Sets = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name of the sweep; by default the grid file's."),
    ] = None,
    launch_options: LaunchOptions,
    data: Data = None,
    form: Form = Format.TABLE,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Check your script with five short runs.

    Does it start, use its seed, resume and stop, and what will the sweep cost? The runs train at the centre, as those
    of the sweep will. ettsweep keeps the result with the sweep. The exit code is 1 if a check failed.
    """
    from ettsweep.doctor.try_sweep import try_sweep
    from ettsweep.launch.profile import load_profile
    from ettsweep.launch.resolve import resolve_request
    from ettsweep.study.grid_file import choose_grid_path, grid_note, load_sweep_spec
    from ettsweep.study.sweep_store import check_name, load_sweep_store

    path = choose_grid_path(grid, model, "give a grid file, or --model NAME")
    notes = [grid_note(path, model)]  # printed once the project is copied: the output may go to a file of it
    with suggest_command():
        requested = load_sweep_spec(path, strategy or [], set_ or [])
        sweep = check_name(path.stem if name is None else name)
        launch = launch_options.settings_of_grid(load_sweep_store(results), sweep)
        launcher = load_profile(launch.profile, launch.overrides, is_executed=True)
        sweep_spec = resolve_request(requested, results, sweep, data, notify=notes.append)
    outcome, kept = try_sweep(results, sweep, sweep_spec, launcher, print_note, notes)
    _show(outcome, kept, sweep, form)
    if outcome.state == "failed":
        raise typer.Exit(1)


def _show(outcome: "Outcome", kept: Path | None, sweep: str, form: Format) -> None:
    rows = [each.model_dump() for each in outcome.observations]
    data = {"sweep": sweep, "kept": str(kept) if kept else None, **outcome.model_dump(exclude={"version"})}
    print_table(rows, form, data=data)
    if kept:
        print_note(f"the runs of the trial and their logs are in {kept}; `ettsweep clean` removes them")
