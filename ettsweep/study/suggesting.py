"""Suggesting: samplers suggest points of studies, round after round, until no point is worth a run or left."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ettsweep.console import format_count
from ettsweep.runs.index import RunIndex
from ettsweep.runs.point import Point
from ettsweep.runs.state import State
from ettsweep.study.judgement import evaluate
from ettsweep.study.study import Study, StudyKey, study_titles
from ettsweep.study.study_state import StudyState
from ettsweep.study.surface_sampler import LatticePosition, Observations, Sampler
from ettsweep.study.sweep import Suggestion

IDLE = (State.MISSING, State.INTERRUPTED)
"""States of runs that only continue if a sweep requests them."""


@dataclass(frozen=True)
class StartPoint:
    """The point where a study's search starts, and the reason for it."""

    point: Point
    reason: str = ""


@dataclass(frozen=True)
class Suggested:
    """Suggestions of a round of a search.

    Attributes:
        studies: with the points that were suggested for them.
        suggestions: by sweep; record them before submitting their runs, since a killed search must know its points.
        notes: a line for each study.
        exhausted: studies that get no further suggestions.
        is_cut_short: whether the budget kept a study from getting another point.
    """

    studies: Sequence[Study]
    suggestions: Mapping[str, Sequence[Suggestion]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    exhausted: frozenset[StudyKey] = frozenset()
    is_cut_short: bool = False


@dataclass(frozen=True)
class Search:
    """A sampler that suggests points of studies.

    Attributes:
        sampler: name of the sampler.
        suggest_positions: the sampler itself.
        trials: points that it may suggest per study.
        starts: start points of studies without suggestions, if not their centre.
    """

    sampler: str
    suggest_positions: Sampler
    trials: int
    starts: Mapping[StudyKey, StartPoint] = field(default_factory=dict)

    def suggest(
        self,
        studies: Sequence[Study],
        run_index: RunIndex,
        capacity: int,
        max_runs: int,
        exhausted: frozenset[StudyKey] = frozenset(),
    ) -> Suggested:
        """Suggest points of studies for the next round.

        Args:
            studies: as recorded.
            run_index: the runs on disk.
            capacity: points under way, of which each active study keeps its share.
            max_runs: the most new runs.
            exhausted: studies that get no further suggestions.
        """
        active = [study for study in studies if study.key not in exhausted]
        per_study = math.ceil(capacity / max(1, len(active)))
        suggestions: dict[str, list[Suggestion]] = {}
        updated, notes, is_cut_short = dict[StudyKey, Study](), list[str](), False
        for study in active:
            study_state, start = (
                evaluate(study, run_index.family_runs(study.base, study.axes)),
                self._start_point(study),
            )
            observations, runs_per_point = collect_observations(study_state, start), len(study.suggestion_seeds)
            under_way = sum(study_state.is_pending(point, seeds) for point, seeds in study.seeds_by_point.items())
            trials_left = self.trials - len(study.suggested_points)
            n_points = min(per_study - under_way, trials_left, max_runs // runs_per_point)
            if trials_left > 0 >= n_points:
                if not under_way:  # the budget is short, not workers
                    is_cut_short = True
                    exhausted |= {study.key}
                continue
            positions = self.suggest_positions(observations, n_points) if n_points > 0 else []
            if not study.seeds_by_point and observations.best:  # trained by another sweep: the climb may start there
                positions = [observations.best, *positions]
            points = [study_state.point_at(position) for position in positions]
            max_runs -= runs_per_point * len(points)
            notes.append(self._note(study_titles(studies)[study.key], study, points, len(observations.unavailable)))
            exhausted |= set() if points else {study.key}
            # An empty suggestion is stored too: the sampler gave up, trials did not run out.
            if points or trials_left > 0:
                suggestions.setdefault(study.sweep, []).append(self._suggestion(study, start, points))
            proposed = (*study.suggested_points, *points)
            updated[study.key] = replace(study, suggested_points=proposed, start=start.point)
        now = [updated.get(study.key, study) for study in studies]
        return Suggested(now, suggestions, notes, exhausted, is_cut_short)

    def _start_point(self, study: Study) -> StartPoint:
        """Return the point where a study's search started, or will start."""
        if study.start:
            return StartPoint(study.start)
        return self.starts.get(study.key) or StartPoint(study.centre)

    def _suggestion(self, study: Study, start: StartPoint, points: Sequence[Point]) -> Suggestion:
        return Suggestion(
            strategy=study.strategy,
            sampler=self.sampler,
            points=tuple(dict(point.values) for point in points),
            reason=start.reason,
            start=None if study.start else dict(start.point.values),
        )

    def _note(self, title: str, study: Study, points: Sequence[Point], n_tried: int) -> str:
        """Return a note on the suggestions for a study, or on their end."""
        if points:
            return f"{title}: {self.sampler} suggests {', '.join(map(str, points))}"
        if self.trials > len(study.suggested_points):
            return f"{title}: after {format_count(n_tried, 'point')} no further one is worth a run"
        count = format_count(len(study.suggested_points), "point")
        return f"{title}: {count} suggested; --trials N allows N in total"


def collect_observations(study_state: StudyState, start: StartPoint) -> Observations:
    """Return the observations of a sampler, with points in the order of request.

    The order matters: samplers must see the same observations after a kill as without.
    """
    study, runs = study_state.study, study_state.runs_by_point()
    scores: dict[LatticePosition, dict[int, float]] = {}
    diverged, pending, unavailable = list[LatticePosition](), list[LatticePosition](), list[LatticePosition]()
    for point in dict.fromkeys((*study.seeds_by_point, *runs)):
        point_runs, position = runs.get(point, ()), _to_position(study_state.steps(point))
        if point not in study.seeds_by_point and all(run.state in IDLE for run in point_runs):
            continue  # requested by another sweep only, and not started: it may be suggested here
        unavailable.append(position)
        finished = {run.seed: run.score for run in point_runs if run.state.finished}
        if None in finished.values():
            diverged.append(position)
        elif finished:
            scores[position] = {seed: score for seed, score in finished.items() if score is not None}
        elif study_state.is_pending(point, study.seeds_by_point.get(point) or [run.seed for run in point_runs]):
            pending.append(position)
    corners = [_to_position(study_state.steps(point)) for point in study.box or study.seeds_by_point]
    low, high = (tuple(extreme(along) for along in zip(*corners, strict=True)) for extreme in (min, max))
    # Ranges need not contain the centre, where a search starts by default.
    start_edges = zip(low, high, _to_position(study_state.steps(start.point)), strict=True)
    return Observations(
        low,
        high,
        tuple(max(low_edge, min(high_edge, x)) for low_edge, high_edge, x in start_edges),
        scores,
        diverged,
        pending,
        set(unavailable),
        study.criterion.margin_for(study.metric),
        study.metric,
    )


def _to_position(steps: Iterable[float]) -> LatticePosition:
    return tuple(map(round, steps))
