"""The command line: each command parses, calls one function, prints, and sets the exit code.

Only typer is imported here; a command imports what it needs, so that `--help` and completion start at once.
Exit codes: 0 yes; 1 not yet, no, or the environment failed; 2 wrong usage or input.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ettsweep.errors import EttsweepError, InputError
from ettsweep.output import Format, cell, note, show

if TYPE_CHECKING:
    from rich.console import Console

    from ettsweep.launch.profiles import AnyProfile
    from ettsweep.sweep.gridfile import Request, Search
    from ettsweep.sweep.ledger import Run, Selection
    from ettsweep.sweep.plan import Plan

app = typer.Typer(
    name="ettsweep",
    help="Find, and prove, the best learning rate and weight decay of a Transformer under a scaling strategy.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Results = Annotated[Path, typer.Option("--results", envvar="ETTSWEEP_RESULTS", help="Results folder.")]
Grid = Annotated[Path | None, typer.Option("--grid", help="Grid file.", metavar="FILE")]
Model = Annotated[str | None, typer.Option("--model", help="Model name; takes the one grid file for it.")]
Strategies = Annotated[
    list[str] | None, typer.Option("--strategy", help="standard, ntk, hybrid, mup or s=0.25; repeatable.")
]
Sets = Annotated[
    list[str] | None, typer.Option("--set", help="key=value for any recipe field, or a centre.", metavar="KEY=VALUE")
]
Launch = Annotated[
    str | None,
    typer.Option("--launch", help="Launch profile: a file or a name; the grid's, or local, by default."),
]
LaunchSets = Annotated[
    list[str] | None, typer.Option("--launch-set", help="key=value for a profile field.", metavar="KEY=VALUE")
]
Log = Annotated[
    list[str] | None,
    typer.Option("--log", help="Write metrics there too: tensorboard or wandb; repeatable.", metavar="SINK"),
]
Data = Annotated[str | None, typer.Option("--data", help="Where the data set is: a folder, or hfds/OWNER/NAME.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and change nothing.")]
Follow = Annotated[bool, typer.Option("--follow", help="Stay and show progress; Ctrl-C only detaches.")]
Form = Annotated[Format, typer.Option("--format", help="How to print.")]
Runs = Annotated[list[str] | None, typer.Argument(help="Runs, by id or the start of one.", show_default=False)]
Families = Annotated[list[str] | None, typer.Option("--family", help="Family id, or the start of one; repeatable.")]
States = Annotated[list[str] | None, typer.Option("--state", help="State, such as failed; repeatable.")]
Models = Annotated[list[str] | None, typer.Option("--model", help="Model name; repeatable.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

Optimizer = Annotated[Literal["adamw", "sgd"], typer.Option(help="Optimizer.")]

DEFAULT_RESULTS = Path("results")


def main() -> None:
    """Run the command line; an error of ours becomes a message and an exit code."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `ettsweep status | head` ends as any filter does
    try:
        app()
    except EttsweepError as error:
        note(f"ettsweep: {error}")
        sys.exit(error.exit_code)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what could not be written is not tried again at exit
        print(f"ettsweep: {error.filename or 'standard output'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("ettsweep: interrupted; what was submitted goes on", file=sys.stderr)
        sys.exit(130)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        from ettsweep import __version__

        print(f"ettsweep {__version__}")
        raise typer.Exit


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
    from ettsweep.launch.profiles import load_profile
    from ettsweep.launch.rounds import read_ledger, run_all
    from ettsweep.launch.submit import check, scripts, submit
    from ettsweep.rundir import State
    from ettsweep.sweep.gridfile import as_before, find_grid, load_request, save_request
    from ettsweep.sweep.plan import make_plan
    from ettsweep.views import note_blocked, note_ended, plan_rows, plan_summary, where_to

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
    from ettsweep.launch.rounds import verify_rounds
    from ettsweep.launch.submit import scripts
    from ettsweep.views import (
        note_blocked,
        note_ended,
        note_outside,
        plan_rows,
        plan_summary,
        score_note,
        show_verdicts,
        where_to,
    )

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
    from ettsweep.launch.rounds import judge, read_ledger, run_all
    from ettsweep.launch.submit import scripts, submit
    from ettsweep.sweep.plan import make_plan
    from ettsweep.sweep.verify import fresh_seeds
    from ettsweep.views import note_blocked, plan_rows, plan_summary, show_verdicts

    searches = _searches(results, model, strategy, family)
    profile = _profile(
        results, {s.family for s in searches}, launch, _with_log(launch_set, log), data, check=not dry_run
    )
    ledger = read_ledger(results)
    specs, unverified = [], []
    for search, verdict in zip(searches, judge(searches, ledger), strict=True):
        if verdict.point is not None and verdict.verdict in ("optimal", "unsearched"):
            specs += search.specs([verdict.point], fresh_seeds(search, count))
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
    from ettsweep.launch.rounds import judge, read_ledger
    from ettsweep.report.build import write_report
    from ettsweep.views import show_verdicts

    searches = _searches(results, model, strategy, family)
    ledger = read_ledger(results)
    families = {search.family for search in searches}
    narrowed = bool(model or strategy or family)
    runs = [run for run in ledger.runs.values() if run.family in families or not narrowed]
    verdicts = judge(searches, ledger)
    paths = write_report(results, out or results / "report", runs, verdicts, note)
    show_verdicts(verdicts, form)
    note(f"wrote {paths[0]} and, beside it, {len(paths) - 1} tables and figures")


# --- runs -----------------------------------------------------------------------------------------------------------

STATUS_COLUMNS = ("run", "model", "strategy", "lr", "wd", "seed", "state", "progress", "best_score", "reason")
STATUS_KEYS = (
    *("run", "family", "model", "task", "strategy", "lr", "wd", "log2_lr", "log2_wd", "seed"),
    *("state", "progress", "best_score", "reason", "where", "job", "left_s"),
)


@app.command()
def status(
    run: Runs = None,
    model: Models = None,
    strategy: Strategies = None,
    family: Families = None,
    state: States = None,
    form: Form = Format.TABLE,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """List the runs with their states, as they are on disk."""
    from ettsweep.launch.rounds import read_ledger
    from ettsweep.rundir import State
    from ettsweep.sweep.ledger import count_states, in_order, status_row
    from ettsweep.views import state_note, why_idle

    ledger = read_ledger(results)
    runs = _selection(run, model, strategy, family, state).of(ledger)
    rows = [status_row(r) for r in sorted(runs, key=in_order)]
    columns = STATUS_COLUMNS if form in (Format.TABLE, Format.MARKDOWN) else STATUS_KEYS
    data = [{key: row[key] for key in STATUS_KEYS} for row in rows]
    show(
        [row | {"reason": state_note(row)} for row in rows] if columns is STATUS_COLUMNS else rows, form, columns, data
    )
    if form is Format.TABLE:
        counts = count_states(r.state for r in runs)
        note(f"{len(runs)} runs in {results}: " + (", ".join(f"{n} {s}" for s, n in counts.items()) or "none"))
        if not results.is_dir():
            note(f"{results.resolve()} is no folder: is this the right one? --results DIR names another")
        idle = [r for r in runs if r.state in (State.INTERRUPTED, State.MISSING)]
        if idle:
            note(f"{len(idle)} runs wait for a worker: the command that asked for them starts one, and so does")
            note("`ettsweep retry --state interrupted --state missing`" + why_idle(results, idle))
    for name, problem in ledger.broken.items():
        note(f"run folder {name} is broken: {problem}")


@app.command()
def watch(
    model: Models = None,
    strategy: Strategies = None,
    family: Families = None,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Show live what runs, how far it is and how long still; Ctrl-C leaves it running."""
    from ettsweep.launch.monitor import Monitor, follow
    from ettsweep.launch.rounds import read_ledger

    runs = _selection(None, model, strategy, family, None).of(read_ledger(results))
    if not runs:
        raise InputError(f"{results}: no runs to watch; `ettsweep grid --model vit-digits` makes some")
    with _detaching():
        snapshot = follow(Monitor(results, [r.spec for r in runs]), str(results), _console(), relaunch=False)
    if sys.stderr.isatty():  # elsewhere it was the last line already
        note(snapshot.summary())
    if snapshot.done < len(runs):
        note("`ettsweep status` says what became of the others")
        raise typer.Exit(1)


@app.command()
def logs(
    run: Annotated[str, typer.Argument(help="Run id, or the start of one.")],
    attempt: Annotated[int | None, typer.Option(min=1, help="Only this attempt.")] = None,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Print what a run logged, attempt by attempt, and why one ended without a result."""
    from ettsweep.launch.rounds import read_ledger
    from ettsweep.rundir import RunDir, runs_dir
    from ettsweep.sweep.ledger import find_run

    folder = RunDir(runs_dir(results) / find_run(read_ledger(results), run))
    numbers = [n for n in folder.numbers() if attempt in (None, n)]
    if not numbers:
        raise EttsweepError(f"run {folder.id} has no attempt{f' {attempt}' if attempt else ' yet'}")
    for number in numbers:
        print(f"== attempt {number}")
        print(folder.attempt(number).log(), end="")


@app.command("show")
def show_run(
    run: Annotated[str, typer.Argument(help="Run id, or the start of one.")],
    reproduce: Annotated[bool, typer.Option("--reproduce", help="Print the command that trains it again.")] = False,
    form: Form = Format.TABLE,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Show all that is known of one run: spec, state, attempts, result."""
    from ettsweep.launch.rounds import read_ledger
    from ettsweep.sweep.ledger import describe, find_run
    from ettsweep.views import flat, show_reproduction

    ledger = read_ledger(results)
    run_id = find_run(ledger, run)
    if reproduce:
        if run_id not in ledger.runs:
            raise EttsweepError(ledger.broken[run_id])
        show_reproduction(ledger.runs[run_id], form)
        return
    data = describe(ledger, run_id)
    rows = [{"key": key, "value": cell(value)} for key, value in flat(data)]
    show(rows, form, data=data)


@app.command()
def cancel(
    run: Runs = None,
    model: Models = None,
    strategy: Strategies = None,
    family: Families = None,
    state: States = None,
    all_: Annotated[bool, typer.Option("--all", help="All that are queued, running or interrupted.")] = False,
    yes: Yes = False,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Stop runs at their next step boundary; `retry` takes them on from there."""
    from ettsweep.launch.outlook import withdraw
    from ettsweep.launch.rounds import read_ledger
    from ettsweep.rundir import State

    _need_some(run, model, strategy, family, state, all_)
    found = _selection(run, model, strategy, family, state).of(read_ledger(results))
    stoppable = (State.MISSING, State.QUEUED, State.RUNNING, State.INTERRUPTED, State.UNKNOWN)
    chosen = [r for r in found if r.state in stoppable]
    _confirm(f"cancel {len(chosen)} runs?", len(chosen), yes)
    for r in chosen:
        r.dir.cancel()
    note(f"{len(chosen)} runs cancelled")
    if running := sum(r.state is State.RUNNING for r in chosen):
        note(f"{running} of them stop at their next step, with a checkpoint")
    if jobs := withdraw(results, {r.id for r in chosen}):
        note(f"{len(jobs)} waiting jobs withdrawn from SLURM")
    _note_others(found, chosen, run, "nothing to cancel")


@app.command()
def retry(
    run: Runs = None,
    model: Models = None,
    strategy: Strategies = None,
    family: Families = None,
    state: States = None,
    all_: Annotated[bool, typer.Option("--all", help="All that failed, were cancelled, or wait for a worker.")] = False,
    launch: Launch = None,
    launch_set: LaunchSets = None,
    log: Log = None,
    data: Data = None,
    yes: Yes = False,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Train failed, cancelled or corrupt runs again, from their last checkpoint where there is one."""
    from ettsweep.launch.rounds import read_ledger
    from ettsweep.launch.submit import check, submit
    from ettsweep.rundir import State
    from ettsweep.sweep.ledger import find_run
    from ettsweep.sweep.plan import make_plan
    from ettsweep.views import plan_summary, where_to

    _need_some(run, model, strategy, family, state, all_)
    ledger = read_ledger(results)
    for prefix in run or []:
        if (run_id := find_run(ledger, prefix)) in ledger.broken:
            raise EttsweepError(ledger.broken[run_id])
    found = _selection(run, model, strategy, family, state).of(ledger)
    waiting = (State.FAILED, State.CANCELLED, State.INTERRUPTED, State.MISSING)
    # A claim that cannot be asked after is given up only by name; a finished run may have lost its metrics.
    named = (*waiting, State.UNKNOWN, State.DONE, State.DIVERGED)
    chosen = [r for r in found if r.state in (named if run else waiting)]
    _confirm(f"retry {len(chosen)} runs?", len(chosen), yes)
    profile = _profile(results, {r.family for r in chosen}, launch, _with_log(launch_set, log), data)
    chosen, alive = _without_pulse(chosen)
    ledger = read_ledger(results)  # a person may have thought for long
    chosen = [r for r in chosen if ledger.state(r.id).state is r.state]
    plan = make_plan([r.spec for r in chosen], ledger, insist={r.id for r in chosen})
    check(results, plan, profile)  # what cannot be submitted stays as it is
    for r in chosen:
        r.dir.retry()
    plan = make_plan([r.spec for r in chosen], read_ledger(results), insist={r.id for r in chosen})
    folders = submit(results, plan, profile)
    note(plan_summary(plan, "") + where_to(folders))
    for r in alive:
        note(f"run {r.id} is alive: its heart beats on {r.status.where}; `ettsweep cancel {r.id}` stops it")
    _note_others([r for r in found if r not in alive], chosen, run, "nothing to retry")


@app.command()
def clean(
    dry_run: DryRun = False,
    form: Form = Format.TABLE,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Remove checkpoints of finished runs, dead attempts and orphans; results stay."""
    from ettsweep.launch.housekeeping import find_waste, remove

    waste = find_waste(results)
    if not dry_run:
        remove(waste)
    rows = [{"path": str(w.path), "bytes": w.size, "reason": w.reason} for w in waste]
    if dry_run or form is not Format.TABLE:
        show(rows, form, ("path", "bytes", "reason"))
    total = sum(w.size for w in waste)
    note(f"{len(waste)} items, {total / 2**20:.1f} MiB {'would be removed' if dry_run else 'removed'}")


@app.command()
def train(
    run: Annotated[str | None, typer.Argument(help="A run that is there, by id.", show_default=False)] = None,
    model: Model = None,
    grid: Grid = None,
    spec_file: Annotated[
        Path | None, typer.Option("--spec", metavar="FILE", help="A spec.json: train the run that it describes.")
    ] = None,
    strategy: Annotated[str | None, typer.Option(help="Scaling strategy; the grid's first by default.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate; the grid's centre by default.")] = None,
    wd: Annotated[float | None, typer.Option(help="Weight decay; the grid's centre by default.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed; the grid's first by default.")] = None,
    set_: Sets = None,
    launch: Launch = None,
    launch_set: LaunchSets = None,
    log: Log = None,
    data: Data = None,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Train one run in the foreground; Ctrl-C saves a checkpoint, and the same command goes on from it."""
    from ettsweep.launch.profiles import LocalProfile, load_profile
    from ettsweep.launch.rounds import read_ledger
    from ettsweep.launch.worker import train_in_foreground
    from ettsweep.rundir import read_spec
    from ettsweep.spec import validate
    from ettsweep.sweep.gridfile import Centre, find_grid, load_request
    from ettsweep.sweep.ledger import find_run
    from ettsweep.tasks.registry import check_data

    if spec_file is not None:
        options = {"--model": model, "--grid": grid, "--strategy": strategy, "--lr": lr, "--wd": wd, "--seed": seed}
        given = [name for name, value in {"a run id": run, **options, "--set": set_}.items() if value is not None]
        if given:
            raise InputError(f"--spec FILE says all of the run: {' and '.join(given)} cannot go with it")
        spec = read_spec(spec_file)
    elif run is not None:
        ledger = read_ledger(results)
        run_id = find_run(ledger, run)
        if run_id not in ledger.runs:
            raise EttsweepError(ledger.broken[run_id])
        spec = ledger.runs[run_id].spec
    else:
        if (grid is None) == (model is None):
            raise InputError("say what to train: a run id, --model NAME, --grid FILE, or --spec FILE")
        strategies = [strategy] if strategy else []
        start = None if lr is None or wd is None else validate(Centre, {"lr": lr, "wd": wd}, "run")
        request = _on_data(load_request(grid or find_grid(str(model)), strategies, set_ or [], start=start), data)
        data = data or request.data
        spec = request.searches()[0].run(lr, wd, seed)
    _point_at_data(data, spec.task.kind)
    check_data(spec.task, spec.model)
    profile = load_profile(launch or "local", _with_log(launch_set, log) or ())
    if not isinstance(profile, LocalProfile):
        raise InputError(f"--launch {launch}: `train` trains here, in this process; `grid` and `retry` submit to SLURM")
    finished = train_in_foreground(results, spec, profile)
    status([spec.run_id], results=results)
    raise typer.Exit(0 if finished else 1)


# --- theory and environment -----------------------------------------------------------------------------------------


@app.command("map")
def map_(
    lr: Annotated[float, typer.Option(help="Learning rate under --from.")],
    wd: Annotated[float, typer.Option(help="Weight decay under --from.")],
    from_: Annotated[str, typer.Option("--from", help="Strategy of lr and wd.")],
    to: Annotated[str, typer.Option("--to", help="Strategy to map them to.")],
    width: Annotated[int | None, typer.Option(min=1, help="Width n.")] = None,
    model: Model = None,
    optimizer: Optimizer = "adamw",
    form: Form = Format.TABLE,
) -> None:
    """Map (lr, wd) from one scaling strategy to another by a power of the width; nothing is trained."""
    from ettsweep.models.registry import model_spec
    from ettsweep.scaling.hyperparameters import map_point
    from ettsweep.scaling.strategies import parse_strategy
    from ettsweep.spec import validate
    from ettsweep.sweep.gridfile import Centre

    if (width is None) == (model is None):
        raise InputError("the map needs a width, from one of --width N and --model NAME")
    point = validate(Centre, {"lr": lr, "wd": wd}, "map")
    n = width or model_spec(str(model)).width
    lr_to, wd_to = map_point(point.lr, point.wd, parse_strategy(from_), parse_strategy(to), n, optimizer)
    row = {"lr": lr_to, "wd": wd_to}
    show([row], form, data=row)


@app.command()
def scales(
    model: Annotated[str, typer.Option(help="Model name.")],
    strategy: Annotated[str, typer.Option(help="standard, ntk, hybrid, mup or s=0.25.")] = "ntk",
    lr: Annotated[float | None, typer.Option(help="Learning rate, for effective ones.")] = None,
    optimizer: Optimizer = "adamw",
    mlp_factor: Annotated[Literal["ignore", "include"], typer.Option(help="Whether M enters the factors.")] = "ignore",
    form: Form = Format.TABLE,
) -> None:
    """Print the table of a model's parameter groups: shape, init std, learning-rate and decay factors."""
    from ettsweep.models.scales import describe_scales

    if lr is not None and not 0 < lr <= 1e30:
        raise InputError(f"--lr: a number between 0 and 1e30 is expected, got {lr}")
    data = describe_scales(model, strategy, optimizer, mlp_factor, lr)
    columns = [c for c in data["groups"][0] if c != "effective_lr" or lr is not None]
    show(data["groups"], form, columns, data=data)
    if form is Format.TABLE:
        rescale = "" if data["output_rescale"] is None else f", logits times {data['output_rescale']:.4g}"
        about = f"width {data['width']}, {data['parameters']:,} parameters{rescale}"
        note(f"{data['model']} under {data['strategy']}: {about}")


@app.command("check-scaling")
def check_scaling(
    model: Annotated[str, typer.Option(help="Model name.")],
    strategy: Annotated[str, typer.Option(help="standard, ntk, hybrid, mup or s=0.25.")] = "ntk",
    optimizer: Optimizer = "adamw",
    mlp_factor: Annotated[Literal["ignore", "include"], typer.Option(help="Whether M enters the factors.")] = "ignore",
    widths: Annotated[
        str | None, typer.Option(help="Widths, such as 96,192,384,768; 8, 16, 32 and 64 times the heads by default.")
    ] = None,
    depth: Annotated[int | None, typer.Option(min=1, help="Blocks; the model's, at most 4 + 4 for text.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of training.")] = 5,
    seeds: Annotated[int | None, typer.Option(min=3, help="Networks of each width; 3, or 12 of small ones.")] = None,
    lr: Annotated[
        float | None,
        typer.Option(help="Learning rate at all widths: one that moves the outputs a little, by 0.01 unless given."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of check.json and the figure; in RESULTS by default.")
    ] = None,
    form: Form = Format.TABLE,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Build and train networks of several widths, and hold what they do to what theory implies for the strategy.

    A row for each block: its kernel at the widest (mean over tokens, and between samples) beside theory's; the power of
    the width of the kernel and of the change of activations in training. A row for each parameter group: its
    contribution to the tangent kernel at the widest; the powers of that, of the change of the outputs that its steps
    make by themselves, of its initial std and learning-rate factor; its decay, divided by lr wd. All rows ok: exit
    code 0.
    """
    from ettsweep.files import storage_errors
    from ettsweep.report.scaling import show_check, write_check
    from ettsweep.training import scaling_check

    if lr is not None and not 0 < lr <= 1e30:
        raise InputError(f"--lr: a number between 0 and 1e30 is expected, got {lr}")
    wanted = tuple(_numbers(widths, "--widths", "96,192,384,768"))
    plan = scaling_check.make_plan(
        scaling_check.Question(model, strategy, optimizer, mlp_factor, wanted or None, steps, seeds, lr, depth)
    )
    folder = out or results / "check-scaling" / plan.name
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)  # what cannot be written is an error before minutes of training
    try:
        check = scaling_check.check_scaling(plan)
    except BaseException:
        with contextlib.suppress(OSError):
            folder.rmdir()  # unless an earlier check is in it
        raise
    show_check(check, form)
    paths = write_check(folder, check)
    note(f"wrote {', '.join(map(str, paths))}")
    raise typer.Exit(0 if check.verdict == "ok" else 1)


@app.command()
def doctor(
    launch: Launch = None,
    launch_set: LaunchSets = None,
    data: Data = None,
    model: Model = None,
    grid: Grid = None,
    set_: Sets = None,
    task: Annotated[str | None, typer.Option(help="Task that --data is for, where no grid says so.")] = None,
    images: Annotated[int | None, typer.Option(min=1, help="Decode no more images of --data than this.")] = None,
    fit: Annotated[bool, typer.Option("--fit", help="Find the largest micro-batch of --model that fits here.")] = False,
    form: Form = Format.TABLE,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Say what works here: torch, slots, the results folder; with a SLURM profile, what it would get.

    With --data, read all of a data set too: form and counts, each image, each shard of tokenised text. With --model and
    --fit, try how many images go through the model at once.
    """
    from ettsweep.launch.doctor import examine
    from ettsweep.launch.doctor_data import examine_data, shorten, subject
    from ettsweep.launch.doctor_fit import examine_fit
    from ettsweep.launch.profiles import load_profile
    from ettsweep.sweep.gridfile import ANYWHERE, find_grid, load_request

    if fit and (grid is None) == (model is None):
        raise InputError("--fit needs a grid: say which, with one of --model NAME and --grid FILE")
    meant = None
    if data is None and not fit and (grid or model):
        data = _data_of(load_request(grid or find_grid(str(model)), overrides=set_ or [], start=ANYWHERE))
    if data is not None:
        meant = subject(data, model, grid, set_ or [], task)
        _point_at_data(data, meant.task.kind)
    checks = examine(results, launch or "local", launch_set or [], meant.task.kind if meant else None)
    if meant is not None:
        checks += examine_data(meant, images)
    if fit:
        checks += examine_fit(model, grid, set_ or [], load_profile(launch or "local", launch_set or []))
    checks = shorten(checks) if form in (Format.TABLE, Format.MARKDOWN) else checks
    show([{"check": c.what, "state": c.state, "detail": c.detail} for c in checks], form)
    raise typer.Exit(1 if any(c.state == "failed" for c in checks) else 0)


# --- data -----------------------------------------------------------------------------------------------------------

data_app = typer.Typer(name="data", help="Make data ready for training.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app)


@data_app.command("text")
def data_text(
    inputs: Annotated[
        list[str],
        typer.Option(
            "--input",
            metavar="FILES",
            help="Text: a .txt, .jsonl (both also .gz) or .parquet file, a folder or pattern of them, a folder of "
            "datasets.save_to_disk, or hfds/OWNER/NAME[:SPLIT]; repeatable.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write to; the --data of a grid.")],
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="DIR", help="GPT-2's tokenizer files, or those of another byte-level BPE.")
    ] = None,
    bpe_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Train a byte-level BPE of so many tokens instead.")
    ] = None,
    val_fraction: Annotated[float, typer.Option(help="Share of the documents that validate.")] = 0.005,
    text_field: Annotated[str, typer.Option(help="Field of the text in JSON lines and tables.")] = "text",
    documents: Annotated[
        Literal["blank-line", "line", "file"],
        typer.Option(help="What a document is in text files: what stands between blank lines, a line, or a file."),
    ] = "blank-line",
    shard_mib: Annotated[float, typer.Option(help="Text that a process works on at a time, in MiB.")] = 32.0,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; one per core by default.")] = None,
    form: Form = Format.TABLE,
) -> None:
    """Tokenise text for the task `text`, on all cores; what a killed command has finished is kept."""
    from ettsweep.tasks.tokenisation import Order, corpus_rows, corpus_summary, tokenise

    order = Order(tuple(inputs), out, tokenizer, bpe_tokens, val_fraction, text_field, documents, shard_mib, workers)
    outcome = tokenise(order)
    rows = corpus_rows(outcome.manifest)
    show(rows, form, data={"digest": outcome.manifest.digest, "n_vocab": outcome.manifest.n_vocab, "parts": rows})
    note(corpus_summary(order, outcome))


# --- helpers: arguments in, text out ----------------------------------------------------------------------------------


def _console() -> "Console":
    from rich.console import Console

    return Console(stderr=True, soft_wrap=not sys.stderr.isatty())  # a file has no edge to wrap at


class _detaching:  # noqa: N801 (reads as a statement)
    """Ctrl-C leaves the command, with exit code 0: what was submitted goes on."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is KeyboardInterrupt:
            note("detached; the runs go on: `ettsweep watch` shows them")
            raise typer.Exit(0)


def _numbers(text: str | None, option: str, example: str) -> list[int]:
    if text is None:
        return []
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option}: whole numbers with commas are expected, such as {example}, got {text!r}") from None


def _point(text: str | None) -> Any:
    if text is None:
        return None
    from ettsweep.sweep.lattice import parse_point

    return parse_point(text, "--at")


def _profile(
    results: Path,
    families: set[str],
    launch: str | None,
    launch_set: list[str] | None,
    data: str | None,
    *,
    check: bool = True,
) -> "AnyProfile":
    """Return the launch profile asked for, else that of the grids that these families belong to.

    Raises:
        InputError: their grids were launched differently, so a choice is needed.
        DataMissingError: a data set of theirs is not there.
    """
    from ettsweep.launch.profiles import load_profile
    from ettsweep.sweep.gridfile import load_requests

    ways: dict[tuple[str, tuple[str, ...]], str] = {}
    left = set(families)
    for request in load_requests(results):  # newest first: it governs its families
        mine = {search.family for search in request.searches()} & left
        if mine:
            left -= mine
            request = _where(request, launch, launch_set, data)
            ways.setdefault((request.launch, request.launch_set), request.grid)
            if check:
                _check_data(request)
    if len(ways) > 1:
        told = "; ".join(" ".join((grid, "with", name, *sets)) for (name, sets), grid in ways.items())
        raise InputError(f"these grids were launched differently ({told}); choose with --launch, or narrow the runs")
    name, sets = next(iter(ways), (launch or "local", tuple(launch_set or ())))
    return load_profile(name, sets)


def _with_log(launch_set: list[str] | None, log: list[str] | None) -> list[str] | None:
    """Return what is set in the profile, with the sinks that metrics go to.

    Raises:
        InputError: there is no such sink, or its package is missing.
    """
    if not log:
        return launch_set
    from ettsweep.errors import unknown_name
    from ettsweep.training.sinks import SINKS, check_sinks

    for name in log:
        if name not in SINKS:
            raise unknown_name("sink", name, SINKS)
    check_sinks(log)
    return [*(launch_set or []), f"log=[{', '.join(log)}]"]


def _show_scripts(scripts: list[str], form: Format) -> None:
    """Print what would be handed to sbatch, below a table; JSON and CSV have no room for it."""
    for script in scripts if form is Format.TABLE else []:
        print(f"\n{script}", end="")


def _where(request: "Request", launch: str | None, launch_set: list[str] | None, data: str | None) -> "Request":
    """Return the request with what the options say of where it trains."""
    given: dict[str, Any] = {}
    if launch is not None:
        given["launch"] = str(Path(launch).resolve()) if Path(launch).is_file() else launch
        given["launch_set"] = ()  # another profile does not inherit what was set in the first
    if launch_set:
        sets = (*given.get("launch_set", request.launch_set), *launch_set)
        given["launch_set"] = tuple(
            {text.partition("=")[0]: text for text in sets}.values()
        )  # the last of a key counts
    if data is not None:
        given["data"] = data
    request = request.model_copy(update=given)
    resolved = _point_at_data(request.data, request.recipe.task.kind)
    return request.model_copy(update={"data": resolved})


def _on_data(request: "Request", data: str | None) -> "Request":
    """Return a grid's request for the text at hand, if it is for text.

    Raises:
        DataMissingError: there is none.
    """
    from ettsweep.sweep.gridfile import with_corpus

    _point_at_data(data or request.data, request.recipe.task.kind)
    return with_corpus(request)


def _point_at_data(data: str | None, task: str) -> str | None:
    """Make the data set of a task known to this process and to the workers that it starts; return it, resolved."""
    from ettsweep.tasks.location import DATA_ENV, resolve

    if data is None:
        return None
    if task not in DATA_ENV:
        own = "; for text of your own: --set task=text" if task == "pydoc" else ""
        raise InputError(f"--data: task {task} has its data from a package, and reads no other{own}")
    os.environ[DATA_ENV[task]] = data = resolve(data)
    return data


def _data_of(request: "Request") -> str | None:
    """Return where images or text of a grid are, as the grid or the environment says; None where neither does."""
    from ettsweep.spec import ImageTask, TextTask
    from ettsweep.tasks.location import data_env

    task = request.recipe.task
    return request.data or os.environ.get(data_env(task.kind)) if isinstance(task, ImageTask | TextTask) else None


def _check_data(request: "Request", *, counts: bool = False) -> None:
    """Check that the data are there, and at a glance that they are as many as every run will ask for."""
    from ettsweep.spec import ImageTask, VitSpec
    from ettsweep.tasks.location import check_counts
    from ettsweep.tasks.registry import check_data

    task = request.recipe.task
    model = request.recipe.model
    check_data(task, model)
    if counts and isinstance(task, ImageTask) and isinstance(model, VitSpec):
        check_counts(task, model.classes)


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


def _searches(
    results: Path,
    models: list[str] | None,
    strategies: list[str] | None,
    families: list[str] | None,
) -> "list[Search]":
    from ettsweep.scaling.strategies import parse_strategy
    from ettsweep.sweep.gridfile import load_requests, searches

    requests = load_requests(results)
    if not requests:
        raise InputError(f"{results}: no grid has been asked for yet; `ettsweep grid --model vit-digits` asks for one")
    wanted = {parse_strategy(name) for name in strategies or []}
    found = [
        search
        for search in searches(requests)
        if (not wanted or search.base.strategy.s in wanted)
        and (not models or search.model in models)
        and (not families or search.family.startswith(tuple(families)))
    ]
    if not found:
        known = ", ".join(f"{s.model} {s.strategy} ({s.family})" for s in searches(requests))
        raise InputError(f"no search fits these options; there are: {known}")
    return found


def _selection(
    runs: list[str] | None,
    models: list[str] | None,
    strategies: list[str] | None,
    families: list[str] | None,
    states: list[str] | None,
) -> "Selection":
    from ettsweep.errors import unknown_name
    from ettsweep.rundir import State
    from ettsweep.sweep.ledger import Selection

    for name in states or []:
        if name not in list(State):
            raise unknown_name("state", name, [s.value for s in State])
    return Selection(
        tuple(runs or ()),
        tuple(families or ()),
        tuple(strategies or ()),
        tuple(models or ()),
        tuple(State(name) for name in states or ()),
    )


def _need_some(*selectors: object) -> None:
    if not any(selectors):
        raise InputError("say which runs: ids, --family, --strategy, --model, --state or --all")


def _confirm(question: str, count: int, yes: bool) -> None:
    if count > 1 and not yes:
        try:
            agreed = typer.confirm(question)
        except typer.Abort:
            raise InputError("nobody answered; --yes says yes beforehand") from None
        if not agreed:
            raise typer.Exit(1)


def _without_pulse(runs: "list[Run]") -> "tuple[list[Run], list[Run]]":
    """Split runs into those to take on, and those of unknown owners whose hearts beat while this command looks on."""
    from ettsweep.launch.outlook import watch_pulses
    from ettsweep.rundir import State

    unknown = [r for r in runs if r.state is State.UNKNOWN]
    for r in unknown:
        note(f"run {r.id}: {r.status.reason}; watching its heartbeat")
    beating = watch_pulses([r.dir for r in unknown])
    alive = [r for r in unknown if r.id in beating]
    return [r for r in runs if r not in alive], alive


def _note_others(found: "list[Run]", chosen: "list[Run]", named: list[str] | None, what: str) -> None:
    """Say of runs that were named why nothing was done about them."""
    for run in found if named else []:
        if run not in chosen:
            note(f"run {run.id} is {run.state}: {what}")
