"""The texts and numbers of a verdict, made once for terminal, live screen, page, JSON and notebook."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ettsweep.console import format_count
from ettsweep.powers import log2, power_and_decimal
from ettsweep.quantities import (
    as_share,
    bound_text,
    confidence_text,
    deviation_text,
    difference_text,
    probability_text,
    score_text,
    score_with_error,
    share_text,
    three_digits,
)
from ettsweep.report.answer import answer, paper_sentence
from ettsweep.report.formats import mean_std, standard_error
from ettsweep.report.notes import (
    NextStep,
    differing_facts,
    next_steps,
    resume_cell,
    resume_class,
    resumed_runs,
    run_notes,
)
from ettsweep.report.reason_text import edge_text, reason_text, runs_text
from ettsweep.runs.point import Point, axis_cells
from ettsweep.runs.versions import group_by_version
from ettsweep.study.fresh import CONFIDENCE, FreshComparison, compare_fresh
from ettsweep.study.lattice import Axis
from ettsweep.study.study import study_titles
from ettsweep.study.verdict import MEANS_VERDICTS, Bound, ScoredPoint, Verdict, conflicting_verdicts

if TYPE_CHECKING:  # imports NumPy, which is slow
    from ettsweep.study.posterior import Difference

MAX_POINTS = 4
"""Points that a note lists one by one."""


@dataclass(frozen=True)
class VerdictView:
    """All texts and numbers of a verdict; views only lay them out.

    Attributes:
        key: (sweep, family).
        title: the study's name among those of a command; `label` is its name among the strategies of a sweep.
        word: the verdict in one word, which has a colour.
        answer: which lr and wd to use, and how much better a neighbour may be; `for_paper` is a sentence to cite it,
            empty unless it is an optimum with a bound.
        headline: the verdict with its bound, such as `optimal within 2% (95%)`; `brief` is for a narrow column.
        is_optimal: whether commands exit with 0.
        holds: whether no neighbour is better: an optimum, or a tie.
        more_seeds_help: whether further seeds would resolve it.
        axes: their names. `at` are the values of the candidate along them, and `point` both as one text; empty without
            one.
        mean: score of the candidate, and `score` with its standard error; empty without one. `score_line` has its name,
            unit and seeds.
        reason: `shortfall`, or the answer if that says all.
        shortfall: details why it is not optimal, and the runs that need a person, with commands in backticks.
        fresh: how much worse fresh seeds are, if notable; `fresh_is_sure` if chance does not explain it.
        evidence: sentences on the bound.
        notes: sentences on the runs, the score and points around.
        path: candidates of the climb, in order.
        has_bound: whether neighbours are compared as fitted.
        neighbours: rows of the table of neighbours, as texts by column; `move` is such as "2 lr, wd / 2", and `refuted`
            is set if the neighbour refutes the candidate.
        cells: of the table of verdicts, by column.
        numbers: of the table of optima, by column.
        data: JSON data. Scripts rely on its keys: add some, never rename one.
    """

    key: tuple[str, str]
    label: str
    has_strategies: bool
    axes: tuple[str, ...]
    at: tuple[str, ...]
    title: str
    word: str
    answer: str
    for_paper: str
    headline: str
    brief: str
    is_optimal: bool
    holds: bool
    more_seeds_help: bool
    point: str
    mean: str
    score: str
    score_line: str
    reason: str
    shortfall: str
    fresh: str
    fresh_is_sure: bool
    evidence: tuple[str, ...]
    notes: tuple[str, ...]
    path: tuple[str, ...]
    has_bound: bool
    neighbours: tuple[Mapping[str, Any], ...]
    cells: Mapping[str, Any]
    numbers: Mapping[str, Any]
    data: Mapping[str, Any]
    next: NextStep


def make_views(verdicts: Sequence[Verdict]) -> list[VerdictView]:
    """Return the views of the verdicts of one command; they note conflicts among sweeps."""
    titles, conflicts = study_titles([verdict.study for verdict in verdicts]), _conflicts(verdicts)
    by_sweep: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        by_sweep.setdefault(verdict.study.sweep, []).append(verdict)
    following = {
        verdict.key: step
        for members in by_sweep.values()
        for verdict, step in zip(members, next_steps(members), strict=True)
    }
    return [
        _make_view(verdict, titles[verdict.key], conflicts.get(verdict.key, ()), following[verdict.key])
        for verdict in verdicts
    ]


def _make_view(verdict: Verdict, title: str, conflicts: Sequence[str], following: NextStep) -> VerdictView:
    study, point, reply, details = verdict.study, verdict.point, answer(verdict), reason_text(verdict)
    fresh, bound = _notable_fresh(verdict), verdict.bound
    is_optimal = verdict.verdict == "optimal"
    beats_all = probability_text(bound.best_probability) if bound and bound.is_noise_known else ""
    return VerdictView(
        key=verdict.key,
        label=verdict.label,
        has_strategies=study.has_strategies,
        axes=tuple(study.axes),
        at=tuple(power_and_decimal(value, name) for name, value in point.values.items()) if point else (),
        title=title,
        word=verdict.verdict,
        answer=reply,
        for_paper=paper_sentence(verdict),
        headline=headline(verdict),
        brief=_brief(verdict),
        is_optimal=is_optimal,
        holds=verdict.verdict in ("optimal", "tie"),
        more_seeds_help=bool(runs_text(verdict.reason)) and study.base.info.seeded,
        point=str(point or ""),
        mean="" if verdict.score is None else score_text(verdict.score, study.metric),
        score=_score_with_error(verdict),
        score_line=_score_line(verdict),
        reason=details or reply,
        shortfall="" if is_optimal else details,
        fresh=_fresh_text(fresh) if fresh else "",
        fresh_is_sure=bool(fresh and fresh.is_beyond_chance),
        evidence=tuple(_evidence(verdict, beats_all)),
        notes=(*_notes(verdict, fresh), *conflicts),
        path=tuple(point.text(3) for point in verdict.path),
        has_bound=bound is not None,
        neighbours=tuple(_neighbour_rows(verdict)),
        cells=_cells(verdict, fresh),
        numbers=_numbers(verdict),
        data=_data(verdict, details or reply),
        next=following,
    )


# --- the verdict itself ---------------------------------------------------------------------------------------------


def headline(verdict: Verdict) -> str:
    """Return the verdict with its bound, such as `optimal within 2% (95%)`."""
    word, bound, metric = verdict.verdict, verdict.bound, verdict.study.metric
    if verdict.study.criterion.rule == "paper":
        # The other verdicts do not come from a comparison.
        return word + " by the paper's comparison of means" * (word in MEANS_VERDICTS)
    if word not in ("optimal", "unresolved"):
        return word
    if bound is None or bound.value is None:
        around_zero = "scores around zero" if verdict.reason.code == "around_zero" else "noise unknown"
        return f"{word}: {'all diverged' if verdict.score is None else around_zero}"
    confidence = confidence_text(bound.confidence)
    if word == "optimal" and not bound.value:
        return f"optimal: no neighbour is better ({confidence})"
    within = f"within {bound_text(bound.value, metric)} ({confidence})"
    if word == "optimal":
        return f"optimal {within}"
    if not bound.is_too_wide:
        return f"unresolved: {within}, too few seeds"
    return f"unresolved: {within}, margin {share_text(bound.margin, metric)}"


def _brief(verdict: Verdict) -> str:
    bound, metric = verdict.bound, verdict.study.metric
    if verdict.verdict == "unresolved" and bound and bound.value is not None and bound.is_too_wide:
        return f"unresolved: {bound_text(bound.value, metric)}, margin {share_text(bound.margin, metric)}"
    return headline(verdict)


def _seeds(verdict: Verdict) -> int:
    """Return the number of seeds behind the candidate's score."""
    return verdict.candidate.runs if verdict.candidate else 0


