"""Searching: proposers name points of families, round after round, until none is worth a run or enough were named."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ettsweep.output import count
from ettsweep.sweep.ledger import Ledger
from ettsweep.sweep.look import Look
from ettsweep.sweep.proposers import Known, Place, Proposer
from ettsweep.sweep.search import Centre, Point, Search, titles
from ettsweep.sweep.sweeps import Proposal
from ettsweep.sweep.verify import look_at

Key = tuple[str, str]


@dataclass(frozen=True)
class Start:
    """Where a family's search starts, and why there.

    Attributes:
        region: opposite corners of the part of its ranges that it keeps to; empty for all of them.
    """

    point: Point
    reason: str = ""
    region: tuple[Point, ...] = ()


@dataclass
class Searching:
    """Families whose points a proposer names; each look at what is on disk takes that on.

    Attributes:
        sampler: the proposer's name.
        propose: the proposer.
        trials: points that it may name for each family.
        starts: where families start, where that is not their centre.
        over: families for which it has named all that is worth a run.
        seen: takes what is on disk, as each round begins and after the last.
        keep: takes what was named in a round, by the sweep's name, before it is run.
        tell: takes a line on it.
    """

    sampler: str
    propose: Proposer
    trials: int
    starts: Mapping[Key, Start] = field(default_factory=dict)
    over: set[Key] = field(default_factory=set)
    seen: Callable[[Ledger], None] = lambda ledger: None
    keep: Callable[[str, Sequence[Proposal]], None] = lambda sweep, proposals: None
    tell: Callable[[str], None] = lambda text: None

    def further(self, searches: Sequence[Search], ledger: Ledger, number: int) -> list[Search]:
        """Return the searches with the points that are to be run next, some `number` of all that are under way.

        They stay as they are once all are named.
        """
        self.seen(ledger)
        active = [s for s in searches if s.key not in self.over and len(s.proposed) < self.trials]
        each = math.ceil(number / max(1, len(active)))
        news: dict[str, list[Proposal]] = {}
        named: dict[Key, list[Point]] = {}
        for search in active:
            look, start = look_at(search, ledger.family(search.family)), self._start(search)
            known = known_of(look, start.point, start.region)
            room = min(each - len(known.awaited), self.trials - len(search.proposed))
            if room > 0:
                points = [look.place(place) for place in self.propose(known, room)]
                news.setdefault(search.sweep, []).append(self._proposal(search, points))
                named[search.key] = points
                self._tell(titles(searches)[search.key], search.key, points, len(known.taken))
        for sweep, proposals in news.items():
            self.keep(sweep, proposals)
        return [
            replace(s, proposed=(*s.proposed, *named[s.key]), region=self._start(s).region) if s.key in named else s
            for s in searches
        ]

    def _start(self, search: Search) -> Start:
        """Return where a search starts; one that goes on where another command was started at its first proposal."""
        first = next(iter(search.proposed), search.centre)
        return self.starts.get(search.key) or Start(first, region=search.region)

    def _proposal(self, search: Search, points: Sequence[Point]) -> Proposal:
        centres = tuple(Centre(lr=lr, wd=wd) for lr, wd in points)
        start = Start(search.centre) if search.proposed else self._start(search)
        region = tuple(Centre(lr=lr, wd=wd) for lr, wd in start.region)
        return Proposal(
            strategy=search.strategy, sampler=self.sampler, points=centres, reason=start.reason, region=region
        )

    def _tell(self, title: str, key: Key, points: Sequence[Point], known: int) -> None:
        """Say what was named; of a family of which nothing was, that it is over."""
        if points:
            self.tell(f"{title}: {self.sampler} proposes {', '.join(map(str, points))}")
        else:
            self.over.add(key)
            self.tell(f"{title}: after {count(known, 'point')} no further one is worth a run")


def known_of(look: Look, start: Point, region: Sequence[Point] = ()) -> Known:
    """Return what a proposer knows of a family as it is on disk, in the order in which points were asked for.

    Its box is the region that the search keeps to, else the ranges.
    """
    search, runs = look.search, look.runs()
    scores: dict[Place, dict[int, float]] = {}
    diverged, awaited = list[Place](), list[Place]()
    points = dict.fromkeys((*search.asked, *runs))
    for point in points:
        finished = {run.spec.seed: run.score for run in runs.get(point, ()) if run.state.finished}
        place = _whole(look.steps(point))
        if None in finished.values():
            diverged.append(place)
        elif finished:
            scores[place] = {seed: score for seed, score in finished.items() if score is not None}
        elif look.awaits(point, search.asked.get(point, search.seeds)):
            awaited.append(place)
    corners = [_whole(look.steps(point)) for point in region or search.box or search.asked]
    low, high = (tuple(edge(along) for along in zip(*corners, strict=True)) for edge in (min, max))
    at = zip(low, high, _whole(look.steps(start)), strict=True)
    return Known(
        low,
        high,
        tuple(max(least, min(most, x)) for least, most, x in at),
        scores,
        diverged,
        awaited,
        {_whole(look.steps(point)) for point in points},
        search.criterion.margin_for(search.measure),
        search.measure.mode == "min",
    )


def _whole(steps: Iterable[float]) -> Place:
    return tuple(map(round, steps))
