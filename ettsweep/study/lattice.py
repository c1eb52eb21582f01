"""The lattice of points: its axes, such as lr and wd, expansion around a centre, the six neighbours of a point."""

import bisect
import functools
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, FiniteFloat, model_validator

from ettsweep.errors import InputError
from ettsweep.powers import LOG2_DIGITS, parse_number
from ettsweep.runs.point import MAPPED_TOLERANCE, Point
from ettsweep.schema import NonNegative, PositiveFloat, Source, StrictModel

PRINTED_TOLERANCE = 8e-3
"""Distance in log2 within which a typed value counts as a lattice value: tables have three digits."""


POINT_OPTIONS = Source("run", {("lr",): "--lr", ("wd",): "--wd", ("seed",): "--seed"})
"""Source of a point and a seed from the command line."""


MAX_OFFSET = 64
"""Largest offset from a centre, and longest step, in log2; beyond it lr and wd could leave the range of floats."""


MAX_AXES = 2
"""Axes that are searched together; the neighbours of a point are those of a hexagon."""

MAX_STEPS = 1_000_000
"""Most steps of an even range: else a range of a linear axis could be endless."""

MAX_UNEVEN = 0.25
"""Share of a step, in log, by which listed values may be off even steps and still count as even."""

LEAST_STEP = 2**-10
"""Shortest step."""

LIST_DIGITS = 12
"""Significant digits of values computed beside listed ones: else rounding would show."""


