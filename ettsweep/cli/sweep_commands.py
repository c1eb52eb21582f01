"""Commands on sweeps: grid, verify-optimum, seeds, report."""

from pathlib import Path
from typing import Annotated

import typer

from ettsweep.cli.grid_options import GridOptions
from ettsweep.cli.options import (
    DEFAULT_RESULTS,
    BudgetOptions,
    Data,
    DryRun,
    ExistingResults,
    FamilyOptions,
    Follow,
    Form,
    LaunchOptions,
    Results,
    VerdictOptions,
)
from ettsweep.cli.parsers import parse_path
from ettsweep.cli.prompts import (
    detach_on_interrupt,
    progress_console,
    shell_command,
    suggest_command,
)
from ettsweep.console import Format, print_note
from ettsweep.errors import InputError
from ettsweep.files import naming_option


def grid(
    *,
    grid_options: GridOptions,
    verdict_options: VerdictOptions,
    launch_options: LaunchOptions,
    data: Data = None,
    dry_run: DryRun = False,
    follow: Follow = False,
    form: Form = Format.TABLE,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Create or extend a sweep, and submit its missing runs."""
    from ettsweep.cli.run_tables import note_blocked, note_failed_starts, note_unsubmitted, show_submit_result
    from ettsweep.launch.follow import CommandContext, execute_plan
    from ettsweep.launch.profile import load_profile, profile_note
    from ettsweep.launch.resolve import plan_grid, record_grid, resolve_request
    from ettsweep.study.sweep_store import load_sweep_store
    from ettsweep.study.tried import check_tried

    name, requested_spec, notes = grid_options.load_spec(verdict_options, "give a grid file, or --model NAME")
    changes = list[str]()  # printed once the project is copied: the output may go to a file of it
    with suggest_command():
        launch = launch_options.settings_of_grid(load_sweep_store(results), name)
        launcher = load_profile(launch.profile, launch.overrides, is_executed=not dry_run)
        sweep_spec = resolve_request(
            requested_spec, results, name, data, same_numbers=grid_options.same_numbers, notify=changes.append
        )
        studies, screen = sweep_spec.studies(name), progress_console() if follow else None
        context = CommandContext(results, sweep_spec.data_paths, dry_run, screen, name, studies, notify=print_note)
        changes.append(check_tried(results, name, studies[0], sweep_spec.grid))
        plan, obstacle = plan_grid(sweep_spec, context, launcher)
        if not dry_run:
            changes.append(record_grid(results, name, sweep_spec, launch))
    print_note("\n".join(filter(None, (*changes, notes))))
    print_note(profile_note(launch.profile))
    selection = ["--sweep", name]
    with detach_on_interrupt(context.follows, selection=selection):
        submit_result = execute_plan(plan, context, launcher)
    show_submit_result(submit_result, form)
    if dry_run:
        exists = name in load_sweep_store(results).sweeps
        print_note(f"sweep {name} {'exists' if exists else 'would be created'}")
        print_note(f"cannot be submitted yet: {obstacle}" if obstacle else "")
        return
    note_blocked(submit_result.plan, selection=selection, is_told=bool(screen and not screen.is_terminal))
    if not follow:
        note_failed_starts(results, plan)
        if plan.to_launch:
            verify_hint = f"{shell_command('verify-optimum', *selection)} judges them"
            print_note(f"training in the background: {shell_command('watch', *selection)} shows it, {verify_hint}")
    note_unsubmitted(load_sweep_store(results), name, plan)
    if not submit_result.succeeded:
        raise typer.Exit(1)


def verify_optimum(
    *,
    family_options: FamilyOptions,
    at: Annotated[
        str | None,
        typer.Option(help="Judge this point instead of the best one; with --follow, start from it.", metavar="LR,WD"),
    ] = None,
    budget_options: BudgetOptions,
    verdict_options: VerdictOptions,
    launch_options: LaunchOptions,
    data: Data = None,
    dry_run: DryRun = False,
    follow: Follow = False,
    form: Form = Format.TABLE,
    results: ExistingResults = DEFAULT_RESULTS,
) -> None:
    """Judge each best point, and submit the missing runs.

    With --follow, it moves to better neighbours and adds seeds until each verdict is final. By default it trains up to
    100 runs per family beyond the requested ones.
    """
    from ettsweep.cli.verdict_tables import show_verification
    from ettsweep.launch.follow import CommandContext, Rounds, verify_rounds
    from ettsweep.launch.resolve import data_paths
    from ettsweep.study.lattice import parse_point
    from ettsweep.study.round import Aim
    from ettsweep.study.sweep_store import record_criterion

    criterion_options, sweep_store = verdict_options.criterion_options(), family_options.load(results)
    studies = [study.with_criterion(criterion_options) for study in family_options.studies(sweep_store)]
    sweeps = sweep_store.select(list({study.sweep for study in studies}))
    launcher = launch_options.launcher(sweeps, is_executed=not dry_run)
    paths, screen = data_paths(sweeps, data, check=not dry_run), progress_console() if follow else None
    context = CommandContext(results, paths, dry_run, screen, "verify", studies, notify=print_note)
    if at is not None and len(studies) > 1:
        names = ", ".join(f"{study.sweep} {study.model} {study.strategy}" for study in studies)
        raise InputError(f"--at needs one study, but {len(studies)} match: {names}; add --sweep or --strategy")
    point = None if at is None else parse_point(at, "--at", studies[0].centre, studies[0].free)
    budget = budget_options.budget(studies)
    if not dry_run:
        # --rule, --confidence and --margin are saved: later commands judge the same way.
        print_note(record_criterion(results, dict.fromkeys(study.sweep for study in studies), criterion_options))
    selection = family_options.as_arguments
    with detach_on_interrupt(context.follows, selection=selection):
        rounds = Rounds(studies, budget, Aim(point, other_studies=sweep_store.studies))
        result = verify_rounds(rounds, context, launcher)
    # A dry run saves no criterion.
    criterion_arguments = verdict_options.as_arguments if dry_run else []
    command = ["verify-optimum", *selection, *(["--at", at] if at else []), *criterion_arguments, "--follow"]
    raise typer.Exit(show_verification(result, budget, form, command, selection))


def seeds(
    *,
    count: Annotated[int, typer.Option("--count", min=1, help="Number of fresh seeds for each optimum.")] = 3,
    family_options: FamilyOptions,
    launch_options: LaunchOptions,
    data: Data = None,
    dry_run: DryRun = False,
    follow: Follow = False,
    form: Form = Format.TABLE,
    results: ExistingResults = DEFAULT_RESULTS,
) -> None:
    """Rerun each optimum over fresh seeds.

    The seeds that picked a point make it look better than it is; fresh seeds do not.
    """
    from ettsweep.cli.run_tables import note_blocked, plan_summary, show_plan
    from ettsweep.cli.verdict_tables import note_answers, show_verdicts
    from ettsweep.launch.follow import CommandContext, execute_plan, read_run_index
    from ettsweep.launch.resolve import data_paths, plan_seeds
    from ettsweep.report.verdict_view import make_views
    from ettsweep.study.judgement import judge
    from ettsweep.study.study import study_titles

    sweep_store = family_options.load(results)
    studies = family_options.studies(sweep_store)
    sweeps = sweep_store.select(list({study.sweep for study in studies}))
    launcher = launch_options.launcher(sweeps, is_executed=not dry_run)
    paths, screen = data_paths(sweeps, data, check=not dry_run), progress_console() if follow else None
    context = CommandContext(results, paths, dry_run, screen, "seeds", studies, notify=print_note)
    plan, unverified = plan_seeds(studies, context, count)
    with detach_on_interrupt(context.follows, selection=family_options.as_arguments):
        submit_result = execute_plan(plan, context, launcher)
    if dry_run:
        show_plan(submit_result, form)
        note_answers(make_views(unverified))
    else:
        print_note("" if follow else plan_summary(plan, ""))
        show_verdicts(make_views(judge(studies, read_run_index(results))), form)
    title = study_titles(studies)
    print_note(f"skipped, since not verified: {', '.join(title[v.key] for v in unverified)}" if unverified else "")
    note_blocked(submit_result.plan, selection=family_options.as_arguments)
    raise typer.Exit(1 if unverified or submit_result.plan.blocked else 0)


def report(
    *,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write to; RESULTS/report by default.", parser=parse_path, metavar="DIR"),
    ] = None,
    family_options: FamilyOptions,
    optuna: Annotated[
        Path | None,
        typer.Option(help="Also write an Optuna journal, for optuna-dashboard.", parser=parse_path, metavar="FILE"),
    ] = None,
    figures: Annotated[
        bool | None,
        typer.Option(
            "--figures/--no-figures",
            help="Also write figures as files; by default up to 60, or if the previous report did.",
            show_default=False,
        ),
    ] = None,
    form: Form = Format.TABLE,
    results: ExistingResults = DEFAULT_RESULTS,
) -> None:
    """Write tables, figures and one HTML page.

    Tables are CSV and Parquet, the optima also Markdown and LaTeX. Figures are PNG, SVG and PDF. It replaces the
    previous report.
    """
    from ettsweep.cli.verdict_tables import show_spikes, show_verdicts
    from ettsweep.launch.cost import cost_so_far
    from ettsweep.launch.follow import read_run_index
    from ettsweep.report.families import judged_families, with_verdict_runs
    from ettsweep.report.writer import write_report
    from ettsweep.study.judgement import judge

    folder = out or results / "report"
    run_index, sweep_store = read_run_index(results), family_options.load(results)
    studies = family_options.studies(sweep_store)
    if optuna is not None:
        from ettsweep.report.optuna_journal import write_journal

        with naming_option("--optuna", optuna):
            print_note(write_journal(optuna, studies, run_index))
    verdicts = judge(studies, run_index)
    # Verdicts may use runs outside the selection, and the report must show these too.
    runs = with_verdict_runs(family_options.runs(run_index, sweep_store), verdicts)
    # If the folder cannot be written, the error suggests --out.
    with naming_option("--out", folder):
        paths = write_report(results, folder, runs, verdicts, sweep_store.studies_by_family, print_note, figures)
    families = judged_families(runs, verdicts)
    show_verdicts([family.view for family in families], form)
    if form is Format.TABLE:
        show_spikes(families)
    print_note(cost_so_far(runs, sweep_store.studies_by_family))
    others = "tables and figures" if any(path.parent.name == "figures" for path in paths) else "tables"
    print_note(f"wrote {paths[0]} and {len(paths) - 1} {others} in the same folder")
