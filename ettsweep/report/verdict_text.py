"""Verdicts in words, for terminal, screen and page: never more certain than the seeds allow."""

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ettsweep.console import format_count, format_device_hours
from ettsweep.powers import log2
from ettsweep.quantities import (
    as_share,
    bound_text,
    confidence_text,
    deviation_text,
    difference_text,
    probability_text,
    score_text,
    share_text,
    three_digits,
)
from ettsweep.report import formats
from ettsweep.report.score_digits import ScoreDigits
from ettsweep.runs.index import Run
from ettsweep.runs.point import Point
from ettsweep.runs.result import recorded_counts
from ettsweep.runs.state import State
from ettsweep.study.fresh import chance
from ettsweep.study.reason import Reason
from ettsweep.study.study import StudyKey
from ettsweep.study.study_state import MAX_NAMED, StudyState
from ettsweep.study.tried import ResumeClass, outcome_of
from ettsweep.study.verdict import ScoredPoint, Verdict, conflicting_verdicts

if TYPE_CHECKING:  # it imports NumPy, which the words of a verdict should not wait for
    from ettsweep.study.posterior import Difference

Row = dict[str, Any]

MIN_SAME = 2
"""Points all of whose seeds have the very same score, from which on that is no chance."""


def other_sweeps(verdicts: Sequence[Verdict]) -> dict[StudyKey, list[str]]:
    """Return, for each verdict, sentences on the verdicts of other sweeps on the same family, and why they differ."""
    lines: dict[StudyKey, list[str]] = {}
    for verdict, other, differences in conflicting_verdicts(verdicts):
        for mine, theirs in ((verdict, other), (other, verdict)):
            at = f" at {theirs.point.words}" if theirs.point else ""
            sentence = f"In sweep {theirs.study.sweep}, the same family is {theirs.statement}{at}"
            sweeps = f"{verdict.study.sweep} / {other.study.sweep}"
            lines.setdefault(mine.key, []).append(
                f"{sentence}. How the two differ ({sweeps}): {'; '.join(differences)}."
            )
    return lines


# --- why ------------------------------------------------------------------------------------------------------------


def reason_text(verdict: Verdict) -> str:
    """Return why a verdict is what it is, with the commands that help, in backticks."""
    return "".join([decided_text(verdict), *_stuck_texts(verdict.reason)])


def _point_of(verdict: Verdict) -> Point:
    """Return the point that the reason of a verdict names."""
    facts: dict[str, Any] = dict(verdict.reason.facts)
    lr, wd = facts["point"]
    return Point(lr, wd, verdict.study.base.info.has_wd)


