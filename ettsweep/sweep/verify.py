"""The verdict: is a family's best point better than all of its neighbours?"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from statistics import fmean

from ettsweep.errors import InputError
from ettsweep.runs.state import State
from ettsweep.spec import MAX_SEED, RunSpec
from ettsweep.sweep.lattice import TOLERANCE, Point, PointMap, neighbours
from ettsweep.sweep.ledger import Run
from ettsweep.sweep.request import Search
from ettsweep.tasks.kinds import Score, score

FINAL = frozenset({"optimal", "tie", "unsearched"})
"""Verdicts that more runs of the same plan cannot change."""


REACH = 8
"""Lattice steps that a climb may leave the ranges asked for; farther out the score has no optimum to offer, such as
when runs are so short that the decay does nothing."""


PRINTED = 2e-3
"""Distance in log2 within which a typed point means a known one: tables print four digits."""


@dataclass(frozen=True)
class Neighbour:
    """A point with its mean score over the search's seeds; None where it diverged or is not finished."""

    lr: float
    wd: float
    score: float | None
    state: str

    @property
    def point(self) -> Point:
        """Its position."""
        return Point(self.lr, self.wd)


@dataclass(frozen=True)
class Verdict:
    """The answer for one family.

    Attributes:
        verdict: optimal, edge, incomplete, refuted, tie or unsearched.
        lr, wd, score: the candidate, with its mean score over `seeds`; None while no point is finished.
        missing: neighbours without a finished score.
        fresh_seeds, fresh_scores: reruns of the candidate over other seeds; they never move the verdict.
        outside: points reached beyond the ranges that were asked for.
        path: candidates that a climb passed through, first to last.
        reason: what stands in the way, and what to type.
        optimizer: adamw or sgd.
    """

    family: str
    model: str
    strategy: str
    verdict: str
    lr: float | None
    wd: float | None
    score: float | None
    metric: str
    mode: str
    neighbours: tuple[Neighbour, ...]
    missing: tuple[tuple[float, float], ...]
    seeds: tuple[int, ...]
    fresh_seeds: tuple[int, ...] = ()
    fresh_scores: tuple[float | None, ...] = ()
    reason: str = ""
    step: float = 1.0
    optimizer: str = ""
    outside: tuple[tuple[float, float], ...] = ()
    path: tuple[tuple[float, float], ...] = ()

    @property
    def point(self) -> Point | None:
        """The candidate."""
        return None if self.lr is None or self.wd is None else Point(self.lr, self.wd)


class Scores:
    """Scores of a family's points over the seeds of its search."""

    def __init__(self, search: Search, runs: Iterable[Run]) -> None:
        self.search = search
        self.mode: Score = score(search.base.task)
        self.by_point: PointMap[dict[int, Run]] = PointMap()
        for run in runs:
            point = Point(run.spec.lr, run.spec.wd)
            if point not in self.by_point:
                self.by_point[point] = {}
            self.by_point[point][run.spec.seed] = run
        self.asked: PointMap[bool] = PointMap()
        for point in search.points:
            self.asked[point] = True

    def at(self, point: Point) -> Neighbour:
        """Return the mean score and the state of a point: that of its seed that is farthest from done."""
        runs = self.by_point.get(point) or {}
        members = [runs.get(seed) for seed in self.search.seeds]
        states = [run.state if run else State.MISSING for run in members]
        if all(state.finished for state in states):
            values = [run.score for run in members if run]
            if any(value is None for value in values):
                return Neighbour(point.lr, point.wd, None, State.DIVERGED)
            return Neighbour(point.lr, point.wd, fmean(v for v in values if v is not None), State.DONE)
        return Neighbour(point.lr, point.wd, None, min((s for s in states if not s.finished), key=_URGENCY.index))

    def finished(self) -> list[Neighbour]:
        """Return the points with all seeds finished."""
        points = [self.at(point) for point, _ in self.by_point.items()]
        return [p for p in points if State(p.state).finished]

    def best(self) -> Neighbour | None:
        """Return the best finished point; of equal ones that with the lowest lr, then wd."""
        best = None
        for point in sorted(self.finished(), key=lambda p: (p.lr, p.wd)):
            if best is None or self.mode.better(point.score, best.score):
                best = point
        return best

    def pending(self) -> list[Point]:
        """Return the points that were asked for and are still to come by themselves."""
        states = ((point, State(self.at(point).state)) for point, _ in self.asked.items())
        return [point for point, state in states if state in _TO_COME]

    def in_reach(self, point: Point) -> bool:
        """Say whether a climb may go to a point: at most `REACH` steps beyond what was asked for."""
        search = self.search
        for axis, value, asked in zip(
            (search.lr, search.wd), point.log2(), zip(*(p.log2() for p in search.points), strict=True), strict=True
        ):
            room = REACH * axis.step + TOLERANCE
            if not axis.fixed and not min(asked) - room <= value <= max(asked) + room:
                return False
        return True

    def is_asked(self, point: Point) -> bool:
        """Say whether a grid, or an earlier round, asked for a point with every seed."""
        runs = self.by_point.get(point) or {}
        return point in self.asked or all(seed in runs for seed in self.search.seeds)