def _score_with_error(verdict: Verdict) -> str:
    if verdict.score is None:
        return ""
    error = standard_error([run.score for run in verdict.candidate_runs])
    return score_with_error(verdict.score, error, verdict.study.metric)


def _score_line(verdict: Verdict) -> str:
    if verdict.score is None:
        return "no score: it diverged" if verdict.candidate and verdict.candidate.state.finished else "no score yet"
    metric = verdict.study.metric
    score = f"{metric.name.replace('_', ' ')}{metric.unit_suffix} {score_text(verdict.score, metric, unit=False)}"
    return f"{score}, {format_count(_seeds(verdict), 'seed')}"


# --- notes ----------------------------------------------------------------------------------------------------------


def _evidence(verdict: Verdict, beats_all: str) -> Sequence[str]:
    """Return sentences on the bound; none if its noise is unknown."""
    bound = verdict.bound
    if bound is None or not bound.is_noise_known:
        return ()
    paper = f"; by the paper's comparison of means, it is {bound.paper}" if bound.paper else ""
    source = {"measured": "measured by repeated seeds", "inferred": "inferred from the residuals of the fit"}
    noise = f"{deviation_text(bound.noise.sd, verdict.study.metric)}, {source[bound.noise.source]}"
    return (
        f"probability that it beats all its neighbours: {beats_all}{paper}",
        f"noise of a run: {noise} ({bound.noise.dof:.3g} degrees of freedom)",
    )


