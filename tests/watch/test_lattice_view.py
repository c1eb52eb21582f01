"""A lattice drawn with characters: neighbours touch, cells tell their state without colours, and it fits."""

import re
from itertools import product

import pytest

from ettsweep.runs.point import Point
from ettsweep.runs.state import State
from ettsweep.study.lattice import Axis, neighbours
from ettsweep.trainer.tasks.registry import BEST_ACCURACY, LOWEST_LOSS
from ettsweep.watch.lattice_cells import Cell, LatticeCells, Mark
from ettsweep.watch.lattice_view import (
    COLOURS,
    DENSITIES,
    STATE_SIGNS,
    draw_lattice,
    fit_window,
    format_score,
    shows_all_cells,
)

CENTRE = Point(2.0**-6, 0.5)


def made(reach: int, states: dict[tuple[int, int], State] | None = None, scored: bool = True) -> LatticeCells:
    """Return a lattice whose scores are lowest in the middle, where the candidate is."""
    cells = []
    around = set(neighbours(CENTRE, Axis(low=-1, high=1), Axis(low=-1, high=1)))
    for i, j in product(range(-reach, reach + 1), repeat=2):
        point, state = CENTRE.moved(i, j), (states or {}).get((i, j), State.DONE)
        mark = Mark.CANDIDATE if point == CENTRE else Mark.NEIGHBOUR if point in around else Mark.NONE
        score = 0.1 + 0.01 * (i * i + i * j + j * j) if scored and state is State.DONE else None
        cells.append(Cell(i, j, point, state, score, int(state.finished), 1, mark))
    return LatticeCells(tuple(cells), LOWEST_LOSS)


@pytest.mark.parametrize("capacity", [(100, 20), (60, 8), (40, 8), (30, 8)])
def test_the_six_neighbours_are_those_that_touch_the_candidate(capacity: tuple[int, int]) -> None:
    lines = [line.plain for line in draw_lattice(made(2), *capacity)]
    width = fit_window(made(2), *capacity).density.width  # type: ignore[union-attr]
    (row,) = (k for k, line in enumerate(lines) if "[" in line)
    each = fit_window(made(2), *capacity).density.height  # type: ignore[union-attr]
    at = lines[row].index("[")
    values = {(k, location) for k in range(len(lines)) for location, sign in enumerate(lines[k]) if sign == "("}
    beside, half = {(row, at - width), (row, at + width)}, width // 2
    above = {(k, at + by) for k in (row - each, row + each) for by in (-half, half)}
    assert values == beside | above


@pytest.mark.parametrize("reach", [0, 1, 2, 4, 12])
@pytest.mark.parametrize("capacity", [(50, 12), (24, 6), (170, 40), (12, 3)])
def test_it_keeps_within_its_room_and_the_candidate_is_in_it(reach: int, capacity: tuple[int, int]) -> None:
    result = made(reach)
    lines = [line.plain for line in draw_lattice(result, *capacity)]
    assert len(lines) <= capacity[1]
    assert max(map(len, lines)) <= capacity[0]
    assert sum("[" in line for line in lines) == 1
    cells = re.findall(rf"\.\d\d\d?|\d\.\d\d|{STATE_SIGNS[State.DONE]}", "\n".join(lines))
    assert (len(cells) == len(result.cells)) == shows_all_cells(result, *capacity)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("capacity", [(100, 20), (60, 8), (30, 8)])
def test_each_state_has_a_sign_in_every_density(state: State, capacity: tuple[int, int]) -> None:
    text = "\n".join(line.plain for line in draw_lattice(made(1, {(1, 1): state}, scored=False), *capacity))
    assert STATE_SIGNS[state] in text


def test_scores_are_colours_too_and_the_best_is_the_lightest() -> None:
    spans = [span.style for line in draw_lattice(made(2), 60, 8) for span in line.spans]
    colours = {style.bgcolor.name for style in spans if not isinstance(style, str) and style.bgcolor}
    assert {COLOURS[0], COLOURS[-1]} <= colours <= set(COLOURS)
    (best,) = (
        style
        for line in draw_lattice(made(2), 60, 8)
        for span in line.spans
        if "[" in line.plain[span.start : span.end] and not isinstance(style := span.style, str)
    )
    assert best.bgcolor
    assert best.bgcolor.name == COLOURS[-1]


def test_axes_have_powers_of_two_below_their_cells() -> None:
    *rows, axis = (line.plain for line in draw_lattice(made(1), 40, 5))
    assert [row.split()[0] for row in rows] == ["2^0", "2^-1", "2^-2"]
    assert axis.split() == ["lr", "2^-7", "2^-6", "2^-5"]
    first = rows[-1].index("(") - 6
    assert first <= axis.index("2^-7") < first + 6


def test_labels_that_are_too_wide_are_left_out_rather_than_run_together() -> None:
    wide = [Cell(i, 0, Point(0.003 * 2.0**i, 0.0), State.MISSING, None, 0, 1) for i in range(8)]
    axis = draw_lattice(LatticeCells(tuple(wide), LOWEST_LOSS), 44, 3)[-1].plain
    assert axis.split()[:3] == ["lr", "0.003", "0.012"]


def test_nothing_is_drawn_of_a_family_without_points() -> None:
    assert draw_lattice(LatticeCells((), LOWEST_LOSS), 40, 5) == []


@pytest.mark.parametrize(
    ("score", "message"),
    [(0.0981, ".098"), (1.234, "1.23"), (23.456, "23.5"), (456.7, "457"), (9876.5, "9876"), (123456.0, "1e5"),
     (0.00051, "5e-4"), (0.0, ".000"), (None, "")],
)  # fmt: skip
def test_a_loss_is_told_in_four_characters(score: float | None, message: str) -> None:
    assert format_score(score, LOWEST_LOSS) == message
    assert len(message) <= 4


@pytest.mark.parametrize(("score", "message"), [(0.9731, "97.3"), (1.0, "100"), (0.05, "5.00"), (0.0001, ".010")])
def test_an_accuracy_is_told_in_percent(score: float, message: str) -> None:
    assert format_score(score, BEST_ACCURACY) == message


def test_rows_are_moved_by_whole_characters() -> None:
    assert all(density.width % 2 == 0 for density in DENSITIES)
