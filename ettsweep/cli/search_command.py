"""The command search: let a sampler suggest points, and verify the optimum."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ettsweep.cli.grid_options import GridOptions
from ettsweep.cli.options import (
    DEFAULT_RESULTS,
    BudgetOptions,
    Data,
    DryRun,
    Form,
    LaunchOptions,
    Results,
    VerdictOptions,
    require_folder,
)
from ettsweep.cli.prompts import (
    detach_on_interrupt,
    progress_console,
    repeat_option,
    suggest_command,
)
from ettsweep.console import Format, print_note
from ettsweep.errors import InputError

if TYPE_CHECKING:
    from ettsweep.study.study import Study
    from ettsweep.study.sweep_spec import SweepSpec


def search(
    *,
    grid_options: GridOptions,
    sweep: Annotated[
        str | None,
        typer.Option("--sweep", "-s", help="Search an existing sweep.", metavar="NAME"),
    ] = None,
    sampler: Annotated[
        str,
        typer.Option(
            help="Sampler: surface, or Optuna's tpe, gp, cmaes, random, qmc.",
        ),
    ] = "surface",
    trials: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of points per strategy; by default 30; no limit with surface."),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from", help="Start from the verified optimum of this strategy or sweep.", metavar="STRATEGY|SWEEP"
        ),
    ] = None,
    unverified: Annotated[
        bool, typer.Option("--unverified", help="With --from, accept a best point that is not verified.")
    ] = False,
    budget_options: BudgetOptions,
    verdict_options: VerdictOptions,
    launch_options: LaunchOptions,
    data: Data = None,
    dry_run: DryRun = False,
    follow: Annotated[
        bool, typer.Option(help="Show progress until the optimum is verified; Ctrl-C only detaches.")
    ] = True,
    form: Form = Format.TABLE,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Let a sampler choose the points, and submit their runs.

    It suggests points within the ranges of a grid file, trains them, and verifies the optimum. Run it again to resume
    an interrupted search.
    """
    from ettsweep.cli.verdict_tables import show_verification
    from ettsweep.launch.follow import CommandContext, read_run_index
    from ettsweep.launch.profile import load_profile, profile_note
    from ettsweep.launch.resolve import plan_grid, record_grid, resolve_request
    from ettsweep.launch.search_rounds import SearchTarget, search_rounds
    from ettsweep.study.samplers import make_sampler, resolve_trials
    from ettsweep.study.suggesting import Search
    from ettsweep.study.sweep_store import load_sweep_store
    from ettsweep.study.tried import check_tried
    from ettsweep.study.warm_start import find_starts

    suggest = make_sampler(sampler)  # raises for an unknown sampler before anything is read
    name, requested_spec, notes = _load_spec(grid_options, sweep, verdict_options, results)
    changes = list[str]()  # printed once the project is copied: the output may go to a file of it
    sweep_store = load_sweep_store(results)
    with suggest_command():
        launch = launch_options.settings_of_grid(sweep_store, name)
        launcher = load_profile(launch.profile, launch.overrides, is_executed=not dry_run)
        sweep_spec = resolve_request(
            requested_spec, results, name, data, same_numbers=grid_options.same_numbers, notify=changes.append
        )
    studies = sweep_spec.studies(name)
    context = CommandContext(
        results,
        sweep_spec.data_paths,
        dry_run,
        progress_console() if follow else None,
        "search",
        studies,
        notify=print_note,
    )
    target = SearchTarget.create(name, sweep_spec, sweep_store)
    budget = budget_options.budget(target.studies)
    run_index = read_run_index(results)
    start_points = find_starts(target.studies, target.sweep_store, run_index, source, unverified=unverified)
    new = [study for study in target.studies if not study.suggested_points]
    # Starting points matter only before the first suggestion.
    print_note("" if new or source is None else f"ignored --from {source}: the search has already started")
    # Creates or extends the sweep; which runs to train is decided round by round.
    changes.append(check_tried(results, name, studies[0], sweep_spec.grid))
    _, obstacle = plan_grid(sweep_spec, context, launcher)
    if not dry_run:
        changes.append(record_grid(results, name, sweep_spec, launch))
    print_note("\n".join(filter(None, changes)))
    print_note(f"cannot be submitted yet: {obstacle}" if obstacle else "")
    print_note(notes)
    print_note(profile_note(launch.profile))
    print_note(_changed_ranges(sweep_store.sweeps[name].studies if name in sweep_store.sweeps else [], target.studies))
    selection = ["--sweep", name, *repeat_option("--strategy", grid_options.strategy or [])]
    with detach_on_interrupt(context.follows, selection=selection):
        for study in target.studies:
            print_note(f"{study.title} starts {start_points[study.key].reason}" if study.key in start_points else "")
        result = search_rounds(
            target, context, launcher, Search(sampler, suggest, resolve_trials(sampler, trials), start_points), budget
        )
    search_options = {"--sampler": (sampler, "surface"), "--trials": (trials, None)}
    # Options at their defaults are left out, to keep the suggested command short.
    option_arguments = [
        argument
        for option, (value, default) in search_options.items()
        if value != default
        for argument in (option, str(value))
    ]
    raise typer.Exit(show_verification(result, budget, form, ["search", *selection, *option_arguments], selection))


def _changed_ranges(before: "Sequence[Study]", now: "Sequence[Study]") -> str:
    """Return a line for each study whose ranges differ from those of the search so far."""
    from ettsweep.powers import axis_text

    def describe_box(study: "Study") -> str:
        low, high = study.box
        ends = {name: [axis_text(name, corner[name]) for corner in (low, high)] for name in study.axes}
        return ", ".join(f"{name} from {start} to {end}" for name, (start, end) in ends.items())

    studies_before = {study.key: study for study in before if study.box}
    return "\n".join(
        f"{study.title} has new search ranges: {describe_box(study)} instead of "
        f"{describe_box(studies_before[study.key])}"
        for study in now
        if study.key in studies_before and studies_before[study.key].box != study.box
    )


def _load_spec(
    grid_options: GridOptions, sweep: str | None, verdict_options: VerdictOptions, results: Path
) -> "tuple[str, SweepSpec, str]":
    """Return the name of the sweep to search, its spec, and the notes of `GridOptions.load_spec`.

    Raises:
        InputError: The sweep does not exist, options beside --sweep would change it, or both of its axes are fixed.
    """
    from ettsweep.study.sweep_store import load_sweep_store

    if sweep is None:
        name, sweep_spec, notes = grid_options.load_spec(
            verdict_options, "give a grid file, --model NAME, or --sweep NAME"
        )
    else:
        grid_options.reject_with("--sweep")
        (existing,) = load_sweep_store(require_folder(results)).select([sweep])
        name, sweep_spec, notes = (
            sweep,
            verdict_options.apply_to(existing.latest_spec(grid_options.strategy or [])),
            "",
        )
    if all(axis.fixed for axis in sweep_spec.axes.values()):
        names = list(sweep_spec.axes)
        fixed = f"{' and '.join(names)} {'are both' if len(names) > 1 else 'is'} fixed"
        raise InputError(f"nothing to search: {fixed}; set --range {names[0]}=-2:2")
    # In a searched sweep, the sampler chooses points: the lattice is not trained as a whole.
    return name, sweep_spec.model_copy(update={"searched": True}), notes
