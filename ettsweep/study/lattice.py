"""The lattice of points (lr, wd) in log2 steps: axes, expansion around a centre, the six neighbours."""

import math
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ettsweep.errors import InputError
from ettsweep.powers import LOG2_DIGITS, log2, parse_number, power
from ettsweep.schema import NonNegative, PositiveFloat, StrictModel

ROUNDED, PRINTED = 1e-6, 2e-3
"""Distance in log2 within which a point from elsewhere means a known one: maps between strategies round, and tables
print four digits, which is what people type."""


@dataclass(frozen=True)
class Point:
    """A position on the lattice; wd may be 0 where its axis is fixed.

    Points are equal, and one key of a dictionary, where ids round them alike.
    """

    lr: float = field(compare=False)
    wd: float = field(compare=False)
    key: tuple[float | None, float | None] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", (log2(self.lr), log2(self.wd)))

    def __iter__(self) -> Iterator[float]:
        return iter((self.lr, self.wd))

    def __str__(self) -> str:
        return f"({power(self.lr)}, {power(self.wd)})"

    def log2(self) -> tuple[float, float]:
        """Return its coordinates; -inf stands for wd 0."""
        return math.log2(self.lr), math.log2(self.wd) if self.wd > 0 else -math.inf

    def moved(self, lr_steps: float, wd_steps: float) -> "Point":
        """Return the point that many powers of two away."""
        return Point(self.lr * 2.0**lr_steps, self.wd * 2.0**wd_steps)

    def apart(self, other: "Point") -> float:
        """Return the distance to another point in log2, along the axis on which it is larger."""
        return max(0.0 if a == b else abs(a - b) for a, b in zip(self.log2(), other.log2(), strict=True))


def snap(point: Point, known: Collection[Point], within: float = ROUNDED) -> Point:
    """Return the known point that one from elsewhere means, the nearest within a distance, else the point itself."""
    if point in known:
        return point
    nearest = min(known, key=point.apart, default=point)
    return nearest if point.apart(nearest) <= within else point


FARTHEST = 64
"""Offset from a centre in log2, beyond which lr and wd would leave the range of floats."""


Offset = Annotated[float, Field(ge=-FARTHEST, le=FARTHEST)]


class Axis(StrictModel):
    """Log2 offsets from the centre: low, low + step, ... up to high; a fixed axis holds the centre alone."""

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
        """Return the offsets, multiples of the step, so that all ranges share one lattice."""
        if self.fixed:
            return [0.0]
        first, last = math.ceil(self.steps(self.low)), math.floor(self.steps(self.high))
        return [i * self.step for i in range(first, last + 1)]

    def steps(self, distance: float) -> float:
        """Return how many steps a distance in log2 is, to the digits that ids hold."""
        return round(distance / self.step, LOG2_DIGITS)

    def nearest(self, centre: float, value: float) -> float:
        """Return what lies whole steps from a centre, none where the axis is fixed, and nearest to a value."""
        if self.fixed or not centre or not value:
            return centre
        steps = round(math.log2(value / centre) / self.step)
        return float(centre * 2.0 ** (steps * self.step))

    def on(self, centre: float, value: float, within: float = ROUNDED) -> bool:
        """Say whether a value lies whole steps from a centre, up to a distance in log2."""
        nearest = self.nearest(centre, value)
        return value == nearest or (value > 0 and nearest > 0 and abs(math.log2(value / nearest)) <= within)


def expand(centre: Point, lr_axis: Axis, wd_axis: Axis) -> list[Point]:
    """Return all points of a grid around its centre, lr running slowest."""
    return [centre.moved(i, j) for i, j in product(lr_axis.offsets(), wd_axis.offsets())]


def neighbours(point: Point, lr_axis: Axis, wd_axis: Axis) -> list[Point]:
    """Return the neighbours that an optimum must beat: six on two free axes, two on one, none on none.

    With steps of one these are (2lr, wd) (lr, 2wd) (2lr, wd/2) (lr/2, 2wd) (lr, wd/2) (lr/2, wd); the diagonals
    (2lr, 2wd) and (lr/2, wd/2) are left out on purpose.
    """
    around = [(1, 0), (0, 1), (1, -1), (-1, 1), (0, -1), (-1, 0)]
    return [
        point.moved(i * lr_axis.step, j * wd_axis.step)
        for i, j in around
        if not (i and lr_axis.fixed) and not (j and wd_axis.fixed)
    ]


def parse_point(text: str, where: str) -> Point:
    """Parse `lr,wd`.

    Raises:
        InputError: it is not two numbers, lr positive and wd not negative.
    """
    try:
        lr, wd = map(parse_number, text.split(","))
    except ValueError:
        lr, wd = 0.0, 0.0
    if not (0 < lr < math.inf and 0 <= wd < math.inf):
        raise InputError(f"{where}: LR,WD is expected, such as 2^-6,0.5, got {text!r}")
    return Point(lr, wd)


def _in_range(value: float) -> float:
    """Refuse what steps and maps would push out of the range of floats."""
    if value and not 1e-30 <= value <= 1e30:
        raise ValueError(f"a number between 1e-30 and 1e30 is expected, got {value!r}")
    return value


def _read(value: object) -> object:
    """Read a power of two as tables print it; what is none is left to the message for what is no number."""
    with suppress(ValueError):
        return parse_number(value) if isinstance(value, str) and value.startswith("2^") else value
    return value


class Centre(StrictModel):
    """Where a search starts, in the coordinates of its strategy."""

    lr: Annotated[PositiveFloat, BeforeValidator(_read), AfterValidator(_in_range)]
    wd: Annotated[NonNegative, BeforeValidator(_read), AfterValidator(_in_range)]


Centres = dict[str, Centre]


ANYWHERE = Centre(lr=1e-3, wd=0.0)
"""A start for whoever asks a grid about its data or its memory, which depend on none."""
