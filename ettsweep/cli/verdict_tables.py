"""Output of commands on verdicts and sweeps: rows of tables, JSON, notes on standard error, exit codes."""

import shutil
import textwrap
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ettsweep.cli.prompts import shell_command
from ettsweep.cli.run_tables import note_blocked, note_submitted, show_plan
from ettsweep.console import (
    Format,
    Row,
    escape_control,
    format_cell,
    format_count,
    print_lines,
    print_note,
    print_table,
)
from ettsweep.launch.follow import Rounds, VerificationResult
from ettsweep.metric import Metric
from ettsweep.report.verdict_view import VerdictView, headline, make_views
from ettsweep.runs.index import RunIndex, count_states
from ettsweep.runs.state import State
from ettsweep.study.budget import Budget, ample_runs
from ettsweep.study.judgement import evaluate
from ettsweep.study.plan import PlannedRun
from ettsweep.study.study import Study
from ettsweep.study.sweep import Sweep
from ettsweep.study.sweep_store import SweepStore, run_sweeps, sweep_file
from ettsweep.study.verdict import Verdict

if TYPE_CHECKING:
    from ettsweep.report.families import JudgedFamily


def score_note(studies: Sequence[Study]) -> str:
    """Return a line on the score that verdicts compare: its metric, how it is computed, and whether min or max is best.

    If the studies have several metrics, there is a line for each, with its models.
    """
    models_by_metric: dict[Metric, dict[str, None]] = {}
    for study in studies:
        models_by_metric.setdefault(study.metric, {})[study.model] = None
    lines = []
    for metric, models in models_by_metric.items():
        prefix = f"{', '.join(models)}: " if len(models_by_metric) > 1 else ""
        along = " along the trajectory" if metric.take == "best" else ""
        score = "" if metric.label == metric.name else f"{metric.label}{along}, "
        better = "lower" if metric.mode == "min" else "higher"
        lines.append(f"{prefix}{metric.name}: {score}mean over seeds, {better} is better; ± is a standard error")
    return "\n".join(lines)


def show_verdicts(views: Sequence[VerdictView], form: Format) -> None:
    """Print answers, a row per verdict, and notes."""
    data = [view.data for view in views] if form is Format.JSON else None
    show_answers(views, form)
    show_families([view.cells for view in views], views, form, data)
    note_verdicts(views)


def show_answers(views: Sequence[VerdictView], form: Format) -> None:
    """Print the answers for people: equal ones once, each after the titles of its families."""
    if form is not Format.TABLE:
        if form is not Format.JSON:  # which has them
            note_answers(views)
        return
    width = shutil.get_terminal_size().columns
    for text, titles in _titles_by_text((view.answer, view.title) for view in views):
        whole = f"{', '.join(titles)}: {text}" if len(views) > 1 else text
        print_lines(
            [[(line, "heading")] for line in textwrap.wrap(escape_control(whole), width, break_long_words=False)]
        )
    print()


def note_answers(views: Sequence[VerdictView]) -> None:
    """Print the answers as notes, beside another result."""
    _note_once((view.answer, view.title) for view in views)


def note_verdicts(views: Sequence[VerdictView]) -> None:
    """Print why verdicts are not optimal, and notes, once for all families that share them."""
    _note_once((view.shortfall, view.title) for view in views)
    _note_once((note, view.title) for view in views for note in view.notes)


def _note_once(notes: Iterable[tuple[str, str]]) -> None:
    """Print each note once, after the titles of all families that have it."""
    for note, titles in _titles_by_text(notes):
        print_note(f"{', '.join(titles)}: {note}" if note else "")


def _titles_by_text(texts: Iterable[tuple[str, str]]) -> Iterable[tuple[str, list[str]]]:
    titles: dict[str, list[str]] = {}
    for text, title in texts:
        titles.setdefault(text, []).append(title)
    return titles.items()


def show_families(rows: Sequence[Row], views: Sequence[VerdictView], form: Format, data: object = None) -> None:
    """Print a row per family, leaving out identifying columns that are the same for all."""

    def number(*columns: str) -> int:
        return len({tuple(view.cells[column] for column in columns) for view in views})

    # With one model, sweep and strategy identify a row.
    ambiguous = number("model") > 1 or number("sweep", "strategy") < len(views)
    omitted = set() if ambiguous else {"family", "model"}
    omitted |= {"sweep"} if number("sweep") < 2 else set()
    # Scripts without a width have only one strategy.
    omitted |= {"strategy"} if form is Format.TABLE and not any(view.has_strategies for view in views) else set()
    omitted |= {"optimizer"} if number("optimizer") < 2 else set()
    columns = [c for c in dict.fromkeys(c for row in rows for c in row) if c not in omitted]
    print_table([{c: row.get(c) for c in columns} for row in rows], form, columns, data, optional=["family"])


