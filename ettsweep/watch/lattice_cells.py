"""The lattice of a family as data: a cell for each requested point, point with runs, and neighbour of the candidate."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from ettsweep.metric import Metric
from ettsweep.runs.point import Point
from ettsweep.runs.state import State, foremost
from ettsweep.study.study_state import StudyState
from ettsweep.study.verdict import Verdict


class Mark(StrEnum):
    """Role of a point in the verdict."""

    NONE = ""
    CANDIDATE = "candidate"
    NEIGHBOUR = "neighbour"


@dataclass(frozen=True)
class Cell:
    """A point of a lattice.

    Attributes:
        i, j: Steps from the centre in lr and wd; 0 along a fixed axis.
        state: The most urgent state of its runs.
        score: Mean score over seeds; None without a score, and if a run diverged.
        finished: Number of finished runs.
        runs: Number of existing and requested runs.
    """

    i: int
    j: int
    point: Point
    state: State
    score: float | None
    finished: int
    runs: int
    mark: Mark = Mark.NONE


@dataclass(frozen=True)
class LatticeCells:
    """The cells of a family, and the metric of their scores."""

    cells: tuple[Cell, ...]
    metric: Metric

    @property
    def focus(self) -> Cell | None:
        """The cell to centre on if not all cells fit: the candidate, else the cell nearest to the centre."""
        # i² + ij + j² is the squared distance on a hexagonal lattice.
        middle = sorted(self.cells, key=lambda cell: cell.i * cell.i + cell.i * cell.j + cell.j * cell.j)
        return next((cell for cell in self.cells if cell.mark is Mark.CANDIDATE), next(iter(middle), None))


def build_lattice(study_state: StudyState, verdict: Verdict | None) -> LatticeCells:
    """Return the lattice of a family, with the candidate and its neighbours marked if there is a verdict."""
    marks: dict[Point, Mark] = {}
    if verdict and verdict.candidate:
        marks = {scored_point.point: Mark.NEIGHBOUR for scored_point in verdict.neighbours} | {
            verdict.candidate.point: Mark.CANDIDATE
        }
    study, runs = study_state.study, study_state.runs_by_point()
    cells = []
    # Points outside the ranges have runs, or are neighbours: all three sources are needed.
    for point in dict.fromkeys((*study.seeds_by_point, *runs, *marks)):
        position = study.cell(point, study.centre)
        if position is None:
            continue
        run_states = {run.seed: run.state for run in runs.get(point, ())}
        # A neighbour that nobody has requested has no seeds yet: one missing run stands for it.
        state_by_seed = dict.fromkeys(study.seeds_by_point.get(point, ()), State.MISSING) | run_states or {
            -1: State.MISSING
        }
        cells.append(
            Cell(
                i=position[0],
                j=position[1],
                point=point,
                state=foremost(state_by_seed.values()),
                score=study_state.score_point(point).score,
                finished=sum(state.finished for state in run_states.values()),
                runs=len(state_by_seed),
                mark=marks.get(point, Mark.NONE),
            )
        )
    return LatticeCells(tuple(cells), study.metric)


SHADE_REACH = 3.0
"""Maximum distance of the worst shade from the best score, in multiples of the median's distance; see `shades`."""


def shades(lattice_cells: LatticeCells) -> Mapping[Point, float]:
    """Return a shade for each scored point, linear in the score, from 1 for the best to 0.

    A few very bad points would leave almost one shade for all others, so scores far worse than the median all get 0.
    """
    scores = {
        cell.point: lattice_cells.metric.sort_key(cell.score) for cell in lattice_cells.cells if cell.score is not None
    }
    if not scores:
        return {}
    # Sort keys are lower for better scores, whether the metric is a loss or an accuracy.
    ranked = sorted(scores.values())
    best, median = ranked[0], ranked[len(ranked) // 2]
    width = min(ranked[-1], best + SHADE_REACH * (median - best)) - best
    return {point: 1.0 - min(1.0, (score - best) / width) if width > 0 else 1.0 for point, score in scores.items()}