def _notes(verdict: Verdict, fresh: FreshComparison | None) -> Sequence[str]:
    texts = (
        _fresh_sentence(fresh) if fresh else "",
        *run_notes(verdict),
        default_margin_text(verdict),
        *_bound_notes(verdict),
        _outside_text(verdict),
    )
    return list(filter(None, texts))


def default_margin_text(verdict: Verdict) -> str:
    """Return the smallest gain that these runs can rule out, if you set no margin; else an empty text."""
    bound, metric = verdict.bound, verdict.study.metric
    if bound is None or bound.finest is None:
        return ""
    return (
        f"you set no margin, so ettsweep uses {share_text(bound.margin, metric)}; with this noise, "
        f"{format_count(len(verdict.runs), 'run')} can rule out gains above {bound_text(bound.finest, metric)} "
        f"({confidence_text(bound.confidence)}); set yours with --margin"
    )


def _bound_notes(verdict: Verdict) -> Sequence[str]:
    """Return the source of the noise, unless repeated seeds measured it."""
    if verdict.bound is None or verdict.bound.noise.source != "inferred":
        return ()
    return ("one seed per point: ettsweep estimates the noise from the residuals of the surface",)


def _caveat(bound: Bound) -> str:
    """Return a sentence on the edge of stability beside the candidate; empty if there is none."""
    if (known := bound.stability) is None:
        return ""
    return edge_text(known.stable, known.seeds, known.may_be_unstable)


def _outside_text(verdict: Verdict) -> str:
    if not verdict.outside:
        return ""
    points = ", ".join(map(str, verdict.outside[:MAX_POINTS])) + ", ..." * (len(verdict.outside) > MAX_POINTS)
    return f"{format_count(len(verdict.outside), 'point')} outside the requested ranges: {points}"


def _conflicts(verdicts: Sequence[Verdict]) -> dict[tuple[str, str], list[str]]:
    """Return, by key, sentences on sweeps that judge the same family differently, and why."""
    sentences: dict[tuple[str, str], list[str]] = {}
    for verdict, other, differences in conflicting_verdicts(verdicts):
        first, second = (
            f"{each.verdict}{f' at {each.point}' if each.point else ''} in {each.study.sweep}"
            for each in (verdict, other)
        )
        for each in (verdict, other):
            sentences.setdefault(each.key, []).append(f"sweeps disagree: {first}, {second}; {'; '.join(differences)}")
    return sentences


# --- fresh seeds ----------------------------------------------------------------------------------------------------


def _notable_fresh(verdict: Verdict) -> FreshComparison | None:
    comparison = compare_fresh(verdict)
    return comparison if comparison and comparison.is_notable else None


def _fresh_share(fresh: FreshComparison) -> str:
    text = difference_text(abs(fresh.worse_by), fresh.error, fresh.verdict.study.metric, signed=False)
    return f"{text} {'worse' if fresh.worse_by > 0 else 'better'}"


def _fresh_text(fresh: FreshComparison) -> str:
    """Return the difference in a few words, for a cell or badge."""
    reference = "fitted" if fresh.is_fitted else "the search's"
    chance_text = "" if fresh.is_beyond_chance else ", maybe by chance"
    return f"{_fresh_share(fresh)} than {reference}{chance_text}"


def _fresh_sentence(fresh: FreshComparison) -> str:
    """Return the difference, its reference, and what it means for the verdict."""
    verdict, metric = fresh.verdict, fresh.verdict.study.metric
    assert verdict.score is not None
    fitted = f", the fit {score_text(fresh.expected, metric)}" if fresh.is_fitted else ""
    reference = "the fit" if fresh.is_fitted else "the search's"
    by_chance = "more than chance explains" if fresh.is_beyond_chance else "which may be chance"
    return (
        f"{format_count(len(verdict.fresh_scores), 'fresh seed')} gave {score_text(fresh.mean, metric)}, "
        f"the search's seeds {score_text(verdict.score, metric)}{fitted}: {_fresh_share(fresh)} than "
        f"{reference}, {by_chance} ({confidence_text(CONFIDENCE)}); the verdict stands, since it compares points over "
        "the same seeds"
    )


# --- neighbours -----------------------------------------------------------------------------------------------------


