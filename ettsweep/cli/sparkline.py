"""Curves of a run in one line of a terminal."""

import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ettsweep.cli.course import BARS

ASCII_BARS = ".:-=+*#@"
FALLS = 4.0
"""A curve whose largest value is this many times its smallest is drawn by its logarithm."""


class Curve(NamedTuple):
    """A metric of a run: steps, and its value at each; None where it was not finite."""

    steps: Sequence[int]
    values: Sequence[float | None]

    @property
    def known(self) -> list[tuple[int, float]]:
        """The steps at which it has a value."""
        return [(step, value) for step, value in zip(self.steps, self.values, strict=True) if value is not None]


class Axis(NamedTuple):
    """Steps 1 to `last`, drawn in so many columns."""

    last: int
    columns: int

    def column(self, step: int) -> int:
        """Return the column that a step is in."""
        return (min(max(step, 1), self.last) - 1) * self.columns // self.last


def axis(last: int, width: int) -> Axis:
    """Return the axis of a run's first steps: a column for each, or as many as there is room for."""
    return Axis(last, max(1, min(last, width)))


def sparkline(curve: Curve, along: Axis, hold: bool, blocks: bool) -> str:
    """Return a bar for each column: the mean there; nothing where there is no value.

    With `hold`, a value stands until the next one, as that of an evaluation does. Without `blocks`, signs of ASCII
    stand for them.
    """
    found: dict[int, list[float]] = {}
    for step, value in curve.known:
        found.setdefault(along.column(step), []).append(value)
    heights = [_mean(found[column]) if column in found else None for column in range(along.columns)]
    if hold:
        for column in range(1, along.columns):
            heights[column] = heights[column - 1] if heights[column] is None else heights[column]
    if is_log(curve):
        heights = [height if height is None else math.log(height) for height in heights]
    known = [height for height in heights if height is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    bars = BARS if blocks else ASCII_BARS
    return "".join(" " if height is None else bars[_level(height, low, high, len(bars))] for height in heights)


def is_log(curve: Curve) -> bool:
    """Say whether a curve is drawn by its logarithm: it is positive, and goes over orders."""
    values = [value for _, value in curve.known]
    return bool(values) and min(values) > 0 and max(values) / FALLS >= min(values)


def marks(signs: Mapping[int, str], along: Axis) -> str:
    """Return a line below a curve, with a sign in the column of each step that has one; the last one counts."""
    line = [" "] * along.columns
    for step, sign in sorted(signs.items()):
        line[along.column(step)] = sign
    return "".join(line).rstrip()


def has_blocks() -> bool:
    """Say whether blocks can be printed: the output has them, and nobody has asked for the plain locale.

    Python makes UTF-8 of a LANG=C, and sets LC_CTYPE then.
    """
    try:
        BARS.encode(sys.stdout.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    by_python = os.environ.get("LC_CTYPE") == "C.UTF-8"
    names = ("LC_ALL", "LANG") if by_python else ("LC_ALL", "LC_CTYPE", "LANG")
    return next(filter(None, map(os.environ.get, names)), "") not in ("C", "POSIX")


def _mean(values: Sequence[float]) -> float:
    return math.fsum(value / len(values) for value in values)


def _level(height: float, low: float, high: float, levels: int) -> int:
    """Return which of some bars stands for a height; the lowest where all are alike."""
    if not high > low:
        return 0
    return round((levels - 1) * (height / (high - low) - low / (high - low)))
