"""The lattice of points (lr, wd) in log2 steps: axes, expansion around a centre, the six neighbours of a point."""

import bisect
import functools
import itertools
import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ettsweep.errors import InputError
from ettsweep.powers import LOG2_DIGITS, parse_number
from ettsweep.runs.point import MAPPED_TOLERANCE, Point
from ettsweep.schema import NonNegative, PositiveFloat, Source, StrictModel

PRINTED_TOLERANCE = 8e-3
"""Distance in log2 within which a typed value counts as a lattice value: tables have three digits."""


POINT_OPTIONS = Source("run", {("lr",): "--lr", ("wd",): "--wd", ("seed",): "--seed"})
"""Source of a point and a seed from the command line."""


MAX_OFFSET = 64
"""Largest offset from a centre in log2; beyond it lr and wd could leave the range of floats."""


Offset = Annotated[float, Field(ge=-MAX_OFFSET, le=MAX_OFFSET)]


MAX_UNEVEN = 0.25
"""Share of a step, in log, by which listed values may be off even steps and still count as even."""

LIST_DIGITS = 12
"""Significant digits of values computed beside listed ones: else rounding would show."""


class Axis(StrictModel):
    """The values of lr or wd of a lattice: even steps in log2 around the centre, or a list.

    Steps are counted along the axis: on a list, from each value to the next. Beyond its ends, a list continues its own
    pattern, as 30 follows 1, 3, 10; or else its mean ratio, with two digits.

    Attributes:
        low, high: the range, as log2 offsets from the centre: multiples of `step`, or the ends of a list.
        step: of the lattice in log2; of a list, the mean step.
        fixed: whether the centre is the only value.
        values: a list, ascending; the centre is its middle, or the lower one of two.
        factor: by which a map between strategies has scaled a list.
    """

    low: Offset = 0.0
    high: Offset = 0.0
    step: Annotated[float, Field(ge=2**-10, le=64)] = 1.0
    fixed: bool = False
    values: Annotated[tuple[PositiveFloat, ...], Field(strict=False)] = ()
    factor: PositiveFloat = 1.0

    @classmethod
    def of(cls, values: Sequence[float]) -> "Axis":
        """Return the axis of at least two positive values, ascending."""
        return cls(**cls.fields_of(values))

    @staticmethod
    def fields_of(values: Sequence[float]) -> dict[str, Any]:
        """Return the fields of the axis of at least two positive values."""
        logs = [math.log2(value) for value in values]
        middle = logs[(len(logs) - 1) // 2]
        step = (logs[-1] - logs[0]) / (len(logs) - 1)
        return {"low": logs[0] - middle, "high": logs[-1] - middle, "step": step, "values": tuple(values)}

    @model_validator(mode="after")
    def _not_empty(self) -> "Axis":
        if self.low > self.high:
            raise ValueError(f"empty range: {self.low:g} is above {self.high:g}")
        if any(high <= low for low, high in itertools.pairwise(self.values)):
            raise ValueError(f"different values in ascending order are expected, got {list(self.values)}")
        if not self.fixed and not self.offsets():
            raise ValueError(f"no multiple of the step {self.step:g} between {self.low:g} and {self.high:g}")
        return self

    @property
    def centre(self) -> float | None:
        """The centre that a list states; None for even steps."""
        return self._listed(self._middle) if self.values else None

    @property
    def _middle(self) -> int:
        """Index of a list's centre."""
        return (len(self.values) - 1) // 2

    def around(self, centre: float) -> "Axis":
        """Return the axis with its list scaled to another centre, as by maps between strategies."""
        if not self.values or not centre or self.centre == centre:
            return self
        return self.model_copy(update={"factor": centre / self.values[self._middle]})

    def offsets(self) -> list[float]:
        """Return the offsets of all values from the centre in log2, ascending; multiples of an even step."""
        if self.fixed:
            return [0.0]
        if self.values:
            return [math.log2(value / self.values[self._middle]) for value in self.values]
        # Bounds need not be multiples of the step here, unlike in grid files.
        first, last = math.ceil(self.steps(self.low)), math.floor(self.steps(self.high))
        return [i * self.step for i in range(first, last + 1)]

    def grid(self, centre: float) -> list[float]:
        """Return all values around a centre, ascending."""
        if self.values:
            scaled = self.around(centre)
            return [scaled._listed(k) for k in range(len(self.values))]
        return [centre * 2.0**offset for offset in self.offsets()]

    def steps(self, distance: float) -> float:
        """Return a distance in log2 as a number of even steps, rounded to the digits that ids use."""
        return round(distance / self.step, LOG2_DIGITS)  # 0.3 / 0.1 is 2.9999999999999996

    def shifted(self, value: float, steps: float) -> float:
        """Return the value some steps above another; between two values of a list, interpolated."""
        if not self.values:
            return float(value * 2.0 ** (steps * self.step))
        at = self._index(value) + steps
        if at == round(at):
            return self._listed(round(at))
        low, high = self._listed(math.floor(at)), self._listed(math.floor(at) + 1)
        return float(low * (high / low) ** (at - math.floor(at)))

    def distance(self, value: float, origin: float) -> float:
        """Return how many steps a value is above another one."""
        if self.values:
            return self._index(value) - self._index(origin)
        return (math.log2(value) - math.log2(origin)) / self.step

    @property
    def is_even(self) -> bool:
        """Whether steps count as equally long: a list may be off by a quarter of a step."""
        logs = [math.log2(value) for value in self.values]
        return all(abs((log - logs[0]) / self.step - k) <= MAX_UNEVEN for k, log in enumerate(logs))

    def shares_lattice(self, other: "Axis") -> bool:
        """Whether all values of either axis are values of the other, around one centre."""
        if not (self.values and other.values):
            return not (self.values or other.values) and self.step == other.step
        pairs = ((self, value) for value in other.values), ((other, value) for value in self.values)
        return all(axis.is_on_lattice(axis.values[0], value) for axis, value in itertools.chain(*pairs))

    def nearest(self, centre: float, value: float) -> float:
        """Return the lattice value nearest to `value`, whole steps from `centre`; the centre if the axis is fixed."""
        # A wd of 0 has no log2, so no steps lead to it or from it.
        if self.fixed or not centre or not value:
            return centre
        return float(self.shifted(centre, round(self.distance(value, centre))))

    def is_on_lattice(self, centre: float, value: float, tolerance: float = MAPPED_TOLERANCE) -> bool:
        """`True` if `value` lies whole steps from `centre`, up to `tolerance` in log2."""
        nearest = self.nearest(centre, value)
        return value == nearest or (value > 0 and nearest > 0 and abs(math.log2(value / nearest)) <= tolerance)

    def _listed(self, index: int) -> float:
        """Return the value of a list at an index, which may lie beyond its ends."""
        value = _listed(self.values, index)
        return value if self.factor == 1 else _rounded(value * self.factor)

    def _index(self, value: float) -> float:
        """Return the index of a value, a whole number if it is listed or follows the list."""
        return _index(self.values, value / self.factor)


INDEX_TOLERANCE = 1e-6
"""Share of a step by which a value may be off a listed one and still be it: maps between strategies round."""

DECADES = ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0))
"""Patterns of lists that repeat in each decade."""


