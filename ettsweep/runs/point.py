"""Points: where a run lies on the axes of a sweep, to the digits that its id uses."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ettsweep.powers import axis_text, log2, power_and_decimal

MAPPED_TOLERANCE = 1e-6
"""Distance in log2 within which a value counts as a lattice value: maps between strategies round in the last bits."""


@dataclass(frozen=True)
class Point:
    """The values of one or two axes, by name, such as lr and wd; none is negative.

    Points of the same axes are equal, and have one hash, if their log2 agree to the digits that run ids use.
    """

    # Only `key` is compared: floats that differ in the last bits have one run id, so they must be one point.
    values: Mapping[str, float] = field(compare=False)
    key: tuple[float | None, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # The dataclass is frozen; this is how one sets a derived field. The order of the axes is that of a sweep.
        object.__setattr__(self, "key", tuple(log2(self.values[name]) for name in sorted(self.values)))

    @classmethod
    def of(cls, **values: float) -> "Point":
        """Return the point with these values, such as `Point.of(lr=0.01, wd=0.1)`."""
        return cls(values)

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def __iter__(self) -> Iterator[float]:
        return iter(self.values.values())

    def __str__(self) -> str:
        return self.text()

    def text(self, digits: int | None = None) -> str:
        """Return the point with powers of two, or decimals with some digits: (2^-6, 0.3), or lr 2^-6 on one axis."""
        texts = [axis_text(name, value, digits) for name, value in self.values.items()]
        return f"({', '.join(texts)})" if len(texts) > 1 else f"{next(iter(self.values))} {texts[0]}"

    @property
    def words(self) -> str:
        """The point for people: lr 2^-6 (0.015625), wd 0.3."""
        return ", ".join(f"{name} {power_and_decimal(value, name)}" for name, value in self.values.items())

    def at(self, **values: float) -> "Point":
        """Return the point with other values."""
        return Point({**self.values, **values})

    def distance_to(self, other: "Point") -> float:
        """Return the Chebyshev distance to another point in log2."""
        # Equal values first: for 0 on both sides the difference is inf - inf.
        pairs = ((_log2(value), _log2(other[name])) for name, value in self.values.items())
        return max(0.0 if a == b else abs(a - b) for a, b in pairs)


def axis_cells(point: Point | None) -> dict[str, float | None]:
    """Return the values of a point by column of a table: lr and wd, or the axes of a point that has others."""
    usual: dict[str, float | None] = {"lr": None, "wd": None}
    values = point.values if point else {}
    return {**usual, **values} if values.keys() <= usual.keys() else {**values}


def axis_names(points: Iterable[Point | None]) -> list[str]:
    """Return the columns of the values of points: lr, wd and any other."""
    return list(dict.fromkeys(name for cells in map(axis_cells, [None, *points]) for name in cells))


def from_the_middle(points: Collection[Point]) -> list[Point]:
    """Return points from the middle outwards, counting the values that they have along each axis.

    They may be of several sweeps with different axes.
    """
    distances = dict.fromkeys(points, 0.0)
    for name in dict.fromkeys(name for point in points for name in point.values):
        along = [point for point in points if name in point.values]
        ranks = {value: rank for rank, value in enumerate(sorted({point[name] for point in along}))}
        for point in along:
            distances[point] = max(distances[point], abs(ranks[point[name]] - (len(ranks) - 1) / 2))
    return sorted(points, key=distances.__getitem__)


def _log2(value: float) -> float:
    return math.log2(value) if value > 0 else -math.inf


def snap_point(point: Point, candidates: Collection[Point], tolerance: float = MAPPED_TOLERANCE) -> Point:
    """Return the nearest of `candidates` if its distance in log2 is at most `tolerance`, else the point itself."""
    if point in candidates:
        return point
    nearest = min(candidates, key=point.distance_to, default=point)
    return nearest if point.distance_to(nearest) <= tolerance else point