_URGENCY = [
    State.FAILED,
    State.CANCELLED,
    State.UNKNOWN,
    State.MISSING,
    State.INTERRUPTED,
    State.QUEUED,
    State.RUNNING,
]
_TO_COME = (State.MISSING, State.INTERRUPTED, State.QUEUED, State.RUNNING)


def verify(search: Search, runs: Sequence[Run], at: Point | None = None, path: Sequence[Point] = ()) -> Verdict:
    """Judge the best point of a family, or the point `at`, by its neighbours.

    Args:
        search: the family's lattice and seeds.
        runs: all runs of the family.
        at: judge this point instead of the best one.
        path: candidates of earlier rounds.
    """
    scores = Scores(search, runs)
    free = not (search.lr.fixed and search.wd.fixed)
    if at is None and not free:
        at = search.points[0]
    candidate = scores.at(at) if at is not None else scores.best()
    around = [scores.at(p) for p in neighbours(candidate.point, search.lr, search.wd)] if candidate else []
    verdict, reason = _judge(scores, candidate, around, free)
    fresh = _fresh_runs(scores, candidate)
    return Verdict(
        family=search.family,
        model=search.model,
        strategy=search.strategy,
        verdict=verdict,
        lr=candidate.lr if candidate else None,
        wd=candidate.wd if candidate else None,
        score=candidate.score if candidate else None,
        metric=scores.mode.metric,
        mode=scores.mode.mode,
        neighbours=tuple(around),
        missing=tuple(n.point for n in around if not State(n.state).finished),
        seeds=search.seeds,
        fresh_seeds=tuple(run.spec.seed for run in fresh),
        fresh_scores=tuple(run.score for run in fresh),
        reason=reason,
        optimizer=search.base.optimizer.kind,
        step=search.wd.step if search.lr.fixed else search.lr.step,
        outside=tuple(p for p, _ in scores.by_point.items() if p not in scores.asked),
        path=tuple(path),
    )


def _judge(scores: Scores, candidate: Neighbour | None, around: Sequence[Neighbour], free: bool) -> tuple[str, str]:
    pending = scores.pending()
    stuck = _standing_still(scores, [*around, *([candidate] if candidate else [])])
    if candidate is None or (not State(candidate.state).finished and free):
        what = (
            f"({candidate.lr:.4g}, {candidate.wd:.4g}) is {candidate.state}" if candidate else "no finished point yet"
        )
        return "incomplete", f"{what}; {len(pending)} of {len(scores.asked)} points asked for are to come{stuck}"
    if not free:
        return "unsearched", "both axes are fixed: a single point has no neighbours"
    better = [n for n in around if State(n.state).finished and scores.mode.better(n.score, candidate.score)]
    if better:
        return "refuted", f"{_count(better)} better"
    if pending:
        return "incomplete", f"{len(pending)} of {len(scores.asked)} points that were asked for are to come{stuck}"
    new = [n.point for n in around if not scores.is_asked(n.point)]
    if not all(scores.in_reach(point) for point in new):
        return "edge", (
            f"the climb is {REACH} steps beyond the ranges asked for and stops there; if the score still improves, "
            f"widen them with `ettsweep grid`, else fix the axis that does not matter: `ettsweep grid --wd-range fixed`"
        )
    if new:
        return "edge", f"{len(new)} of {len(around)} neighbours had not been asked for{stuck}"
    unfinished = [n for n in around if not State(n.state).finished]
    if unfinished:
        return "incomplete", f"{_count(unfinished)} to come{stuck}"
    if any(n.score == candidate.score for n in around):
        return (
            "tie",
            "all diverged; try a centre with a lower lr" if candidate.score is None else "an equal neighbour",
        )
    return "optimal", f"better than all {len(around)} neighbours{stuck}"


