"""Suggesting: samplers suggest points of studies, round after round, until none is worth a run or none is left."""

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
"""States of runs that only continue if a sweep requests them."""


@dataclass(frozen=True)
class StartPoint:
    """The point where a study's search starts, and the reason for it."""

    point: Point
    reason: str = ""


@dataclass
class Suggester:
    """Suggests points of studies with a sampler; each call of `suggest` is one round.

    Attributes:
        sampler: name of the sampler.
        suggest_positions: the sampler itself.
        trials: points that it may suggest per study.
        starts: start points of studies without suggestions, if not their centre.
        exhausted: studies that get no further suggestions.
        reload: returns the studies as they are on disk now, with suggestions made by other commands.
        save: stores the suggestions of a round by sweep; called before they are run, or a kill would lose them.
        notify: called with a line for each study.
        budget_exhausted: whether the budget kept a study from getting another point.
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
        """`True` if further points may be suggested for a study."""
        return study.key not in self.over

    def further(self, studies: Sequence[Study], run_index: RunIndex, at_once: int, most: int) -> list[Study]:
        """Return the studies with the points suggested for the next round.

        Each active study keeps its share of `capacity` points under way; at most `max_runs` runs are new.
        """
        studies = self.reread(studies)  # another command may search the same sweep at the same time
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
                if not under_way:  # so it is not a lack of workers, but of budget
                    self.cut_short = True
                    self.over.add(study.key)
                continue
            positions = self.propose(observations, n_points) if n_points > 0 else []
            if not study.asked and observations.best:  # trained by another sweep: the climb may start there
                positions = [observations.best, *positions]
            points = [study_state.place(position) for position in positions]
            most -= runs_per_point * len(points)
            self._tell(titles(studies)[study.key], study, points, len(observations.taken), trials_left)
            if points or trials_left > 0:
                suggestions_by_sweep.setdefault(study.sweep, []).append(self._proposal(study, start, points))
            proposed = (*study.proposed, *points)
            updated[study.key] = replace(study, proposed=proposed, start=start.point)
        for sweep, suggestions in suggestions_by_sweep.items():
            self.keep(sweep, suggestions)  # before anything is submitted: a killed search must know its points
        return [updated.get(study.key, study) for study in studies]

    def _start(self, study: Study) -> StartPoint:
        """Return the point where a study's search started, or will start."""
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
        """Report the points of a round; if there are none, mark the study as exhausted and report why."""
        if points:
            self.tell(f"{title}: {self.sampler} suggests {', '.join(map(str, points))}")
            return
        self.over.add(study.key)
        if trials_left > 0:
            self.tell(f"{title}: after {count(n_points, 'point')} no further one is worth a run")
        else:
            self.tell(f"{title}: {count(len(study.proposed), 'point')} suggested; --trials N allows N in total")


def _kept(point: Point) -> Centre:
    return Centre(lr=point.lr, wd=point.wd)


def known_of(study_state: StudyState, start: StartPoint) -> Observations:
    """Return what a sampler may know of a study, with points in the order in which they were requested.

    The order is part of it: samplers must see the same observations after a kill as without it.
    """
    study, runs = study_state.study, study_state.runs()
    scores: dict[Place, dict[int, float]] = {}
    diverged, pending, unavailable = list[Place](), list[Place](), list[Place]()
    for point in dict.fromkeys((*study.asked, *runs)):
        point_runs, position = runs.get(point, ()), _whole(study_state.steps(point))
        if point not in study.asked and all(run.state in LEFT for run in point_runs):
            continue  # requested by another sweep and trained by nobody: it may be suggested here
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
