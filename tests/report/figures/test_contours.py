"""Contours against surfaces whose level lines are known."""

import numpy as np
import pytest

from ettsweep.report.figures.contours import Array, contours


def grid(step: float = 0.05, reach: float = 1.0) -> tuple[Array, Array]:
    """Return the places of a square grid around the origin, slanted as a lattice of hexagons is."""
    axis = np.linspace(-reach, reach, round(2 * reach / step) + 1)
    column, row = np.meshgrid(axis, axis)
    return column + row / 2, row * np.sqrt(3) / 2


def length(line: Array) -> float:
    return float(np.linalg.norm(np.diff(line, axis=0), axis=1).sum())


def test_a_circle_is_one_closed_line() -> None:
    x, y = grid()
    (line,) = contours(x, y, x**2 + y**2, 0.25)
    assert line[0].tolist() == line[-1].tolist()
    assert np.linalg.norm(line, axis=1) == pytest.approx(0.5, abs=0.05**2)
    assert length(line) == pytest.approx(np.pi, rel=0.01)


def test_a_plane_has_one_straight_line_from_edge_to_edge() -> None:
    x, y = grid()
    (line,) = contours(x, y, 2 * x - y, 0.3)
    assert 2 * line[:, 0] - line[:, 1] == pytest.approx(0.3, abs=1e-12)
    assert length(line) == pytest.approx(np.linalg.norm(line[-1] - line[0]), rel=1e-12), "nowhere back"
    assert sorted(np.abs(line[[0, -1], 1])) == pytest.approx([np.sqrt(3) / 2] * 2), "at the upper and at the lower edge"


def test_a_level_has_a_line_around_each_valley() -> None:
    x, y = grid(0.04, 2.0)
    valleys = np.minimum((x - 1) ** 2 + y**2, (x + 1) ** 2 + y**2)
    lines = list(contours(x, y, valleys, 0.16))
    assert sorted(line[:, 0].mean().round() for line in lines) == [-1, 1]
    assert [length(line) for line in lines] == pytest.approx([0.8 * np.pi] * 2, rel=0.01)


def test_lines_end_where_nothing_is_known() -> None:
    x, y = grid()
    values = np.where(y > 0, np.nan, x**2 + y**2)
    (line,) = contours(x, y, values, 0.25)
    assert sorted(line[[0, -1], 0]) == pytest.approx([-0.5, 0.5], abs=0.05**2)
    assert length(line) == pytest.approx(np.pi / 2, rel=0.01)


def test_a_line_through_the_points_of_the_grid_itself_is_whole() -> None:
    x, y = np.meshgrid(np.arange(5.0), np.arange(5.0))
    (line,) = contours(x, y, x, 2.0)
    assert set(line[:, 0]) == {2.0}
    assert (line[:, 1].min(), line[:, 1].max()) == (0, 4)


@pytest.mark.parametrize("level", [-1.0, 3.5])
def test_there_is_no_line_beyond_the_values(level: float) -> None:
    x, y = grid()
    assert list(contours(x, y, x**2 + y**2, level)) == []
