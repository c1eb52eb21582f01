"""Output of commands on verdicts and sweeps: table rows, JSON, and notes on standard error."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ettsweep.console import Format, Row, format_cell, format_count, print_note, print_table
from ettsweep.launch.follow import Rounds
from ettsweep.metric import Metric
from ettsweep.quantities import difference_text, score_text
from ettsweep.report.verdict_text import (
    differing_facts,
    reason_text,
    resume_cell,
    resume_class,
    resumed_runs,
    run_notes,
)
from ettsweep.runs.index import RunIndex, count_states
from ettsweep.runs.point import Point
from ettsweep.runs.versions import find_mixed_versions, group_by_version
from ettsweep.study.fresh import compare_fresh
from ettsweep.study.judgement import evaluate
from ettsweep.study.posterior import Difference
from ettsweep.study.study import Study, study_titles
from ettsweep.study.sweep import Sweep
from ettsweep.study.sweep_store import SweepStore, run_sweeps, sweep_file
from ettsweep.study.verdict import Verdict, conflicting_verdicts

if TYPE_CHECKING:
    from ettsweep.report.families import JudgedFamily


MAX_POINTS = 4
"""Points that a note lists one by one."""


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
        description = f"the {metric.label}{along}, the mean over seeds"
        lines.append(f"{prefix}{metric.name}: {description}; {metric.mode} is best; ± is a standard error")
    return "\n".join(lines)


def show_verdicts(verdicts: Sequence[Verdict], form: Format) -> None:
    """Print a row per verdict, then notes: reasons, mixed versions of ettsweep, and sweeps whose verdicts disagree."""
    data = [verdict_json(v) for v in verdicts] if form is Format.JSON else None
    show_families([verdict_row(v) for v in verdicts], [v.study for v in verdicts], form, data)
    note_reasons(verdicts)
    names = study_titles([v.study for v in verdicts])
    mixed = {v.key: mix for v in verdicts if (mix := find_mixed_versions(v.runs))}
    for key, (note, _) in mixed.items():
        print_note(f"{names[key]}: {note}")
    # One example is enough, however many families are mixed.
    for _, run in list(mixed.values())[:1]:
        print_note(f"`ettsweep show {run}` lists the versions of one of them")
    several_models = len({v.study.model for v in verdicts}) > 1
    for verdict, other, reasons in conflicting_verdicts(verdicts):
        first, second = (f"{v.verdict}{_at_point(v.point)} in {v.study.sweep}" for v in (verdict, other))
        subject = f"{verdict.study.model} {verdict.label}" if several_models else verdict.label
        print_note(f"{subject} is {first}, {second}: {'; '.join(reasons)}")


def note_reasons(verdicts: Sequence[Verdict]) -> None:
    """Print why verdicts are not "optimal", once for all families with the same reason, and caveats on bounds."""
    names = study_titles([v.study for v in verdicts])
    # Many families often lack the same: one note for all of them.
    families_by_reason: dict[str, list[str]] = {}
    for v in verdicts:
        if v.verdict != "optimal":
            families_by_reason.setdefault(f"{v.verdict}: {reason_text(v)}", []).append(names[v.key])
    for reason, families in families_by_reason.items():
        print_note(f"{', '.join(families)}: {reason}")
    for v in verdicts:
        if (comparison := compare_fresh(v)) and comparison.is_notable:
            print_note(f"{names[v.key]}: {comparison.sentence}")
    for v in verdicts:
        for note in run_notes(v):
            print_note(f"{names[v.key]}: {note}")
        if v.bound and v.bound.caveat:
            smooth = v.bound.posterior is None or v.bound.posterior.surface.is_smooth
            pairs = "" if smooth else ": points are compared pair by pair, with pooled noise"
            print_note(f"{names[v.key]}: {v.bound.caveat}{pairs}")
        if v.bound and v.bound.noise.source == "inferred":
            print_note(f"{names[v.key]}: one seed per point: the noise is estimated from the surface's residuals")
        if v.bound and v.bound.plateau:
            as_good = ", ".join(map(str, v.bound.plateau))
            middle = ""
            if len(v.bound.plateau) > 1 and v.bound.recommended != v.point:
                middle = f"; {v.bound.recommended} is in the middle of these"
            print_note(f"{names[v.key]}: as good within the margin: {as_good}{middle}")


def show_families(rows: Sequence[Row], studies: Sequence[Study], form: Format, data: object = None) -> None:
    """Print a row per family, leaving out identifying columns that are the same for all."""
    # With one model, sweep and strategy identify a row; else model and family are needed.
    ambiguous = len({s.model for s in studies}) > 1 or len({(s.sweep, s.strategy) for s in studies}) < len(studies)
    omitted = set() if ambiguous else {"family", "model"}
    omitted |= {"sweep"} if len({s.sweep for s in studies}) < 2 else set()
    # Scripts that state no width have one strategy: its name says nothing.
    omitted |= {"strategy"} if form is Format.TABLE and not any(s.has_strategies for s in studies) else set()
    omitted |= {"optimizer"} if len({s.base.info.labels.optimizer for s in studies}) < 2 else set()
    columns = [c for c in dict.fromkeys(c for row in rows for c in row) if c not in omitted]
    print_table([{c: row.get(c) for c in columns} for row in rows], form, columns, data, optional=["family"])


def show_spikes(families: "Sequence[JudgedFamily]") -> None:
    """Print the numbers and rates of spikes in the runs of each candidate, over all its seeds."""
    from ettsweep.report.spike_rates import nonzero_counts, sum_spikes

    spikes_by_verdict = [(family.verdict, sum_spikes(family.optimum)) for family in families]
    runs, diverged, steps = (
        sum(getattr(s, attribute) for _, s in spikes_by_verdict) for attribute in ("runs", "diverged", "steps")
    )
    kinds = nonzero_counts(spikes for _, spikes in spikes_by_verdict)
    if not kinds:
        suffix = f", of which {diverged} diverged" if diverged else ""
        print_note(f"no spikes at the candidates: {format_count(runs, 'run')}{suffix}, {steps:,} steps" if runs else "")
        return
    rows = []
    for verdict, spikes in spikes_by_verdict:
        row = {**_family_columns(verdict), "runs": spikes.runs, "steps": spikes.steps}
        for kind in kinds:
            total, per_run, per_1000_steps = map(format_cell, spikes.rates(kind))
            row[kind.replace("_", " ")] = (
                f"{total} ({per_run} a run, {per_1000_steps} per 1,000 steps)" if total else ""
            )
        rows.append(row)
    print()
    show_families(rows, [verdict.study for verdict, _ in spikes_by_verdict], Format.TABLE)


def note_saved_runs(rounds: Rounds, run_index: RunIndex) -> None:
    """Print how many runs racing has saved, of all verdicts together, and compared to what."""
    others = [*rounds.studies, *rounds.aim.other_studies]
    saved = sum(
        evaluate(v.study, run_index.family_runs(v.family)).runs_saved_by_racing(v, others)
        for v in (rounds.last.verdicts if rounds.last else ())
        if v.bound and v.candidate
    )
    if saved:
        reference = "giving a candidate and its neighbours all as many seeds as the one of them with the most has"
        print_note(f"racing saved {format_count(saved, 'run')}, compared to {reference}")


def note_outside_points(verdicts: Sequence[Verdict]) -> None:
    """Print the points outside the ranges of the grid that the search for an optimum has reached."""
    names = study_titles([v.study for v in verdicts])
    for v in verdicts:
        if v.outside:
            points = ", ".join(map(str, v.outside[:MAX_POINTS])) + (", ..." if len(v.outside) > MAX_POINTS else "")
            print_note(
                f"{names[v.key]}: {format_count(len(v.outside), 'point')} outside the requested ranges: {points}"
            )


def _at_point(point: Point | None) -> str:
    return f" at {point}" if point else ""


def _family_columns(v: Verdict) -> dict[str, Any]:
    return {
        "sweep": v.study.sweep,
        "family": v.family,
        "model": v.study.model,
        "strategy": v.strategy,
        "optimizer": v.study.base.info.labels.optimizer,
    }


def _verdict_columns(v: Verdict) -> dict[str, Any]:
    return {**_family_columns(v), "verdict": v.verdict, "lr": v.lr, "wd": v.wd}


def verdict_row(v: Verdict) -> dict[str, Any]:
    """Return the row of a verdict; `neighbours` is filled only if some of them have no score yet."""
    neighbours = f"{len(v.neighbours) - len(v.missing_points)}/{len(v.neighbours)}"
    return {
        **_verdict_columns(v),
        "verdict": v.statement,
        v.study.metric.name: v.score,
        "seeds": v.candidate and v.candidate.runs,
        **_nearest_neighbour(v),
        "neighbours": neighbours if v.missing_points or not v.neighbours else None,
        "fresh seeds": _fresh_text(v),
        **({"resume": resume_cell(v)} if v.study.base.info.stop_signal else {}),
    }


def _fresh_text(v: Verdict) -> str | None:
    """Return the mean over fresh seeds and their number, with the difference to the search's where it is notable."""
    fresh = [score for score in v.fresh_scores.values() if score is not None]
    if not fresh:
        return None
    text = f"{score_text(fmean(fresh), v.study.metric)} ({len(fresh)})"
    comparison = compare_fresh(v)
    return f"{text}, {comparison.difference}" if comparison and comparison.is_notable else text