class Axis(StrictModel):
    """The values of an axis of a lattice: even steps around the centre, or a list.

    Steps are counted along the axis: on a list, from each value to the next. Beyond its ends, a list continues its own
    pattern, as 30 follows 1, 3, 10; or else its mean step, with two digits.

    Attributes:
        low, high: the range, as offsets from the centre: multiples of `step`, or the ends of a list.
        step: of the lattice; of a list, the mean step. Steps and offsets are in log2 unless the scale is linear.
        fixed: whether the centre is the only value.
        values: a list, ascending; the centre is its middle, or the lower one of two.
        factor: by which a map between strategies has scaled a list.
        scale: whether steps multiply or add.
        whole: whether all values are whole numbers.
        zero: whether 0 is a level of its own, a step below the lowest of `values`.
        trade: how another axis is traded for this one: the `opposite` way, as less lr for more wd, or the `same`, as
            more lr for larger batches.
        least, most: limits of values, beyond which there are no neighbours.
    """

    low: FiniteFloat = 0.0
    high: FiniteFloat = 0.0
    step: PositiveFloat = 1.0
    fixed: bool = False
    values: Annotated[tuple[NonNegative, ...], Field(strict=False)] = ()
    factor: PositiveFloat = 1.0
    scale: Literal["log", "linear"] = "log"
    whole: bool = False
    zero: bool = False
    trade: Literal["opposite", "same"] = "opposite"
    least: FiniteFloat = 0.0
    most: FiniteFloat | None = None

    @classmethod
    def of(cls, values: Sequence[float], **fields: Any) -> "Axis":
        """Return the axis of at least two values, ascending."""
        return cls(**cls.fields_of(values, **fields))

    @staticmethod
    def fields_of(values: Sequence[float], **fields: Any) -> dict[str, Any]:
        """Return the fields of the axis of at least two values, the first of which may be 0."""
        is_linear = fields.get("scale") == "linear"
        listed = tuple(value for value in values if value or is_linear)
        to = float if is_linear else math.log2
        places = [to(value) for value in listed]
        middle, last = places[(len(listed) - 1) // 2], len(listed) - 1
        step = (places[-1] - places[0]) / last if last else 1.0
        ends = {"low": places[0] - middle, "high": places[-1] - middle, "step": step}
        return {**ends, "values": listed, "zero": len(listed) < len(values), **fields}

    @model_validator(mode="after")
    def _not_empty(self) -> "Axis":
        if self.scale == "log":
            for name, value in ("low", self.low), ("high", self.high), ("step", self.step):
                least = LEAST_STEP if name == "step" else -MAX_OFFSET
                if not least <= value <= MAX_OFFSET:
                    raise ValueError(f"{name}: a number from {least:g} to {MAX_OFFSET} is expected, got {value:g}")
            if self.values and not self.values[0]:
                raise ValueError("0 has no place on a log scale")
        if self.low > self.high:
            raise ValueError(f"empty range: {self.low:g} is above {self.high:g}")
        if not self.values and (self.high - self.low) / self.step > MAX_STEPS:
            raise ValueError(f"more than {MAX_STEPS:,} steps of {self.step:g} between {self.low:g} and {self.high:g}")
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

    def place(self, value: float) -> float:
        """Return where a value lies on a scale on which steps add: its log2, or itself if the scale is linear.

        A level of 0 lies a step below the lowest value.
        """
        if self.scale == "linear":
            return value
        return math.log2(value) if value or not self.zero else math.log2(self._listed(0)) - self.step

    def around(self, centre: float) -> "Axis":
        """Return the axis with its list scaled to another centre, as by maps between strategies."""
        if not self.values or not centre or self.centre == centre or self.scale == "linear":
            return self
        return self.model_copy(update={"factor": centre / self.values[self._middle]})

    def offsets(self) -> list[float]:
        """Return the offsets of all values but 0 from the centre, ascending; multiples of an even step."""
        if self.fixed:
            return [0.0]
        if self.values and self.scale == "log":
            return [math.log2(value / self.values[self._middle]) for value in self.values]
        if self.values:
            return [value - self.values[self._middle] for value in self.values]
        # Bounds need not be multiples of the step here, unlike in grid files.
        first, last = math.ceil(self.steps(self.low)), math.floor(self.steps(self.high))
        return [i * self.step for i in range(first, last + 1)]

    def grid(self, centre: float) -> list[float]:
        """Return all values around a centre, ascending."""
        if self.values:
            scaled = self.around(centre)
            return [0.0] * self.zero + [scaled._listed(k) for k in range(len(self.values))]
        return [self._moved(centre, offset) for offset in self.offsets()]

    def _moved(self, value: float, offset: float) -> float:
        moved = value * 2.0**offset if self.scale == "log" else _sum(value, offset)
        return round(moved) if self.whole else float(moved)

    def steps(self, distance: float) -> float:
        """Return a distance between places as a number of even steps, rounded to the digits that ids use."""
        return round(distance / self.step, LOG2_DIGITS)  # 0.3 / 0.1 is 2.9999999999999996

    def shifted(self, value: float, steps: float) -> float:
        """Return the value some steps above another; between two values of a list, interpolated."""
        if not self.values:
            return self._moved(value, steps * self.step)
        at = self._index(value) + steps
        if at == round(at):
            return self._listed(round(at))
        low, high = self._listed(math.floor(at)), self._listed(math.floor(at) + 1)
        share = at - math.floor(at)
        return float(low * (high / low) ** share if self.scale == "log" and low else low + (high - low) * share)

    def reaches(self, value: float, steps: int) -> bool:
        """`True` if there is a value that many steps above another: none is below 0."""
        if not steps or (self.zero and self._index(value) + steps <= -1):
            return not steps or self._index(value) + steps == -1
        moved = self.shifted(value, steps)
        least = max(self.least, 1 if self.whole and self.scale == "log" else 0)
        # A whole number that is halved may end as itself.
        return least <= moved <= (math.inf if self.most is None else self.most) and moved != value

    def distance(self, value: float, origin: float) -> float:
        """Return how many steps a value is above another one."""
        if self.values:
            return self._index(value) - self._index(origin)
        return (self.place(value) - self.place(origin)) / self.step

    @property
    def has_zero(self) -> bool:
        """Whether 0 may be whole steps from other values."""
        return self.zero or self.scale == "linear"

    @property
    def is_even(self) -> bool:
        """Whether steps count as equally long: a list may be off by a quarter of a step."""
        places = [self.place(value) for value in self.values]
        return not self.zero and all(abs((at - places[0]) / self.step - k) <= MAX_UNEVEN for k, at in enumerate(places))

    def shares_lattice(self, other: "Axis") -> bool:
        """Whether all values of either axis are values of the other, around one centre."""
        if self.scale != other.scale:
            return False
        if not (self.values and other.values):
            return not (self.values or other.values) and self.step == other.step
        pairs = ((self, value) for value in other.values), ((other, value) for value in self.values)
        return all(axis.is_on_lattice(axis.values[0], value) for axis, value in itertools.chain(*pairs))

    def nearest(self, centre: float, value: float) -> float:
        """Return the lattice value nearest to `value`, whole steps from `centre`; the centre if the axis is fixed."""
        # No steps lead to 0 or from it, unless it is a level.
        if self.fixed or not (self.has_zero or (centre and value)):
            return centre
        return float(self.shifted(centre, round(self.distance(value, centre))))

    def is_on_lattice(self, centre: float, value: float, tolerance: float = MAPPED_TOLERANCE) -> bool:
        """`True` if `value` lies whole steps from `centre`, up to `tolerance` in log2, or of a step if linear."""
        nearest = self.nearest(centre, value)
        if self.scale == "linear":
            return abs(value - nearest) <= tolerance * self.step
        return value == nearest or (value > 0 and nearest > 0 and abs(math.log2(value / nearest)) <= tolerance)

    def _listed(self, index: int) -> float:
        """Return the value of a list at an index, which may lie beyond its ends."""
        if self.zero and index < 0:
            return 0.0
        value = _listed(self.values, index, self.scale)
        if self.whole:
            return round(value)
        return value if self.factor == 1 else _rounded(value * self.factor)

    def _index(self, value: float) -> float:
        """Return the index of a value, a whole number if it is listed or follows the list."""
        if self.zero and not value:
            return -1.0
        index = _index(self.values, value / self.factor, self.scale)
        # Beyond its ends a list of whole numbers is rounded.
        return float(round(index)) if self.whole and self._listed(round(index)) == value else index


INDEX_TOLERANCE = 1e-6
"""Share of a step by which a value may be off a listed one and still be it: maps between strategies round."""

DECADES = ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0))
"""Patterns of lists that repeat in each decade."""