def decided_text(verdict: Verdict) -> str:
    """Return what decided a verdict, without runs that need a person."""
    reason, metric = verdict.reason, verdict.study.metric
    facts: dict[str, Any] = dict(reason.facts)
    to_come = "{pending} of {requested} points {asked} are to come".format
    match reason.code:
        case "candidate_to_come":
            at = f"{_point_of(verdict)} is {facts['state']}" if facts["point"] else "no finished point yet"
            return f"{at}; {to_come(**facts, asked='asked for')}"
        case "single_point":
            return "both axes are fixed: a single point has no neighbours"
        case "points_to_come":
            return to_come(**facts, asked="that were asked for")
        case "neighbours_to_come":
            return f"{_neighbours_text(facts['count'])} to come"
        case "neighbours_not_requested":
            return f"{facts['count']} of {facts['neighbours']} neighbours had not been asked for"
        case "out_of_reach":
            return (
                f"the climb stopped {facts['steps']} steps beyond the requested ranges; if the score still improves, "
                "widen them by requesting the grid again, with --lr-range or --wd-range; otherwise fix the axis that "
                "does not matter in a separate sweep, with --wd-range fixed --name NAME"
            )
        case "diverged":
            return "it diverged, and a neighbour did not"
        case "all_diverged":
            return "all diverged; try a centre with a lower lr"
        case "better_neighbour":
            probability = probability_text(facts["probability"])
            return f"{_point_of(verdict)} is better, with a probability of {probability}"
        case "better_means":
            return f"{_neighbours_text(facts['count'])} better"
        case "equal_mean":
            return "an equal neighbour"
        case "best_mean":
            return f"its mean is better than those of all {facts['neighbours']} neighbours"
        case "around_zero":
            margin = share_text(facts["margin"], metric)
            return (
                f"its scores are around zero, and {margin} of zero means nothing; state the margin as a difference: "
                "`score: {margin: difference}` in a grid file, or --margin-is difference for a table"
            )
        case "noise_unknown":
            paper = f"; by the paper's comparison of means it is {facts['paper']}" if facts["paper"] else ""
            return f"noise unknown: {_lack_text(facts)}{paper}"
        case "within_margin":
            by_more = f" by more than {bound_text(facts['value'], metric)}" if facts["value"] else ""
            return f"no neighbour is better{by_more} ({confidence_text(facts['confidence'])} sure)"
        case "too_few_seeds":
            bound = f"{bound_text(facts['value'], metric)} ({confidence_text(facts['confidence'])} sure)"
            needs = f"{_cost_text(facts)} {'is' if facts['runs'] == 1 else 'are'} needed" if facts["runs"] else "wait"
            return (
                f"it is within {bound}, but on too few seeds: {needs} until the neighbour that decides has "
                f"{facts['seeds']} of the candidate's"
            )
        case "beyond_margin":
            gap = (
                f"a neighbour may be better by up to {bound_text(facts['value'], metric)} "
                f"({confidence_text(facts['confidence'])} sure), the margin is {share_text(facts['margin'], metric)}"
            )
            needs = f"it takes at least {_cost_text(facts)}" if facts["runs"] else "no further run is allowed"
            return f"{gap}; {needs}"


def _lack_text(facts: Mapping[str, Any]) -> str:
    if facts["lack"] == "shared_seeds":
        return "no two points have scores of the same seed, so nothing tells luck from merit"
    lack = {
        "seeds": "each point has one score, which may be luck",
        "repeats": "too few points have several seeds to tell luck from merit",
    }[facts["lack"]]
    needed_seeds = f"{format_count(facts['seeds'], 'more seed')} of the candidate and its neighbours"
    return f"{lack}; it takes at least {_cost_text(facts)}: {needed_seeds}"


def _cost_text(facts: Mapping[str, Any]) -> str:
    """Return a number of runs, with their device hours if similar runs were timed."""
    hours = f" ({format_device_hours(facts['device_s'])})" if facts["device_s"] else ""
    return f"{format_count(facts['runs'], 'more run')}{hours}"


def _neighbours_text(count: int) -> str:
    """Return a number of neighbours with its verb: `1 neighbour is`, `2 neighbours are`."""
    return f"{format_count(count, 'neighbour')} {'is' if count == 1 else 'are'}"


def _stuck_texts(reason: Reason) -> Iterator[str]:
    """Yield which runs a person must decide about, and what the commands do that help."""
    if not reason.stuck:
        return
    runs = ", ".join(f"{stuck.run} {stuck.state}" for stuck in reason.stuck[:MAX_NAMED])
    number = "1 run stands" if len(reason.stuck) == 1 else f"{len(reason.stuck)} runs stand"
    yield f"; {number} still: {runs}{', ...' * (len(reason.stuck) > MAX_NAMED)}"
    yield f"; {reason.stopped}" if reason.stopped else ""
    held = sum(stuck.state == "held" for stuck in reason.stuck)
    for command in reason.next:
        does = f"trains {'it' if len(reason.stuck) - held == 1 else 'them'} again"
        if command[1] == "status":
            does = "says what lets the held ones start"
        yield f"; `{shlex.join(command)}` {does}"


# --- the best -------------------------------------------------------------------------------------------------------