def _listed(values: tuple[float, ...], index: int) -> float:
    last = len(values) - 1
    if 0 <= index <= last:
        return values[index]
    ratios, ratio = [high / low for low, high in itertools.pairwise(values)], (values[-1] / values[0]) ** (1 / last)
    is_geometric = max(ratios) <= min(ratios) * (1 + INDEX_TOLERANCE)
    if not (is_geometric and last > 1) and (decades := _decades(values)):
        pattern, first = decades
        turn, place = divmod(first + index, len(pattern))
        return _rounded(pattern[place] * 10.0**turn)
    if not is_geometric:
        ratio = 1 + float(f"{ratio - 1:.2g}")
    return _rounded(values[-1] * ratio ** (index - last) if index > last else values[0] * ratio**index)


@functools.lru_cache(maxsize=256)
def _decades(values: tuple[float, ...]) -> tuple[tuple[float, ...], int] | None:
    """Return a list's pattern of decades, and its first value's number in it; None if it has none."""
    exponent = math.floor(math.log10(values[0]) + INDEX_TOLERANCE)
    for pattern in DECADES:
        if len(values) < len(pattern):
            continue  # 1, 2 may as well be doubled
        for place, mantissa in enumerate(pattern):
            first = exponent * len(pattern) + place
            turns = (divmod(first + k, len(pattern)) for k in range(len(values)))
            expected = [pattern[at] * 10.0**turn for turn, at in turns]
            if math.isclose(values[0], mantissa * 10.0**exponent, rel_tol=1e-9) and all(
                math.isclose(a, b, rel_tol=1e-9) for a, b in zip(values, expected, strict=True)
            ):
                return pattern, first
    return None


# Cached: each run of a study is looked up in each round.
@functools.lru_cache(maxsize=4096)
def _index(values: tuple[float, ...], value: float) -> float:
    k = bisect.bisect_right(values, value) - 1
    while k >= len(values) - 1 and _listed(values, k + 1) <= value:
        k += 1
    while k < 0 and _listed(values, k) > value:
        k -= 1
    low, high = _listed(values, k), _listed(values, k + 1)
    share = math.log(value / low) / math.log(high / low)
    return float(round(k + share)) if abs(share - round(share)) < INDEX_TOLERANCE else k + share


def _rounded(value: float) -> float:
    return float(f"{value:.{LIST_DIGITS}g}")


def expand(centre: Point, lr_axis: Axis, wd_axis: Axis) -> list[Point]:
    """Return all points of a grid around its centre; lr is the outer loop."""
    wds = wd_axis.grid(centre.wd)
    return [Point(lr, wd, centre.has_wd) for lr in lr_axis.grid(centre.lr) for wd in wds]


def neighbours(point: Point, lr_axis: Axis, wd_axis: Axis) -> list[Point]:
    """Return the neighbours that an optimum must beat: six on two free axes, two on one, none if both are fixed.

    With steps of one these are (2lr, wd) (lr, 2wd) (2lr, wd/2) (lr/2, 2wd) (lr, wd/2) (lr/2, wd): a hexagon.
    The diagonals (2lr, 2wd) and (lr/2, wd/2) are left out on purpose.
    """
    offsets = [(1, 0), (0, 1), (1, -1), (-1, 1), (0, -1), (-1, 0)]
    return [
        Point(lr_axis.shifted(point.lr, i), wd_axis.shifted(point.wd, j), point.has_wd)
        for i, j in offsets
        if not (i and lr_axis.fixed) and not (j and wd_axis.fixed)
    ]


def parse_point(text: str, option: str) -> Point:
    """Parse `lr,wd`, or `lr` alone, the value of `option`.

    Raises:
        InputError: it is not two numbers, lr positive and wd not negative.
    """
    try:
        lr, wd = map(parse_number, text.split(",") if "," in text else (text, "0"))
    except ValueError:
        lr, wd = 0.0, 0.0  # refused below
    if not (0 < lr < math.inf and 0 <= wd < math.inf):
        raise InputError(f"{option}: LR,WD is expected, such as 2^-6,0.5, got {text!r}")
    return Point(lr, wd, "," in text)


def _in_range(value: float) -> float:
    """Refuse values that steps or maps could push out of the range of floats."""
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
"""Any centre, for commands that only need a grid's data or memory use."""
