"""Powers of the width as they are fitted to measurements, and whether they agree with those that are implied."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from ettsweep.theory.recursion import Array

APART = 0.25
"""Half of a half power, which is what a forgotten sqrt(n) makes. Differences of a quarter show in factors and stds."""

ENOUGH = APART / 2
"""The largest error with which a power is called ok."""

ERRORS = 3
"""Standard errors by which a power must miss as well before it is called off."""


@dataclass(frozen=True)
class Exponent:
    """The p of a fitted n^p, with its standard error."""

    value: float
    error: float


def signed(power: float) -> str:
    """Return a power as people read it, without -0.00."""
    return f"{round(power, 2) + 0.0:+.2f}"


class ExponentTest(StrEnum):
    """Whether what was measured is what is implied."""

    OK = "ok"
    UNCLEAR = "unclear"
    OFF = "off"


def fit_power(widths: Sequence[int], values: Sequence[Sequence[float]], channels: Sequence[int]) -> Exponent | None:
    """Fit log(value) against log(width) by weighted least squares; None where a value is not positive and finite.

    The error of a point has two parts: the scatter over seeds, and 1/C of the value, because corrections to the leading
    order are of that size. Points that scatter around the line by more than their errors make the error of the power
    as much larger. At each of three or more widths there are values for each seed, and C.
    """
    table = [np.asarray(row, dtype=float) for row in values]
    if not all(np.isfinite(row).all() and (row > 0).all() for row in table):
        return None
    x, y = np.log(widths), np.log([row.mean() for row in table])
    scatter = relative_variances(table) / [len(row) for row in table]
    weights = 1 / (scatter + 1 / np.square(channels, dtype=float))
    centred = x - np.average(x, weights=weights)
    value = float((weights * centred * y).sum() / (weights * centred**2).sum())
    residuals = y - np.average(y, weights=weights) - value * centred
    excess = math.sqrt((weights * residuals**2).sum() / (len(x) - 2))
    return Exponent(value, max(1.0, excess) / math.sqrt((weights * centred**2).sum()))


def least_error(widths: Sequence[int], channels: Sequence[int]) -> float:
    """Return the error of a power that no number of seeds makes smaller: what 1/C at each width leaves."""
    power = fit_power(widths, [[1.0] for _ in widths], channels)
    assert power is not None
    return power.error


def relative_variances(table: Sequence[Array]) -> Array:
    """Return the squared relative standard deviation over seeds, at each width; 0 where it cannot be told.

    Half of it is the mean over widths: a few seeds may agree by chance.
    """
    variances = np.array([row.var(ddof=1) / row.mean() ** 2 if len(row) > 1 and row.mean() else 0.0 for row in table])
    result: Array = (variances + variances.mean()) / 2
    return result


def growth(widths: Sequence[int], values: Sequence[float]) -> float:
    """Return the power of a predicted value: the slope of a plain fit, exactly 0 for a constant."""
    x, y = np.log(widths), np.log(values)
    return float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())


def judge_power(power: Exponent | None, implied: float) -> ExponentTest:
    """Say whether a fitted power is the implied one.

    `ok` within a quarter, if the error is no more than half of that: a fault of half a power would not be missed. `off`
    beyond a quarter and three errors, and where there is no power since something vanished or blew up. Otherwise
    `unclear`.
    """
    if power is None:
        return ExponentTest.OFF
    miss = abs(power.value - implied)
    if miss > APART and miss > ERRORS * power.error:
        return ExponentTest.OFF
    return ExponentTest.OK if miss <= APART and power.error <= ENOUGH else ExponentTest.UNCLEAR


def worst(verdicts: Sequence[ExponentTest]) -> ExponentTest:
    """Return the verdict of a whole from those of its parts."""
    order = list(ExponentTest)
    return max(verdicts, key=order.index, default=ExponentTest.OK)