def best_optimum(verdicts: Sequence[Verdict]) -> Row | None:
    """Return the best of the verified optima: by fresh seeds if all have them, else by the search's seeds."""
    verified = [v for v in verdicts if v.verdict == "optimal" and v.score is not None]
    if not verified:
        return None
    fresh = {v.family: formats.mean_std([*v.fresh_scores.values()]) for v in verified}
    # All or none: the search's seeds flatter the point that they chose, so the two kinds do not compare.
    by_fresh = all(mean is not None for mean, _ in fresh.values())
    metric = verified[0].study.metric
    ranked = sorted(verified, key=lambda v: metric.sort_key(fresh[v.family][0] if by_fresh else v.score))
    winner = ranked[0]
    assert winner.score is not None
    fresh_text = formats.mean_text([*winner.fresh_scores.values()], metric)
    return {
        "verdict": winner,
        "score": fresh_text if by_fresh else score_text(winner.score, metric),
        "seeds": format_count(
            len(winner.fresh_scores) if by_fresh else seed_count(winner), "fresh seed" if by_fresh else "search seed"
        ),
        "of": len(verified),
        "by_fresh": by_fresh,
        "lead": _lead_text(winner, ranked[1]) if by_fresh and len(ranked) > 1 else None,
    }


def resumed_runs(verdict: Verdict) -> list[Run]:
    """Return the runs behind a verdict that their own programs took up again, which few programs do exactly."""
    runs = [run for run in verdict.runs if run.base.info.stop_signal]
    return [run for run in runs if (run.result or {}).get("resumed_step")]


def resume_class(verdict: Verdict) -> ResumeClass | None:
    """Return how runs of a verdict go on that were killed, as `ettsweep try` saw it; None if that is not known."""
    if not (verdict.study.base.info.stop_signal and verdict.runs):
        return None
    tried = outcome_of(verdict.runs[0].dir.path.parent.parent, verdict.study)
    if tried is None or (tried.resume == "resumes" and not tried.repeats):
        return None  # any run has other numbers than the one before
    return tried.resume


def resume_cell(verdict: Verdict) -> str | None:
    """Return the class of a verdict's runs, and how many were resumed, for a table; None if there is neither."""
    resumed, kind = len(resumed_runs(verdict)), resume_class(verdict)
    if not resumed:
        return kind
    return f"{kind or 'class not known'}, {resumed} of {len(verdict.runs)} runs"


def resumed_text(verdict: Verdict) -> str:
    """Return how many runs were taken up again by their own programs, and how exactly by a trial; empty for none."""
    if not (resumed := resumed_runs(verdict)):
        return ""
    were = "runs was" if len(resumed) == 1 else "runs were"
    by_class = {"exact": "exactly, by its trial", "resumes": "with other numbers, by its trial"}
    how = by_class.get(resume_class(verdict) or "", "which need not be exact")
    return f"{len(resumed)} of {len(verdict.runs)} {were} resumed by the program itself, {how}"


def other_ends_text(verdict: Verdict) -> str:
    """Return which runs ended at other steps than the rest, or than was stated; empty if all ended there."""
    results = [run.result or {} for run in verdict.runs if run.state is State.DONE]
    ends = Counter(step for result in results if isinstance(step := result.get("steps"), int))
    if not ends:
        return ""
    ((most, count),) = ends.most_common(1)
    if others := ends.total() - count:
        runs = "run" if others == 1 else "runs"
        return f"{others} of {ends.total()} {runs} ended at another step than {most}, where most did"
    stated = verdict.runs[0].base.info.steps
    return f"all runs ended at step {most}, not at {stated}" if stated and most != stated else ""


