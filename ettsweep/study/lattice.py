"""The lattice of points (lr, wd) in log2 steps: axes, expansion around a centre, the six neighbours of a point."""

import math
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ettsweep.errors import InputError
from ettsweep.powers import LOG2_DIGITS, format_power, log2, parse_number
from ettsweep.schema import NonNegative, PositiveFloat, Source, StrictModel

MAPPED_TOLERANCE = 1e-6
"""Distance in log2 within which a value counts as a lattice value: maps between strategies round in the last bits."""

PRINTED_TOLERANCE = 2e-3
"""The same for values that people type with few digits, such as four."""


POINT_OPTIONS = Source("run", {("lr",): "--lr", ("wd",): "--wd", ("seed",): "--seed"})
"""Source of a point and a seed that the command line gives."""


@dataclass(frozen=True)
class Point:
    """A position on the lattice; wd may be 0 if its axis is fixed.

    Points are equal, and have one hash, if their log2 agree to the digits that run ids use.
    """

    # Only `key` is compared: floats that differ in the last bits have one run id, so they must be one point.
    lr: float = field(compare=False)
    wd: float = field(compare=False)
    key: tuple[float | None, float | None] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # The dataclass is frozen; this is how one sets a derived field.
        object.__setattr__(self, "key", (log2(self.lr), log2(self.wd)))

    def __iter__(self) -> Iterator[float]:
        return iter((self.lr, self.wd))

    def __str__(self) -> str:
        return f"({format_power(self.lr)}, {format_power(self.wd)})"

    def log2(self) -> tuple[float, float]:
        """Return (log2 lr, log2 wd); -inf for wd 0."""
        return math.log2(self.lr), math.log2(self.wd) if self.wd > 0 else -math.inf

    def moved(self, lr_steps: float, wd_steps: float) -> "Point":
        """Return the point with lr * 2**lr_steps and wd * 2**wd_steps."""
        return Point(self.lr * 2.0**lr_steps, self.wd * 2.0**wd_steps)

    def distance_to(self, other: "Point") -> float:
        """Return the Chebyshev distance to another point in log2."""
        # Equal values first: for wd 0 on both sides the difference is inf - inf.
        return max(0.0 if a == b else abs(a - b) for a, b in zip(self.log2(), other.log2(), strict=True))


def snap_point(point: Point, candidates: Collection[Point], tolerance: float = MAPPED_TOLERANCE) -> Point:
    """Return the nearest of `candidates` if its distance in log2 is at most `tolerance`, else the point itself."""
    if point in candidates:
        return point
    nearest = min(candidates, key=point.distance_to, default=point)
    return nearest if point.distance_to(nearest) <= tolerance else point


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
    """Parse `lr,wd`, the value of `option`.

    Raises:
        InputError: it is not two numbers, lr positive and wd not negative.
    """
    try:
        lr, wd = map(parse_number, text.split(","))
    except ValueError:
        lr, wd = 0.0, 0.0  # refused below, with all other values that are out of range
    if not (0 < lr < math.inf and 0 <= wd < math.inf):
        raise InputError(f"{option}: LR,WD is expected, such as 2^-6,0.5, got {text!r}")
    return Point(lr, wd)


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
