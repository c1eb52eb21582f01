"""The verdict: is a family's best point better than all of its neighbours? And which runs would tell."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, islice, product
from statistics import fmean

from ettsweep.errors import InputError
from ettsweep.output import power
from ettsweep.runs.state import State
from ettsweep.spec import MAX_SEED, RunSpec
from ettsweep.sweep.agreement import unlike
from ettsweep.sweep.ledger import Run, by_point
from ettsweep.sweep.search import PRINTED, Point, Search, neighbours, snap
from ettsweep.tasks.kinds import Score

FINAL = frozenset({"optimal", "tie", "unsearched"})
"""Verdicts that more runs of the same plan cannot change."""

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
)
"""What tells the state of a point: that of its seed that is farthest from done."""

STUCK, TO_COME = frozenset(URGENCY[:4]), frozenset(URGENCY[4:])
"""States that a person must decide about, and those that end by themselves."""


@dataclass(frozen=True)
class Scored:
    """A point with its mean score over the search's seeds; None where it diverged or is not finished."""

    point: Point
    score: float | None
    state: State


@dataclass(frozen=True)
class Verdict:
    """The answer for one family.

    Attributes:
        search: what was asked for.
        verdict: optimal, edge, incomplete, refuted, tie or unsearched.
        reason: what stands in the way, and what to type.
        candidate: the point that is judged; None while no point is finished.
        neighbours: those that it must beat.
        fresh: scores of reruns of the candidate over other seeds; they never move the verdict.
        outside: points reached beyond the ranges that were asked for.
        path: candidates that a climb passed through, first to last.
        runs: the finished ones that were compared, of candidate and neighbours over the search's seeds.
        stuck: ids of the runs that a person must decide about, of which the reason says what to type.
    """

    search: Search
    verdict: str
    reason: str
    candidate: Scored | None
    neighbours: tuple[Scored, ...] = ()
    fresh: Mapping[int, float | None] = field(default_factory=dict)
    outside: tuple[Point, ...] = ()
    path: tuple[Point, ...] = ()
    runs: tuple[Run, ...] = field(default=(), compare=False)
    stuck: tuple[str, ...] = field(default=(), compare=False)

    @property
    def key(self) -> tuple[str, str]:
        """Sweep and family, to which a verdict belongs."""
        return self.search.key

    @property
    def family(self) -> str:
        return self.search.family

    @property
    def strategy(self) -> str:
        return self.search.strategy

    @property
    def point(self) -> Point | None:
        return self.candidate.point if self.candidate else None

    @property
    def lr(self) -> float | None:
        return self.candidate.point.lr if self.candidate else None

    @property
    def wd(self) -> float | None:
        return self.candidate.point.wd if self.candidate else None

    @property
    def score(self) -> float | None:
        return self.candidate.score if self.candidate else None

    @property
    def rival(self) -> Scored | None:
        """The best neighbour."""
        return best(self.neighbours, self.search.measure)

    @property
    def margin(self) -> float | None:
        """How much worse the best neighbour is; negative where it is better."""
        if self.score is None or self.rival is None or self.rival.score is None:
            return None
        return self.search.measure.worse_by(self.rival.score, self.score)

    @property
    def missing(self) -> list[Point]:
        """Neighbours without a finished score."""
        return [n.point for n in self.neighbours if not n.state.finished]

    @property
    def way(self) -> tuple[Point, ...]:
        """The path, with the candidate at its end."""
        return self.path if self.point is None or self.point in self.path[-1:] else (*self.path, self.point)


def side_by_side(verdicts: Iterable[Verdict]) -> Iterator[tuple[Verdict, Verdict, list[str]]]:
    """Yield each two verdicts on one family, of two sweeps, that say different things, and what the sweeps ask."""
    for one, other in combinations(verdicts, 2):
        said, else_said = ((v.verdict, v.point, v.score) for v in (one, other))
        if one.family == other.family and said != else_said:
            yield one, other, unlike(one.search, other.search)


def best(scored: Iterable[Scored], measure: Score) -> Scored | None:
    """Return the best of some points, the first of equal ones."""
    return min(scored, key=lambda one: measure.rank(one.score), default=None)