def other_evaluations_text(verdict: Verdict) -> str:
    """Return how many runs were evaluated more or less often than the rest: the best of more values is better."""
    if verdict.study.metric.take != "best":
        return ""
    results = [run.result or {} for run in verdict.runs if run.state is State.DONE]
    column = verdict.study.metric.column
    counts = Counter(
        (result.get("steps"), counts[column])
        for result in results
        if (counts := recorded_counts(result)) and column in counts
    )
    if not counts:
        return ""
    (((last_step, most), _),) = counts.most_common(1)
    # Of those that ended elsewhere, that is said.
    others = sum(count for (step, number), count in counts.items() if step == last_step and number != most)
    if not others:
        return ""
    were = "run was" if others == 1 else "runs were"
    return f"{others} of {counts.total()} {were} evaluated more or less often than {most} times, as most were"


MACHINE_FACTS = ("device", "device_name", "driver", "instruction_set", "python", "torch", "numpy")
"""Of what a result says of where it was trained, what may change numbers."""


def differing_facts(verdict: Verdict) -> dict[str, dict[str, int]]:
    """Return the machines and packages in which the runs behind a verdict differ: by fact, runs by its value."""
    environments = [each for run in verdict.runs if isinstance(each := (run.result or {}).get("environment"), dict)]
    values: dict[str, Counter[str]] = {name: Counter() for name in MACHINE_FACTS}
    for each in environments:
        facts = {name: str(each[name]) for name in MACHINE_FACTS if name in each}
        if "device" in facts:
            facts["device"] = facts["device"].partition(":")[0]
        for name, value in facts.items():
            values[name][value] += 1
    if verdict.study.base.info.stop_signal:
        del values["python"]  # that of the worker, not of the program that it starts
    packages = [each["packages"] for each in environments if isinstance(each.get("packages"), dict)]
    for name in sorted({name for each in packages for name in each}):
        values[name] = Counter(str(each.get(name, "none")) for each in packages)
    return {name: dict(counts.most_common()) for name, counts in values.items() if len(counts) > 1}


def differing_facts_text(verdict: Verdict) -> str:
    """Return in which machines and packages the runs behind a verdict differ; empty for none."""
    facts = (
        f"{name.replace('_', ' ')} ({', '.join(f'{count} with {value}' for value, count in counts.items())})"
        for name, counts in differing_facts(verdict).items()
    )
    listed = ", ".join(facts)
    return f"its runs differ in {listed}, which may change scores" if listed else ""


def run_notes(verdict: Verdict) -> list[str]:
    """Return what there is to know of the runs behind a verdict."""
    texts = (
        resumed_text(verdict),
        other_ends_text(verdict),
        other_evaluations_text(verdict),
        differing_facts_text(verdict),
        same_seeds_text(verdict),
        single_runs_text(verdict),
        few_digits_text(verdict),
        default_margin_text(verdict),
    )
    return list(filter(None, texts))


def single_runs_text(verdict: Verdict) -> str:
    """Return what a verdict on runs without a seed is worth; empty for others."""
    if verdict.study.base.info.seeded:
        return ""
    return "seeds: none: one run a point, so that luck is not told from merit, and there is no bound"


MIN_SCORES = 4
"""Fewer scores may be round by chance."""


def few_digits_text(verdict: Verdict) -> str:
    """Return a warning if scores of own code are told with too few digits for the margin; else an empty text."""
    scores = [run.score for run in verdict.runs if run.score is not None and run.base.info.code]
    if verdict.score is None or len(scores) < MIN_SCORES:
        return ""
    digits = ScoreDigits.of(scores, verdict.score, verdict.study.metric, verdict.study.criterion)
    return f"scores come {digits}: print more digits, or state a wider margin" if digits.are_too_few else ""


def default_margin_text(verdict: Verdict) -> str:
    """Return what these runs can tell apart if nobody stated a margin; else an empty text."""
    bound, metric = verdict.bound, verdict.study.metric
    if bound is None or bound.finest is None:
        return ""
    return (
        f"you stated no margin, so {share_text(bound.margin, metric)} is used; with this noise, "
        f"{format_count(len(verdict.runs), 'run')} can rule out gains above {bound_text(bound.finest, metric)} "
        f"({confidence_text(bound.confidence)}); set your own with --margin"
    )


