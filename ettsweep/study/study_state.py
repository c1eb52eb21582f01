"""A family as it was when it was looked at: its points and their states, and which runs would tell more."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import product

from ettsweep.errors import InputError
from ettsweep.powers import power
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State
from ettsweep.study.lattice import PRINTED, Point, neighbours, snap
from ettsweep.study.run_index import Run, by_point
from ettsweep.study.study import Study
from ettsweep.study.verdict import FINAL, Bound, ScoredPoint, Verdict, best

REACH = 8
"""Lattice steps that a climb may leave the ranges asked for; farther out the score has no optimum to offer, such as
when runs are so short that the decay does nothing."""

URGENCY = (
    State.FAILED,
    State.CANCELLED,
    State.HELD,
    State.UNKNOWN,
    State.MISSING,
    State.INTERRUPTED,
    State.QUEUED,
    State.RUNNING,
    State.PRUNED,
)
"""What tells the state of a point: that of its seed that is farthest from done."""

CONCLUDED = "concluded"
"""Where nothing stands in the way of the rule's own word."""

STUCK, TO_COME = frozenset(URGENCY[:4]), frozenset(URGENCY[4:-1])
"""States that a person must decide about, and those that end by themselves; a pruned run goes on where it is needed."""


class StudyState(ABC):
    """A family as it was when it was looked at: what was asked for, and its runs by lattice point."""

    def __init__(self, study: Study, runs: Iterable[Run]) -> None:
        self.study = study
        self._asked = study.asked
        grouped = by_point((run for run in runs if study.holds(run.point)), self._asked)
        self._runs = {point: {run.spec.seed: run for run in members} for point, members in grouped.items()}
        self._known = dict.fromkeys((*self._asked, *self._runs))
        self._snapped: dict[Point, Point] = {}

    # --- what the rules differ in ---

    @abstractmethod
    def at(self, point: Point) -> ScoredPoint:
        """Return the mean score and the state of a point."""

    @abstractmethod
    def climb(self, at: Point | None = None) -> Verdict:
        """Judge a point, by default the best that was asked for, and go on to a better one while there is one."""

    new_seeds: Sequence[int]
    """The seeds that a neighbour is run with first."""

    @abstractmethod
    def counts(self, seed: int) -> bool:
        """Say whether the scores of a seed count."""

    @abstractmethod
    def further(self, verdict: Verdict, number: int, most_seeds: int | None = None) -> list[RunSpec]:
        """Return up to that many runs, of at most so many seeds a point, that would tell most of an open verdict."""

    @abstractmethod
    def _refuted(self, candidate: ScoredPoint, around: Sequence[ScoredPoint]) -> str:
        """Say why a neighbour is better; nothing where none is."""

    @abstractmethod
    def _concluded(self, candidate: ScoredPoint, around: Sequence[ScoredPoint]) -> tuple[str, str, Bound | None]:
        """Return the verdict on a candidate all of whose neighbours are known, the reason, and what it rests on."""

    # --- candidate and neighbours ---

    def verdict(self, at: Point | None = None) -> Verdict:
        """Judge the point `at`, or else the one at which a climb from the best point asked for ends."""
        return self.climb() if at is None else self._verdict(self.at(at), ())

    def _verdict(self, candidate: ScoredPoint | None, path: Sequence[Point], passed: Sequence[Point] = ()) -> Verdict:
        """Judge a candidate, at the end of a path whose points had the neighbours `passed`."""
        study = self.study
        around = [self.at(p) for p in neighbours(candidate.point, study.lr, study.wd)] if candidate else []
        runs = self._runs.get(candidate.point, {}) if candidate else {}
        fresh = {seed: run.score for seed, run in sorted(runs.items()) if not self.counts(seed) and run.state.finished}
        here = [scored_point.point for scored_point in ([candidate] if candidate else []) + around]
        reached = dict.fromkeys([*path, *passed, *here])
        outside = tuple(point for point in reached if point in self._runs and not self._within(point))
        compared = [
            scored_point.point
            for scored_point in (*([candidate] if candidate else []), *around)
            if scored_point.state.finished
        ]
        members = [run for point in compared for run in self._finished(point)]
        verdict, reason, stuck = self._judge(candidate, around)
        bound = None
        if verdict == CONCLUDED and candidate:
            verdict, reason, bound = self._concluded(candidate, around)
        reason += self._cure(stuck)
        seen = tuple(around), fresh, outside, tuple(path), tuple(members), tuple(run.id for run in stuck)
        return Verdict(study, verdict, reason, candidate, *seen, bound)

    def snap(self, typed: Point) -> Point:
        """Return the point of the lattice that a typed one was read from, the known one if there is one.

        Raises:
            InputError: there is none: it lies off a fixed axis, or between the steps of another.
        """
        study = self.study
        axes = study.lr, study.wd
        within = min([PRINTED, *(axis.step / 2 for axis in axes if not axis.fixed)])
        if (point := snap(typed, self._known, within)) in self._known:
            return point
        start = study.centre
        near = Point(*(axis.nearest(here, value) for axis, here, value in zip(axes, start, typed, strict=True)))
        for name, axis, value, at in zip(("lr", "wd"), axes, typed, near, strict=True):
            if not axis.on(at, value, within):
                if axis.fixed:
                    raise InputError(f"--at: {name} is fixed at {power(at)} in {study.title}, got {power(value)}")
                raise InputError(
                    f"--at: {name} {power(value)} is no point of {study.title}; the nearest is {power(at)}"
                )
        return snap(near, self._known)

    def _best(self) -> ScoredPoint | None:
        """Return the best finished point that was asked for; of equal ones that with the lowest lr, then wd."""
        scored = [self.at(point) for point in sorted(self._asked, key=tuple)]
        return best([scored_point for scored_point in scored if scored_point.state.finished], self.study.metric)

    # --- places ---

    @cached_property
    def axes(self) -> list[int]:
        """Which axes are free: 0 for lr, 1 for wd."""
        return [k for k, axis in enumerate((self.study.lr, self.study.wd)) if not axis.fixed]

    def steps(self, point: Point, origin: Point | None = None) -> tuple[float, ...]:
        """Return the steps from one point, by default the centre, to another along the free axes."""
        axes, here, there = (self.study.lr, self.study.wd), (origin or self.study.centre).log2(), point.log2()
        return tuple(round((there[k] - here[k]) / axes[k].step, 6) for k in self.axes)

    def place(self, steps: Sequence[float], origin: Point | None = None) -> Point:
        """Return the point that is so many steps from another, by default the centre: the known one if there is one."""
        moved = [0.0, 0.0]
        for k, number in zip(self.axes, steps, strict=True):
            moved[k] = number * (self.study.lr, self.study.wd)[k].step
        return self._snap((origin or self.study.centre).moved(*moved))

    def _snap(self, point: Point) -> Point:
        if point not in self._snapped:
            self._snapped[point] = snap(point, self._known)
        return self._snapped[point]

    def runs(self) -> dict[Point, list[Run]]:
        """Return all runs that count, by point."""
        counted = {p: [run for seed, run in runs.items() if self.counts(seed)] for p, runs in self._runs.items()}
        return {point: runs for point, runs in counted.items() if runs}

    def awaits(self, point: Point, seeds: Sequence[int]) -> bool:
        """Say whether one of some runs of a point is still to come by itself."""
        return self._unfinished(point, seeds) in TO_COME

    # --- judgement ---

    def _judge(self, candidate: ScoredPoint | None, around: Sequence[ScoredPoint]) -> tuple[str, str, Sequence[Run]]:
        """Return the verdict, the reason for it, and the runs standing still that are to be named with it."""
        pending = len(self._pending())
        stuck = self._stuck([*around, *([candidate] if candidate else [])])
        if candidate is None or (not candidate.state.finished and self.study.free):
            what = f"{candidate.point} is {candidate.state}" if candidate else "no finished point yet"
            return "incomplete", f"{what}; {pending} of {len(self._asked)} points asked for are to come", stuck
        if not self.study.free:
            return "unsearched", "both axes are fixed: a single point has no neighbours", ()
        if better := self._refuted(candidate, around):
            return "refuted", better, ()
        if pending:
            return "incomplete", f"{pending} of {len(self._asked)} points that were asked for are to come", stuck
        new = [n.point for n in around if not self._is_asked(n.point)]
        if self._too_far(new):
            told = (
                f"the climb is {REACH} steps beyond the ranges asked for and stops there; if the score still improves, "
                f"widen them by asking for the grid again, with --lr-range or --wd-range; else fix the axis that does "
                f"not matter in a sweep of its own, with --wd-range fixed --name NAME"
            )
            return "edge", told, ()
        if new:
            return "edge", f"{len(new)} of {len(around)} neighbours had not been asked for", stuck
        unfinished = [n for n in around if not n.state.finished]
        if unfinished:
            return "incomplete", f"{count_neighbours(unfinished)} to come", stuck
        return CONCLUDED, "", stuck if candidate.score is not None else ()

    def _pending(self) -> list[Point]:
        """Return the points that were asked for and are still to come, pruned ones too if a grid asked for them."""
        needed = set(self.study.points)
        return [
            point
            for point, seeds in self._asked.items()
            if self.awaits(point, seeds) or (point in needed and self._unfinished(point, seeds) is State.PRUNED)
        ]

    def _unfinished(self, point: Point, seeds: Sequence[int]) -> State | None:
        """Return the state of the run of a point that is farthest from done; None where all are finished."""
        runs = self._runs.get(point, {})
        states = {runs[seed].state if seed in runs else State.MISSING for seed in seeds}
        return next((state for state in URGENCY if state in states), None)

    def _is_asked(self, point: Point) -> bool:
        """Say whether a grid, or an earlier round, asked for a point."""
        return point in self._asked or self._runs.get(point, {}).keys() >= set(self.new_seeds)

    def _finished(self, point: Point) -> list[Run]:
        """Return the finished runs of a point that count, lowest seed first."""
        runs = sorted(self._runs.get(point, {}).items())
        return [run for seed, run in runs if run.state.finished and self.counts(seed)]

    def _within(self, point: Point) -> bool:
        """Say whether a point was asked for, or lies within the ranges that proposers may choose from."""
        if point in self._asked or not self.study.box:
            return point in self._asked
        return all(
            axis.fixed or axis.steps(min(along) - at) <= 0 <= axis.steps(max(along) - at)
            for axis, at, *along in zip(
                (self.study.lr, self.study.wd), point.log2(), *(p.log2() for p in self.study.box), strict=True
            )
        )

    def _too_far(self, points: Iterable[Point]) -> bool:
        """Say whether one of some points is more than `REACH` steps beyond what was asked for: no climb goes there."""
        asked = list(zip(*(point.log2() for point in (*self._asked, *self.study.box)), strict=True))
        for point in points:
            for axis, here, ends in zip((self.study.lr, self.study.wd), point.log2(), asked, strict=True):
                if not axis.fixed and axis.steps(max(min(ends) - here, here - max(ends))) > REACH:
                    return True
        return False

    def _stuck(self, first: Iterable[ScoredPoint]) -> list[Run]:
        """Return the runs that a person must decide about, those of the candidate and its neighbours first."""
        points = dict.fromkeys((*(scored_point.point for scored_point in first), *self._asked))
        return [
            run
            for point in points
            for seed, run in self._runs.get(point, {}).items()
            if run.state in STUCK and self.counts(seed)
        ]

    def _cure(self, stuck: Sequence[Run]) -> str:
        """Name some runs that a person must decide about, with what to type."""
        if not stuck:
            return ""
        named = ", ".join(f"{run.id} {run.state}" for run in stuck[:3]) + (", ..." if len(stuck) > 3 else "")
        what = "1 run stands" if len(stuck) == 1 else f"{len(stuck)} runs stand"
        told = [f"; {what} still: {named}"]
        many = f"--sweep {self.study.sweep} --strategy {self.study.strategy}"
        if over := [run.id for run in stuck if run.state is not State.HELD]:
            ids = " ".join(over) if len(over) <= 3 else many
            told.append(f"`ettsweep retry {ids}` trains {'it' if len(over) == 1 else 'them'} again")
        if len(over) < len(stuck):
            told.append(f"`ettsweep status {many} --state held` says what lets the held ones start")
        return "; ".join(told)

    # --- the next round ---

    def wanted(self, verdict: Verdict) -> list[RunSpec]:
        """Return the runs that the next round needs: what was asked for, then candidate and neighbours.

        Once all of these are known, an unresolved verdict needs further ones alone.
        """
        if pending := self.pending():
            return pending
        if verdict.candidate is None or verdict.verdict in FINAL | {"unresolved"}:
            return []
        candidate, new = verdict.candidate, [n.point for n in verdict.neighbours if not self._is_asked(n.point)]
        if self._too_far(new):
            return [] if candidate.state.finished else self.specs([candidate.point], self.new_seeds)
        return self.specs(dict.fromkeys([candidate.point, *verdict.missing, *new]), self.new_seeds)

    def pending(self) -> list[RunSpec]:
        """Return the runs of points that are still to come; pruned ones if a grid asked for their point."""
        needed, specs = set(self.study.points), list[RunSpec]()
        for point in self._pending():
            runs = self._runs.get(point, {})
            specs += [
                spec
                for spec in self.specs([point], self._asked[point])
                if point in needed or spec.seed not in runs or runs[spec.seed].state is not State.PRUNED
            ]
        return specs

    def beyond(self, verdict: Verdict) -> list[Run]:
        """Return the runs that points have, which a climb reached, beyond what was asked for."""
        members = [run for point in verdict.outside for run in self._runs[point].values()]
        members += [run for point in self._asked for run in self._runs.get(point, {}).values()]
        return [run for run in members if self.counts(run.spec.seed) and not self.study.asks(run.point, run.spec.seed)]

    def asked(self) -> list[RunSpec]:
        """Return the runs that were asked for: those that are there, or new ones."""
        return [spec for point, seeds in self._asked.items() for spec in self.specs([point], seeds)]

    def specs(self, points: Iterable[Point], seeds: Sequence[int] | None = None) -> list[RunSpec]:
        """Return the runs of some points, over the search's seeds by default: those that are there, or new ones."""
        specs = []
        for point, seed in product(points, seeds or self.study.seeds):
            run = self._runs.get(point, {}).get(seed)
            specs.append(run.spec if run else self.study.base.with_point(point.lr, point.wd, seed))
        return specs


def count_neighbours(some: Sequence[ScoredPoint]) -> str:
    """Return how many neighbours there are of some kind, and the verb."""
    return "1 neighbour is" if len(some) == 1 else f"{len(some)} neighbours are"
