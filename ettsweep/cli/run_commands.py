"""Commands on runs: status, watch, logs, show, cancel, retry, clean, train."""

import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ettsweep.cli.options import (
    DEFAULT_RESULTS,
    Data,
    DryRun,
    ExistingResults,
    FamilyOptions,
    Form,
    LaunchOptions,
    Model,
    Results,
    RunOptions,
    Sets,
    Yes,
    require_folder,
)
from ettsweep.cli.parsers import parse_path, power_option
from ettsweep.cli.prompts import (
    can_show_screen,
    confirm,
    detach_on_interrupt,
    progress_console,
    repeat_option,
    runs_go_on,
    shell_command,
)
from ettsweep.console import Format, escape_control, format_cell, format_count, print_note, print_table
from ettsweep.errors import EttsweepError, InputError, StoppedError

if TYPE_CHECKING:
    from ettsweep.runs.index import Run, RunIndex
    from ettsweep.study.study import Study
    from ettsweep.study.sweep_store import SweepStore

RunId = Annotated[str, typer.Argument(help="Run id, or a prefix of it.")]

# People read the table; scripts read the keys of CSV and JSON, which must not change.
STATUS_COLUMNS = ("run", "sweep", "model", "strategy", "lr", "wd", "seed", "state", "progress", "best_score", "reason")
STATUS_KEYS = (
    *("run", "sweep", "family", "model", "task", "strategy", "lr", "wd", "log2_lr", "log2_wd", "seed"),
    *("state", "progress", "best_score", "reason", "where", "job", "slot", "left_s"),
)


def with_axes(columns: Sequence[str], further: Sequence[str]) -> list[str]:
    """Return the columns with those of further axes after those of lr and wd; their log2 is for scripts."""
    names = [name for name in further if not name.startswith("log2_") or "log2_wd" in columns]
    at = columns.index("seed")
    return [*columns[:at], *names, *columns[at:]]


def status(
    *,
    run_options: RunOptions,
    form: Form = Format.TABLE,
    results: ExistingResults = DEFAULT_RESULTS,
) -> None:
    """List runs with their states."""
    from ettsweep.cli.run_tables import idle_reason, run_sort_key, state_note, status_row
    from ettsweep.launch.follow import read_run_index
    from ettsweep.launch.liveness import SchedulerLiveness
    from ettsweep.runs.index import count_states
    from ettsweep.runs.state import State
    from ettsweep.study.study import shown_strategy

    run_index, sweep_store = read_run_index(results), run_options.load(results)
    runs = run_options.runs(run_index, sweep_store)
    rows = [status_row(r, sweep_store.studies_by_family) for r in sorted(runs, key=run_sort_key)]
    further = list(dict.fromkeys(name for row in rows for name in row if name not in STATUS_KEYS))
    if form in (Format.TABLE, Format.MARKDOWN):
        # Only tables leave out columns with one value: CSV and JSON always have the same columns.
        omitted = {"sweep"} if len({row["sweep"] for row in rows}) == 1 else set()
        omitted |= set() if any(shown_strategy(run.base) for run in runs) else {"strategy"}
        columns = with_axes([column for column in STATUS_COLUMNS if column not in omitted], further)
        print_table([row | {"reason": state_note(row)} for row in rows], form, columns)
    else:
        print_table(rows, form, with_axes(STATUS_KEYS, further))
    if form is Format.TABLE:
        counts = count_states(r.state for r in runs)
        states = ", ".join(f"{number} {state}" for state, number in counts.items()) or "none"
        print_note(f"{format_count(len(runs), 'run')} in {results}: {states}")
        if not (run_index.runs or run_index.broken):
            print_note("no runs yet; `ettsweep grid --model vit-digits` starts some")
        vacant = SchedulerLiveness(results).vacant_slots([r.id for r in runs if r.state is State.QUEUED])
        if slots := ", ".join(v.slot for v in vacant if v.died):
            print_note(f"no worker in {slots}: it died; a command that follows or requests the runs starts a new one")
        idle = [r for r in runs if r.state in (State.INTERRUPTED, State.MISSING)]
        if idle:
            waiting = f"{format_count(len(idle), 'run')} {'waits' if len(idle) == 1 else 'wait'}"
            print_note(f"{waiting} for a worker: start one with the command that requested them, or with")
            states_present = sorted({r.state.value for r in idle})
            retry_command = shell_command("retry", *run_options.as_arguments, *repeat_option("--state", states_present))
            print_note(retry_command + idle_reason(results, idle))
    for name, problem in run_index.broken.items():
        print_note(f"run folder {name} is broken: {problem}")