def _neighbour_rows(verdict: Verdict) -> Iterator[dict[str, Any]]:
    """Yield the neighbours; how much worse one is comes with its error if a bound has compared them."""
    metric = verdict.study.metric
    is_fitted = bool(verdict.bound and verdict.bound.differences)
    for scored, fitted in _compared_neighbours(verdict):
        point, worse_by = scored.point, ""
        if fitted is not None:
            worse_by = difference_text(fitted.mean, fitted.error, metric)
        elif not is_fitted and scored.score is not None and verdict.score is not None:
            worse_by = _means_text(metric.worse_by(scored.score, verdict.score), verdict)
        is_better = not is_fitted and metric.is_better(scored.score, verdict.score)
        yield {
            "move": _move_text(verdict, point),
            "at": [power_and_decimal(value, name) for name, value in point.values.items()],
            "state": scored.state.value,
            "score": "" if scored.score is None else score_text(scored.score, metric, unit=False),
            "runs": str(scored.runs or ""),
            "worse_by": worse_by,
            "refuted": "better" if is_better and verdict.verdict == "refuted" else "",
        }


def _compared_neighbours(verdict: Verdict) -> "Iterable[tuple[ScoredPoint, Difference | None]]":
    """Return each neighbour with its difference to the candidate, which is known if there is a bound."""
    differences = verdict.bound.differences if verdict.bound else ()
    return zip(verdict.neighbours, differences or [None] * len(verdict.neighbours), strict=True)


def _move_text(verdict: Verdict, point: Point) -> str:
    centre, axes = verdict.point or point, verdict.study.axes
    return ", ".join(_axis_move(name, axes[name], point[name], centre[name]) for name in centre.values)


def _axis_move(name: str, axis: Axis, new: float, old: float) -> str:
    if log2(new) == log2(old):
        return name
    if axis.scale == "linear":
        return f"{name} {'+' if new > old else '-'} {three_digits(abs(new - old))}"
    if not (new and old):
        return f"{name} {three_digits(new)}"
    return f"{three_digits(new / old)} {name}" if new > old else f"{name} / {three_digits(old / new)}"


def _means_text(worse_by: float, verdict: Verdict) -> str:
    """Return a difference of mean scores as a share of the candidate's loss, or in points of accuracy."""
    metric = verdict.study.metric
    share = None if verdict.score is None else as_share(worse_by, verdict.score, metric)
    return score_text(worse_by, metric) if share is None else difference_text(share, None, metric)


def _nearest(verdict: Verdict) -> "Difference | None":
    """Return how much worse than the candidate the closest neighbour is, as fitted."""
    differences = [fitted for fitted in verdict.bound.differences if fitted] if verdict.bound else []
    return min(differences, key=lambda fitted: fitted.mean, default=None)


# --- tables ---------------------------------------------------------------------------------------------------------


def _family_columns(verdict: Verdict) -> dict[str, Any]:
    study = verdict.study
    return {
        "sweep": study.sweep,
        "family": study.family,
        "model": study.model,
        "strategy": study.strategy,
        "optimizer": study.base.info.labels.optimizer,
    }


def _cells(verdict: Verdict, fresh: FreshComparison | None) -> dict[str, Any]:
    """Return the row of a verdict; `neighbours` is filled only if some of them have no score yet."""
    count, missing = len(verdict.neighbours), len(verdict.missing_points)
    return {
        **_family_columns(verdict),
        "verdict": headline(verdict),
        **axis_cells(verdict.point),
        verdict.study.metric.name: verdict.score,
        "seeds": verdict.candidate and verdict.candidate.runs,
        **_nearest_cell(verdict),
        "neighbours": f"{count - missing}/{count}" if missing or not count else None,
        "fresh seeds": _fresh_cell(verdict, fresh),
        **({"resume": resume_cell(verdict)} if verdict.study.base.info.stop_signal else {}),
    }


def _fresh_cell(verdict: Verdict, fresh: FreshComparison | None) -> str | None:
    """Return the mean and number of fresh seeds, and a notable difference to the search's."""
    scores = [score for score in verdict.fresh_scores.values() if score is not None]
    if not scores:
        return None
    text = f"{score_text(fmean(scores), verdict.study.metric)} ({len(scores)})"
    return f"{text}, {_fresh_text(fresh)}" if fresh else text


def _nearest_cell(verdict: Verdict) -> dict[str, Any]:
    """Return the column on the best of the neighbours: its score, or its difference to the candidate with an error."""
    # The paper's rule compares means, and has no errors.
    if verdict.study.criterion.rule == "paper":
        return {"best neighbour": verdict.best_neighbour and verdict.best_neighbour.score}
    nearest = _nearest(verdict)
    if nearest is None or verdict.bound is None:
        return {"nearest neighbour": None}
    error = nearest.error if verdict.bound.is_noise_known else None
    difference = difference_text(abs(nearest.mean), error, verdict.study.metric, signed=False)
    return {"nearest neighbour": f"{difference} {'behind' if nearest.mean >= 0 else 'ahead'}"}