def show_spikes(families: "Sequence[JudgedFamily]") -> None:
    """Print the numbers and rates of spikes in the runs of each candidate, over all its seeds."""
    from ettsweep.report.spike_rates import nonzero_counts, sum_spikes

    spikes_by_view = [(family.view, sum_spikes(family.optimum)) for family in families]
    runs, diverged, steps = (
        sum(getattr(s, attribute) for _, s in spikes_by_view) for attribute in ("runs", "diverged", "steps")
    )
    kinds = nonzero_counts(spikes for _, spikes in spikes_by_view)
    if not kinds:
        suffix = f", {diverged} diverged" if diverged else ""
        print_note(f"no spikes at the candidates: {format_count(runs, 'run')}{suffix}, {steps:,} steps" if runs else "")
        return
    rows = []
    for view, spikes in spikes_by_view:
        row = {name: view.cells[name] for name in ("sweep", "family", "model", "strategy", "optimizer")}
        row |= {"runs": spikes.runs, "steps": spikes.steps}
        for kind in kinds:
            total, per_run, per_1000_steps = map(format_cell, spikes.rates(kind))
            row[kind.replace("_", " ")] = (
                f"{total} ({per_run} a run, {per_1000_steps} per 1,000 steps)" if total else ""
            )
        rows.append(row)
    print()
    show_families(rows, [view for view, _ in spikes_by_view], Format.TABLE)


# --- verify-optimum and search --------------------------------------------------------------------------------------


def show_verification(
    result: VerificationResult, budget: Budget, form: Format, command: Sequence[str], selection: Sequence[str] = ()
) -> int:
    """Print verdicts, submitted runs, and why training stopped; return the exit code.

    The exit code is 0 if all verdicts are "optimal", else 1. `command` are the arguments of the command that continues,
    `selection` the options that select its studies.

    Raises:
        LaunchError: The runs of the only round could not be submitted; all else is printed first.
    """
    last, context = result.last, result.submit_result.context
    views = make_views(last.verdicts)
    show_verdicts(views, form)
    if context.follows:
        note_saved_runs(result.rounds, result.submit_result.plan.run_index)
    if context.dry_run:
        show_plan(result.submit_result, form, below_table=True)
    else:
        note_submitted(result)
    over_budget = last.over_budget
    if over_budget and not last.stop_reasons:
        print_note(f"{budget} is too low: the verdicts need {format_count(len(over_budget), 'more run')}")
    for reason in last.stop_reasons:
        print_note(f"{reason}: stopped")
    is_cut_short = context.follows and last.spent.is_search_cut_short
    print_note(
        f"the search is incomplete: {budget} allows no further point" if is_cut_short and budget.is_limited else ""
    )
    if context.follows and (last.runs_short or is_cut_short or over_budget):
        runs_short = max(last.runs_short, len(over_budget))
        print_note(f"to continue: {shell_command(*command, '--max-runs', str(ample_runs(runs_short)))}")
    _note_interrupted(over_budget)
    # Without --follow, these need another command.
    if context.console is None and any(view.more_seeds_help for view in views):
        print_note(f"{shell_command(*command)} trains the seeds that narrow the bounds")
    note_blocked(result.submit_result.plan, last.verdicts, selection)
    # Raised last: the verdicts are valid although their runs could not be submitted.
    if result.problem:
        raise result.problem
    print_note(score_note([v.study for v in last.verdicts]))
    return 0 if all(view.is_optimal for view in views) else 1


def _note_interrupted(over_budget: Sequence[PlannedRun]) -> None:
    """Print which runs the budget leaves interrupted, and the command that resumes them."""
    interrupted = [p.id for p in over_budget if p.state is State.INTERRUPTED]
    if interrupted:
        pronoun = "it" if len(interrupted) == 1 else "them"
        number = format_count(len(interrupted), "run")
        print_note(f"{number} left interrupted: {shell_command('retry', *interrupted)} resumes {pronoun}")


def note_saved_runs(rounds: Rounds, run_index: RunIndex) -> None:
    """Print how many runs adaptive seeding has saved over all verdicts, compared with equal seeds."""
    others = [*rounds.studies, *rounds.aim.other_studies]
    saved = sum(
        evaluate(v.study, run_index.family_runs(v.study.base, v.study.axes)).runs_saved_by_racing(v, others)
        for v in (rounds.last.verdicts if rounds.last else ())
        if v.bound and v.candidate
    )
    if saved:
        print_note(
            f"adaptive seeding saved {format_count(saved, 'run')} over giving candidate and neighbours equal seeds"
        )


# --- sweeps ---------------------------------------------------------------------------------------------------------


def _modified_s(path: Path) -> float:
    """Return when a file was modified; 0 if it is missing, as after a rename of its sweep."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def sweep_row(
    sweep: Sweep, sweep_store: SweepStore, run_index: RunIndex, verdicts: Sequence[Verdict]
) -> dict[str, Any]:
    """Return the row of a sweep for `sweeps`: states of its runs, device hours, verdicts.

    "last change" is the newest modification time of its specs and results; it is for display only.
    """
    runs = [
        run
        for study in sweep.studies
        for run in run_index.family_runs(study.base, study.axes)
        if sweep.name in run_sweeps(sweep_store.studies_by_family, run)
    ]
    # Requested runs without a folder count too, as missing.
    ids = {run.id for run in runs} | {spec.run_id for spec in sweep.specs()}
    states = [run_index.status_of(run).state for run in ids]
    seconds = sum(run.device_s for run in runs)
    paths = [*(run.dir.result_path for run in runs), sweep_file(sweep_store.results, sweep.name)]
    changed_s = max(map(_modified_s, paths), default=0.0) or None
    return {
        "sweep": sweep.name,
        "families": len(sweep.studies),
        "runs": ", ".join(f"{n} {state}" for state, n in count_states(states).items()),
        "device h": round(seconds / 3600, 4),
        "verdicts": ", ".join(f"{v.label} {headline(v)}" if v.study.has_strategies else headline(v) for v in verdicts),
        "criterion": sweep.criterion.describe(sweep.metric),
        "last change": changed_s and datetime.fromtimestamp(changed_s, UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