def _count(some: Sequence[Neighbour]) -> str:
    return "1 neighbour is" if len(some) == 1 else f"{len(some)} neighbours are"


def _standing_still(scores: Scores, around: Sequence[Neighbour]) -> str:
    """Name the runs that a person must decide about, those of the candidate and its neighbours first."""
    points: PointMap[bool] = PointMap()
    for point in (*(n.point for n in around), *(point for point, _ in scores.asked.items())):
        points[point] = True
    stuck = [
        run
        for point, _ in points.items()
        for run in (scores.by_point.get(point) or {}).values()
        if run.state in (State.FAILED, State.CANCELLED, State.UNKNOWN) and run.spec.seed in scores.search.seeds
    ]
    if not stuck:
        return ""
    named = ", ".join(f"{run.id} {run.state}" for run in stuck[:3]) + (", ..." if len(stuck) > 3 else "")
    ids = " ".join(run.id for run in stuck[:3])
    what = "1 run stands" if len(stuck) == 1 else f"{len(stuck)} runs stand"
    return f"; {what} still: {named}; `ettsweep retry {ids}` trains {'it' if len(stuck) == 1 else 'them'} again"


def _fresh_runs(scores: Scores, candidate: Neighbour | None) -> list[Run]:
    runs = (scores.by_point.get(candidate.point) or {}) if candidate else {}
    return [runs[seed] for seed in sorted(runs) if seed not in scores.search.seeds and runs[seed].state.finished]


def wanted(search: Search, runs: Sequence[Run], verdict: Verdict) -> list[RunSpec]:
    """Return the runs that the next round of a family needs: what was asked for, then candidate and neighbours."""
    scores = Scores(search, runs)
    if pending := scores.pending():
        return search.specs(pending)
    if verdict.point is None or verdict.verdict in FINAL:
        return []
    missing = [Point(*p) for p in verdict.missing]
    if not all(scores.in_reach(point) for point in missing if not scores.is_asked(point)):
        finished = State(scores.at(verdict.point).state).finished
        return [] if finished else search.specs([verdict.point])
    return search.specs([verdict.point, *missing])


def snap(search: Search, runs: Iterable[Run], point: Point) -> Point:
    """Return the known point that `point` was printed from, else `point` itself.

    Raises:
        InputError: it lies off a fixed axis.
    """
    known = [*search.points, *(Point(run.spec.lr, run.spec.wd) for run in runs)]

    def distance(p: Point) -> float:
        return max(0.0 if x == y else abs(x - y) for x, y in zip(p.log2(), point.log2(), strict=True))

    nearest = min(known, key=distance)
    if distance(nearest) < PRINTED:
        return nearest
    for axis, name in ((search.lr, "lr"), (search.wd, "wd")):
        here, centre = getattr(point, name), getattr(search.points[0], name)
        if axis.fixed and here != centre:
            raise InputError(f"--at: {name} is fixed at {centre:.6g} in {search.model} {search.strategy}, got {here:g}")
    return point


def climb(search: Search, runs: Sequence[Run], verdict: Verdict) -> Point | None:
    """Return the better neighbour that refutes a candidate, or None."""
    if verdict.verdict != "refuted":
        return None
    mode = score(search.base.task)
    best = verdict.neighbours[0]
    for n in verdict.neighbours[1:]:
        if mode.better(n.score, best.score):
            best = n
    return best.point


def fresh_seeds(search: Search, count: int) -> list[int]:
    """Return seeds for reruns of an optimum: the next ones, disjoint from the search's."""
    first = max(search.seeds) + 1
    free = (seed for seed in chain(range(first, MAX_SEED + 1), range(first)) if seed not in search.seeds)
    return list(islice(free, count))
