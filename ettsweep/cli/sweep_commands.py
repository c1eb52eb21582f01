"""Commands on sweeps: grid, verify-optimum, seeds, report."""

from pathlib import Path
from typing import Annotated

import typer

from ettsweep.cli.grid_options import GridOptions
from ettsweep.cli.options import (
    DEFAULT_RESULTS,
    BudgetOptions,
    DryRun,
    FamilyOptions,
    Follow,
    Form,
    Results,
    TrainingOptions,
    VerdictOptions,
)
from ettsweep.cli.prompts import console, detaching, go_on, retyped_with, shell_command
from ettsweep.console import Format, print_note
from ettsweep.errors import InputError
from ettsweep.files import chosen_by


def grid(
    *,
    grid_options: GridOptions,
    judging: VerdictOptions,
    training: TrainingOptions,
    dry_run: DryRun = False,
    follow: Follow = False,
    form: Form = Format.TABLE,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Create or extend a sweep from a grid file, and submit its missing runs."""
    from ettsweep.cli.run_tables import note_blocked, note_ended, note_left, show_outcome
    from ettsweep.launch.follow import CommandContext, carry_out
    from ettsweep.launch.resolve import plan_grid, trained_by
    from ettsweep.study.sweep_store import load_sweep_store
    from ettsweep.study.sweep_updates import followed

    name, requested_spec, seed_note = grid_options.request(judging, "select a grid with --model NAME or --grid FILE")
    with retyped_with("--name"):
        sweep_spec = training.place().settle(requested_spec, results, name)
        studies, screen = sweep_spec.searches(name), console() if follow else None
        context = CommandContext(results, *trained_by(sweep_spec), dry_run, screen, name, studies, tell=print_note)
        plan, obstacle = plan_grid(sweep_spec, context, name, grid_options.words, tell=print_note)
    print_note(seed_note)
    selection = ["--sweep", name]
    with detaching(context.follows, meant=selection), followed(results, [name] if context.follows else ()):
        submit_result = carry_out(plan, context)
    show_outcome(submit_result, form)
    if dry_run:
        exists = name in load_sweep_store(results).named
        print_note(f"sweep {name} {'exists' if exists else 'would be created'}")
        print_note(f"before it can be submitted: {obstacle}" if obstacle else "")
        return
    note_blocked(submit_result.plan, meant=selection)
    if not follow:
        note_ended(results, plan)
        if plan.to_launch:
            verify_hint = f"{shell_command('verify-optimum', *selection)} judges them"
            print_note(f"they train in the background: {shell_command('watch', *selection)} shows them, {verify_hint}")
    note_left(load_sweep_store(results), name, plan)
    if not submit_result.sound:
        raise typer.Exit(1)


def verify_optimum(
    *,
    families: FamilyOptions,
    at: Annotated[
        str | None,
        typer.Option(help="Judge this point, not the best one; with --follow, start from it.", metavar="LR,WD"),
    ] = None,
    limits: BudgetOptions,
    judging: VerdictOptions,
    training: TrainingOptions,
    dry_run: DryRun = False,
    follow: Follow = False,
    form: Form = Format.TABLE,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Judge each family's best point against its six neighbours; submit missing ones.

    With --follow, train the seeds that decide most until all verdicts are final. Without a budget, each family may
    train up to twice the requested runs.
    """
    from ettsweep.cli.verification_summary import show_verified
    from ettsweep.launch.follow import CommandContext, verify_rounds
    from ettsweep.study.lattice import parse_point
    from ettsweep.study.sweep_updates import followed, judge_by

    criterion_options, sweep_store = judging.stated(), families.load(results)
    studies = [study.judged_by(criterion_options) for study in families.searches(sweep_store)]
    launch_plan = training.place().of_searches(studies, sweep_store, dry_run=dry_run)
    context = CommandContext(
        results, *launch_plan, dry_run, console() if follow else None, "verify", studies, tell=print_note
    )
    if at is not None and len(studies) > 1:
        names = ", ".join(f"{study.sweep} {study.model} {study.strategy}" for study in studies)
        raise InputError(
            f"--at needs a single study, but {len(studies)} are selected: {names}; use --sweep and --strategy"
        )
    point = None if at is None else parse_point(at, "--at")
    budget = limits.budget(studies)
    if not dry_run:
        # --rule, --confidence and --margin are saved, so that later commands judge the same way.
        print_note(judge_by(results, dict.fromkeys(study.sweep for study in studies), criterion_options))
    # Without --follow there is a single round, so nothing to report or to confirm.
    on_progress, may_continue = (print_note, go_on) if follow else (None, None)
    selection = families.as_arguments
    with detaching(meant=selection), followed(results, {study.sweep for study in studies} if context.follows else ()):
        result = verify_rounds(studies, context, at=point, budget=budget, tell=on_progress, agree=may_continue)
    command = ["verify-optimum", *selection, *(["--at", at] if at else []), "--follow"]
    raise typer.Exit(show_verified(result, budget, form, command, selection))


def seeds(
    *,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Number of fresh seeds for each optimum.")] = 3,
    families: FamilyOptions,
    training: TrainingOptions,
    dry_run: DryRun = False,
    follow: Follow = False,
    form: Form = Format.TABLE,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Rerun each verified optimum with fresh seeds, for an estimate without selection bias."""
    from ettsweep.cli.run_tables import note_blocked, plan_summary, show_plan
    from ettsweep.cli.verdict_tables import note_reasons, show_verdicts
    from ettsweep.launch.follow import CommandContext, carry_out, read_ledger
    from ettsweep.launch.resolve import ask_seeds
    from ettsweep.study.study import titles
    from ettsweep.study.sweep_updates import followed
    from ettsweep.study.verification import judge

    sweep_store = families.load(results)
    studies = families.searches(sweep_store)
    launch_plan = training.place().of_searches(studies, sweep_store, dry_run=dry_run)
    context = CommandContext(
        results, *launch_plan, dry_run, console() if follow else None, "seeds", studies, tell=print_note
    )
    plan, unverified = ask_seeds(studies, results, count)
    names = {study.sweep for study in studies} if context.follows else ()
    with detaching(context.follows, meant=families.as_arguments), followed(results, names):
        submit_result = carry_out(plan, context)
    if dry_run:
        show_plan(submit_result, form)
        note_reasons(unverified)
    else:
        print_note("" if follow else plan_summary(plan, ""))
        show_verdicts(judge(studies, read_ledger(results)), form)
    title = titles(studies)
    print_note(f"not rerun, since not verified: {', '.join(title[v.key] for v in unverified)}" if unverified else "")
    note_blocked(submit_result.plan, meant=families.as_arguments)
    raise typer.Exit(1 if unverified or submit_result.plan.blocked else 0)


def report(
    *,
    out: Annotated[Path | None, typer.Option(help="Folder to write to; RESULTS/report by default.")] = None,
    families: FamilyOptions,
    optuna: Annotated[
        Path | None,
        typer.Option(help="Also write an Optuna journal, for optuna-dashboard.", metavar="FILE"),
    ] = None,
    form: Form = Format.TABLE,
    results: Results = DEFAULT_RESULTS,
) -> None:
    """Write a report: tables (CSV, Parquet), figures (PNG, SVG, PDF) and one self-contained HTML page.

    The table of optima is also written as Markdown and LaTeX. The report replaces the one before; `watch` shows runs
    live.
    """
    from ettsweep.cli.verdict_tables import show_spikes, show_verdicts
    from ettsweep.launch.cost import cost_so_far
    from ettsweep.launch.follow import read_ledger
    from ettsweep.report.families import judged, with_evidence
    from ettsweep.report.writer import write_report
    from ettsweep.study.verification import judge

    folder = out or results / "report"
    run_index, sweep_store = read_ledger(results), families.load(results)
    studies = families.searches(sweep_store)
    if optuna is not None:
        from ettsweep.report.optuna_journal import write_journal

        with chosen_by("--optuna", optuna):
            print_note(write_journal(optuna, sweep_store, studies, run_index))
    verdicts = judge(studies, run_index)
    # Verdicts may rest on runs outside the selection: the report must show these too.
    runs = with_evidence(families.runs(run_index, sweep_store), verdicts)
    notes = {name: sweep.note for name, sweep in sweep_store.named.items()}
    # If the folder cannot be written, the error suggests --out.
    with chosen_by("--out", folder):
        paths = write_report(results, folder, runs, verdicts, sweep_store.searches, print_note, notes)
    show_verdicts(verdicts, form)
    if form is Format.TABLE:
        show_spikes(judged(runs, verdicts))
    print_note(cost_so_far(runs, sweep_store.searches))
    print_note(f"wrote {paths[0]} and {len(paths) - 1} tables and figures in the same folder")