def watch(
    *,
    family_options: FamilyOptions,
    results: ExistingResults = DEFAULT_RESULTS,
) -> None:
    """Show progress, verdicts and events live.

    `q` or Ctrl-C leaves, and runs keep running. In a terminal this is a full screen; `?` lists its keys. Elsewhere it
    prints lines of progress until all runs have ended.
    """
    sweep_store = family_options.load(results)

    # The screen calls this again whenever runs or sweeps have changed.
    def choose(run_index: "RunIndex", sweep_store: "SweepStore") -> "tuple[list[Run], list[Study]]":
        if not (runs := family_options.runs(run_index, sweep_store)):
            raise InputError(f"{results}: no runs to watch; `ettsweep grid --model vit-digits` starts some")
        return runs, family_options.matching_studies(sweep_store)

    with detach_on_interrupt(selection=family_options.as_arguments):
        if can_show_screen():
            from ettsweep.watch.app import show_screen

            family_options.sweeps(sweep_store)  # report a wrong name before the screen opens
            sweep_status = show_screen(results, choose)
        else:
            from ettsweep.launch.follow import read_run_index
            from ettsweep.launch.progress import ProgressMonitor, follow_progress

            runs, _ = choose(read_run_index(results), sweep_store)
            monitor = ProgressMonitor(results, [r.spec for r in runs], sweep_store.studies_by_family)
            # relaunch=False: watching never starts or submits anything.
            sweep_status = follow_progress(monitor, str(results), progress_console(), relaunch=False)
    if sweep_status is None or not sweep_status.is_over:
        print_note(f"detached; {runs_go_on(family_options.as_arguments)}")
        return
    if sys.stderr.isatty():  # otherwise the summary was the last line of progress
        print_note(sweep_status.summary())
    if sweep_status.unfinished_count:
        print_note(f"{shell_command('status', *family_options.as_arguments)} lists the runs that have not finished")
        raise typer.Exit(1)


def logs(
    run: RunId,
    attempt: Annotated[int | None, typer.Option(min=1, help="Only this attempt.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until the run ends.")] = False,
    results: ExistingResults = DEFAULT_RESULTS,
) -> None:
    """Print the log of a run, attempt by attempt.

    With --follow, the exit code is 0 if the run has finished, else 1.
    """
    from ettsweep.launch.follow import read_run_index
    from ettsweep.runs.folder import RunDir, runs_dir
    from ettsweep.runs.index import find_intact_run, find_run_id

    if follow:
        if attempt is not None:
            raise InputError("leave out --attempt: --follow prints all new attempts")
        _follow_log(results, find_intact_run(read_run_index(results), run))
        return
    # A broken run folder has logs too, so only the id is needed.
    folder = RunDir(runs_dir(results) / find_run_id(read_run_index(results), run))
    numbers = [n for n in folder.attempt_numbers() if attempt in (None, n)]
    if not numbers:
        raise EttsweepError(f"run {folder.id} has no attempt{f' {attempt}' if attempt else ' yet'}")
    for number in numbers:
        print(f"== attempt {number}")
        print(escape_control(folder.attempt(number).log_text()), end="")


def _follow_log(results: Path, run: "Run") -> None:
    from ettsweep.launch.log_follow import follow_log
    from ettsweep.launch.progress import ProgressMonitor

    with detach_on_interrupt():
        monitor = ProgressMonitor(results, [run.spec])
        status = follow_log(monitor, run.dir, lambda text: print(escape_control(text), end="", flush=True), print_note)
    print_note(f"run {run.id} is {status.state}{f': {status.reason}' if status.reason else ''}")
    raise typer.Exit(0 if status.state.finished else 1)


def show_run(
    run: RunId,
    all_: Annotated[bool, typer.Option("--all", help="Print all fields too, one per line.")] = False,
    form: Form = Format.TABLE,
    results: ExistingResults = DEFAULT_RESULTS,
) -> None:
    """Show one run: losses, score, spikes, speed, attempts.

    Formats other than table have all fields.
    """
    from ettsweep.cli.run_overview import show_overview
    from ettsweep.cli.run_tables import describe_run, flatten
    from ettsweep.launch.follow import read_run_index
    from ettsweep.runs.index import find_run_id
    from ettsweep.study.sweep_store import load_sweep_store

    run_index = read_run_index(results)
    run_id = find_run_id(run_index, run)
    data = describe_run(run_index, run_id, load_sweep_store(results).studies_by_family)
    if form is Format.TABLE:
        show_overview(data, run_index.runs.get(run_id))
        if not all_:
            print_note(f"`ettsweep show {run_id} --all` prints all fields")
            return
        print()
    pairs = flatten(data)
    if form is not Format.CSV:
        pairs = [(key, format_cell(value, key)) for key, value in pairs]
    print_table([{"key": key, "value": value} for key, value in pairs], form, data=data)


