"""Searching: proposers name points of families, round after round, until none is worth a run or enough were named."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ettsweep.console import count
from ettsweep.runs.state import State
from ettsweep.study.lattice import Centre, Point
from ettsweep.study.run_index import RunIndex
from ettsweep.study.study import Study, titles
from ettsweep.study.study_state import StudyState
from ettsweep.study.surface_sampler import Observations, Place, Sampler
from ettsweep.study.sweep import Suggestion
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

    def names_more(self, study: Study) -> bool:
        """Say whether points may still be named for a family."""
        return study.key not in self.over

    def further(self, studies: Sequence[Study], run_index: RunIndex, at_once: int, most: int) -> list[Study]:
        """Return the searches with the points that are to be run next.

        Of each family as many are under way as make up its part of `at_once` runs; `most` runs in all may be new.
        """
        studies = self.reread(studies)
        active = [study for study in studies if self.names_more(study)]
        per_study = math.ceil(at_once / max(1, len(active)))
        suggestions_by_sweep: dict[str, list[Suggestion]] = {}
        updated: dict[Key, Study] = {}
        for study in active:
            study_state, start = evaluate(study, run_index.family(study.family)), self._start(study)
            observations, runs_per_point = known_of(study_state, start), len(study.seeds_proposed)
            under_way = sum(study_state.awaits(point, seeds) for point, seeds in study.asked.items())
            trials_left = self.trials - len(study.proposed)
            n_points = min(per_study - under_way, trials_left, most // runs_per_point)
            if trials_left > 0 >= n_points:
                if not under_way:
                    self.cut_short = True
                    self.over.add(study.key)
                continue
            points = (
                [study_state.place(position) for position in self.propose(observations, n_points)]
                if n_points > 0
                else []
            )
            if not study.asked and observations.best:
                points.insert(
                    0, study_state.place(observations.best)
                )  # others had it trained: the verdict may begin there
            most -= runs_per_point * len(points)
            self._tell(titles(studies)[study.key], study, points, len(observations.taken), trials_left)
            if points or trials_left > 0:
                suggestions_by_sweep.setdefault(study.sweep, []).append(self._proposal(study, start, points))
            proposed = (*study.proposed, *points)
            updated[study.key] = replace(study, proposed=proposed, start=start.point)
        for sweep, suggestions in suggestions_by_sweep.items():
            self.keep(sweep, suggestions)
        return [updated.get(study.key, study) for study in studies]

    def _start(self, study: Study) -> StartPoint:
        """Return where a family's search started, or is to."""
        if study.start:
            return StartPoint(study.start)
        return self.starts.get(study.key) or StartPoint(study.centre)

    def _proposal(self, study: Study, start: StartPoint, points: Sequence[Point]) -> Suggestion:
        return Suggestion(
            strategy=study.strategy,
            sampler=self.sampler,
            points=tuple(map(_kept, points)),
            reason=start.reason,
            start=None if study.start else _kept(start.point),
        )

    def _tell(self, title: str, study: Study, points: Sequence[Point], n_points: int, trials_left: int) -> None:
        """Say what was named; of a family of which nothing was, that it is over, and why."""
        if points:
            self.tell(f"{title}: {self.sampler} proposes {', '.join(map(str, points))}")
            return
        self.over.add(study.key)
        if trials_left > 0:
            self.tell(f"{title}: after {count(n_points, 'point')} no further one is worth a run")
        else:
            self.tell(f"{title}: {count(len(study.proposed), 'point')} proposed; --trials N allows N in all")


def _kept(point: Point) -> Centre:
    return Centre(lr=point.lr, wd=point.wd)


def known_of(study_state: StudyState, start: StartPoint) -> Observations:
    """Return what a proposer knows of a family as it is on disk, in the order in which points were asked for."""
    study, runs = study_state.study, study_state.runs()
    scores: dict[Place, dict[int, float]] = {}
    diverged, pending, unavailable = list[Place](), list[Place](), list[Place]()
    for point in dict.fromkeys((*study.asked, *runs)):
        point_runs, position = runs.get(point, ()), _whole(study_state.steps(point))
        if point not in study.asked and all(run.state in LEFT for run in point_runs):
            continue  # what another sweep asked for, and nobody trains
        unavailable.append(position)
        finished = {run.spec.seed: run.score for run in point_runs if run.state.finished}
        if None in finished.values():
            diverged.append(position)
        elif finished:
            scores[position] = {seed: score for seed, score in finished.items() if score is not None}
        elif study_state.awaits(point, study.asked.get(point) or [run.spec.seed for run in point_runs]):
            pending.append(position)
    corners = [_whole(study_state.steps(point)) for point in study.box or study.asked]
    low, high = (tuple(extreme(along) for along in zip(*corners, strict=True)) for extreme in (min, max))
    start_edges = zip(low, high, _whole(study_state.steps(start.point)), strict=True)
    return Observations(
        low,
        high,
        tuple(max(low_edge, min(high_edge, x)) for low_edge, high_edge, x in start_edges),
        scores,
        diverged,
        pending,
        set(unavailable),
        study.criterion.margin_for(study.metric),
        study.metric.mode == "min",
    )


def _whole(steps: Iterable[float]) -> Place:
    return tuple(map(round, steps))