def _numbers(verdict: Verdict) -> dict[str, Any]:
    """Return the verdict's columns of `tables.optima_table`."""
    metric, lead, score = verdict.study.metric, verdict.lead_over_neighbours, verdict.score
    _, std = mean_std([run.score for run in verdict.candidate_runs])
    fresh_mean, fresh_std = mean_std([*verdict.fresh_scores.values()])
    return {
        "verdict": verdict.verdict,
        **axis_cells(verdict.point),
        "metric": metric.name,
        "score_unit": "fraction" if metric.is_fraction else metric.unit or None,
        "seeds": _seeds(verdict),
        "score": score,
        "std": std,
        "fresh_seeds": len(verdict.fresh_scores),
        "fresh_score": fresh_mean,
        "fresh_std": fresh_std,
        "score_lead": lead,
        "lead_share": None if lead is None or score is None else as_share(lead, score, metric),
        **_bound_numbers(verdict),
    }


def _bound_numbers(verdict: Verdict) -> dict[str, Any]:
    criterion, bound = verdict.study.criterion, verdict.bound
    # The paper's rule compares means: it has no bound, margin or noise.
    if criterion.rule == "paper":
        return {"rule": criterion.rule}
    numbers = {
        "rule": criterion.rule,
        "confidence": criterion.confidence,
        "margin": criterion.margin_for(verdict.study.metric),
    }
    if bound is None:
        return numbers
    runs = bound.further_runs
    numbers |= {
        "bound": bound.value,
        "noise_known": bound.noise.source,
        "more_runs": runs.likely if runs else None,
        "caveat": _caveat(bound) or None,
    }
    # With unknown noise there are no probabilities, and no points as good.
    if bound.is_noise_known:
        numbers |= {
            "p_best": bound.best_probability,
            "noise": bound.noise.sd,
            "as_good": len(bound.plateau),
            **{f"recommended_{name}": value for name, value in axis_cells(bound.recommended).items()},
        }
    return numbers


# --- JSON -----------------------------------------------------------------------------------------------------------


def _data(verdict: Verdict, reason: str) -> dict[str, Any]:
    criterion, metric = verdict.study.criterion, verdict.study.metric
    versions = group_by_version(verdict.runs)
    return {
        **_family_columns(verdict),
        "verdict": verdict.verdict,
        **axis_cells(verdict.point),
        "score": verdict.score,
        "runs": _seeds(verdict),
        "metric": metric.name,
        "mode": metric.mode,
        "rule": criterion.rule,
        "confidence": criterion.confidence,
        "answer": answer(verdict),
        "for_paper": paper_sentence(verdict) or None,
        "statement": headline(verdict),
        "evidence": _evidence_data(verdict),
        "neighbours": [
            {
                **axis_cells(scored.point),
                "score": scored.score,
                "state": scored.state.value,
                "runs": scored.runs,
                "worse_by": fitted.mean if fitted else None,
                "error": fitted.error if fitted else None,
            }
            for scored, fitted in _compared_neighbours(verdict)
        ],
        "missing": [axis_cells(point) for point in verdict.missing_points],
        "seeds": list(verdict.study.seeds),
        "fresh": [{"seed": seed, "score": score} for seed, score in verdict.fresh_scores.items()],
        "outside": [axis_cells(point) for point in verdict.outside],
        "path": [axis_cells(point) for point in verdict.path],
        "versions": [{"version": name, "runs": [run.id for run in runs]} for name, runs in versions.items()],
        "resume": resume_class(verdict),
        "resumed": [run.id for run in resumed_runs(verdict)] if verdict.study.base.info.stop_signal else None,
        "differs": differing_facts(verdict),
        "reason": reason,
        "why": verdict.reason.to_json(),
    }


def _evidence_data(verdict: Verdict) -> dict[str, Any] | None:
    if (bound := verdict.bound) is None:
        return None
    runs = bound.further_runs
    return {
        "bound": bound.value,
        "margin": bound.margin,
        "beats_all": bound.best_probability,
        "noise": {"sd": bound.noise.sd, "dof": bound.noise.dof, "known": bound.noise.source},
        "caveat": _caveat(bound) or None,
        "as_good": [axis_cells(point) for point in bound.plateau],
        "recommended": axis_cells(bound.recommended),
        "paper": bound.paper,
        "more_runs": runs.likely if runs else None,
        "more_runs_range": [runs.low, runs.high] if runs else None,
    }
