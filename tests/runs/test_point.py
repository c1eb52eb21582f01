"""Points, and the order in which they are begun."""

import pytest

from ettsweep.runs.point import Point, from_the_middle


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([(1, 1)], [(1, 1)]),
        ([(1, 0), (2, 0), (4, 0)], [(2, 0), (1, 0), (4, 0)]),
        ([(1, 1), (1, 2), (2, 1), (2, 2), (4, 4)], [(2, 2), (1, 1), (1, 2), (2, 1), (4, 4)]),
        ([(1, 0), (1, 0.5), (1, 1)], [(1, 0.5), (1, 0), (1, 1)]),
    ],
)
def test_points_from_the_middle_outwards(
    values: list[tuple[float, float]], expected: list[tuple[float, float]]
) -> None:
    points = [Point.of(lr=lr, wd=wd) for lr, wd in values]
    assert from_the_middle(points) == [Point.of(lr=lr, wd=wd) for lr, wd in expected]


def test_points_of_sweeps_with_different_axes_have_one_order() -> None:
    points = [Point.of(lr=1, wd=1), Point.of(lr=2), Point.of(lr=4, batch=64)]
    assert from_the_middle(points)[0] == Point.of(lr=2)