def cancel(
    *,
    run_options: RunOptions,
    all_: Annotated[bool, typer.Option("--all", help="Cancel all queued, running and interrupted runs.")] = False,
    yes: Yes = False,
    results: ExistingResults = DEFAULT_RESULTS,
) -> None:
    """Stop runs after their current step.

    `retry` resumes them from their last checkpoint.
    """
    from ettsweep.launch.cancellation import cancel_runs as cancel_runs
    from ettsweep.launch.cancellation import cancellable
    from ettsweep.launch.follow import read_run_index

    run_options.require_selection(all_)
    sweep_store = run_options.load(results)
    selected = run_options.runs(read_run_index(results), sweep_store)
    # With --sweep, runs that other sweeps need too are skipped.
    runs, skipped = cancellable(selected, [] if run_options.run else run_options.sweep or [], sweep_store)
    for message in skipped:
        print_note(message)
    # A single run needs no confirmation: `retry` resumes it.
    confirm(f"cancel {len(runs)} runs?", yes or len(runs) < 2)
    for message in cancel_runs(results, runs):
        print_note(message)
    _note_skipped(selected if run_options.run else [], {run.id for run in runs}, "nothing to cancel")


def retry(
    *,
    run_options: RunOptions,
    all_: Annotated[
        bool, typer.Option("--all", help="Retry all runs that failed, were cancelled or wait for a worker.")
    ] = False,
    new_code: Annotated[
        bool,
        typer.Option("--new-code", help="Train with the project as it is now, and treat its code as that of the runs."),
    ] = False,
    more_memory: Annotated[
        str | None,
        typer.Option(help="Memory of the jobs of these runs on each node, such as 64G.", metavar="SIZE"),
    ] = None,
    more_time: Annotated[
        str | None, typer.Option(help="Time limit of the jobs of these runs, such as 2h.", metavar="TIME")
    ] = None,
    launch_options: LaunchOptions,
    data: Data = None,
    yes: Yes = False,
    results: ExistingResults = DEFAULT_RESULTS,
) -> None:
    """Resubmit failed, cancelled or corrupt runs.

    They resume from their last checkpoint, if there is one.
    """
    from ettsweep.cli.run_tables import show_submit_result
    from ettsweep.launch.follow import CommandContext, execute_plan, read_run_index
    from ettsweep.launch.profile import load_profile, with_more
    from ettsweep.launch.resolve import data_paths, plan_retries, retryable
    from ettsweep.runs.index import find_intact_run

    run_options.require_selection(all_)
    run_index, sweep_store = read_run_index(results), run_options.load(results)
    for prefix in run_options.run or []:
        find_intact_run(run_index, prefix)  # raises for a broken run folder, which cannot be trained
    selected = run_options.runs(run_index, sweep_store)
    runs = retryable(selected, by_id=bool(run_options.run))
    confirm(f"retry {len(runs)} runs?", yes or len(runs) < 2)
    # By default, runs train where their sweeps do, on the same data.
    studies = run_options.studies_of_runs(runs, sweep_store)
    sweeps = sweep_store.select(list({study.sweep for study in studies})) if studies else []
    launch = with_more(launch_options.settings(sweeps), more_memory, more_time)
    launcher = load_profile(launch.profile, launch.overrides, is_executed=True)
    context = CommandContext(results, data_paths(sweeps, data, check=True), studies=studies, notify=print_note)
    plan, alive = plan_retries(runs, context, launcher, notify=print_note, new_code=new_code)
    show_submit_result(execute_plan(plan, context, launcher), Format.TABLE)
    for run in alive:
        print_note(f"run {run.id} is still training on {run.status.host}; `ettsweep cancel {run.id}` stops it")
    handled = {p.id for p in plan.all_runs} | {run.id for run in alive}
    _note_skipped(selected if run_options.run else [], handled, "nothing to retry")