class Look:
    """A family as it was when it was looked at: what was asked for, and its runs by lattice point."""

    def __init__(self, search: Search, runs: Iterable[Run]) -> None:
        self.search = search
        self._asked = dict.fromkeys(search.points)
        grouped = by_point((run for run in runs if search.holds(run.point)), self._asked)
        self._runs = {point: {run.spec.seed: run for run in members} for point, members in grouped.items()}
        self._known = self._asked | dict.fromkeys(self._runs)

    # --- candidate and neighbours ---

    def verdict(self, at: Point | None = None) -> Verdict:
        """Judge the point `at`, or else the one at which a climb from the best point asked for ends."""
        return self.climb() if at is None else self._verdict(self.at(at), ())

    def climb(self, at: Point | None = None) -> Verdict:
        """Judge a point, by default the best that was asked for, and go on to its best neighbour while one is better.

        No step is taken before all neighbours are known. So where it ends is a matter of what was asked for and of
        scores alone, whoever had runs trained, and when.
        """
        if at is None and not self.search.free:
            at = self.search.points[0]
        verdict = self._verdict(self._best() if at is None else self.at(at), ())
        passed: list[Point] = []
        while verdict.verdict == "refuted" and verdict.rival and self._all_known(verdict):
            passed += [one.point for one in verdict.neighbours]
            verdict = self._verdict(self.at(verdict.rival.point), verdict.way, passed)
        return verdict

    def _all_known(self, verdict: Verdict) -> bool:
        """Say whether no neighbour is to come that a climb may go to."""
        awaited = [n.point for n in verdict.neighbours if n.state in TO_COME]
        return not awaited or self._too_far(point for point in awaited if not self._is_asked(point))

    def _verdict(self, candidate: Scored | None, path: Sequence[Point], passed: Sequence[Point] = ()) -> Verdict:
        """Judge a candidate, at the end of a path whose points had the neighbours `passed`."""
        search = self.search
        around = [self.at(p) for p in neighbours(candidate.point, search.lr, search.wd)] if candidate else []
        runs = self._runs.get(candidate.point, {}) if candidate else {}
        fresh = {seed: runs[seed].score for seed in sorted(runs.keys() - {*search.seeds}) if runs[seed].state.finished}
        here = [one.point for one in ([candidate] if candidate else []) + around]
        reached = dict.fromkeys([*path, *passed, *here])
        outside = tuple(point for point in reached if point in self._runs and point not in self._asked)
        compared = [one.point for one in (*([candidate] if candidate else []), *around) if one.state.finished]
        members = [self._runs[point][seed] for point in compared for seed in search.seeds]
        verdict, reason, stuck = self._judge(candidate, around)
        reason += self._cure(stuck)
        seen = tuple(around), fresh, outside, tuple(path), tuple(members), tuple(run.id for run in stuck)
        return Verdict(search, verdict, reason, candidate, *seen)

    def at(self, point: Point) -> Scored:
        """Return the mean score and the state of a point: that of its seed that is farthest from done."""
        point = snap(point, self._known)
        runs = self._runs.get(point, {})
        members = [runs.get(seed) for seed in self.search.seeds]
        states = {run.state if run else State.MISSING for run in members}
        if unfinished := [state for state in URGENCY if state in states]:
            return Scored(point, None, unfinished[0])
        scores = [run.score for run in members if run]
        finished = [score for score in scores if score is not None]
        if len(finished) < len(scores):
            return Scored(point, None, State.DIVERGED)
        return Scored(point, fmean(finished), State.DONE)

    def snap(self, typed: Point) -> Point:
        """Return the point of the lattice that a typed one was read from, the known one if there is one.

        Raises:
            InputError: there is none: it lies off a fixed axis, or between the steps of another.
        """
        search = self.search
        axes = search.lr, search.wd
        within = min([PRINTED, *(axis.step / 2 for axis in axes if not axis.fixed)])
        if (point := snap(typed, self._known, within)) in self._known:
            return point
        start = search.points[0]
        near = Point(*(axis.nearest(here, value) for axis, here, value in zip(axes, start, typed, strict=True)))
        for name, axis, value, at in zip(("lr", "wd"), axes, typed, near, strict=True):
            if not axis.on(at, value, within):
                if axis.fixed:
                    raise InputError(f"--at: {name} is fixed at {power(at)} in {search.title}, got {power(value)}")
                raise InputError(
                    f"--at: {name} {power(value)} is no point of {search.title}; the nearest is {power(at)}"
                )
        return snap(near, self._known)

    def _best(self) -> Scored | None:
        """Return the best finished point that was asked for; of equal ones that with the lowest lr, then wd."""
        scored = [self.at(point) for point in sorted(self._asked, key=tuple)]
        return best([one for one in scored if one.state.finished], self.search.measure)

    # --- judgement ---

    def _judge(self, candidate: Scored | None, around: Sequence[Scored]) -> tuple[str, str, Sequence[Run]]:
        """Return the verdict, the reason for it, and the runs standing still that are to be named with it."""
        pending = len(self._pending())
        stuck = self._stuck([*around, *([candidate] if candidate else [])])
        if candidate is None or (not candidate.state.finished and self.search.free):
            what = f"{candidate.point} is {candidate.state}" if candidate else "no finished point yet"
            return "incomplete", f"{what}; {pending} of {len(self._asked)} points asked for are to come", stuck
        if not self.search.free:
            return "unsearched", "both axes are fixed: a single point has no neighbours", ()
        better = [n for n in around if n.state.finished and self.search.measure.better(n.score, candidate.score)]
        if better:
            return "refuted", f"{_count(better)} better", ()
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
            return "incomplete", f"{_count(unfinished)} to come", stuck
        if any(n.score == candidate.score for n in around):
            diverged = candidate.score is None
            return "tie", "all diverged; try a centre with a lower lr" if diverged else "an equal neighbour", ()
        return "optimal", f"better than all {len(around)} neighbours", stuck

    def _pending(self) -> list[Point]:
        """Return the points that were asked for and are still to come by themselves."""
        return [point for point in self._asked if self.at(point).state in TO_COME]

    def _is_asked(self, point: Point) -> bool:
        """Say whether a grid, or an earlier round, asked for a point with every seed."""
        return point in self._asked or self._runs.get(point, {}).keys() >= set(self.search.seeds)

    def _too_far(self, points: Iterable[Point]) -> bool:
        """Say whether one of some points is more than `REACH` steps beyond what was asked for: no climb goes there."""
        asked = list(zip(*(point.log2() for point in self._asked), strict=True))
        for point in points:
            for axis, here, ends in zip((self.search.lr, self.search.wd), point.log2(), asked, strict=True):
                if not axis.fixed and axis.steps(max(min(ends) - here, here - max(ends))) > REACH:
                    return True
        return False

    def _stuck(self, first: Iterable[Scored]) -> list[Run]:
        """Return the runs that a person must decide about, those of the candidate and its neighbours first."""
        points = dict.fromkeys(one.point for one in first) | self._asked
        return [
            run
            for point in points
            for seed, run in self._runs.get(point, {}).items()
            if run.state in STUCK and seed in self.search.seeds
        ]

    def _cure(self, stuck: Sequence[Run]) -> str:
        """Name some runs that a person must decide about, with what to type."""
        if not stuck:
            return ""
        named = ", ".join(f"{run.id} {run.state}" for run in stuck[:3]) + (", ..." if len(stuck) > 3 else "")
        what = "1 run stands" if len(stuck) == 1 else f"{len(stuck)} runs stand"
        told = [f"; {what} still: {named}"]
        many = f"--sweep {self.search.sweep} --strategy {self.search.strategy}"
        if over := [run.id for run in stuck if run.state is not State.HELD]:
            ids = " ".join(over) if len(over) <= 3 else many
            told.append(f"`ettsweep retry {ids}` trains {'it' if len(over) == 1 else 'them'} again")
        if len(over) < len(stuck):
            told.append(f"`ettsweep status {many} --state held` says what lets the held ones start")
        return "; ".join(told)

    # --- the next round ---

    def wanted(self, verdict: Verdict) -> list[RunSpec]:
        """Return the runs that the next round needs: what was asked for, then candidate and neighbours."""
        if pending := self._pending():
            return self.specs(pending)
        if verdict.candidate is None or verdict.verdict in FINAL:
            return []
        candidate, missing = verdict.candidate, verdict.missing
        if self._too_far(point for point in missing if not self._is_asked(point)):
            return [] if candidate.state.finished else self.specs([candidate.point])
        return self.specs([candidate.point, *missing])

    def specs(self, points: Iterable[Point], seeds: Sequence[int] | None = None) -> list[RunSpec]:
        """Return the runs of some points, over the search's seeds by default: those that are there, or new ones."""
        found = []
        for point, seed in product(points, seeds or self.search.seeds):
            run = self._runs.get(point, {}).get(seed)
            found.append(run.spec if run else self.search.base.at(point.lr, point.wd, seed))
        return found


def _count(some: Sequence[Scored]) -> str:
    return "1 neighbour is" if len(some) == 1 else f"{len(some)} neighbours are"


def fresh_seeds(search: Search, count: int) -> list[int]:
    """Return seeds for reruns of an optimum: the next ones, disjoint from the search's."""
    first = max(search.seeds) + 1
    free = (seed for seed in chain(range(first, MAX_SEED + 1), range(first)) if seed not in search.seeds)
    return list(islice(free, count))
