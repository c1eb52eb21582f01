"""The lattice of a family: which cells it has, what each says, and which are light."""

from pathlib import Path

import pytest
from support.made_sweep import finish
from support.watched import MIDDLE, ask, at, claim, family, finish_all, judged, watcher

from ettsweep.runs.folder import RunDir
from ettsweep.runs.point import Point
from ettsweep.runs.state import State
from ettsweep.trainer.tasks.registry import BEST_ACCURACY, LOWEST_LOSS
from ettsweep.watch.lattice_cells import Cell, LatticeCells, Mark, shades


def cells(result: LatticeCells) -> dict[tuple[int, int], Cell]:
    return {(cell.i, cell.j): cell for cell in result.cells}


def test_it_fills_in_as_runs_finish(results: Path) -> None:
    (study,) = ask(results)
    for i, j in MIDDLE:
        RunDir.create(results, at(study, i, j))
    watch = watcher(results)
    before = cells(family(watch.poll()).lattice)
    assert {cell.state for cell in before.values()} == {State.MISSING}
    assert set(before) == set(MIDDLE)
    finish(results, at(study, 1, 0, 0), 0.5)
    finish(results, at(study, 1, 0, 1), 0.7)
    claim(results, at(study, 0, 1))
    after = cells(family(watch.poll()).lattice)
    assert (after[1, 0].state, after[1, 0].score, after[1, 0].finished, after[1, 0].runs) == (State.DONE, 0.6, 2, 2)
    assert (after[0, 1].state, after[0, 1].score, after[0, 1].finished) == (State.RUNNING, None, 0)
    assert after[-1, -1] == before[-1, -1]


def test_candidate_and_neighbours_are_marked_also_beyond_what_was_asked_for(results: Path) -> None:
    (study,) = ask(results)
    finish_all(results, study)
    cells_result = cells(family(judged(watcher(results))).lattice)
    assert cells_result[0, 0].mark is Mark.CANDIDATE
    around = {(1, 0), (0, 1), (1, -1), (-1, 1), (0, -1), (-1, 0)}
    assert {location for location, cell in cells_result.items() if cell.mark is Mark.NEIGHBOUR} == around
    for i, j in MIDDLE:  # now the best is a corner, some of whose neighbours nobody has asked for
        finish(results, at(study, i, j, 2), 1.0)
    corner = at(study, 1, 1, 1)
    shifted = ask(results, "shifted", seeds=[5])[0]
    for i, j in MIDDLE:
        finish(results, at(shifted, i, j, 5), 2.0 - i - j)
    assert corner.lr == at(shifted, 1, 1, 5).lr
    view = judged(watcher(results))
    cells_result = cells(next(item for item in view.families if item.study.sweep == "shifted").lattice)
    assert cells_result[1, 1].mark is Mark.CANDIDATE
    assert (cells_result[2, 1].mark, cells_result[2, 1].state, cells_result[2, 1].runs) == (
        Mark.NEIGHBOUR,
        State.MISSING,
        1,
    )


def test_what_needs_a_person_is_seen_before_what_trains(results: Path) -> None:
    (study,) = ask(results)
    claim(results, at(study, 0, 0, 0))
    claim(results, at(study, 0, 0, 1)).record_failure("error", "RuntimeError: out of luck")
    assert cells(family(watcher(results).poll()).lattice)[0, 0].state is State.FAILED


def test_what_was_cancelled_is_seen_before_what_trains_and_that_before_what_is_to_come(results: Path) -> None:
    (study,) = ask(results)
    for i in (0, 1):
        RunDir.create(results, at(study, i, 0, 0)).cancel()
    claim(results, at(study, 0, 0, 1))
    finish(results, at(study, 1, 0, 1), 0.5)
    cells_result = cells(family(watcher(results).poll()).lattice)
    assert cells_result[0, 0].state is State.CANCELLED
    assert cells_result[1, 0].state is State.CANCELLED
    claim(results, at(study, 0, 1, 1))
    assert cells(family(watcher(results).poll()).lattice)[0, 1].state is State.RUNNING, "before those to come"


@pytest.mark.parametrize(("measure", "best"), [(LOWEST_LOSS, 0), (BEST_ACCURACY, 2)])
def test_the_best_is_lightest_and_one_awful_point_leaves_shades_to_the_others(measure: object, best: int) -> None:
    scores = [0.1, 0.2, 0.3, -90.0 if measure is BEST_ACCURACY else 90.0, None]
    created = [Cell(k, 0, Point(2.0**k, 0.5), State.DONE, score, 1, 1) for k, score in enumerate(scores)]
    points = shades(LatticeCells(tuple(created), measure))  # type: ignore[arg-type]
    shade = [points.get(cell.point) for cell in created]
    assert shade[best] == 1.0
    assert shade[4] is None
    assert shade[3] == 0.0
    assert shade[1] is not None
    assert 0.5 < shade[1] < 1.0


def test_a_lattice_without_scores_has_no_shades() -> None:
    assert shades(LatticeCells((), LOWEST_LOSS)) == {}


def test_a_fixed_axis_has_one_row(results: Path) -> None:
    (study,) = ask(results, wd="fixed")
    RunDir.create(results, at(study, 1, 0))
    assert set(cells(family(watcher(results).poll()).lattice)) == {(-1, 0), (0, 0), (1, 0)}
