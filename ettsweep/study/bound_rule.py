"""The bound rule: a candidate is optimal if, at a given confidence, no neighbour beats it by more than the margin."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from statistics import fmean

from scipy.special import stdtrit

from ettsweep.runs.index import Run
from ettsweep.runs.point import Point
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State
from ettsweep.runs.timing import RunTimes
from ettsweep.study.lattice import EDGE_AXIS, Axis, neighbours, steps_between
from ettsweep.study.means_rule import MeansRule
from ettsweep.study.posterior import Posterior, as_fitted, fit_posterior, is_fitted_in_log
from ettsweep.study.racing import BoundQuery, next_runs, runs_needed
from ettsweep.study.reason import Reason
from ettsweep.study.seeds import RACING_SEEDS, is_verdict_seed, seed_order
from ettsweep.study.stability import DIVERGED_COST, find_edge
from ettsweep.study.study import Study
from ettsweep.study.study_state import StudyState
from ettsweep.study.surface import Position
from ettsweep.study.verdict import MEANS_VERDICTS, Bound, RunsNeeded, ScoredPoint, Verdict, VerdictWord

FIT_RADIUS = 3
"""Lattice steps from the candidate, along each free axis, within which scores enter its fit."""

FAR_WORSE = tuple(5 * 1.5**k for k in range(10))
"""How far behind the candidate a point of the fit may be, in shortfalls of its worst neighbour: the first of these at
which the noise is known."""

DECIDING_SEEDS = 3
"""Seeds that a candidate must share with the deciding neighbour to be optimal: two close seeds may be luck, whatever
the surface says."""

FAR = 1e3
"""Steps in the fit from a level of 0, which has no log, to the others: so far, the surface tells nothing of them."""

MIN_SEEDS_FOR_JUMP = 2
"""Seeds that a point beyond the neighbours needs before a climb may jump to it: a single one may be luck."""


def _place(axis: Axis, value: float) -> float:
    """Return where a value lies in the fit, in steps."""
    return axis.place(value) / axis.step if value or not axis.zero else -FAR


class BoundRule(StudyState):
    """The state of a family, judged by the posterior of a surface fitted to its scores."""

    def __init__(self, study: Study, runs: Iterable[Run]) -> None:
        # Kept, since `runs` may be an iterator, and the paper's rule needs the same runs.
        self._all_runs = list(runs)
        super().__init__(study, self._all_runs)
        self.initial_seeds = study.seeds[:1]  # racing adds seeds where they matter
        self._scored_points: dict[Point, ScoredPoint] = {}
        self._posteriors: dict[Point, Posterior | None] = {}

    def is_verdict_seed(self, seed: int) -> bool:
        return is_verdict_seed(self.study, seed)

    def score_point(self, point: Point) -> ScoredPoint:
        """Return the mean of a point's finished scores; a point with a diverged run has no score and ranks last."""
        point = self._canonical_point(point)
        if point not in self._scored_points:
            self._scored_points[point] = self._mean_score(point)
        return self._scored_points[point]

    def _mean_score(self, point: Point) -> ScoredPoint:
        finished = self._finished_runs(point)
        scores = [run.score for run in finished if run.score is not None]
        if len(scores) < len(finished):  # a diverged run is finished, but has no score
            return ScoredPoint(point, None, State.DIVERGED, len(finished))
        if scores:
            return ScoredPoint(point, fmean(scores), State.DONE, len(scores))
        return ScoredPoint(point, None, self._unfinished_state(point, self.initial_seeds) or State.MISSING)

    def climb(self, point: Point | None = None) -> Verdict:
        """Climb from a point, by default the best requested one, to better points nearby, and judge the last.

        Points that were run are compared by posterior mean. The end of a climb depends only on the requested points and
        their scores, not on who trained them or when.
        """
        if not self.study.has_free_axis:
            return self._verdict(self.score_point(point or self.study.centre), ())
        if (start := self._best_requested() if point is None else self.score_point(point)) is None:
            return self._verdict(None, ())
        path = [start]
        while (next_point := self._next_point(path[-1])) and next_point not in path:
            path.append(next_point)
        # Each point has a fit of its own, so a climb can run in a cycle: it ends at the cycle's smallest shortfall.
        end = min(
            path[path.index(next_point) :] if next_point else path[-1:],
            key=lambda scored_point: self._shortfall(scored_point.point),
        )
        passed = [
            n for scored_point in path for n in (scored_point.point, *neighbours(scored_point.point, self.study.axes))
        ]
        path = path[: path.index(end) + 1]
        if len(path) > 1 and self._is_futile_step(path[-2], end):
            path.pop()
        return self._verdict(path[-1], [scored_point.point for scored_point in path[:-1]], passed, True)

    def _is_futile_step(self, previous: ScoredPoint, last: ScoredPoint) -> bool:
        """`True` if a step gains less than the margin and ends where no climb may go on, as on a plateau."""
        neighbour_points = neighbours(last.point, self.study.axes)
        if not self._any_out_of_reach([point for point in neighbour_points if not self._is_requested(point)]):
            return False
        return self._shortfall(previous.point) <= self._margin

    def _shortfall(self, point: Point) -> float:
        """Return how far a point's posterior mean is behind the best one around it, as a margin; inf without a fit."""
        if (posterior := self.posterior(point)) is None:
            return math.inf
        mean, origin = posterior.means, posterior.index(self._origin)
        return posterior.to_margin(float(mean[origin] - mean[posterior.index(self._best_position(posterior))]))

    def _next_point(self, current: ScoredPoint) -> ScoredPoint | None:
        """Return the point nearby with the best posterior mean; None if that is the current point.

        While the noise is unknown, means of neighbours are compared instead.
        """
        neighbourhood = [self.score_point(p) for p in neighbours(current.point, self.study.axes)]
        scored = [scored_point for scored_point in neighbourhood if scored_point.score is not None]
        if current.score is None:
            return min(scored, key=lambda scored_point: self.study.metric.sort_key(scored_point.score), default=None)
        posterior = self.posterior(current.point)
        if posterior is None or posterior.noise.source == "unknown":
            best = min([current, *scored], key=lambda scored_point: self.study.metric.sort_key(scored_point.score))
            return None if best is current else best
        leader = self._best_position(posterior)
        # Steps that are all 0 are the current point itself.
        return self.score_point(self.point_at(leader, current.point)) if any(leader) else None

    def _best_position(self, posterior: Posterior) -> Position:
        """Return the position with the best posterior mean, among neighbours and points with several seeds."""
        runs_P = posterior.surface.scores.scored_PS.sum(1)
        # There is always one: the candidate is among the compared positions.
        return next(
            p
            for p in posterior.ranking
            if p in self._compared_positions or runs_P[posterior.index(p)] >= MIN_SEEDS_FOR_JUMP
        )

    # --- the fit around a candidate ---

    def posterior(self, candidate: Point) -> Posterior | None:
        """Return the posterior of the scores around a candidate; None if `fit_posterior` cannot fit it."""
        if candidate not in self._posteriors:
            self._posteriors[candidate] = self._fit_posterior(candidate)
        return self._posteriors[candidate]

    def _fit_posterior(self, candidate: Point) -> Posterior | None:
        scores: dict[Position, dict[int, float]] = {}
        diverged: dict[Position, list[int]] = {}
        for point in self._nearby_points(candidate):
            runs, position = self._finished_runs(point), self.steps(point, candidate)
            if lost := [run.seed for run in runs if run.score is None]:
                diverged[position] = lost
            elif runs:
                scores[position] = {run.seed: run.score for run in runs if run.score is not None}
        if self._origin not in scores:
            return None
        metric, stability, paired = self.study.metric, None, self.study.base.info.paired
        if next(iter(self.study.free)) == EDGE_AXIS:
            is_log = is_fitted_in_log(scores, metric)
            level = 1.0 if is_log else abs(fmean(scores[self._origin].values()))
            # In log, a margin of m is a difference of about m.
            least = self._margin * (level if metric.margin_is == "share" else 1.0)
            beside = {p: by_seed for p, by_seed in scores.items() if self._is_on_level(p, candidate)}
            f = as_fitted(beside, metric, is_log)
            if found := find_edge(f, diverged, least, DIVERGED_COST * level, paired):
                stability, unstable = found
                stable = {
                    p: {s: y for s, y in by_seed.items() if (p, s) not in unstable} for p, by_seed in scores.items()
                }
                scores = {p: by_seed for p, by_seed in stable.items() if by_seed}
        places = self._places(candidate, scores)
        near = (self._without_far_worse(scores, far) for far in FAR_WORSE)
        fits = (fit_posterior(each, self._origin, metric, places, paired) for each in near)
        posterior = next((fitted for fitted in fits if fitted and fitted.noise.source != "unknown"), None)
        posterior = posterior or fit_posterior(scores, self._origin, metric, places, paired)
        return posterior and replace(posterior, stability=stability)

    def _medoid(self, points: Sequence[Point]) -> Point:
        """Return the point nearest to all others; on ties the lowest along the first axis."""
        axes = self.study.axes
        return min(points, key=lambda point: (sum(steps_between(point, other, axes) for other in points), *point))

    def _is_on_level(self, position: Position, candidate: Point) -> bool:
        """`True` if a position has a value of 0 along the same axes as the candidate."""
        at = self.point_at(position, candidate)
        levels = (name for name, axis in self.study.free.items() if axis.zero)
        return all(bool(at[name]) == bool(candidate[name]) for name in levels)

    def _places(self, candidate: Point, positions: Iterable[Position]) -> dict[Position, Position]:
        """Return the places of positions in the fit, in mean steps, if an axis is uneven; a level of 0 is far off."""
        free = self.study.free
        if all(axis.is_even for axis in free.values()):
            return {}
        places = dict[Position, Position]()
        for position in positions:
            at = self.point_at(position, candidate)
            places[position] = tuple(
                steps if axis.is_even else _place(axis, at[name]) - _place(axis, candidate[name])
                for steps, (name, axis) in zip(position, free.items(), strict=True)
            )
        return places

    def _without_far_worse(
        self, scores: Mapping[Position, Mapping[int, float]], far_worse: float
    ) -> dict[Position, Mapping[int, float]]:
        """Return the scores without points far worse than the candidate and all of its neighbours, as behind a cliff.

        With one variance, the process would expect neighbours to differ as much as both sides of the cliff.
        """
        shortfall = {
            position: self.study.metric.worse_by(fmean(by_seed.values()), fmean(scores[self._origin].values()))
            for position, by_seed in scores.items()
        }
        limit = far_worse * max(shortfall[position] for position in scores if position in self._compared_positions)
        return {
            position: by_seed
            for position, by_seed in scores.items()
            if position in self._compared_positions or shortfall[position] <= limit
        }

    def _nearby_points(self, candidate: Point) -> list[Point]:
        """Return the points with runs within the fit radius of a candidate, the candidate included."""
        return [p for p in self._runs if max(map(abs, self.steps(p, candidate)), default=0) <= FIT_RADIUS]

    @cached_property
    def _margin(self) -> float:
        return self.study.criterion.margin_for(self.study.metric)

    @cached_property
    def _origin(self) -> Position:
        return (0.0,) * len(self.study.free)

    @cached_property
    def _compared_positions(self) -> set[Position]:
        """The positions of a candidate and its neighbours."""
        origin = self.study.centre
        return {self._origin, *(self.steps(n, origin) for n in neighbours(origin, self.study.axes))}

    def _neighbour_positions(self, candidate: ScoredPoint, scored_neighbours: Sequence[ScoredPoint]) -> list[Position]:
        """Return the positions of the neighbours that have a score, of a stable run."""
        posterior = self.posterior(candidate.point)
        positions = [self.steps(n.point, candidate.point) for n in scored_neighbours if n.score is not None]
        return [position for position in positions if posterior is None or position in posterior.positions]

    # --- judgement ---

    def _refutation(self, candidate: ScoredPoint, scored_neighbours: Sequence[ScoredPoint]) -> Reason | None:
        confidence = self.study.criterion.confidence
        if candidate.score is None:
            survivors = [n for n in scored_neighbours if n.score is not None]
            return Reason("diverged") if survivors else None
        posterior, others = self.posterior(candidate.point), self._neighbour_positions(candidate, scored_neighbours)
        # While the noise is unknown a lead may be luck, and refutes nothing.
        if posterior is None or not others or posterior.noise.source == "unknown":
            return None
        probability, position = max(zip(posterior.probabilities_better(self._origin, others), others, strict=True))
        # Better for sure is not enough: an advantage within the margin does not refute the candidate.
        if probability < confidence or posterior.bound(self._origin, others, confidence, self._margin) <= self._margin:
            return None
        better = self.point_at(position, candidate.point)
        return Reason("better_neighbour", {"point": better, "probability": probability})

    def _conclusion(
        self, candidate: ScoredPoint, scored_neighbours: Sequence[ScoredPoint]
    ) -> tuple[VerdictWord, Reason, Bound | None]:
        if candidate.score is None:
            return "unresolved", Reason("all_diverged"), None
        # The paper's rule is evaluated as well: tables show both verdicts side by side.
        means_verdict = MeansRule(self.study, self._all_runs).verdict(candidate.point).verdict
        # Any other verdict means that this rule lacks scores.
        paper = means_verdict if means_verdict in MEANS_VERDICTS else None
        if self._is_around_zero(candidate.point):
            return "unresolved", Reason("around_zero", {"margin": self._margin}), None
        posterior = self.posterior(candidate.point)
        if posterior is None:
            unknown = dict.fromkeys(("seeds", "runs", "device_s"))
            return "unresolved", Reason("noise_unknown", {"lack": "shared_seeds", **unknown, "paper": paper}), None
        bound = self._bound(posterior, candidate, scored_neighbours, paper)
        if bound.value is None:
            lack = self._lack_of_noise(posterior, candidate, scored_neighbours)
            return "unresolved", Reason("noise_unknown", lack | {"paper": paper}), bound
        facts: dict[str, object] = {"value": bound.value, "confidence": bound.confidence}
        others = self._neighbour_positions(candidate, scored_neighbours)
        if not bound.is_too_wide and seeds_to_decide(posterior, self._origin, others, self._margin) == 0:
            return "optimal", Reason("within_margin", facts), bound
        runs = bound.further_runs
        if not bound.is_too_wide:
            seeds = {"runs": runs and runs.likely, "device_s": runs and self._device_s(runs.likely)}
            return "unresolved", Reason("too_few_seeds", facts | seeds | {"seeds": DECIDING_SEEDS}), bound
        facts |= {"margin": bound.margin, "runs": runs and runs.likely}
        facts |= {"runs_range": runs and [runs.low, runs.high], "device_s": runs and self._device_s(runs.likely)}
        query = self._bound_query(posterior, candidate, others)
        if bound.stability and query.is_open_for_edge_alone:
            facts |= {"stable": bound.stability.stable, "of_seeds": bound.stability.seeds}
            facts |= {"may_be_unstable": bound.stability.may_be_unstable}
            return "unresolved", Reason("edge_above", facts), bound
        return "unresolved", Reason("beyond_margin", facts), bound

    def _is_around_zero(self, point: Point) -> bool:
        """`True` if margins are shares of scores of both signs, or of 0."""
        scores = [run.score for run in self._finished_runs(point) if run.score is not None]
        return self.study.metric.margin_is == "share" and min(scores) <= 0 <= max(scores)

    def _runs_to_decide(
        self, posterior: Posterior, candidate: ScoredPoint, others: Sequence[Position], max_seeds: float = math.inf
    ) -> list[tuple[Position, int]]:
        """Return the runs, finished or not, with which candidate and deciding neighbour share `DECIDING_SEEDS`.

        There are none if a point may not have so many seeds.
        """
        if not (lacking := seeds_to_decide(posterior, self._origin, others, self._margin)):
            return []
        pair = self._origin, posterior.challengers(self._origin, others, self._margin)[0]
        runs = [self._runs.get(self.point_at(position, candidate.point), {}) for position in pair]
        used = [{seed for seed in members if self.is_verdict_seed(seed)} for members in runs]
        # A run without a score, or that needs a person, gets no second. First come seeds that one of the two has.
        lost = {
            seed for members in runs for seed, run in members.items() if run.score is None and not run.state.pending
        }
        shared = {seed for seed in used[0] & used[1] if all(members[seed].score is not None for members in runs)}
        seeds = [seed for seed in seed_order(self.study) if seed not in lost | shared]
        seeds.sort(key=lambda seed: sum(seed not in own for own in used))
        chosen = seeds[:lacking]
        if any(len(own | {*chosen}) > max_seeds for own in used):
            return []
        return [
            (position, seed)
            for seed in chosen
            for position, members in zip(pair, runs, strict=True)
            if seed not in members or members[seed].score is None
        ]

    def _lack_of_noise(
        self, posterior: Posterior, candidate: ScoredPoint, scored_neighbours: Sequence[ScoredPoint]
    ) -> dict[str, object]:
        """Return why the noise is unknown, and the runs that measure it: racing starts with them."""
        compared = [self._origin, *self._neighbour_positions(candidate, scored_neighbours)]
        seeds = posterior.seeds_to_measure_noise(compared)
        runs, lack = seeds * len(compared), "repeats" if posterior.has_repeats else "seeds"
        return {"lack": lack, "seeds": seeds, "runs": runs, "device_s": self._device_s(runs)}

    def _device_s(self, runs: int) -> float:
        """Return the device seconds of so many runs; 0 if none was timed."""
        times = RunTimes()
        for point in self._runs:
            for run in self._finished_runs(point):
                times.add(run)
        return runs * (times.device_s(self.study.base) or 0.0)

    def _bound(
        self, posterior: Posterior, candidate: ScoredPoint, scored_neighbours: Sequence[ScoredPoint], paper: str | None
    ) -> Bound:
        """Return the bound on a candidate all of whose neighbours are finished."""
        criterion, margin = self.study.criterion, self._margin
        origin, others = self._origin, self._neighbour_positions(candidate, scored_neighbours)
        differences = dict(zip(others, posterior.differences(origin, others), strict=True)) if others else {}
        noise_is_known = posterior.noise.source != "unknown"
        value = None  # with unknown noise no bound holds
        if not others:
            value = 0.0  # without neighbours that have a score nothing can be better
        elif noise_is_known:
            # No finer than the margin: a race ends there, and a smaller bound owes that to luck.
            value = posterior.bound(origin, others, criterion.confidence, margin)
        further_runs = finest = None
        if value and criterion.margin is None:
            finest = posterior.bound(origin, others, criterion.confidence, 1e-3 * margin)
        if value is not None and value > margin:
            further_runs = runs_needed(self._bound_query(posterior, candidate, others))
        elif value is not None:
            lacking = self._runs_to_decide(posterior, candidate, others)
            if missing := sum(not self._is_under_way(candidate, *run) for run in lacking):
                further_runs = RunsNeeded(missing, missing, missing)
        plateau = self._plateau(posterior, candidate, margin) if noise_is_known else []
        recommended = self._recommended(posterior, candidate, plateau)
        return Bound(
            value=value,
            confidence=criterion.confidence,
            margin=margin,
            best_probability=posterior.probability_best(origin, others) if others else 1.0,
            differences=tuple(differences.get(self.steps(n.point, candidate.point)) for n in scored_neighbours),
            noise=posterior.noise,
            stability=posterior.stability,
            plateau=tuple(plateau),
            recommended=recommended,
            recommended_value=self._bound_at(recommended) if value is not None and value <= margin else None,
            paper=paper,
            further_runs=further_runs,
            finest=finest,
            posterior=posterior,
        )

    def _plateau(self, posterior: Posterior, candidate: ScoredPoint, margin: float) -> list[Point]:
        """Return the points that, at the sweep's confidence, are worse than the candidate by at most the margin."""
        z = float(stdtrit(posterior.surface.dof, self.study.criterion.confidence))
        points = {self.steps(point, candidate.point): point for point in self._runs}
        # The candidate is the origin, whose steps are all 0.
        others = [position for position in posterior.positions if any(position)]
        differences = posterior.differences(self._origin, others) if others else []
        return [points[p] for p, d in zip(others, differences, strict=True) if d.mean + z * d.error <= margin]

    def _recommended(self, posterior: Posterior, candidate: ScoredPoint, plateau: Sequence[Point]) -> Point:
        """Return the recommended point: the central one of the best, or a step of lr below an edge of stability."""
        below = (-1.0, *self._origin[1:])
        if posterior.stability and below in posterior.positions:
            return self.point_at(below, candidate.point)
        return self._medoid([candidate.point, *plateau])

    def _bound_at(self, point: Point) -> float | None:
        """Return the bound on another point than the candidate; None unless all of its neighbours were run."""
        around = [self.score_point(neighbour) for neighbour in neighbours(point, self.study.axes)]
        posterior = self.posterior(point)
        if posterior is None or posterior.noise.source == "unknown" or not all(n.state.finished for n in around):
            return None
        others = self._neighbour_positions(self.score_point(point), around)
        if seeds_to_decide(posterior, self._origin, others, self._margin):
            return None
        return posterior.bound(self._origin, others, self.study.criterion.confidence, self._margin) if others else 0.0

    # --- racing ---

    def racing_specs(self, verdict: Verdict, limit: int, max_seeds: int | None = None) -> list[RunSpec]:
        """Return the runs under way for an unresolved candidate, then the most informative ones, about `limit`."""
        if verdict.verdict != "unresolved" or verdict.candidate is None or verdict.bound is None:
            return []
        candidate = verdict.candidate
        if (posterior := self.posterior(candidate.point)) is None:
            return []
        query = self._bound_query(
            posterior, candidate, self._neighbour_positions(candidate, verdict.neighbours), max_seeds
        )
        # First the seeds that `optimal` needs, whatever the bound: so races are the same at any confidence.
        if posterior.noise.source != "unknown":
            lacking = self._runs_to_decide(posterior, candidate, query.others, query.max_seeds)
            new = [run for run in lacking if run not in query.under_way]
            query = replace(query, under_way=[*query.under_way, *new])
        # If the bound is within the margin, no more is needed.
        further = 0 if verdict.reason.code == "too_few_seeds" else max(0, limit - len(query.under_way))
        chosen = [*query.under_way, *next_runs(query, further)]
        return [self.specs([self.point_at(position, candidate.point)], [seed])[0] for position, seed in chosen]

    def _is_under_way(self, candidate: ScoredPoint, position: Position, seed: int) -> bool:
        run = self._runs.get(self.point_at(position, candidate.point), {}).get(seed)
        return run is not None and run.state.pending

    def _bound_query(
        self, posterior: Posterior, candidate: ScoredPoint, others: Sequence[Position], max_seeds: int | None = None
    ) -> BoundQuery:
        """Return the query that racing around a candidate answers."""
        criterion, used_seeds, under_way = self.study.criterion, {}, []
        lost: set[int] = set()
        for position in posterior.positions:
            runs = self._runs.get(self.point_at(position, candidate.point), {})
            used_seeds[position] = [seed for seed in runs if self.is_verdict_seed(seed)]
            under_way += [(position, seed) for seed in used_seeds[position] if runs[seed].state.pending]
            # A seed that failed or was cancelled at one of them cannot be shared.
            if position in (self._origin, *others):
                lost |= {seed for seed in used_seeds[position] if runs[seed].state.stuck}
        return BoundQuery(
            posterior,
            self._origin,
            others,
            criterion.confidence,
            self._margin,
            [seed for seed in seed_order(self.study) if seed not in lost],
            used_seeds,
            under_way,
            # With fewer seeds than racing has, `seed_order` always holds an unused one.
            len(RACING_SEEDS) if max_seeds is None else max_seeds,
        )


def seeds_to_decide(posterior: Posterior, candidate: Position, others: Sequence[Position], margin: float) -> int:
    """Return how many of `DECIDING_SEEDS` common seeds candidate and deciding neighbour lack."""
    if not others:
        return 0
    shared = posterior.shared_seeds(candidate, posterior.challengers(candidate, others, margin)[0])
    return max(0, DECIDING_SEEDS - shared)