def _listed(values: tuple[float, ...], index: int, scale: str) -> float:
    last = len(values) - 1
    if 0 <= index <= last:
        return values[index]
    if scale == "linear":
        step = float(f"{(values[-1] - values[0]) / last:.2g}")
        return _sum(values[-1], step * (index - last)) if index > last else _sum(values[0], step * index)
    if not last:
        return _rounded(values[0] * 2.0**index)
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
def _index(values: tuple[float, ...], value: float, scale: str) -> float:
    if scale == "linear" and not values[0] <= value < values[-1]:
        first, k = _listed(values, -1, scale), 0 if value < values[0] else len(values) - 1
        index = k + (value - values[k]) / (values[0] - first)
        return float(round(index)) if abs(index - round(index)) < INDEX_TOLERANCE else index
    k = bisect.bisect_right(values, value) - 1
    while k >= len(values) - 1 and _listed(values, k + 1, scale) <= value:
        k += 1
    while k < 0 and _listed(values, k, scale) > value:
        k -= 1
    low, high = _listed(values, k, scale), _listed(values, k + 1, scale)
    share = (value - low) / (high - low) if scale == "linear" else math.log(value / low) / math.log(high / low)
    return float(round(k + share)) if abs(share - round(share)) < INDEX_TOLERANCE else k + share


def _sum(value: float, offset: float) -> float:
    """Return a sum without what rounding leaves, such as 0 of 0.3 - 3 * 0.1."""
    total = value + offset
    return 0.0 if abs(total) < abs(value) * 10.0**-LIST_DIGITS else _rounded(total)


def _rounded(value: float) -> float:
    return float(f"{value:.{LIST_DIGITS}g}")


EDGE_AXIS = "lr"
"""The axis that has an edge of stability."""

Axes = Mapping[str, Axis]
"""One or two axes by name, such as lr and wd; the first is the outer loop of a grid."""


