"""Points (lr, wd): where a run lies, to the digits that its id uses."""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from ettsweep.powers import format_power, log2, power_and_decimal

MAPPED_TOLERANCE = 1e-6
"""Distance in log2 within which a value counts as a lattice value: maps between strategies round in the last bits."""


@dataclass(frozen=True)
class Point:
    """A position on the lattice; wd may be 0 if its axis is fixed.

    Points are equal, and have one hash, if their log2 agree to the digits that run ids use.

    Attributes:
        has_wd: whether the run has a wd; else none is shown.
    """

    # Only `key` is compared: floats that differ in the last bits have one run id.
    lr: float = field(compare=False)
    wd: float = field(compare=False)
    has_wd: bool = field(default=True, compare=False, repr=False)
    key: tuple[float | None, float | None] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # A frozen dataclass sets a derived field so.
        object.__setattr__(self, "key", (log2(self.lr), log2(self.wd)))

    def __iter__(self) -> Iterator[float]:
        return iter((self.lr, self.wd))

    def __str__(self) -> str:
        return self.text()

    def text(self, digits: int | None = None) -> str:
        """Return the point as powers of two, or decimals with some digits: (2^-6, 0.3), or lr 2^-6 without a wd."""
        lr = format_power(self.lr, digits)
        return f"({lr}, {format_power(self.wd, digits)})" if self.has_wd else f"lr {lr}"

    @property
    def words(self) -> str:
        """The point for people: lr 2^-6 (0.015625), wd 0.3."""
        return f"lr {power_and_decimal(self.lr)}" + (f", wd {power_and_decimal(self.wd)}" if self.has_wd else "")

    @property
    def shown_wd(self) -> float | None:
        """The wd for tables and files; None without one."""
        return self.wd if self.has_wd else None

    def to_json(self) -> dict[str, float | None]:
        """Return lr and wd as plain data."""
        return {"lr": self.lr, "wd": self.shown_wd}

    def log2(self) -> tuple[float, float]:
        """Return (log2 lr, log2 wd); -inf for wd 0."""
        return math.log2(self.lr), math.log2(self.wd) if self.wd > 0 else -math.inf

    def moved(self, lr_steps: float, wd_steps: float) -> "Point":
        """Return the point with lr * 2**lr_steps and wd * 2**wd_steps."""
        return Point(self.lr * 2.0**lr_steps, self.wd * 2.0**wd_steps, self.has_wd)

    def distance_to(self, other: "Point") -> float:
        """Return the Chebyshev distance to another point in log2."""
        # Equal values first: for wd 0 on both sides the difference is inf - inf.
        return max(0.0 if a == b else abs(a - b) for a, b in zip(self.log2(), other.log2(), strict=True))


def from_the_middle(points: Collection[Point]) -> list[Point]:
    """Return points in the order of their distance, in log2, from the middle of the region that they span."""
    corners = [(min(values), max(values)) for values in zip(*(point.log2() for point in points), strict=True)]

    def distance(point: Point) -> float:
        # A wd of 0 is that of all points.
        axes = zip(point.log2(), corners, strict=True)
        return max(abs(2 * at - low - high) if low < high else 0.0 for at, (low, high) in axes)

    return sorted(points, key=distance)


def snap_point(point: Point, candidates: Collection[Point], tolerance: float = MAPPED_TOLERANCE) -> Point:
    """Return the nearest of `candidates` if its distance in log2 is at most `tolerance`, else the point itself."""
    if point in candidates:
        return point
    nearest = min(candidates, key=point.distance_to, default=point)
    return nearest if point.distance_to(nearest) <= tolerance else point