def clean(
    unused_runs: Annotated[
        bool, typer.Option("--unused-runs", help="Also remove runs of no sweep, with their results.")
    ] = False,
    outputs: Annotated[
        bool,
        typer.Option("--outputs", help="Also remove files of finished runs, except `keep:` and those of best points."),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    form: Form = Format.TABLE,
    results: ExistingResults = DEFAULT_RESULTS,
) -> None:
    """Remove checkpoints and files that nothing needs.

    It keeps results, unless you pass --unused-runs.
    """
    from ettsweep.launch.cleanup import RUN_OF_NO_SWEEP, find_waste, remove, watch_workers

    slurm_cache = None if dry_run else watch_workers(results, print_note)
    waste = find_waste(results, slurm_cache, unused_runs=unused_runs, outputs=outputs)
    unused_count = sum(w.reason == RUN_OF_NO_SWEEP for w in waste)
    if not dry_run:
        confirm(f"remove {format_count(unused_count, 'run')} of no sweep, with results?", yes or not unused_count)
        remove(waste, slurm_cache)
    rows = [{"path": str(w.path), "bytes": w.size, "reason": w.reason} for w in waste]
    if dry_run or form is not Format.TABLE:
        print_table(rows, form, ("path", "bytes", "reason"))
    total = sum(w.size for w in waste)
    print_note(
        f"{format_count(len(waste), 'item')}, {total / 2**20:.1f} MiB {'would be removed' if dry_run else 'removed'}"
    )


def train(
    *,
    run: Annotated[
        str | None,
        typer.Argument(help="Grid file, or id of an existing run.", metavar="GRID|RUN", show_default=False),
    ] = None,
    model: Model = None,
    spec_file: Annotated[
        Path | None,
        typer.Option("--spec", parser=parse_path, metavar="FILE", help="Train the run described by this spec.json."),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(help="Scaling strategy; the grid's first by default."),
    ] = None,
    lr: Annotated[float | None, power_option("Learning rate; the grid's centre by default.")] = None,
    wd: Annotated[float | None, power_option("Weight decay; the grid's centre by default.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed; the grid's first by default.")] = None,
    set_: Sets = None,
    launch_options: LaunchOptions,
    data: Data = None,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Train one run in the foreground.

    Ctrl-C saves a checkpoint; the same command resumes from it. The exit code is 0 if the run is done, 1 if it
    diverged, failed or was cancelled.
    """
    from ettsweep.launch.cost import CostEstimator
    from ettsweep.launch.folders import check_folders, check_source
    from ettsweep.launch.follow import read_run_index
    from ettsweep.launch.project_copy import ensure_copies
    from ettsweep.launch.resolve import absolute_data_path, resolve_run
    from ettsweep.launch.submit import check_resources
    from ettsweep.runs.folder import RunDir, read_spec
    from ettsweep.runs.index import find_intact_run
    from ettsweep.runs.spec import kind_of
    from ettsweep.runs.state import State
    from ettsweep.study.grid_file import choose_grid_path, grid_note
    from ettsweep.study.plan import make_plan
    from ettsweep.worker.worker import train_in_foreground

    note, others = "", None
    source = spec_file
    if spec_file is not None:
        options = {"--model": model, "--strategy": strategy, "--lr": lr, "--wd": wd, "--seed": seed}
        conflicting = [
            name
            for name, value in {"a grid file or run id": run, **options, "--set": set_}.items()
            if value is not None
        ]
        if conflicting:
            raise InputError(f"leave out {' and '.join(conflicting)}: --spec FILE describes the whole run")
        spec = read_spec(spec_file)
        if spec_file.parent.name == spec.run_id:  # of a results folder, which may have a copy of its code
            others = spec_file.absolute().parent.parent.parent
    elif run and not run.strip("0123456789abcdef") and not Path(run).exists():  # a run id, or the beginning of one
        spec = find_intact_run(read_run_index(require_folder(results)), run).spec
    else:
        source = choose_grid_path(
            parse_path(run) if run else None, model, "pass a grid file, a run id, --model NAME or --spec FILE"
        )
        spec, data = resolve_run(source, strategy, set_ or [], lr, wd, seed, data)
        note = grid_note(source, model)
    data = absolute_data_path(data, spec) if data else None
    kind_of(spec).check_data(spec, data, False)
    profile = launch_options.launcher([], is_executed=True)
    if not profile.resolve_slots():
        raise InputError(
            f"--launch {launch_options.launch}: `train` trains on this machine; `grid` and `retry` submit to SLURM"
        )
    check_resources([spec], profile)
    if source is not None:
        check_source(spec, source.absolute())
    check_folders(results, [spec])
    ensure_copies(results, [spec], others)
    RunDir.create(results, spec)  # an unwritable folder is an error before anything is announced
    print_note(note)
    account = CostEstimator(profile)
    # force_ids: a run that failed or was cancelled is blocked otherwise.
    plan = make_plan([spec], read_run_index(results), force_ids={spec.run_id})
    print_note(account.describe_estimate(plan))
    state = train_in_foreground(results, spec, profile, data)
    print_note(account.describe_cost(read_run_index(results)))
    status(run_options=RunOptions(run=[spec.run_id]), results=results)
    # Ctrl-C is the usual way to stop.
    if state is State.INTERRUPTED:
        raise StoppedError("interrupted; run the same command to resume from the last checkpoint")
    raise typer.Exit(0 if state is State.DONE else 1)


def _note_skipped(requested: "list[Run]", handled: Collection[str], outcome: str) -> None:
    """Print the state and its reason of each run that is given by id and was not handled."""
    from ettsweep.runs.state import State

    for run in requested:
        if run.id not in handled:
            suffix = f"; {run.status.reason}" if run.state is State.HELD else ""
            print_note(f"run {run.id} is {run.state}: {outcome}{suffix}")
