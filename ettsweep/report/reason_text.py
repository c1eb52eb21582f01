"""The reason of a verdict in words, and commands that help."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ettsweep.console import format_count, format_device_hours
from ettsweep.quantities import (
    confidence_text,
    deviation_text,
    difference_text,
    percent_up,
    score_text,
)
from ettsweep.runs.index import Run
from ettsweep.runs.point import Point
from ettsweep.study.reason import Reason
from ettsweep.study.study_state import MAX_NAMED, StudyState
from ettsweep.study.verdict import ScoredPoint, Verdict


def reason_text(verdict: Verdict) -> str:
    """Return details beyond the answer, and commands in backticks; empty for none."""
    return "; ".join(filter(None, [_detail_text(verdict.reason), *_stuck_texts(verdict.reason)]))


def _detail_text(reason: Reason) -> str:
    facts: dict[str, Any] = dict(reason.facts)
    match reason.code:
        case "candidate_to_come":
            at = f"{facts['point']} is {facts['state']}" if facts["point"] else "no point has finished"
            return f"{at}; unfinished: {facts['pending']} of {facts['requested']} points"
        case "points_to_come":
            return f"unfinished: {facts['pending']} of {facts['requested']} points"
        case "neighbours_to_come":
            return f"unfinished: {format_count(facts['count'], 'neighbour')}"
        case "out_of_reach":
            return (
                "if the score still improves there, request the grid again with a wider --range; if "
                "not, fix the axis that does not matter in a separate sweep: --range wd=fixed --name NAME"
            )
        case "around_zero":
            return (
                "to state a difference, write `score: {margin: difference}` in a grid file, or pass --margin-is "
                "difference for a table"
            )
        case "noise_unknown":
            paper = f"; by the paper's comparison of means it is {facts['paper']}" if facts["paper"] else ""
            return f"{_lack_text(facts)}{paper}"
        case "too_few_seeds":
            seeds = f"the candidate and the deciding neighbour must share {facts['seeds']} seeds"
            return seeds if facts["runs"] else f"{seeds}; the missing runs are under way"
    return ""


def runs_text(reason: Reason, with_hours: bool = False) -> str:
    """Return the runs that a verdict still needs, and their purpose; empty if no run helps.

    Args:
        reason: of the verdict.
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
    """Return a note on an edge of stability: the stable seeds, and the share of seeds that may be unstable."""
    from ettsweep.study.stability import CONFIDENCE  # imports NumPy, which is slow

    percent = percent_up(may_be_unstable)
    return (
        f"beside an edge of stability: {stable} of {format_count(seeds, 'seed')} {'was' if stable == 1 else 'were'} "
        f"stable at this lr, but up to {percent}% may not be ({confidence_text(CONFIDENCE)})"
    )


def _lack_text(facts: Mapping[str, Any]) -> str:
    lack = {
        "shared_seeds": "no two points share a seed",
        "seeds": "each point has one score",
        "repeats": "too few points have several seeds",
    }[facts["lack"]]
    if facts["lack"] == "shared_seeds":
        return lack
    return f"{lack}; the candidate and its neighbours need {format_count(facts['seeds'], 'more seed')} each"


def _stuck_texts(reason: Reason) -> Iterator[str]:
    """Yield the runs that a person must decide about, and the commands that help."""
    if not reason.stuck:
        return
    runs = ", ".join(f"{stuck.run} {stuck.state}" for stuck in reason.stuck[:MAX_NAMED])
    number = "1 run needs" if len(reason.stuck) == 1 else f"{len(reason.stuck)} runs need"
    yield f"{number} your decision: {runs}{', ...' * (len(reason.stuck) > MAX_NAMED)}"
    if reason.stopped:
        yield reason.stopped
    held = sum(stuck.state == "held" for stuck in reason.stuck)
    for command in reason.next:
        does = f"trains {'it' if len(reason.stuck) - held == 1 else 'them'} again"
        if command[1] == "status":
            does = "shows how to start the held ones"
        yield f"`{shlex.join(command)}` {does}"


MAX_BETTER_MEANS = 4
"""Points that the sentence lists."""


def better_means(verdict: Verdict, study_state: StudyState) -> str:
    """Explain why points with a better mean are not the candidate; empty if there are none."""
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
    return (
        f"A {'lower' if metric.mode == 'min' else 'higher'} mean than {score_text(candidate.score, metric)} may be "
        f"luck{noise}: {'; '.join(texts)}{more}. The fit weighs all scores nearby."
    )


def _seeds_text(point: ScoredPoint, candidate: ScoredPoint, runs: Mapping[Point, Sequence[Run]]) -> str:
    """Return the seeds of a point's mean, compared to those of the candidate."""
    if point.runs == 1:
        return "from a single run"
    own, others = ({run.seed for run in runs[at] if run.state.finished} for at in (point.point, candidate.point))
    return f"over the same {point.runs} seeds" if own == others else f"over {point.runs} other seeds"
