"""Commands on sweeps: grid, verify-optimum, seeds, report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ettsweep.cli.options import (
    DEFAULT_RESULTS,
    Data,
    DryRun,
    Families,
    Follow,
    Form,
    Grid,
    Launch,
    LaunchSets,
    Log,
    Model,
    Models,
    Results,
    Sets,
    Strategies,
    _console,
    _detaching,
    _numbers,
    _point,
    _searches,
    _with_log,
    app,
)
from ettsweep.cli.place import _check_data, _on_data, _profile, _where
from ettsweep.errors import EttsweepError, InputError
from ettsweep.output import Format, note, show

if TYPE_CHECKING:
    from ettsweep.launch.profiles import AnyProfile
    from ettsweep.sweep.plan import Plan
    from ettsweep.sweep.request import Request


# --- sweeps ---------------------------------------------------------------------------------------------------------


@app.command()
def grid(
    model: Model = None,
    grid: Grid = None,
    strategy: Strategies = None,
    lr_range: Annotated[str | None, typer.Option(help="low:high[:step] in log2 from the centre, or fixed.")] = None,
    wd_range: Annotated[str | None, typer.Option(help="The same for wd.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, such as 0,1,2.")] = None,
    set_: Sets = None,
    launch: Launch = None,
    launch_set: LaunchSets = None,
    log: Log = None,
    data: Data = None,
    dry_run: DryRun = False,
    follow: Follow = False,
    form: Form = Format.TABLE,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Expand a grid file and submit the runs that are missing."""
    from ettsweep.cli.views import note_blocked, note_ended, plan_rows, plan_summary, where_to
    from ettsweep.launch.profiles import load_profile
    from ettsweep.launch.rounds import read_ledger, run_all
    from ettsweep.launch.submit import check, scripts, submit
    from ettsweep.runs.state import State
    from ettsweep.sweep.gridfile import find_grid, load_request
    from ettsweep.sweep.plan import make_plan
    from ettsweep.sweep.request import as_before, save_request

    if (grid is None) == (model is None):
        raise InputError("say which grid, with one of --model NAME and --grid FILE")
    path = grid or find_grid(str(model))
    request = load_request(path, strategy or [], set_ or [], lr_range, wd_range, _numbers(seeds, "--seeds", "0,1,2"))
    request = _on_data(request, data)
    request = _where(as_before(results, request), launch, _with_log(launch_set, log), data)
    profile = load_profile(request.launch, request.launch_set)
    specs = request.specs()
    plan = make_plan(specs, read_ledger(results))
    if dry_run:
        show(plan_rows(plan), form)
        _show_scripts(scripts(results, plan, profile), form)
        note(plan_summary(plan, "would be"))
        _note_obstacles(results, plan, profile, request)
        return
    check(results, plan, profile)  # what cannot be submitted is an error before anything is recorded
    _check_data(request, counts=bool(plan.to_launch))
    save_request(results, request)
    if follow:
        console = _console()
        with _detaching():
            plan = run_all(results, specs, profile, console, path.stem)
        note(f"{len(plan.keep)} of {len(specs)} runs finished")
        note_blocked(plan)
        raise typer.Exit(1 if plan.blocked or plan.to_launch else 0)
    folders = submit(results, plan, profile)
    note(plan_summary(plan, "") + where_to(folders))
    note_blocked(plan)
    note_ended(results, plan)
    if plan.to_launch:
        note("they train in the background: `ettsweep watch` shows them, `ettsweep verify-optimum` judges them")
    if any(p.state is State.UNKNOWN for p in plan.blocked):
        raise typer.Exit(1)


