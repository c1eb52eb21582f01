"""The lattice of points (lr, wd) in log2 steps: axes, expansion around a centre, the six neighbours of a point."""

import math
from contextlib import suppress
from itertools import product
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ettsweep.errors import InputError
from ettsweep.powers import LOG2_DIGITS, parse_number
from ettsweep.runs.point import MAPPED_TOLERANCE, Point
from ettsweep.schema import NonNegative, PositiveFloat, Source, StrictModel

PRINTED_TOLERANCE = 8e-3
"""Distance in log2 within which a typed value counts as a lattice value: tables have three digits."""


POINT_OPTIONS = Source("run", {("lr",): "--lr", ("wd",): "--wd", ("seed",): "--seed"})
"""Source of a point and a seed that the command line gives."""


MAX_OFFSET = 64
"""Largest offset from a centre in log2; beyond it lr and wd could leave the range of floats."""


Offset = Annotated[float, Field(ge=-MAX_OFFSET, le=MAX_OFFSET)]


class Axis(StrictModel):
    """Range of log2 offsets from the centre: multiples of `step` from `low` to `high`; 0 only if `fixed`."""

    low: Offset = 0.0
    high: Offset = 0.0
    step: Annotated[float, Field(ge=2**-10, le=64)] = 1.0
    fixed: bool = False

    @model_validator(mode="after")
    def _not_empty(self) -> "Axis":
        if self.low > self.high:
            raise ValueError(f"empty range: {self.low:g} is above {self.high:g}")
        if not self.fixed and not self.offsets():
            raise ValueError(f"no multiple of the step {self.step:g} between {self.low:g} and {self.high:g}")
        return self

    def offsets(self) -> list[float]:
        """Return the offsets, ascending: multiples of the step, so that all ranges share one lattice."""
        if self.fixed:
            return [0.0]
        # Bounds need not be multiples of the step here; a grid file's are checked to be.
        first, last = math.ceil(self.steps(self.low)), math.floor(self.steps(self.high))
        return [i * self.step for i in range(first, last + 1)]

    def steps(self, distance: float) -> float:
        """Return a distance in log2 as a number of steps, rounded to the digits that ids use."""
        return round(distance / self.step, LOG2_DIGITS)  # 0.3 / 0.1 is 2.9999999999999996

    def nearest(self, centre: float, value: float) -> float:
        """Return the lattice value nearest to `value`, whole steps from `centre`; the centre if the axis is fixed."""
        # A wd of 0 has no log2, so no steps lead to it or from it.
        if self.fixed or not centre or not value:
            return centre
        steps = round(math.log2(value / centre) / self.step)
        return float(centre * 2.0 ** (steps * self.step))

    def is_on_lattice(self, centre: float, value: float, tolerance: float = MAPPED_TOLERANCE) -> bool:
        """`True` if `value` lies whole steps from `centre`, up to `tolerance` in log2."""
        nearest = self.nearest(centre, value)
        return value == nearest or (value > 0 and nearest > 0 and abs(math.log2(value / nearest)) <= tolerance)


def expand(centre: Point, lr_axis: Axis, wd_axis: Axis) -> list[Point]:
    """Return all points of a grid around its centre; lr is the outer loop."""
    return [centre.moved(i, j) for i, j in product(lr_axis.offsets(), wd_axis.offsets())]


def neighbours(point: Point, lr_axis: Axis, wd_axis: Axis) -> list[Point]:
    """Return the neighbours that an optimum must beat: six on two free axes, two on one, none if both are fixed.

    With steps of one these are (2lr, wd) (lr, 2wd) (2lr, wd/2) (lr/2, 2wd) (lr, wd/2) (lr/2, wd): a hexagon.
    The diagonals (2lr, 2wd) and (lr/2, wd/2) are left out on purpose.
    """
    offsets = [(1, 0), (0, 1), (1, -1), (-1, 1), (0, -1), (-1, 0)]
    return [
        point.moved(i * lr_axis.step, j * wd_axis.step)
        for i, j in offsets
        if not (i and lr_axis.fixed) and not (j and wd_axis.fixed)
    ]


def parse_point(text: str, option: str) -> Point:
    """Parse `lr,wd`, or `lr` where there is no wd: the value of `option`.

    Raises:
        InputError: it is not two numbers, lr positive and wd not negative.
    """
    try:
        lr, wd = map(parse_number, text.split(",") if "," in text else (text, "0"))
    except ValueError:
        lr, wd = 0.0, 0.0  # refused below, with all other values that are out of range
    if not (0 < lr < math.inf and 0 <= wd < math.inf):
        raise InputError(f"{option}: LR,WD is expected, such as 2^-6,0.5, got {text!r}")
    return Point(lr, wd, "," in text)


def _in_range(value: float) -> float:
    """Refuse values that steps and maps could push out of the range of floats."""
    if value and not 1e-30 <= value <= 1e30:  # 0 is a valid wd
        raise ValueError(f"a number between 1e-30 and 1e30 is expected, got {value!r}")
    return value


def _parse_power(value: object) -> object:
    """Parse a power of two as tables print it, such as 2^-6; leave anything else to the schema."""
    with suppress(ValueError):
        return parse_number(value) if isinstance(value, str) and value.startswith("2^") else value
    return value


class Centre(StrictModel):
    """Centre of the ranges, in the lr and wd of its strategy."""

    lr: Annotated[PositiveFloat, BeforeValidator(_parse_power), AfterValidator(_in_range)]
    wd: Annotated[NonNegative, BeforeValidator(_parse_power), AfterValidator(_in_range)]


Centres = dict[str, Centre]


PLACEHOLDER_CENTRE = Centre(lr=1e-3, wd=0.0)
"""A centre for commands that need a grid's data or memory use only, which no centre changes."""
