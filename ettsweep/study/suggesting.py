"""Searching: proposers name points of families, round after round, until none is worth a run or enough were named."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ettsweep.console import count
from ettsweep.runs.state import State
from ettsweep.study.run_index import RunIndex
from ettsweep.study.study import Centre, Point, Study, titles
from ettsweep.study.study_state import StudyState
from ettsweep.study.surface_sampler import Observations, Place, Sampler
from ettsweep.study.sweep_store import Suggestion
from ettsweep.study.verification import evaluate

Key = tuple[str, str]

LEFT = (State.MISSING, State.INTERRUPTED, State.PRUNED)
"""States of runs that go on only if somebody asks for them."""


@dataclass(frozen=True)
class StartPoint:
    """Where a family's search starts, and why there."""

    point: Point
    reason: str = ""


@dataclass
class Suggester:
    """Families whose points a proposer names; each look at what is on disk takes that on.

    Attributes:
        sampler: the proposer's name.
        propose: the proposer.
        trials: points that it may name for each family.
        starts: where families start that no proposer has named a point for, where that is not their centre.
        over: families for which it names no more.
        reread: returns searches as they are on disk by now, with what other commands have had proposed.
        keep: takes what was named in a round, by the sweep's name, before it is run.
        tell: takes a line on it.
        cut_short: whether the budget allowed no further point of a family.
    """

    sampler: str
    propose: Sampler
    trials: int
    starts: Mapping[Key, StartPoint] = field(default_factory=dict)
    over: set[Key] = field(default_factory=set)
    reread: Callable[[Sequence[Study]], Sequence[Study]] = lambda searches: searches
    keep: Callable[[str, Sequence[Suggestion]], None] = lambda sweep, proposals: None
    tell: Callable[[str], None] = lambda text: None
    cut_short: bool = False

    def names_more(self, search: Study) -> bool:
        """Say whether points may still be named for a family."""
        return search.key not in self.over

    def further(self, searches: Sequence[Study], ledger: RunIndex, at_once: int, most: int) -> list[Study]:
        """Return the searches with the points that are to be run next.

        Of each family as many are under way as make up its part of `at_once` runs; `most` runs in all may be new.
        """
        searches = self.reread(searches)
        active = [search for search in searches if self.names_more(search)]
        each = math.ceil(at_once / max(1, len(active)))
        news: dict[str, list[Suggestion]] = {}
        found: dict[Key, Study] = {}
        for search in active:
            look, start = evaluate(search, ledger.family(search.family)), self._start(search)
            known, runs = known_of(look, start), len(search.seeds_proposed)
            under_way = sum(look.awaits(point, seeds) for point, seeds in search.asked.items())
            left = self.trials - len(search.proposed)
            room = min(each - under_way, left, most // runs)
            if left > 0 >= room:
                if not under_way:
                    self.cut_short = True
                    self.over.add(search.key)
                continue
            points = [look.place(place) for place in self.propose(known, room)] if room > 0 else []
            if not search.asked and known.best:
                points.insert(0, look.place(known.best))  # others had it trained: the verdict may begin there
            most -= runs * len(points)
            self._tell(titles(searches)[search.key], search, points, len(known.taken), left)
            if points or left > 0:
                news.setdefault(search.sweep, []).append(self._proposal(search, start, points))
            proposed = (*search.proposed, *points)
            found[search.key] = replace(search, proposed=proposed, start=start.point)
        for sweep, proposals in news.items():
            self.keep(sweep, proposals)
        return [found.get(search.key, search) for search in searches]

    def _start(self, search: Study) -> StartPoint:
        """Return where a family's search started, or is to."""
        if search.start:
            return StartPoint(search.start)
        return self.starts.get(search.key) or StartPoint(search.centre)

    def _proposal(self, search: Study, start: StartPoint, points: Sequence[Point]) -> Suggestion:
        return Suggestion(
            strategy=search.strategy,
            sampler=self.sampler,
            points=tuple(map(_kept, points)),
            reason=start.reason,
            start=None if search.start else _kept(start.point),
        )

    def _tell(self, title: str, search: Study, points: Sequence[Point], known: int, left: int) -> None:
        """Say what was named; of a family of which nothing was, that it is over, and why."""
        if points:
            self.tell(f"{title}: {self.sampler} proposes {', '.join(map(str, points))}")
            return
        self.over.add(search.key)
        if left > 0:
            self.tell(f"{title}: after {count(known, 'point')} no further one is worth a run")
        else:
            self.tell(f"{title}: {count(len(search.proposed), 'point')} proposed; --trials N allows N in all")


def _kept(point: Point) -> Centre:
    return Centre(lr=point.lr, wd=point.wd)


def known_of(look: StudyState, start: StartPoint) -> Observations:
    """Return what a proposer knows of a family as it is on disk, in the order in which points were asked for."""
    search, runs = look.search, look.runs()
    scores: dict[Place, dict[int, float]] = {}
    diverged, awaited, taken = list[Place](), list[Place](), list[Place]()
    for point in dict.fromkeys((*search.asked, *runs)):
        members, place = runs.get(point, ()), _whole(look.steps(point))
        if point not in search.asked and all(run.state in LEFT for run in members):
            continue  # what another sweep asked for, and nobody trains
        taken.append(place)
        finished = {run.spec.seed: run.score for run in members if run.state.finished}
        if None in finished.values():
            diverged.append(place)
        elif finished:
            scores[place] = {seed: score for seed, score in finished.items() if score is not None}
        elif look.awaits(point, search.asked.get(point) or [run.spec.seed for run in members]):
            awaited.append(place)
    corners = [_whole(look.steps(point)) for point in search.box or search.asked]
    low, high = (tuple(edge(along) for along in zip(*corners, strict=True)) for edge in (min, max))
    at = zip(low, high, _whole(look.steps(start.point)), strict=True)
    return Observations(
        low,
        high,
        tuple(max(least, min(most, x)) for least, most, x in at),
        scores,
        diverged,
        awaited,
        set(taken),
        search.criterion.margin_for(search.measure),
        search.measure.mode == "min",
    )


def _whole(steps: Iterable[float]) -> Place:
    return tuple(map(round, steps))
