"""How lines are shared out: all of them, each part with some, whatever there is to show."""

from itertools import product

import pytest

from ettsweep.watch.layout import BORDER_LINES, MIN_RUN_LINES, panel_heights


@pytest.mark.parametrize(
    ("height", "families", "lattice", "runs"),
    [*product([22, 38, 58], [1, 2, 5, 40], [3, 7, 10, 30], [1, 5, 200])],
)
def test_all_lines_are_given_away_and_each_part_has_some(height: int, families: int, lattice: int, runs: int) -> None:
    panel_heights_result = panel_heights(height, families, lattice, runs)
    assert sum(panel_heights_result) == height
    assert panel_heights_result.families >= BORDER_LINES + 2
    assert panel_heights_result.lattice >= BORDER_LINES + 3
    assert panel_heights_result.runs >= BORDER_LINES + MIN_RUN_LINES
    assert panel_heights_result.events >= BORDER_LINES + 1


def test_a_small_screen_has_room_for_four_families_and_a_lattice_of_five_rows() -> None:
    panel_heights_result = panel_heights(22, 5, 7, 100)
    assert (panel_heights_result.families, panel_heights_result.lattice) == (BORDER_LINES + 5, BORDER_LINES + 7)


def test_a_large_screen_shows_all_families_and_more_runs_than_events() -> None:
    panel_heights_result = panel_heights(58, 9, 11, 200)
    assert (panel_heights_result.families, panel_heights_result.lattice) == (BORDER_LINES + 9, BORDER_LINES + 11)
    assert panel_heights_result.runs > panel_heights_result.events


def test_a_screen_of_a_few_lines_breaks_nothing() -> None:
    assert min(panel_heights(6, 5, 9, 50)) >= 0
