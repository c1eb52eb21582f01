"""The answer of a verdict in one line: which point to use, and how much better a neighbour may still be."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ettsweep.console import format_count
from ettsweep.quantities import (
    as_share,
    bound_text,
    confidence_text,
    difference_text,
    percent_up,
    probability_text,
    score_text,
    share_text,
    three_digits,
)
from ettsweep.runs.point import Point
from ettsweep.study.lattice import EDGE_AXIS, Axis, shifted, steps_between
from ettsweep.study.study import Study
from ettsweep.study.study_state import StudyState
from ettsweep.study.verdict import Bound, Verdict, best_point

if TYPE_CHECKING:  # imports NumPy, which is slow
    from ettsweep.study.posterior import Posterior

AXIS_NAMES = {"lr": "learning rate", "wd": "weight decay"}
"""Names of axes in a sentence for a paper, where they are not those of the sweep."""


def answer(verdict: Verdict) -> str:
    """Return the answer, with three digits for each value; an open verdict starts with `Best so far`."""
    return " ".join(_sentences(verdict))


def named_point(verdict: Verdict) -> Point | None:
    """Return the point that the answer names: the recommended one if its own bound allows it, else the candidate."""
    bound = verdict.bound
    if verdict.verdict == "optimal" and bound and bound.recommended_value is not None:
        return bound.recommended if bound.recommended_value <= bound.margin else verdict.point
    return verdict.point


def point_text(point: Point) -> str:
    """Return a point as `lr 0.001, wd 0.1`, with three digits."""
    return ", ".join(f"{name} {three_digits(value)}" for name, value in point.values.items())


def answer_at(state: StudyState, verdict: Verdict) -> str:
    """Return by how much a neighbour of the judged point could be better, and any point around it."""
    point, metric, found = verdict.point, verdict.study.metric, bounds_at(state, verdict)
    assert point is not None
    if verdict.score is None:
        return f"{point_text(point)} has no score in the table."
    text = f"At {point_text(point)}, {metric.label} is {score_text(verdict.score, metric)}."
    if found["bound"] is None:
        return f"{text} {_lack_at(state, verdict)} {_best_in_table(state, verdict)}"
    posterior = posterior_at(state, verdict)
    assert posterior is not None
    near, anywhere = (bound_text(found[key], metric) for key in ("bound", "bound_anywhere"))
    without = sum(n.score is None for n in verdict.neighbours)
    lacking = f" {without} of {format_count(len(verdict.neighbours), 'neighbour')} have no score." if without else ""
    leader = state.point_at(posterior.ranking[0], point)
    best = "It is the best point of the fit." if leader == point else f"Best of the fit: {point_text(leader)}."
    return (
        f"{text} A neighbour is better by at most {near}, any of {format_count(found['points'], 'point')} around it by "
        f"at most {anywhere} ({confidence_text(found['confidence'])}).{lacking} {best}"
    )


def bounds_at(state: StudyState, verdict: Verdict) -> dict[str, Any]:
    """Return the bounds around the judged point, as shares or differences; None if nothing bounds them."""
    posterior, point, confidence = posterior_at(state, verdict), verdict.point, verdict.study.criterion.confidence
    if posterior is None or point is None:
        return {"bound": None, "bound_anywhere": None, "points": 0, "confidence": confidence}
    origin = state.steps(point, point)
    around = [state.steps(neighbour.point, point) for neighbour in verdict.neighbours]
    known = [position for position in around if position in posterior.positions]
    others = [position for position in posterior.positions if position != origin]
    near, anywhere = (posterior.bound(origin, each, confidence) if known else None for each in (known, others))
    return {"bound": near, "bound_anywhere": anywhere, "points": len(others), "confidence": confidence}


def posterior_at(state: StudyState, verdict: Verdict) -> "Posterior | None":
    """Return the posterior around the judged point; None if the noise is unknown."""
    from ettsweep.study.bound_rule import BoundRule  # it imports SciPy, which the words of a verdict need not

    if verdict.point is None or not isinstance(state, BoundRule):
        return None
    posterior = state.posterior(verdict.point)
    return None if posterior is None or posterior.noise.source == "unknown" else posterior


def _lack_at(state: StudyState, verdict: Verdict) -> str:
    """Return why nothing bounds the gain of a neighbour."""
    if verdict.study.criterion.rule == "paper":
        return "The paper's rule has no bound."
    if all(n.score is None for n in verdict.neighbours):
        return "No neighbour has a score, so there is no bound."
    if all(len(seeds) < 2 for seeds in verdict.study.seeds_by_point.values()):
        return "There is no bound: the noise is unknown, since each point has one run."
    return "There is no bound: the noise is unknown, since too few runs repeat a point."


def _best_in_table(state: StudyState, verdict: Verdict) -> str:
    """Return which point has the best mean, and how much better that is than the judged one."""
    metric = verdict.study.metric
    best = best_point(map(state.score_point, verdict.study.seeds_by_point), metric)
    assert best is not None
    assert best.score is not None
    assert verdict.score is not None
    gain = metric.worse_by(verdict.score, best.score)
    if not gain:
        return "Its mean is the best of the table."
    share = as_share(gain, verdict.score, metric)
    by = "" if share is None else f" by {difference_text(share, None, metric, signed=False)}"
    return f"The best mean of the table is at {point_text(best.point)}, better{by}."


def paper_sentence(verdict: Verdict) -> str:
    """Return a sentence for a paper; empty unless the verdict is an optimum with a bound."""
    from ettsweep import __version__

    bound, point, study = verdict.bound, named_point(verdict), verdict.study
    if verdict.verdict != "optimal" or bound is None or bound.value is None or point is None:
        return ""
    searched = " and ".join(AXIS_NAMES.get(name, name) for name in study.free)
    verb = "were" if len(study.free) > 1 else "was"
    metric, posterior = study.metric, bound.posterior
    runs = int(posterior.surface.scores.scored_PS.sum()) if posterior else len(verdict.runs)
    better = "lower" if metric.mode == "min" else "higher"
    return (
        f"{searched[0].upper()}{searched[1:]} {verb} searched on a lattice ({_steps_text(study)}; "
        f"{format_count(runs, 'run')}). At {point_text(point)}, no neighbour has a {metric.label} that is {better} by "
        f"more than {_bound_at(verdict, bound)} (ettsweep {__version__})."
    )


def _sentences(verdict: Verdict) -> Iterator[str]:
    bound, facts = verdict.bound, verdict.reason.facts
    at = point_text(verdict.point) if verdict.point else ""
    if verdict.verdict == "optimal" and bound is not None and (named := named_point(verdict)):
        yield f"Use {point_text(named)}."
        yield _gain(verdict, bound)
        yield from _around(verdict, bound, named)
        return
    match verdict.reason.code:
        case "best_mean":
            yield f"Use {at}. Its mean is better than those of all {facts['neighbours']} neighbours."
        case "equal_mean":
            yield f"Use {at}, or the neighbour with the same mean."
        case "better_means":
            yield f"{at} is not the optimum: {_have(facts['count'], 'neighbour')} a better mean."
        case "better_neighbour":
            better = facts["point"]
            assert isinstance(better, Point)
            probability = probability_text(float(str(facts["probability"])))
            yield f"{at} is not the optimum: {point_text(better)} is better ({probability})."
        case "diverged":
            yield f"{at} diverged, but a neighbour did not."
        case "all_diverged":
            yield "All runs diverged. Try a lower lr."
        case "neighbours_not_requested":
            yield from _beyond_ranges(verdict)
        case "out_of_reach":
            yield f"Best so far: {at}, {facts['steps']} steps beyond your ranges. Widen them, or check the score."
        case "single_point":
            yield f"There is nothing to compare: {_both_fixed(verdict.study)}."
        case "candidate_to_come" | "points_to_come" | "neighbours_to_come":
            yield f"Best so far: {at}." if verdict.score is not None else "No answer yet."
        case "around_zero":
            yield f"Best so far: {at}. Its score is around zero: state the margin as a difference, not as a share."
        case _:
            yield f"Best so far: {at}."
            yield from _undecided(verdict)
    if bound and verdict.verdict == "unresolved":
        yield from filter(None, [_safer_text(verdict, bound, verdict.point)])


def _both_fixed(study: Study) -> str:
    return f"{' and '.join(study.axes)} {'are both' if len(study.axes) > 1 else 'is'} fixed"


def _have(count: object, noun: str) -> str:
    return f"{format_count(int(str(count)), noun)} {'has' if count == 1 else 'have'}"


def _bound_at(verdict: Verdict, bound: Bound) -> str:
    """Return the bound of the point that the answer names, with its confidence: `2% (95%)`."""
    is_recommended = named_point(verdict) == bound.recommended and bound.recommended_value is not None
    value = bound.recommended_value if is_recommended else bound.value
    return f"{bound_text(value or 0.0, verdict.study.metric)} ({confidence_text(bound.confidence)})"


def _gain(verdict: Verdict, bound: Bound) -> str:
    if not bound.value:
        return "All of its neighbours diverged."
    return f"{_move_text(verdict.study, named_point(verdict))} gains at most {_bound_at(verdict, bound)}."


def _shifted(study: Study, point: Point, name: str, steps: int) -> Point:
    """Return the point that many steps along an axis."""
    return shifted(point, study.axes, {name: steps})


def _steps_text(study: Study) -> str:
    """Return the steps of the free axes: `steps of a factor of 2`, or `steps of x3 in lr, 0.1 in dropout`."""
    steps = {name: _step_text(axis) for name, axis in study.free.items()}
    if len({*steps.values()}) == 1:
        return f"steps of {next(iter(steps.values())).replace('x', 'a factor of ')}"
    return f"steps of {', '.join(f'{step} in {name}' for name, step in steps.items())}"


def _step_text(axis: Axis) -> str:
    return three_digits(axis.step) if axis.scale == "linear" else f"x{three_digits(2**axis.step)}"


def _move_text(study: Study, point: Point | None) -> str:
    """Return a step to a neighbour as the subject of a sentence."""
    free = study.free
    are_ranges = all(axis.scale == "log" and not axis.values for axis in free.values())
    if are_ranges and all(math.isclose(axis.step, 1, abs_tol=1e-6) for axis in free.values()):
        return f"Halving or doubling {'either' if len(free) > 1 else next(iter(free))}"
    steps = []
    for name, axis in free.items():
        step = _step_text(axis)
        if point and (axis.values or axis.scale == "linear"):
            at = point[name]
            step = " or ".join(three_digits(axis.shifted(at, sign)) for sign in (-1, 1) if axis.reaches(at, sign))
        steps.append(f"{name} ({step})")
    return f"A step up or down in {' or '.join(steps)}"


def _undecided(verdict: Verdict) -> Iterator[str]:
    """Yield the open question, and the runs that decide it."""
    from ettsweep.report.reason_text import runs_text

    bound, metric = verdict.bound, verdict.study.metric
    needs = runs_text(verdict.reason, with_hours=True)
    if bound is not None and bound.value is not None:
        within = f"{bound_text(bound.value, metric)} ({confidence_text(bound.confidence)})"
        if bound.is_too_wide:
            yield f"A neighbour may be better by up to {within}; your margin is {share_text(bound.margin, metric)}."
        else:
            yield f"{_move_text(verdict.study, verdict.point)} gains at most {within}, but too few seeds say so."
    else:
        yield "The noise is unknown, so this may be luck."
    if needs:
        yield f"{needs[0].upper()}{needs[1:]}."
    elif bound is not None and bound.is_too_wide:
        yield "No further run is planned."


def _beyond_ranges(verdict: Verdict) -> Iterator[str]:
    """Yield the ends of the tried values at which the best point lies, and the next value there."""
    study, point = verdict.study, verdict.point
    assert point is not None
    yield "All runs diverged. Try a lower lr." if verdict.score is None else f"Best so far: {point_text(point)}."
    if verdict.score is None:
        return
    missing = {n.point for n in verdict.neighbours if not n.state.finished}
    tried = [*study.seeds_by_point]
    ends = []
    for name in study.free:
        values = [each[name] for each in tried]
        for sign, extreme, end in ((-1, "lowest", min(values)), (1, "highest", max(values))):
            moved = _shifted(study, point, name, sign)
            if moved in missing and sign * (moved[name] - end) > 0:
                value = three_digits(moved[name])
                ends.append(f"That is the {extreme} {name} you tried: try {name} {value}.")
    if 0 < len(ends) <= len(study.free):
        yield from ends
    else:
        count = int(str(verdict.reason.facts["count"]))
        yield f"{format_count(count, 'neighbour')} {'was' if count == 1 else 'were'} not tried yet."


def _around(verdict: Verdict, bound: Bound, named: Point | None) -> Iterator[str]:
    """Yield notes on the points around: an edge of stability, divergence, points that are as good."""
    if named is None:
        return
    if diverged := _diverged_text(verdict, named):
        yield diverged
    if bound.stability:
        yield _safer_text(verdict, bound, named)
    elif bound.is_noise_known and (as_good := _as_good_text(verdict, bound, named)):
        yield as_good


def _diverged_text(verdict: Verdict, named: Point) -> str:
    lost = [n.point for n in verdict.neighbours if n.state.finished and n.score is None]
    for axis in named.values:
        for point in lost:
            if point != named and point.at(**{axis: named[axis]}) == named:
                return f"{axis} {three_digits(point[axis])} diverges."
    return ""


def _safer_text(verdict: Verdict, bound: Bound, named: Point | None) -> str:
    """Return the point a step of lr below an edge of stability, with its price; empty if there is no edge."""
    known, point = bound.stability, verdict.point
    if known is None or point is None:
        return ""
    lr = f"{EDGE_AXIS} {three_digits(point[EDGE_AXIS])}"
    seeds = f"{known.stable} of {format_count(known.seeds, 'seed')} trained well at {lr}"
    stable = f"{seeds}, up to {percent_up(known.may_be_unstable)}% may blow up (95%)"
    if bound.recommended[EDGE_AXIS] >= point[EDGE_AXIS]:
        return f"Close to an edge of stability: {stable}."
    pairs = zip(verdict.neighbours, bound.differences, strict=True)
    price = next((difference for n, difference in pairs if n.point == bound.recommended), None)
    by = ""
    if price and bound.is_noise_known:
        difference = difference_text(abs(price.mean), price.error, verdict.study.metric, signed=False)
        by = f", at a price of {difference}" if price.mean >= 0 else f", even better by {difference}"
    if named == bound.recommended:
        return f"It is a step below an edge of stability{by}: {stable}."
    return f"Close to an edge of stability: {stable}. Safer: {point_text(bound.recommended)}{by}."


def _as_good_text(verdict: Verdict, bound: Bound, named: Point) -> str:
    """Return the range of an axis with points as good as the named one; else one such point."""
    study = verdict.study
    as_good = {*bound.plateau, *([verdict.point] if verdict.point else [])}
    for name in reversed(study.free):
        ends = []
        for sign in (-1, 1):
            at = named
            while study.axes[name].reaches(at[name], sign) and (moved := _shifted(study, at, name, sign)) in as_good:
                at = moved
            ends.append(at[name])
        if ends[0] < ends[1]:
            low, high = map(three_digits, ends)
            return f"{name} from {low} to {high} is as good."
    others = [point for point in as_good if point != named]
    nearest = min(others, key=lambda point: (steps_between(point, named, study.axes), *point), default=None)
    return f"{point_text(nearest)} is as good." if nearest else ""
