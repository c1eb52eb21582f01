import itertools
import math
import random

import pytest
from support.points import moved

from ettsweep.errors import InputError
from ettsweep.runs.point import Point, snap_point
from ettsweep.runs.spec import point_identity
from ettsweep.schema import validate
from ettsweep.strategies.strategy import map_point
from ettsweep.study.lattice import PRINTED_TOLERANCE, Axis, expand, neighbours, parse_point

CENTRE = Point.of(lr=1.0, wd=1.0)
FREE = Axis(low=-1, high=1)
STRATEGIES = [None, 0.0, 0.25, 0.5, 1.0]


def random_points(count: int) -> list[Point]:
    rng = random.Random(0)
    return [Point.of(lr=2 ** rng.uniform(-20, 10), wd=2 ** rng.uniform(-30, 3)) for _ in range(count)]


def test_the_neighbours_are_the_six_of_the_paper() -> None:
    lr, wd = 20.0, 4e-5
    six = {(2 * lr, wd), (lr, 2 * wd), (2 * lr, wd / 2), (lr / 2, 2 * wd), (lr, wd / 2), (lr / 2, wd)}
    points = neighbours(Point.of(lr=lr, wd=wd), {"lr": FREE, "wd": FREE})
    assert len(points) == 6
    assert {(point["lr"], point["wd"]) for point in points} == six
    assert not {Point.of(lr=2 * lr, wd=2 * wd), Point.of(lr=lr / 2, wd=wd / 2)} & set(points)


def test_fractional_steps_move_by_that_power_of_two() -> None:
    half, quarter = Axis(low=-1, high=1, step=0.5), Axis(low=-1, high=1, step=0.25)
    points = neighbours(Point.of(lr=1.0, wd=1.0), {"lr": half, "wd": quarter})
    r, q = math.sqrt(2), 2**0.25
    expected = [(r, 1), (1, q), (r, 1 / q), (1 / r, q), (1, 1 / q), (1 / r, 1)]
    assert len(points) == 6
    assert set(points) == {Point(dict(zip(("lr", "wd"), other, strict=True))) for other in expected}


def test_offsets_are_the_multiples_of_the_step_in_the_range() -> None:
    assert Axis(low=-1.5, high=1.5).offsets() == [-1, 0, 1]
    assert Axis(low=0.3, high=0.6, step=0.1).offsets() == pytest.approx([0.3, 0.4, 0.5, 0.6])
    with pytest.raises(InputError, match=r"^axis: no multiple of the step 1 between 0\.2 and 0\.8$"):
        validate(Axis, {"low": 0.2, "high": 0.8}, "axis")


def test_a_grid_is_the_product_of_its_axes_around_the_centre() -> None:
    points = expand(Point.of(lr=4.0, wd=0.5), {"lr": FREE, "wd": Axis(low=0, high=1)})
    assert points == [Point.of(lr=lr, wd=wd) for lr in (2.0, 4.0, 8.0) for wd in (0.5, 1.0)]


def test_points_are_equal_where_ids_round_them_alike() -> None:
    for point in random_points(100):
        for nudged in (moved(point, 4e-10, 4e-10), moved(point, 0, -6e-10), moved(point, 1e-7, 0)):
            alike = point_identity(point.values) == point_identity(nudged.values)
            assert (point == nudged) is alike
            assert len({point, nudged}) == 2 - alike
    assert tuple(point_identity({"lr": 20.0, "wd": 4e-5}).values()) == Point.of(lr=20.0, wd=4e-5).key


@pytest.mark.parametrize(("width", "optimizer"), [(768, "adamw"), (1000, "sgd")])
def test_points_are_found_after_a_round_trip_through_all_strategies(width: int, optimizer: str) -> None:
    points = random_points(5)
    for point in points:
        for route in itertools.permutations(STRATEGIES, 3):
            lr, wd = point
            for a, b in itertools.pairwise((*route, route[0])):
                lr, wd = map_point(lr, wd, a, b, width, optimizer)  # type: ignore[arg-type]
            assert snap_point(Point.of(lr=lr, wd=wd), points) == point


def test_a_point_that_was_rounded_otherwise_means_the_known_one() -> None:
    for number in range(20):
        point = Point.of(lr=2 ** ((number + 0.4999) * 1e-9), wd=1.0)
        for shift in (-9.9e-7, -1e-7, 1e-10, 1e-7, 9.9e-7):
            assert snap_point(moved(point, shift, -shift), [point]) == point
        for shift in (-1.1e-6, 1.1e-6):
            assert snap_point(moved(point, shift, 0), [point]) != point


def test_wd_zero_is_a_point_of_its_own() -> None:
    reference = {Point.of(lr=1.0, wd=0.0)}
    assert Point.of(lr=1.0, wd=0.0) in reference
    assert Point.of(lr=1.0, wd=1e-300) not in reference
    assert snap_point(Point.of(lr=1.0, wd=1e-300), reference, PRINTED_TOLERANCE) not in reference
    assert snap_point(Point.of(lr=1.0 + 1e-9, wd=0.0), reference) in reference


def test_a_point_is_read_as_lr_and_wd() -> None:
    assert parse_point("20,4e-5", "--at", CENTRE, ["lr", "wd"]) == Point.of(lr=20.0, wd=4e-5)
    assert parse_point("wd=4e-5,lr=20", "--at", CENTRE, ["lr", "wd"]) == Point.of(lr=20.0, wd=4e-5)
    assert parse_point("20", "--at", CENTRE, ["lr"]) == Point.of(lr=20.0, wd=1.0), "fixed"
    assert parse_point("1e-3, 0", "--at", CENTRE, ["lr", "wd"]) == Point.of(lr=1e-3, wd=0.0)


@pytest.mark.parametrize("text", ["", "20,4e-5,1", "a,b", "0,1", "nan,1", "2^9999,1"])
def test_a_point_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError) as error:
        parse_point(text, "--at", CENTRE, ["lr", "wd"])
    assert str(error.value) == f"--at: lr,wd is expected, such as lr=2^-6,wd=0.5, got {text!r}"
