"""The course of a search: its finished runs one after the other, and the best score by then."""

from collections.abc import Sequence
from dataclasses import dataclass

from ettsweep.study.lattice import Point
from ettsweep.study.run_index import Run
from ettsweep.study.study import Study
from ettsweep.study.study_state import StudyState


@dataclass(frozen=True)
class HistoryEntry:
    """A finished run of a search.

    Attributes:
        proposal: the number of the proposal that asked for it; None where none did.
        best: the best score of any run so far; None while all have diverged.
    """

    run: Run
    point: Point
    proposal: int | None
    best: float | None


def course(study_state: StudyState) -> tuple[HistoryEntry, ...]:
    """Return the finished runs of a family in order, without fresh seeds; none where no proposer has named a point.

    Proposals come in the order in which they were named: the files of the sweep tell it, wherever they are copied to.
    All others come after them, in the order in which they ended by the times of their results; but those that a grid
    asked for, and that had ended before any proposal, come first.
    """
    if not study_state.study.proposed:
        return ()
    ordered = _ordered(
        study_state, [(p, run) for p, runs in study_state.runs().items() for run in runs if run.state.finished]
    )
    found, best = [], None
    for point, run in ordered:
        best = run.score if study_state.study.metric.better(run.score, best) else best
        found.append(HistoryEntry(run, point, _proposal(study_state.study, point, run), best))
    return tuple(found)


def _proposal(study: Study, point: Point, run: Run) -> int | None:
    """Return the number of the proposal that asked for a run; further seeds of its point are not asked for by it."""
    return study.numbers.get(point) if study.asks(point, run.spec.seed) else None


def _ordered(study_state: StudyState, finished: Sequence[tuple[Point, Run]]) -> list[tuple[Point, Run]]:
    study, ended_ns = study_state.study, {run.id: run.dir.ended_ns() for _, run in finished}
    begun_ns = min((ended_ns[run.id] for point, run in finished if _proposal(study, point, run)), default=0)

    def turn(one: tuple[Point, Run]) -> tuple[float, ...]:
        point, run = one
        number, place = _proposal(study, point, run), (*point, run.spec.seed)
        if number:
            return (1, number, *place)
        known = study.asks(point, run.spec.seed) and ended_ns[run.id] < begun_ns
        return (0 if known else 2, ended_ns[run.id], *place)

    return sorted(finished, key=turn)
