"""The command doctor: check this machine, data sets and memory."""

from typing import Annotated

import typer

from ettsweep.cli.options import (
    DEFAULT_RESULTS,
    Data,
    Form,
    Grid,
    Launch,
    LaunchSets,
    Model,
    Results,
    Sets,
)
from ettsweep.console import Format, print_note, print_table
from ettsweep.errors import InputError


def doctor(
    grid: Grid = None,
    launch: Launch = None,
    launch_set: LaunchSets = None,
    data: Data = None,
    model: Model = None,
    set_: Sets = None,
    task: Annotated[str | None, typer.Option(help="Task of --data, if no grid states it.")] = None,
    images: Annotated[int | None, typer.Option(min=1, help="Decode at most this many images of --data.")] = None,
    fit: Annotated[bool, typer.Option("--fit", help="Find the largest micro-batch of --model that fits.")] = False,
    form: Form = Format.TABLE,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Check this machine, a data set or a cluster.

    Checks torch, slots and the results folder, and the resources of the cluster of a SLURM profile. --data reads the
    whole data set: format, counts, each image, each token. --model with --fit finds the largest micro-batch. --model
    with a SLURM profile checks that a job has time to save a checkpoint.
    """
    from ettsweep.doctor.data_check import examine_data, resolve_requirement
    from ettsweep.doctor.image_check import shorten_rows
    from ettsweep.doctor.machine import examine, examine_fit, examine_saving
    from ettsweep.runs.data_location import configured_data, resolve_data
    from ettsweep.study.grid_file import find_grid, grid_note, load_sweep_spec
    from ettsweep.study.lattice import PLACEHOLDER_CENTRE

    if fit and (grid is None) == (model is None):
        raise InputError("--fit needs a grid: give a grid file, or --model NAME")
    sweep_spec, data_subject, required, note = None, None, None, ""
    if grid or model:
        # A check of data and memory needs no starting point: any will do.
        path = grid or find_grid(str(model))
        note = grid_note(path, None if grid else model)
        sweep_spec = load_sweep_spec(path, overrides=set_ or [], start=PLACEHOLDER_CENTRE)
        # --fit by itself does not read the data set.
        kind = sweep_spec.recipe.info.data_kind
        data = configured_data(kind, sweep_spec.data) if kind and data is None and not fit else data
    if data is not None:
        data_subject = resolve_requirement(data, sweep_spec, set_ or [], task)
        data = resolve_data(data)
        required = data_subject.task, data
    profile = launch or "local", launch_set or []
    checks = examine(results, *profile, required)
    if data_subject is not None and data is not None:
        checks += examine_data(data_subject, data, images)
    if sweep_spec is not None:
        checks += examine_saving(results, sweep_spec, *profile)
    if fit and sweep_spec is not None:
        checks += examine_fit(sweep_spec, *profile)
    # Thousands of unreadable images fill a screen; CSV and JSON list them all.
    checks = shorten_rows(checks) if form in (Format.TABLE, Format.MARKDOWN) else checks
    print_note(note)
    print_table([{"check": c.name, "state": c.state, "detail": c.detail} for c in checks], form)
    raise typer.Exit(1 if any(c.state == "failed" for c in checks) else 0)
