"""Optimisation history of a study: its finished runs in order, each with the best score so far."""

from collections.abc import Sequence
from dataclasses import dataclass

from ettsweep.runs.index import Run
from ettsweep.runs.point import Point
from ettsweep.study.study import Study
from ettsweep.study.study_state import StudyState


@dataclass(frozen=True)
class HistoryEntry:
    """A finished run in the history.

    Attributes:
        run: the run.
        point: its lattice point.
        suggestion_number: number of the suggestion that requested it, from 1; None if it was not suggested.
        best_score: best score of all runs so far; None while all have diverged.
    """

    run: Run
    point: Point
    suggestion_number: int | None
    best_score: float | None


def search_history(study_state: StudyState) -> tuple[HistoryEntry, ...]:
    """Return the finished runs of a study in order, without fresh seeds; empty if no sampler suggested a point.

    Runs of suggested points come in the order of suggestion, which the files of the sweep record: modification times
    may not survive a copy of the folder. All other runs follow, in the order of the times of their results; but
    runs of a grid that ended before the first suggested run come first.
    """
    if not study_state.study.suggested_points:
        return ()
    ordered = _sorted_runs(
        study_state, [(p, run) for p, runs in study_state.runs_by_point().items() for run in runs if run.state.finished]
    )
    entries, best = [], None
    for point, run in ordered:
        best = run.score if study_state.study.metric.is_better(run.score, best) else best
        entries.append(HistoryEntry(run, point, _suggestion_number(study_state.study, point, run), best))
    return tuple(entries)


def _suggestion_number(study: Study, point: Point, run: Run) -> int | None:
    """Return the number of the suggestion that requested a run; None for seeds that racing added to its point."""
    return study.suggestion_numbers.get(point) if study.requests(point, run.seed) else None


def _sorted_runs(study_state: StudyState, finished: Sequence[tuple[Point, Run]]) -> list[tuple[Point, Run]]:
    study, ended_ns = study_state.study, {run.id: run.dir.ended_ns() for _, run in finished}
    first_ns = min((ended_ns[run.id] for point, run in finished if _suggestion_number(study, point, run)), default=0)

    # (group, order within it, tie breaker): grid runs before the first suggestion, suggested runs, all others.
    def sort_key(entry: tuple[Point, Run]) -> tuple[float, ...]:
        point, run = entry
        number, tie_breaker = _suggestion_number(study, point, run), (*point, run.seed)
        if number:
            return (1, number, *tie_breaker)
        is_earlier = study.requests(point, run.seed) and ended_ns[run.id] < first_ns
        return (0 if is_earlier else 2, ended_ns[run.id], *tie_breaker)

    return sorted(finished, key=sort_key)
