"""Why a verdict is what it is, in words: never more certain than the seeds allow."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ettsweep.console import format_count, format_device_hours
from ettsweep.quantities import (
    bound_text,
    confidence_text,
    deviation_text,
    difference_text,
    percent_up,
    probability_text,
    score_text,
    share_text,
)
from ettsweep.runs.index import Run
from ettsweep.runs.point import Point
from ettsweep.study.reason import Reason
from ettsweep.study.study_state import MAX_NAMED, StudyState
from ettsweep.study.verdict import ScoredPoint, Verdict


def reason_text(verdict: Verdict) -> str:
    """Return why a verdict is what it is, with the commands that help, in backticks."""
    return "; ".join(filter(None, [_decided_text(verdict), stuck_text(verdict.reason)]))


def stuck_text(reason: Reason) -> str:
    """Return which runs need a person, with the commands that help, in backticks; empty if none does."""
    return "; ".join(_stuck_texts(reason))


def _decided_text(verdict: Verdict) -> str:
    """Return what decided a verdict, without runs that need a person."""
    reason, metric = verdict.reason, verdict.study.metric
    facts: dict[str, Any] = dict(reason.facts)
    to_come = "{pending} of {requested} points {asked} are to come".format
    match reason.code:
        case "candidate_to_come":
            at = f"{facts['point']} is {facts['state']}" if facts["point"] else "no finished point yet"
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
            return f"{facts['point']} is better, with a probability of {probability}"
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
            return f"noise unknown: {_lack_text(reason, facts)}{paper}"
        case "within_margin":
            by_more = f" by more than {bound_text(facts['value'], metric)}" if facts["value"] else ""
            return f"no neighbour is better{by_more} ({confidence_text(facts['confidence'])} sure)"
        case "too_few_seeds":
            bound = f"{bound_text(facts['value'], metric)} ({confidence_text(facts['confidence'])} sure)"
            missing = runs_text(reason, with_hours=True) or "the missing runs are under way"
            return (
                f"it is within {bound}, but {missing}: the candidate and the neighbour that decides must have "
                f"{facts['seeds']} in common"
            )
        case "beyond_margin" | "edge_above":
            gap = (
                f"a neighbour may be better by up to {bound_text(facts['value'], metric)} "
                f"({confidence_text(facts['confidence'])} sure), the margin is {share_text(facts['margin'], metric)}"
            )
            needs = runs_text(reason, with_hours=True)
            if reason.code == "beyond_margin":
                return f"{gap}; {needs or 'no further run is allowed'}"
            edge = edge_text(facts["stable"], facts["of_seeds"], facts["may_be_unstable"])
            needs = needs or "no further seeds are planned: take a step of lr below"
            return f"{gap}; the candidate is {edge}; {needs}"


def runs_text(reason: Reason, with_hours: bool = False) -> str:
    """Return which further runs a verdict lacks, and for what; empty if none would help.

    Args:
        reason: why the verdict is what it is.
        with_hours: whether to add the device hours, if similar runs were timed.
    """
    facts: dict[str, Any] = dict(reason.facts)
    if not (runs := facts.get("runs")):
        return ""
    hours = f" ({format_device_hours(facts['device_s'])})" if with_hours and facts["device_s"] else ""
    if reason.code == "too_few_seeds":
        return f"{format_count(runs, 'run')} {'is' if runs == 1 else 'are'} missing{hours}"
    more_runs, s = f"{format_count(runs, 'more run')}{hours}", "s" * (runs == 1)
    if reason.code == "noise_unknown":
        return f"{more_runs} measure{s} the noise"
    low, high = facts["runs_range"]
    return f"about {more_runs} decide{s} it, likely {low} to {high}"


def edge_text(stable: int, seeds: int, may_be_unstable: float) -> str:
    """Return what is known of an edge of stability: stable seeds of all, and the share that may be unstable."""
    from ettsweep.study.stability import CONFIDENCE  # NumPy, which other words should not wait for

    percent = percent_up(may_be_unstable)
    return (
        f"beside an edge of stability: {stable} of {format_count(seeds, 'seed')} {'was' if stable == 1 else 'were'} "
        f"stable at this lr, but up to {percent}% may not be ({confidence_text(CONFIDENCE)})"
    )


def _lack_text(reason: Reason, facts: Mapping[str, Any]) -> str:
    if facts["lack"] == "shared_seeds":
        return "no two points have scores of the same seed, so there is no way to estimate the noise"
    lack = {
        "seeds": "each point has one score, which may be luck",
        "repeats": "too few points have several seeds to tell luck from merit",
    }[facts["lack"]]
    needed_seeds = f"{format_count(facts['seeds'], 'more seed')} of the candidate and its neighbours"
    return f"{lack}; {runs_text(reason, with_hours=True)}: {needed_seeds}"


def _neighbours_text(count: int) -> str:
    """Return a number of neighbours with its verb: `1 neighbour is`, `2 neighbours are`."""
    return f"{format_count(count, 'neighbour')} {'is' if count == 1 else 'are'}"


def _stuck_texts(reason: Reason) -> Iterator[str]:
    """Yield which runs a person must decide about, and what the commands do that help."""
    if not reason.stuck:
        return
    runs = ", ".join(f"{stuck.run} {stuck.state}" for stuck in reason.stuck[:MAX_NAMED])
    number = "1 run stands" if len(reason.stuck) == 1 else f"{len(reason.stuck)} runs stand"
    yield f"{number} still: {runs}{', ...' * (len(reason.stuck) > MAX_NAMED)}"
    if reason.stopped:
        yield reason.stopped
    held = sum(stuck.state == "held" for stuck in reason.stuck)
    for command in reason.next:
        does = f"trains {'it' if len(reason.stuck) - held == 1 else 'them'} again"
        if command[1] == "status":
            does = "says what lets the held ones start"
        yield f"`{shlex.join(command)}` {does}"


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
            fit = ("but the fit puts it {} behind" if fitted.mean >= 0 else "and the fit puts it {} ahead").format(
                difference
            )
            text += f", {fit}"
        texts.append(text)
    more = f"; and {len(better) - MAX_BETTER_MEANS} more" if len(better) > MAX_BETTER_MEANS else ""
    noise = f" (one run is off by {deviation_text(bound.noise.sd, metric)})" * (bound.noise.source != "unknown")
    better_is = "lower" if metric.mode == "min" else "higher"
    return (
        f"A {better_is} mean than {score_text(candidate.score, metric)} is not always a better point: "
        f"{'; '.join(texts)}{more}. Means of few runs may be luck{noise}; the fit weighs all scores around."
    )


def _seeds_text(point: ScoredPoint, candidate: ScoredPoint, runs: Mapping[Point, Sequence[Run]]) -> str:
    """Return over which seeds the mean of a point is, compared to the candidate's."""
    if point.runs == 1:
        return "by a single run"
    own, others = ({run.seed for run in runs[at] if run.state.finished} for at in (point.point, candidate.point))
    return f"over the same {point.runs} seeds" if own == others else f"over {point.runs} other seeds"