def _nearest_neighbour(v: Verdict) -> dict[str, Any]:
    """Return the column on the best of the neighbours: its score, or its difference to the candidate with an error."""
    # The paper's rule compares means, and has no errors.
    if v.study.criterion.rule == "paper":
        return {"best neighbour": v.best_neighbour and v.best_neighbour.score}
    nearest = min((d for d in v.bound.differences if d), key=lambda d: d.mean, default=None) if v.bound else None
    if nearest is None or v.bound is None:
        return {"nearest neighbour": None}
    error = None if v.bound.noise.source == "unknown" else nearest.error
    difference = difference_text(abs(nearest.mean), error, v.study.metric, signed=False)
    return {"nearest neighbour": f"{difference} {'behind' if nearest.mean >= 0 else 'ahead'}"}


def bound_json(v: Verdict) -> dict[str, Any] | None:
    """Return the bound of a verdict as JSON data.

    Bound, margin and noise are shares of the candidate's score or differences, see `Metric.margin_is`.
    """
    if (b := v.bound) is None:
        return None
    return {
        "bound": b.value,
        "margin": b.margin,
        "beats_all": b.best_probability,
        "noise": {"sd": b.noise.sd, "dof": b.noise.dof, "known": b.noise.source},
        "caveat": b.caveat,
        "as_good": [point.to_json() for point in b.plateau],
        "recommended": b.recommended.to_json(),
        "paper": b.paper,
        "more_runs": b.further_runs,
    }


