"""Curves in one line: what stands for what, and where there is nothing to draw."""

import math

import pytest

from ettsweep.cli.course import BARS
from ettsweep.cli.sparkline import ASCII_BARS, Curve, axis, has_blocks, is_log, marks, sparkline


def drawn(values: list[float | None], width: int = 80, hold: bool = False, blocks: bool = True) -> str:
    steps = list(range(1, len(values) + 1))
    return sparkline(Curve(steps, values), axis(len(values), width), hold, blocks)


def test_a_line_has_all_levels_from_lowest_to_highest() -> None:
    assert drawn([8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0]) == BARS
    assert drawn([15.0, 14.0, 13.0, 12.0, 11.0, 10.0, 9.0, 8.0], blocks=False) == ASCII_BARS[::-1]
    assert ASCII_BARS.isascii()
    assert len(ASCII_BARS) == len(BARS)


def test_a_curve_that_falls_by_much_is_drawn_by_its_logarithm() -> None:
    falls = [2.0**-k for k in range(8)]
    assert drawn(falls) == BARS[::-1]
    assert is_log(Curve([1, 2], [4.0, 1.0]))
    assert not is_log(Curve([1, 2], [3.9, 1.0]))
    assert not is_log(Curve([1, 2], [4.0, 0.0]))
    assert not is_log(Curve([1, 2], [4.0, -1.0]))
    assert not is_log(Curve([], []))


def test_columns_are_means_of_as_many_steps() -> None:
    assert drawn([0.0, 2.0, 8.0, 8.0, 3.0, 5.0], width=3) == BARS[0] + BARS[-1] + BARS[3]
    assert len(drawn([1.0] * 1000, width=69)) == 69
    assert len(drawn([1.0] * 5, width=69)) == 5


def test_gaps_stay_open_unless_a_value_holds() -> None:
    values = [None, 1.0, None, 2.0, None]
    assert drawn(values) == f" {BARS[0]} {BARS[-1]} "
    assert drawn(values, hold=True) == f" {BARS[0]}{BARS[0]}{BARS[-1]}{BARS[-1]}"
    assert drawn([None, None]) == "  "


@pytest.mark.parametrize("values", [[1.5], [1.5, 1.5, 1.5]])
def test_what_is_level_is_drawn_low(values: list[float | None]) -> None:
    assert drawn(values) == BARS[0] * len(values)


def test_the_largest_numbers_of_all_are_drawn() -> None:
    assert drawn([1.7e308, 1e-308]) == BARS[-1] + BARS[0]
    assert drawn([math.pi * 1e300, 1.0, -1e300]) != ""


def test_marks_stand_below_their_steps() -> None:
    along = axis(100, 10)
    assert marks({1: "^", 10: "^", 11: "x", 100: "x"}, along) == "^x       x"
    assert [along.column(step) for step in (1, 10, 11, 100, 500)] == [0, 0, 1, 9, 9]


@pytest.mark.parametrize(
    ("variables", "blocks"),
    [
        ({}, True),
        ({"LANG": "C"}, False),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, False),  # what Python makes of it
        ({"LC_ALL": "POSIX", "LANG": "de_DE.UTF-8"}, False),
        ({"LC_CTYPE": "en_US.UTF-8", "LANG": "C"}, True),
        ({"LANG": "en_US.UTF-8"}, True),
    ],
)
def test_the_plain_locale_has_no_blocks(
    variables: dict[str, str], blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert has_blocks() is blocks
