"""A lattice drawn with characters: neighbours touch, cells tell their state without colours, and it fits."""

from itertools import product

import pytest
from support.points import moved
from textual.geometry import Size

from ettsweep.runs.point import Point
from ettsweep.runs.state import State
from ettsweep.study.lattice import Axis, neighbours
from ettsweep.trainer.tasks.registry import BEST_ACCURACY, LOWEST_LOSS
from ettsweep.watch.lattice_view import STATE_SIGNS, draw_lattice, format_score
from ettsweep.watch.view import CANDIDATE, NEIGHBOUR, UNMARKED, Cell

CENTRE = Point.of(lr=2.0**-6, wd=0.5)


def made(reach: int, states: dict[tuple[int, int], State] | None = None, scored: bool = True) -> list[Cell]:
    """Return a lattice whose scores are lowest in the middle, where the candidate is."""
    cells = []
    around = set(neighbours(CENTRE, dict.fromkeys(CENTRE.values, Axis(low=-1, high=1))))
    for i, j in product(range(-reach, reach + 1), repeat=2):
        point, state = moved(CENTRE, i, j), (states or {}).get((i, j), State.DONE)
        mark = CANDIDATE if point == CENTRE else NEIGHBOUR if point in around else UNMARKED
        score = 0.1 + 0.01 * (i * i + i * j + j * j) if scored and state is State.DONE else None
        cells.append(Cell(i, j, point, (state,), score, mark))
    return cells


def drawn(cells: list[Cell], room: tuple[int, int]) -> list[str]:
    return [line.plain for line in draw_lattice(cells, LOWEST_LOSS, Size(*room))]


@pytest.mark.parametrize(("room", "width", "height"), [((100, 20), 8, 3), ((55, 8), 6, 1), ((40, 8), 4, 1)])
def test_the_six_neighbours_are_those_that_touch_the_candidate(room: tuple[int, int], width: int, height: int) -> None:
    lines = drawn(made(2), room)
    (row,) = (k for k, line in enumerate(lines) if "[" in line)
    at = lines[row].index("[")
    values = {(k, location) for k in range(len(lines)) for location, sign in enumerate(lines[k]) if sign == "("}
    beside, half = {(row, at - width), (row, at + width)}, width // 2
    above = {(k, at + by) for k in (row - height, row + height) for by in (-half, half)}
    assert values == beside | above


def test_it_keeps_within_its_room_and_the_candidate_is_in_it() -> None:
    for reach, room in product((0, 2, 12), [(50, 12), (24, 6), (170, 40), (12, 3)]):
        lines = drawn(made(reach), room)
        assert len(lines) <= room[1]
        assert max(map(len, lines)) <= room[0]
        assert sum("[" in line for line in lines) == 1
    assert drawn([], (40, 5)) == []


def test_each_state_has_a_sign_in_every_density() -> None:
    for state, room in product(State, [(100, 20), (60, 8), (30, 8)]):
        assert STATE_SIGNS[state] in "\n".join(drawn(made(1, {(1, 1): state}, scored=False), room))


def test_axes_have_powers_of_two_below_their_cells() -> None:
    *rows, axis = drawn(made(1), (40, 5))
    assert [row.split()[0] for row in rows] == ["2^0", "2^-1", "2^-2"]
    assert axis.split() == ["lr", "2^-7", "2^-6", "2^-5"]
    first = rows[-1].index("(") - 6
    assert first <= axis.index("2^-7") < first + 6


def test_a_score_is_told_in_four_characters_and_an_accuracy_in_percent() -> None:
    losses = {0.0981: ".098", 1.234: "1.23", 456.7: "457", 9999.5: "1e4", 0.00051: "5e-4", 0.0: ".000", None: ""}
    assert {score: format_score(score, LOWEST_LOSS) for score in losses} == losses
    accuracies = {0.9731: "97.3", 1.0: "100", 0.0001: ".010"}
    assert {score: format_score(score, BEST_ACCURACY) for score in accuracies} == accuracies