def same_seeds_text(verdict: Verdict) -> str:
    """Return a warning if seeds make no difference at any point, as if training did not use them; else an empty text.

    The noise would then be taken for none, and any bound for narrow.
    """
    scores: dict[Point, list[float]] = {}
    for run in verdict.runs:
        if run.score is not None:
            scores.setdefault(run.point, []).append(run.score)
    several = [each for each in scores.values() if len(each) > 1]
    if len(several) < MIN_SAME or any(len(set(each)) > 1 for each in several):
        return ""
    return f"all seeds of {len(several)} points have the very same score: does training use its seed?"


def seed_count(verdict: Verdict) -> int:
    """Return the number of seeds behind the candidate's score."""
    return verdict.candidate.runs if verdict.candidate else 0


def _lead_text(winner: Verdict, second: Verdict) -> str | None:
    """Compare the best optimum with the next one over fresh seeds, by Welch's test (95%, two-sided: the better leads).

    None if one of them has fewer than two fresh seeds, or one diverged, or the best loss is 0.
    """
    (first_mean, first_std), (mean, std) = (formats.mean_std([*v.fresh_scores.values()]) for v in (winner, second))
    if first_mean is None or mean is None or first_std is None or std is None:
        return None
    numbers = len(winner.fresh_scores), len(second.fresh_scores)
    squares = [sd**2 / n for sd, n in zip((first_std, std), numbers, strict=True)]
    error = math.sqrt(sum(squares))
    spread = sum(square**2 / (n - 1) for square, n in zip(squares, numbers, strict=True))
    dof = error**4 / spread if spread else math.inf  # Welch-Satterthwaite
    ahead = winner.study.metric.worse_by(mean, first_mean)
    sure = chance(error, dof)
    metric = winner.study.metric
    # As shares of the best score, like all differences.
    shares = [share for value in (ahead, error, sure) if (share := as_share(value, first_mean, metric)) is not None]
    if not shares:
        return None
    gap = difference_text(shares[0], shares[1], metric, signed=False)
    if ahead > sure:
        return f"ahead of {second.label} by {gap}"
    return f"not distinguishable from {second.label}: {gap}, 95% sure from {bound_text(shares[2], metric)} on"


def difference_row(worse_by: float, verdict: Verdict) -> Row:
    """Return a difference of scores as a share of the candidate's loss, or in points of accuracy."""
    metric = verdict.study.metric
    share = None if verdict.score is None else as_share(worse_by, verdict.score, metric)
    text = score_text(worse_by, metric) if share is None else difference_text(share, None, metric)
    return {"text": text, "better": worse_by < 0}


def neighbour_rows(verdict: Verdict) -> list[Row]:
    """Return a row per neighbour; how much worse it is comes with its error where a bound has compared them."""
    metric, rows = verdict.study.metric, []
    paired: Sequence[Difference | None] = verdict.bound.differences if verdict.bound else ()
    for k, scored in enumerate(verdict.neighbours):
        apart = None
        if paired and (fitted := paired[k]) is not None:
            apart = _fitted_row(fitted, verdict)
        elif not paired and scored.score is not None and verdict.score is not None:
            apart = difference_row(metric.worse_by(scored.score, verdict.score), verdict)
        (lr, wd), centre = scored.point, verdict.point or scored.point
        rows.append(
            {
                "move": ", ".join(
                    [_move_text("lr", lr, centre.lr), *[_move_text("wd", wd, centre.wd)] * centre.has_wd]
                ),
                "scored": scored,
                "score": None if scored.score is None else score_text(scored.score, metric, unit=False),
                "difference": apart,
            }
        )
    return rows


MAX_BETTER_MEANS = 4
"""Points with a better mean than the candidate's that a sentence names."""