def verdict_json(v: Verdict) -> dict[str, Any]:
    """Return a verdict as JSON data."""
    return {
        **_verdict_columns(v),
        "score": v.score,
        "runs": v.candidate.runs if v.candidate else 0,
        "metric": v.study.metric.name,
        "mode": v.study.metric.mode,
        "rule": v.study.criterion.rule,
        "confidence": v.study.criterion.confidence,
        "statement": v.statement,
        # Keys are an interface for scripts: add to them, never rename.
        "evidence": bound_json(v),
        "neighbours": [
            {**n.point.to_json(), "score": n.score, "state": n.state.value, "runs": n.runs, **_difference_json(d)}
            # Without a bound there is no difference for any neighbour.
            for n, d in zip(v.neighbours, v.bound.differences if v.bound else [None] * len(v.neighbours), strict=True)
        ],
        "missing": [point.to_json() for point in v.missing_points],
        "seeds": list(v.study.seeds),
        "fresh": [{"seed": seed, "score": score} for seed, score in v.fresh_scores.items()],
        "outside": [point.to_json() for point in v.outside],
        "path": [point.to_json() for point in v.path],
        "versions": [
            {"version": name, "runs": [run.id for run in runs]} for name, runs in group_by_version(v.runs).items()
        ],
        **(
            {"resume": resume_class(v), "resumed": [run.id for run in resumed_runs(v)]}
            if v.study.base.info.stop_signal
            else {}
        ),
        **({"differs": differs} if (differs := differing_facts(v)) else {}),
        "reason": reason_text(v),
        "why": why_json(v),
    }


def _difference_json(difference: Difference | None) -> dict[str, float | None]:
    return {"worse_by": difference.mean if difference else None, "error": difference.error if difference else None}


def why_json(v: Verdict) -> dict[str, object]:
    """Return the reason of a verdict as JSON data."""
    why = v.reason.to_json()
    if isinstance(point := why.get("point"), list) and not v.study.base.info.has_wd:
        why["point"] = [*point[:1], None]
    return why


def _modified_s(path: Path) -> float:
    """Return when a file was modified; 0 if there is none, such as one of a sweep that was renamed meanwhile."""
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
        for run in run_index.family_runs(study.family)
        if sweep.name in run_sweeps(sweep_store.studies_by_family, run.family, run.point, run.seed)
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
        "verdicts": ", ".join(
            f"{v.strategy} {v.statement}" if v.study.has_strategies else v.statement for v in verdicts
        ),
        "criterion": sweep.criterion.describe(sweep.metric),
        "last change": changed_s and datetime.fromtimestamp(changed_s, UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
