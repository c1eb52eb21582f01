"""Fit powers of the width to measurements, and test whether they agree with the implied powers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from ettsweep.theory.recursion import Array

POWER_TOLERANCE = 0.25
"""Largest difference from the implied power that counts as ok: half of that of a forgotten sqrt(n)."""

MAX_POWER_ERROR = POWER_TOLERANCE / 2
"""Largest standard error with which a power can be called ok."""

POWER_ERRORS = 3
"""Standard errors by which a power must also differ before it is called off."""


@dataclass(frozen=True)
class Exponent:
    """Fitted p of n^p, with its standard error."""

    value: float
    error: float


def format_exponent(power: float) -> str:
    """Format a power with sign and two digits: `+0.50`, and `+0.00` rather than `-0.00`."""
    # Adding 0.0 turns -0.0 into 0.0.
    return f"{round(power, 2) + 0.0:+.2f}"


class ExponentTest(StrEnum):
    """Verdict on a measured quantity, from best to worst; `worst_verdict` relies on the order."""

    OK = "ok"
    UNCLEAR = "unclear"
    OFF = "off"


def fit_power(widths: Sequence[int], values: Sequence[Sequence[float]], channels: Sequence[int]) -> Exponent | None:
    """Fit log(value) against log(width) by weighted least squares.

    The error of a point has two parts: the scatter over seeds, and 1/C of the value, since corrections to leading order
    have that size. If residuals exceed the errors of the points, the error of the power is scaled up accordingly (by
    the square root of the reduced chi-squared).

    Args:
        widths: three or more.
        values: for each width, one value per seed.
        channels: C at each width.

    Returns:
        The power, or None if a value is not positive and finite.
    """
    table = [np.asarray(row, dtype=float) for row in values]
    if not all(np.isfinite(row).all() and (row > 0).all() for row in table):
        return None
    x, y = np.log(widths), np.log([row.mean() for row in table])
    scatter = relative_variances(table) / [len(row) for row in table]
    # Variances of log(value): errors of a logarithm are relative errors.
    weights = 1 / (scatter + 1 / np.square(channels, dtype=float))
    centred = x - np.average(x, weights=weights)
    value = float((weights * centred * y).sum() / (weights * centred**2).sum())
    residuals = y - np.average(y, weights=weights) - value * centred
    # Reduced chi-squared: two parameters are fitted. The error never shrinks below what scatter and 1/C imply.
    excess = math.sqrt((weights * residuals**2).sum() / (len(x) - 2))
    return Exponent(value, max(1.0, excess) / math.sqrt((weights * centred**2).sum()))


def error_floor(widths: Sequence[int], channels: Sequence[int]) -> float:
    """Return the error of a fitted power that no number of seeds reduces, due to corrections of order 1/C."""
    # One seed and no scatter: only the 1/C part of the error is left.
    power = fit_power(widths, [[1.0] for _ in widths], channels)
    assert power is not None
    return power.error


def relative_variances(table: Sequence[Array]) -> Array:
    """Return the squared relative standard deviation over seeds at each width, shrunk halfway to its mean over widths.

    Shrinkage guards against a few seeds that agree by chance. A width with one seed or mean 0 counts as 0.
    """
    variances = np.array([row.var(ddof=1) / row.mean() ** 2 if len(row) > 1 and row.mean() else 0.0 for row in table])
    result: Array = (variances + variances.mean()) / 2
    return result


def log_slope(widths: Sequence[int], values: Sequence[float]) -> float:
    """Return the slope of an unweighted fit of log(value) against log(width); exactly 0 for a constant."""
    x, y = np.log(widths), np.log(values)
    return float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())


def judge_power(power: Exponent | None, implied: float) -> ExponentTest:
    """Compare a fitted power with the implied one.

    `ok` if they differ by at most a quarter and the error is at most an eighth, since a fault of half a power must
    show. `off` if they differ by more than a quarter and three errors, or if there is no power because a value vanished
    or blew up. Otherwise `unclear`.
    """
    if power is None:
        return ExponentTest.OFF
    miss = abs(power.value - implied)
    if miss > POWER_TOLERANCE and miss > POWER_ERRORS * power.error:
        return ExponentTest.OFF
    return ExponentTest.OK if miss <= POWER_TOLERANCE and power.error <= MAX_POWER_ERROR else ExponentTest.UNCLEAR


def worst_verdict(verdicts: Sequence[ExponentTest]) -> ExponentTest:
    """Return the worst of several verdicts; `ok` if there are none."""
    order = list(ExponentTest)
    return max(verdicts, key=order.index, default=ExponentTest.OK)
