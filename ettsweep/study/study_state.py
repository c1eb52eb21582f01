"""The state of a study: its points and their scores, the climb to a candidate, and the runs that a verdict needs."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache, cached_property
from itertools import product

from ettsweep.errors import InputError
from ettsweep.powers import axis_text
from ettsweep.runs.index import Run, group_by_point
from ettsweep.runs.point import MAPPED_TOLERANCE, Point, snap_point
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State, foremost
from ettsweep.study.lattice import PRINTED_TOLERANCE, neighbours, shifted
from ettsweep.study.reason import Command, Reason, StuckRun
from ettsweep.study.study import Study
from ettsweep.study.verdict import FINAL_VERDICTS, Bound, ScoredPoint, Verdict, VerdictWord, best_point

REACH = 8
"""Lattice steps that a climb may go beyond the requested ranges. Without a limit it might climb forever: scores of very
short runs, say, keep improving along wd, which has no effect yet."""

MAX_NAMED = 3
"""Stuck runs that a reason lists."""


class StudyState(ABC):
    """A study at one moment: its requested points, and its runs by lattice point."""

    def __init__(self, study: Study, runs: Iterable[Run]) -> None:
        self.study = study
        self._requested_points = study.seeds_by_point
        # Keyed by requested points: those of other sweeps may differ by rounding.
        is_on_lattice = cache(study.is_on_lattice)  # a point may have thousands of runs
        grouped = group_by_point(
            (run for run in runs if is_on_lattice(study.point_of(run))), self._requested_points, study.point_of
        )
        self._runs = {point: {run.seed: run for run in members} for point, members in grouped.items()}
        self._known_points = dict.fromkeys((*self._requested_points, *self._runs))
        self._canonical_points: dict[Point, Point] = {}

    # --- the parts that differ between rules ---

    @abstractmethod
    def score_point(self, point: Point) -> ScoredPoint:
        """Return the mean score and the state of a point."""

    @abstractmethod
    def climb(self, point: Point | None = None) -> Verdict:
        """Climb from a point, by default the best requested one, while a better one is near; judge where it ends."""

    initial_seeds: Sequence[int]
    """Seeds that a new neighbour is run with first."""

    @abstractmethod
    def is_verdict_seed(self, seed: int) -> bool:
        """`True` if scores of a seed enter the verdict."""

    @abstractmethod
    def racing_specs(self, verdict: Verdict, limit: int, max_seeds: int | None = None) -> list[RunSpec]:
        """Return about `limit` runs, of up to `max_seeds` seeds per point, that narrow an open verdict most."""

    @abstractmethod
    def _refutation(self, candidate: ScoredPoint, scored_neighbours: Sequence[ScoredPoint]) -> Reason | None:
        """Return why a neighbour is better than the candidate; None if none is."""

    @abstractmethod
    def _conclusion(
        self, candidate: ScoredPoint, scored_neighbours: Sequence[ScoredPoint]
    ) -> tuple[VerdictWord, Reason, Bound | None]:
        """Return verdict, reason and bound for a candidate all of whose neighbours are finished."""

    # --- candidate and neighbours ---

    def verdict(self, point: Point | None = None) -> Verdict:
        """Judge a point; by default, climb from the best requested point and judge where the climb ends."""
        return self.climb() if point is None else self._verdict(self.score_point(point), ())

    def _verdict(
        self, candidate: ScoredPoint | None, path: Sequence[Point], passed: Sequence[Point] = (), climbed: bool = False
    ) -> Verdict:
        """Judge the candidate at the end of a path; `passed` are the points compared on the way.

        At the end of a climb, a better neighbour refutes nothing: racing compares the two.
        """
        study = self.study
        scored_neighbours = [self.score_point(p) for p in neighbours(candidate.point, study.axes)] if candidate else []
        runs = self._runs.get(candidate.point, {}) if candidate else {}
        # Fresh seeds are rerun after the verdict, and never change it.
        fresh = {
            seed: run.score
            for seed, run in sorted(runs.items())
            if not self.is_verdict_seed(seed) and run.state.finished
        }
        compared_points = [
            scored_point.point for scored_point in ([candidate] if candidate else []) + scored_neighbours
        ]
        reached = dict.fromkeys([*path, *passed, *compared_points])
        outside = tuple(point for point in reached if point in self._runs and not self._is_in_range(point))
        compared = [
            scored_point.point
            for scored_point in (*([candidate] if candidate else []), *scored_neighbours)
            if scored_point.state.finished
        ]
        compared_runs = [run for point in compared for run in self._finished_runs(point)]
        judged, stuck = self._judge(candidate, scored_neighbours, climbed)
        bound = None
        if judged is None:
            assert candidate is not None  # without one, nothing is left to judge
            verdict, reason, bound = self._conclusion(candidate, scored_neighbours)
        else:
            verdict, reason = judged
        reason = replace(
            reason,
            stuck=tuple(StuckRun(run.id, run.state.value) for run in stuck),
            stopped=next((run.status.reason for run in stuck if run.status.is_stopped), ""),
            next=self._remedies(stuck),
        )
        context = (
            tuple(scored_neighbours),
            fresh,
            outside,
            tuple(path),
            tuple(compared_runs),
            tuple(run.id for run in stuck),
        )
        return Verdict(study, verdict, reason, candidate, *context, bound, self._runs_under_way, self._extra_run_count)

    def resolve_point(self, typed_point: Point, source: str = "--at") -> Point:
        """Return the lattice point that a user typed, perhaps with three digits; messages name `source`.

        Raises:
            InputError: the point is not on the lattice: off a fixed axis, or between two steps; or it lacks an axis.
        """
        study = self.study
        axes = study.axes
        for name in typed_point.values:
            if name not in axes:
                raise InputError(f"{source}: runs of {study.title} have no {name}, got {typed_point}")
        if len(typed_point.values) < len(axes):
            names = ",".join(axes).upper()
            raise InputError(f"{source}: {names} is expected, such as {study.centre}, got {typed_point}")
        # Half a step at most: on a fine lattice, a printed value could stand for two points.
        logs = [axis.step for axis in study.free.values() if axis.scale == "log"]
        tolerance = min([PRINTED_TOLERANCE, *(step / 2 for step in logs)])
        # Values of linear axes are printed with all their digits.
        known = tolerance if len(logs) == len(study.free) else MAPPED_TOLERANCE
        if (point := snap_point(typed_point, self._known_points, known)) in self._known_points:
            return point
        nearest = Point({name: axis.nearest(study.centre[name], typed_point[name]) for name, axis in axes.items()})
        for name, axis in axes.items():
            if not axis.is_on_lattice(nearest[name], typed_point[name], tolerance):
                at, got = axis_text(name, nearest[name]), axis_text(name, typed_point[name])
                if axis.fixed:
                    raise InputError(f"{source}: {name} is fixed at {at} in {study.title}, got {got}")
                raise InputError(f"{source}: {name} {got} is no point of {study.title}; the nearest is {at}")
        return snap_point(nearest, self._known_points)

    def _best_requested(self) -> ScoredPoint | None:
        """Return the best finished point that was requested; on ties the lowest along the first axis."""
        scored = [self.score_point(point) for point in sorted(self._requested_points, key=tuple)]
        return best_point([scored_point for scored_point in scored if scored_point.state.finished], self.study.metric)

    # --- positions on the lattice ---

    def steps(self, point: Point, origin: Point | None = None) -> tuple[float, ...]:
        """Return the lattice steps from `origin`, by default the centre, to a point along each free axis."""
        start = origin or self.study.centre
        # Rounded, since positions are dictionary keys and float noise would split equal ones.
        return tuple(round(axis.distance(point[name], start[name]), 6) for name, axis in self.study.free.items())

    def point_at(self, steps: Sequence[float], origin: Point | None = None) -> Point:
        """Return the point that many lattice steps from `origin`, by default the centre; the inverse of `steps`."""
        moves = dict(zip(self.study.free, steps, strict=True))
        return self._canonical_point(shifted(origin or self.study.centre, self.study.axes, moves))

    def _canonical_point(self, point: Point) -> Point:
        if point not in self._canonical_points:
            self._canonical_points[point] = snap_point(point, self._known_points)
        return self._canonical_points[point]

    def runs_by_point(self) -> dict[Point, list[Run]]:
        """Return all runs whose seeds enter the verdict, by point."""
        scored_runs = {
            p: [run for seed, run in runs.items() if self.is_verdict_seed(seed)] for p, runs in self._runs.items()
        }
        return {point: runs for point, runs in scored_runs.items() if runs}

    def is_pending(self, point: Point, seeds: Sequence[int]) -> bool:
        """`True` if runs of a point with these seeds are missing or under way, and none of them is stuck."""
        state = self._unfinished_state(point, seeds)
        return state is not None and state.pending

    # --- judgement ---

    def _judge(
        self, candidate: ScoredPoint | None, scored_neighbours: Sequence[ScoredPoint], climbed: bool
    ) -> tuple[tuple[VerdictWord, Reason] | None, Sequence[Run]]:
        """Return the verdict with its reason, None if the rule decides, and its stuck runs.

        The order of the checks matters: problems of the candidate come before missing runs around it.
        """
        counts = {"pending": len(self._pending_points()), "requested": len(self._requested_points)}
        stuck = self._stuck_runs([*scored_neighbours, *([candidate] if candidate else [])])
        # A study without a free axis is never searched.
        if candidate is None or (not candidate.state.finished and self.study.has_free_axis):
            at: dict[str, object] = {"point": None}
            if candidate:
                at = {"point": candidate.point, "state": candidate.state.value}
            return ("incomplete", Reason("candidate_to_come", at | counts)), stuck
        if not self.study.has_free_axis:
            return ("unsearched", Reason("single_point")), ()
        if not climbed and (refutation := self._refutation(candidate, scored_neighbours)):
            return ("refuted", refutation), ()
        if counts["pending"]:
            return ("incomplete", Reason("points_to_come", counts)), stuck
        unrequested = [n.point for n in scored_neighbours if not self._is_requested(n.point)]
        if self._any_out_of_reach(unrequested):
            return ("edge", Reason("out_of_reach", {"steps": REACH})), ()
        if unrequested:
            facts = {"count": len(unrequested), "neighbours": len(scored_neighbours)}
            return ("edge", Reason("neighbours_not_requested", facts)), stuck
        if unfinished := sum(not n.state.finished for n in scored_neighbours):
            return ("incomplete", Reason("neighbours_to_come", {"count": unfinished})), stuck
        # If the best point diverged, a retry of its neighbours would not help.
        return None, stuck if candidate.score is not None else ()

    def _pending_points(self) -> list[Point]:
        """Return the requested points with runs missing or under way."""
        return [point for point, seeds in self._requested_points.items() if self.is_pending(point, seeds)]

    def _unfinished_state(self, point: Point, seeds: Sequence[int]) -> State | None:
        """Return the state that stands for a point's unfinished runs; None if all are finished."""
        runs = self._runs.get(point, {})
        states = {runs[seed].state if seed in runs else State.MISSING for seed in seeds}
        return foremost(unfinished) if (unfinished := {state for state in states if not state.finished}) else None

    def _is_requested(self, point: Point) -> bool:
        """`True` if a grid or a sampler requested a point, or an earlier round ran it."""
        # A point with only some of these seeds was trained for another purpose.
        return point in self._requested_points or self._runs.get(point, {}).keys() >= set(self.initial_seeds)

    def _finished_runs(self, point: Point) -> list[Run]:
        """Return the finished runs of a point whose seeds enter the verdict, lowest seed first."""
        runs = sorted(self._runs.get(point, {}).items())
        return [run for seed, run in runs if run.state.finished and self.is_verdict_seed(seed)]

    def _is_in_range(self, point: Point) -> bool:
        """`True` if a point was requested, or lies within the ranges that samplers suggest from."""
        if point in self._requested_points or not self.study.box:
            return point in self._requested_points
        return self._beyond(point, self._ends(self.study.box)) <= 0

    def _any_out_of_reach(self, points: Iterable[Point]) -> bool:
        """`True` if any of these points is more than `REACH` steps beyond the requested ones: no climb goes there."""
        # Counted from the edges of what was requested: the centre may be far inside, or outside.
        return any(self._beyond(point, self._requested_ends) > REACH for point in points)

    @cached_property
    def _requested_ends(self) -> list[tuple[float, float]]:
        return self._ends([*self._requested_points, *self.study.box])

    def _ends(self, points: Iterable[Point]) -> list[tuple[float, float]]:
        """Return the lowest and the highest steps of points along each free axis."""
        return [(min(along), max(along)) for along in zip(*map(self.steps, points), strict=True)]

    def _beyond(self, point: Point, ends: Iterable[tuple[float, float]]) -> float:
        """Return how many steps a point is beyond the ends of a range; negative inside of it."""
        return max(
            (max(low - x, x - high) for x, (low, high) in zip(self.steps(point), ends, strict=True)), default=0.0
        )

    def _stuck_runs(self, scored_points: Iterable[ScoredPoint]) -> list[Run]:
        """Return the runs that need a person, those of the given points first."""
        points = dict.fromkeys((*(scored_point.point for scored_point in scored_points), *self._requested_points))
        return [
            run
            for point in points
            for seed, run in self._runs.get(point, {}).items()
            if run.state.stuck and self.is_verdict_seed(seed)
        ]

    def _remedies(self, stuck: Sequence[Run]) -> tuple[Command, ...]:
        """Return commands for stuck runs."""
        commands, family_options = list[Command](), ("--sweep", self.study.sweep, "--strategy", self.study.strategy)
        if retriable := [run.id for run in stuck if run.state is not State.HELD]:
            # A few ids are readable; for more, the study's options select them.
            commands.append(("ettsweep", "retry", *(retriable if len(retriable) <= MAX_NAMED else family_options)))
        if len(retriable) < len(stuck):
            commands.append(("ettsweep", "status", *family_options, "--state", "held"))
        return tuple(commands)

    # --- runs for the next round ---

    def needed_specs(self, verdict: Verdict) -> list[RunSpec]:
        """Return the runs that a verdict still needs: requested ones first, then candidate and neighbours.

        Empty for an unresolved verdict, which only racing helps (see `racing_specs`).
        """
        if pending := self.pending_specs():
            return pending
        if verdict.candidate is None or verdict.verdict in FINAL_VERDICTS | {"unresolved"}:
            return []
        candidate, unrequested = (
            verdict.candidate,
            [n.point for n in verdict.neighbours if not self._is_requested(n.point)],
        )
        if self._any_out_of_reach(unrequested):
            # No climb continues here, so the neighbours are not trained.
            return [] if candidate.state.finished else self.specs([candidate.point], self.initial_seeds)
        return self.specs(dict.fromkeys([candidate.point, *verdict.missing_points, *unrequested]), self.initial_seeds)

    def pending_specs(self) -> list[RunSpec]:
        """Return the runs of the pending points."""
        return [spec for point in self._pending_points() for spec in self.specs([point], self._requested_points[point])]

    @cached_property
    def _runs_under_way(self) -> int:
        return sum(run.state in (State.QUEUED, State.RUNNING) for runs in self._runs.values() for run in runs.values())

    @cached_property
    def _extra_run_count(self) -> int:
        return len(self.extra_runs())

    def extra_runs(self, others: Iterable[Study] = ()) -> list[Run]:
        """Return existing runs that were not requested and whose seeds count: those of climbs and races.

        Args:
            others: further studies, whose requested runs do not count.
        """
        studies = [self.study, *(other for other in others if other.family == self.study.family)]
        return [
            run
            for runs in self.runs_by_point().values()
            for run in runs
            if not any(study.has(run) for study in studies)
        ]

    def runs_saved_by_racing(self, verdict: Verdict, others: Iterable[Study] = ()) -> int:
        """Return how many more runs would give the candidate and each neighbour as many seeds as the one with most.

        Runs that racing spent at other points are subtracted. 0 without a race. `others` are those of `extra_runs`.
        """
        compared = [scored_point.point for scored_point in verdict.compared_points]
        climbed = set(verdict.outside)
        raced = [
            run
            for run in self.extra_runs(others)
            if self._canonical_point(self.study.point_of(run)) not in climbed or run.seed not in self.initial_seeds
        ]
        most = max((verdict.run_counts.get(point, 0) for point in compared), default=0)
        elsewhere = sum(self._canonical_point(self.study.point_of(run)) not in compared for run in raced)
        saved = most * len(compared) - sum(verdict.run_counts.values()) - elsewhere
        return max(0, saved) if raced else 0

    def is_requested(self, spec: RunSpec) -> bool:
        """`True` for a run that is requested, also where its values differ from the point's by rounding."""
        return self.study.requests(self._canonical_point(self.study.point_of(spec)), spec.seed)

    def specs(self, points: Iterable[Point], seeds: Sequence[int] | None = None) -> list[RunSpec]:
        """Return the runs of some points, over the study's seeds by default.

        An existing run's own spec is returned, since its values may differ from the point's by rounding.
        """
        specs = []
        for point, seed in product(points, seeds or self.study.seeds):
            run = self._runs.get(point, {}).get(seed)
            specs.append(run.spec if run else self.study.base.with_point(point, seed))
        return specs