def free_axes(axes: Axes) -> dict[str, Axis]:
    """Return the axes that are not fixed."""
    return {name: axis for name, axis in axes.items() if not axis.fixed}


def expand(centre: Point, axes: Axes) -> list[Point]:
    """Return all points of a grid around its centre."""
    grids = (axis.grid(centre[name]) for name, axis in axes.items())
    return [Point(dict(zip(axes, values, strict=True))) for values in itertools.product(*grids)]


def shifted(point: Point, axes: Axes, steps: Mapping[str, float]) -> Point:
    """Return the point that many steps along the axes named."""
    return point.at(**{name: axes[name].shifted(point[name], number) for name, number in steps.items() if number})


def steps_between(point: Point, other: Point, axes: Axes) -> float:
    """Return the Chebyshev distance between points in steps along the free axes."""
    moves = (axis.distance(point[name], other[name]) for name, axis in free_axes(axes).items())
    return max(map(abs, moves), default=0.0)


def neighbours(point: Point, axes: Axes) -> list[Point]:
    """Return the neighbours that an optimum must beat: six on two free axes, two on one, none if both are fixed.

    With steps of one these are (2lr, wd) (lr, 2wd) (2lr, wd/2) (lr/2, 2wd) (lr, wd/2) (lr/2, wd): a hexagon.
    The diagonals (2lr, 2wd) and (lr/2, wd/2) are left out on purpose; where axes are traded the same way, the others.
    """
    free = free_axes(axes)
    diagonal = 1 if is_traded_the_same_way(axes) else -1
    hexagon = [(1, 0), (0, 1), (1, diagonal), (-1, -diagonal), (0, -1), (-1, 0)]
    offsets = hexagon if len(free) > 1 else [(1,), (-1,)]
    moves = [dict(zip(free, each, strict=True)) for each in offsets if free]
    return [
        shifted(point, axes, move)
        for move in moves
        if all(axes[name].reaches(point[name], steps) for name, steps in move.items())
    ]


def is_traded_the_same_way(axes: Axes) -> bool:
    """`True` if the diagonal neighbours have more, or less, along both axes."""
    return any(axis.trade == "same" for axis in axes.values())


def parse_point(text: str, option: str, centre: Point, free: Collection[str]) -> Point:
    """Parse a point, the value of `option`: `lr=0.02,bs=256`, or the values alone in the order of the axes.

    Args:
        text: the value; fixed axes may be left out.
        option: its name, for messages.
        centre: of the lattice.
        free: names of its free axes.

    Raises:
        InputError: an axis is missing or unknown, or a value is no number of at least 0.
    """
    parts = [part.strip() for part in text.split(",")]
    names = list(centre.values) if len(parts) == len(centre.values) else list(free)
    stated = dict[str, str]()
    for part, name in zip(parts, names, strict=False):
        key, equals, value = part.partition("=")
        stated |= {key.strip(): value} if equals else {name: part}
    values = dict[str, float]()
    for name in names if len(parts) == len(names) else ():
        try:
            number = parse_number(stated.get(name, ""))
        except ValueError:
            break
        if not (0 <= number < math.inf and (number or name != EDGE_AXIS)):
            break
        values[name] = number
    if len(values) < max(1, len(names)):
        every = list(centre.values)
        example = ",".join(f"{name}={EXAMPLES.get(name, f'{centre[name]:g}')}" for name in every)
        raise InputError(f"{option}: {','.join(every)} is expected, such as {example}, got {text!r}")
    return centre.at(**values)


EXAMPLES = {"lr": "2^-6", "wd": "0.5"}
"""Values of axes in messages."""


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

AxisNumber = (
    Annotated[int, Field(ge=0)] | Annotated[NonNegative, BeforeValidator(_parse_power), AfterValidator(_in_range)]
)
"""A value of an axis; whole numbers stay such."""


PLACEHOLDER_CENTRE = Centre(lr=1e-3, wd=0.0)
"""Any centre, for commands that only need a grid's data or memory use."""