def better_means(verdict: Verdict, study_state: StudyState) -> str:
    """Return why points with a better mean than the candidate's are not the candidate; empty if there are none."""
    metric, bound, candidate = verdict.study.metric, verdict.bound, verdict.candidate
    if bound is None or candidate is None or candidate.score is None or bound.posterior is None:
        return ""
    runs = study_state.runs_by_point()
    scored = [study_state.score_point(point) for point in runs]
    better = [point for point in scored if metric.is_better(point.score, candidate.score)]
    if not better:
        return ""
    better.sort(key=lambda point: metric.sort_key(point.score))
    texts = []
    for point in better[:MAX_BETTER_MEANS]:
        assert point.score is not None
        score = score_text(point.score, metric)
        text = f"{point.point.text(3)} has {score} {_seeds_text(point, candidate, runs)}"
        position = study_state.steps(point.point, candidate.point)
        if position in bound.posterior.positions:
            origin = (0.0,) * len(position)
            (fitted,) = bound.posterior.differences(origin, [position])
            difference = difference_text(abs(fitted.mean), fitted.error, metric, signed=False)
            verb, side = ("but is", "worse") if fitted.mean >= 0 else ("and is", "better")
            text += f", {verb} {difference} {side} as fitted"
        texts.append(text)
    more = f"; and {len(better) - MAX_BETTER_MEANS} more" if len(better) > MAX_BETTER_MEANS else ""
    noise = f" (one run is off by {deviation_text(bound.noise.sd, metric)})" * (bound.noise.source != "unknown")
    return (
        f"A {'lower' if metric.mode == 'min' else 'higher'} mean than the candidate's "
        f"{score_text(candidate.score, metric)} does not make a better point: {'; '.join(texts)}{more}. Few runs "
        f"may be lucky{noise}, and a seed shifts all points that were run with it; the fit weighs the scores of all "
        f"points around accordingly."
    )


def _seeds_text(point: ScoredPoint, candidate: ScoredPoint, runs: Mapping[Point, Sequence[Run]]) -> str:
    """Return over which seeds the mean of a point is, compared to the candidate's."""
    if point.runs == 1:
        return "by a single run, which may be a lucky one"
    own, others = ({run.seed for run in runs[at] if run.state.finished} for at in (point.point, candidate.point))
    return f"over the same {point.runs} seeds" if own == others else f"over {point.runs} seeds, not the same ones"


def nearest_row(verdict: Verdict) -> Row | None:
    """Return how much worse than the candidate the closest neighbour is, by the rule of the bound."""
    differences = [fitted for fitted in verdict.bound.differences if fitted] if verdict.bound else []
    return _fitted_row(min(differences, key=lambda fitted: fitted.mean), verdict) if differences else None


def _fitted_row(difference: "Difference", verdict: Verdict) -> Row:
    """Return a fitted difference with its error: in percent of the candidate's loss, or in points of accuracy."""
    text = difference_text(difference.mean, difference.error, verdict.study.metric)
    return {"text": text, "better": False}


def bound_row(verdict: Verdict) -> Row | None:
    """Return the bound of a verdict as texts: probability, noise, as good points, margin; None if there is no bound."""
    if (bound := verdict.bound) is None:
        return None
    metric, noise = verdict.study.metric, bound.noise
    noise_sources = {"measured": "measured by repeated seeds", "inferred": "inferred from the residuals of the fit"}
    return {
        "best": probability_text(bound.best_probability) if noise.source in noise_sources else None,
        "noise": f"{deviation_text(noise.sd, metric)}, {noise_sources[noise.source]} ({noise.dof:.3g} degrees of "
        "freedom)"
        if noise.source in noise_sources
        else None,
        "plateau": [point.text(3) for point in bound.plateau],
        "recommended": bound.recommended.text(3),
        "margin": share_text(bound.margin, metric),
        "confidence": confidence_text(bound.confidence),
    }


def _move_text(name: str, new: float, old: float) -> str:
    if log2(new) == log2(old):
        return name
    return f"{three_digits(new / old)} {name}" if new > old else f"{name} / {three_digits(old / new)}"
