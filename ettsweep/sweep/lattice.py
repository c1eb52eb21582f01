"""The lattice in (log2 lr, log2 wd): axes, points, and the six neighbours that an optimum must beat.

Points are compared by log2 within a tolerance, never by float equality: maps between strategies round.
"""

import math
from collections.abc import Iterator
from itertools import product
from typing import Annotated, Generic, NamedTuple, TypeVar

from pydantic import Field, model_validator

from ettsweep.errors import InputError
from ettsweep.schema import Frozen

TOLERANCE = 1e-6
"""Two points are one where both log2 coordinates agree within this."""


class Point(NamedTuple):
    """A position on the lattice; wd may be 0 where its axis is fixed."""

    lr: float
    wd: float

    def log2(self) -> tuple[float, float]:
        """Return its coordinates; -inf stands for wd 0."""
        return math.log2(self.lr), math.log2(self.wd) if self.wd > 0 else -math.inf

    def moved(self, lr_steps: float, wd_steps: float) -> "Point":
        """Return the point that many powers of two away."""
        return Point(self.lr * 2.0**lr_steps, self.wd * 2.0**wd_steps)


Offset = Annotated[float, Field(ge=-64, le=64)]  # beyond, lr and wd leave the range of floats


class Axis(Frozen):
    """Log2 offsets from the centre: low, low + step, ... up to high; a fixed axis holds the centre alone."""

    low: Offset = 0.0
    high: Offset = 0.0
    step: Annotated[float, Field(ge=2**-10, le=64)] = 1.0
    fixed: bool = Field(default=False)

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
        first, last = math.ceil(self.low / self.step - 1e-9), math.floor(self.high / self.step + 1e-9)
        return [i * self.step for i in range(first, last + 1)]


def expand(centre: Point, lr_axis: Axis, wd_axis: Axis) -> list[Point]:
    """Return all points of a grid around its centre, lr running slowest."""
    return [centre.moved(i, j) for i, j in product(lr_axis.offsets(), wd_axis.offsets())]


def neighbours(point: Point, lr_axis: Axis, wd_axis: Axis) -> list[Point]:
    """Return the neighbours that an optimum must beat: six on two free axes, two on one, none on none.

    With steps of one these are (2lr, wd) (lr, 2wd) (2lr, wd/2) (lr/2, 2wd) (lr, wd/2) (lr/2, wd); the diagonals
    (2lr, 2wd) and (lr/2, wd/2) are left out on purpose.
    """
    around = [(1, 0), (0, 1), (1, -1), (-1, 1), (0, -1), (-1, 0)]
    steps = [
        (i * lr_axis.step, j * wd_axis.step)
        for i, j in around
        if not (i and lr_axis.fixed) and not (j and wd_axis.fixed)
    ]
    return [point.moved(i, j) for i, j in steps]


Value = TypeVar("Value")


class PointMap(Generic[Value]):
    """A dictionary from points to values that finds a point within the tolerance."""

    def __init__(self) -> None:
        self._cells: dict[tuple[int | None, int | None], tuple[Point, Value]] = {}

    def __setitem__(self, point: Point, value: Value) -> None:
        cell = self._find(point)
        self._cells[cell or _cell(point)] = (self._cells[cell][0] if cell else point, value)

    def __getitem__(self, point: Point) -> Value:
        cell = self._find(point)
        if cell is None:
            raise KeyError(point)
        return self._cells[cell][1]

    def get(self, point: Point) -> Value | None:
        """Return the value at a point, or None."""
        cell = self._find(point)
        return self._cells[cell][1] if cell is not None else None

    def __contains__(self, point: Point) -> bool:
        return self._find(point) is not None

    def __len__(self) -> int:
        return len(self._cells)

    def items(self) -> Iterator[tuple[Point, Value]]:
        """Return the points, as first seen, with their values."""
        return iter(self._cells.values())

    def _find(self, point: Point) -> tuple[int | None, int | None] | None:
        # Cells are as wide as the tolerance, so an equal point lies in the same one or in one beside it.
        lr, wd = _cell(point)
        for i, j in product((0, -1, 1), (0, -1, 1)):
            cell = (lr + i if lr is not None else None, wd + j if wd is not None else None)
            if cell in self._cells and same(self._cells[cell][0], point):
                return cell
        return None


def parse_point(text: str, where: str) -> Point:
    """Parse `lr,wd`.

    Raises:
        InputError: it is not two numbers, lr positive and wd not negative.
    """
    try:
        lr, wd = (float(part) for part in text.split(","))
    except ValueError:
        lr, wd = 0.0, 0.0
    if not (0 < lr < math.inf and 0 <= wd < math.inf):
        raise InputError(f"{where}: LR,WD is expected, such as 20,4e-5, got {text!r}")
    return Point(lr, wd)


def same(a: Point, b: Point) -> bool:
    """Say whether two points are one."""
    return all(x == y or abs(x - y) <= TOLERANCE for x, y in zip(a.log2(), b.log2(), strict=True))


def _cell(point: Point) -> tuple[int | None, int | None]:
    lr, wd = (None if math.isinf(x) else round(x / TOLERANCE) for x in point.log2())
    return lr, wd