@app.command("verify-optimum")
def verify_optimum(
    model: Models = None,
    strategy: Strategies = None,
    family: Families = None,
    at: Annotated[
        str | None,
        typer.Option(help="Judge this point, LR,WD, instead of each family's best.", metavar="LR,WD"),
    ] = None,
    max_runs: Annotated[int | None, typer.Option(min=0, help="Submit no more than this many runs.")] = None,
    launch: Launch = None,
    launch_set: LaunchSets = None,
    log: Log = None,
    data: Data = None,
    dry_run: DryRun = False,
    follow: Follow = False,
    form: Form = Format.TABLE,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Judge each family's best point by its six neighbours; submit those that are missing."""
    from ettsweep.cli.views import (
        note_blocked,
        note_ended,
        note_outside,
        plan_rows,
        plan_summary,
        score_note,
        show_verdicts,
        where_to,
    )
    from ettsweep.launch.rounds import verify_rounds
    from ettsweep.launch.submit import scripts

    searches = _searches(results, model, strategy, family)
    profile = _profile(
        results, {s.family for s in searches}, launch, _with_log(launch_set, log), data, check=not dry_run
    )
    if at is not None and len(searches) > 1:
        told = ", ".join(f"{search.model} {search.strategy}" for search in searches)
        raise InputError(
            f"--at names a point of one family, and there are {len(searches)}: {told}; narrow with --strategy"
        )
    console = _console() if follow else None
    with _detaching():
        done = verify_rounds(
            results,
            searches,
            profile,
            at=_point(at),
            max_runs=max_runs,
            dry_run=dry_run,
            console=console,
            tell=note if follow else lambda text: None,
        )
    show_verdicts(done.verdicts, form)
    note_outside(done.verdicts)
    if dry_run:
        if form is Format.TABLE and done.plan.to_launch:
            print()
            show(plan_rows(done.plan), form)
        _show_scripts(scripts(results, done.plan, profile), form)
        note(plan_summary(done.plan, "would be"))
    elif done.submitted:
        how = "" if follow else "; ask again when they are finished, or stay with --follow"
        note(f"{done.submitted} runs submitted{where_to(done.folders)}{how}")
        note_ended(results, done.plan)
    if done.held_back:
        note(f"{done.held_back} more runs are needed than --max-runs {max_runs} allows")
    note_blocked(done.plan)
    if done.problem:
        raise done.problem
    note(score_note(searches))
    raise typer.Exit(0 if all(v.verdict == "optimal" for v in done.verdicts) else 1)


@app.command()
def seeds(
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Fresh seeds for each optimum.")] = 3,
    model: Models = None,
    strategy: Strategies = None,
    family: Families = None,
    launch: Launch = None,
    launch_set: LaunchSets = None,
    log: Log = None,
    data: Data = None,
    dry_run: DryRun = False,
    follow: Follow = False,
    form: Form = Format.TABLE,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Rerun each verified optimum over fresh seeds, reported beside the search's own score."""
    from ettsweep.cli.views import note_blocked, plan_rows, plan_summary, show_verdicts
    from ettsweep.launch.rounds import judge, looks, read_ledger, run_all
    from ettsweep.launch.submit import scripts, submit
    from ettsweep.sweep.plan import make_plan
    from ettsweep.sweep.verify import fresh_seeds

    searches = _searches(results, model, strategy, family)
    profile = _profile(
        results, {s.family for s in searches}, launch, _with_log(launch_set, log), data, check=not dry_run
    )
    ledger = read_ledger(results)
    specs, unverified = [], []
    for look in looks(searches, ledger):
        search, verdict = look.search, look.verdict()
        if verdict.point is not None and verdict.verdict in ("optimal", "unsearched"):
            specs += look.specs([verdict.point], fresh_seeds(search, count))
        else:
            unverified.append(f"{search.model} {search.strategy}: {verdict.verdict}, {verdict.reason}")
    plan = make_plan(specs, ledger)
    if dry_run:
        show(plan_rows(plan), form)
        _show_scripts(scripts(results, plan, profile), form)
        note(plan_summary(plan, "would be"))
    elif follow:
        with _detaching():
            plan = run_all(results, specs, profile, _console(), "seeds")
    else:
        submit(results, plan, profile)
        note(plan_summary(plan, ""))
    if not dry_run:
        verdicts = judge(searches, read_ledger(results))
        show_verdicts(verdicts, form)
    for line in unverified:
        note(f"not verified yet, so not rerun: {line}")
    note_blocked(plan)
    raise typer.Exit(1 if unverified or plan.blocked else 0)


@app.command()
def report(
    out: Annotated[Path | None, typer.Option(help="Folder to write to; RESULTS/report by default.")] = None,
    model: Models = None,
    strategy: Strategies = None,
    family: Families = None,
    form: Form = Format.TABLE,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Write tables (CSV, Parquet, Markdown, LaTeX), figures (PNG, PDF) and one self-contained HTML page."""
    from ettsweep.cli.views import show_verdicts
    from ettsweep.launch.rounds import judge, read_ledger
    from ettsweep.report.build import write_report

    searches = _searches(results, model, strategy, family)
    ledger = read_ledger(results)
    families = {search.family for search in searches}
    narrowed = bool(model or strategy or family)
    runs = [run for run in ledger.runs.values() if run.family in families or not narrowed]
    verdicts = judge(searches, ledger)
    paths = write_report(results, out or results / "report", runs, verdicts, note)
    show_verdicts(verdicts, form)
    note(f"wrote {paths[0]} and, beside it, {len(paths) - 1} tables and figures")


def _show_scripts(scripts: list[str], form: Format) -> None:
    """Print what would be handed to sbatch, below a table; JSON and CSV have no room for it."""
    for script in scripts if form is Format.TABLE else []:
        print(f"\n{script}", end="")


def _note_obstacles(results: Path, plan: "Plan", profile: "AnyProfile", request: "Request") -> None:
    """Say what would keep a plan from being submitted; SLURM is not asked."""
    from ettsweep.launch.profiles import LocalProfile
    from ettsweep.launch.submit import check

    if not plan.to_launch:
        return
    try:
        if isinstance(profile, LocalProfile):
            check(results, plan, profile)
        _check_data(request, counts=True)
    except EttsweepError as error:
        note(f"before it can be submitted: {error}")
