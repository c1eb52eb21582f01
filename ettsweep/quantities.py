"""Scores, shares and probabilities as text, the same in the terminal, on the page and in figures.

A share is part of a score, shown in percent, or a difference; one of accuracies is shown in points. `±` is a standard
error.
"""

import math
from typing import Literal

from ettsweep.metric import Metric

LARGE_LOSS = 1e6
"""Larger losses are written with a power of ten."""


QUANTITIES: tuple[tuple[str, Literal["min", "max"], str, bool], ...] = (
    ("loss", "min", "nats", False),
    ("accuracy", "max", "", True),
)
TAKES: dict[str, Literal["best", "last"]] = {"best": "best", "final": "last"}

COLUMN_METRICS = {
    f"{take}_{name}": Metric(f"{take}_{name}", mode, f"val_{name}", TAKES[take], unit, is_fraction=is_fraction)
    for take in ("best", "final")
    for name, mode, unit, is_fraction in QUANTITIES
}
"""Metrics of further columns of result.json; a verdict compares only one."""


def header(column: str) -> str:
    """Return the header of a column in tables for people: scores have their unit."""
    return column + COLUMN_METRICS[column].unit_suffix if column in COLUMN_METRICS else column


def column_text(value: float, column: str) -> str:
    """Return a value of a column of result.json, with its unit."""
    return score_text(value, COLUMN_METRICS.get(column, PLAIN))


PLAIN = Metric("score", "min", "score")
"""Any number without a unit."""


# --- scores -------------------------------------------------------------------------------------------------------


def score_text(value: float, metric: Metric, unit: bool = True) -> str:
    """Return a score: 97.70%, or a loss with four decimals and at least four digits."""
    if metric.is_fraction:
        return f"{100 * value:.2f}" + ("%" if unit else "")
    size = abs(value)
    if size >= LARGE_LOSS or 0 < size < 1e-4:
        mantissa, exponent = f"{value:.3e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:.{_loss_decimals(size)}f}"


def score_with_error(score: float, error: float | None, metric: Metric) -> str:
    """Return a score as in `score_text`, and its standard error with as many decimals; no error if it is None.

    Both get more decimals if the error has no digit otherwise.
    """
    if error is None:
        return score_text(score, metric)
    if metric.is_fraction:
        return f"{score_text(score, metric, unit=False)} ± {score_text(error, metric)}"
    # Both share one power of ten: (1.20 ± 0.31)e7.
    if (size := max(abs(score), error)) >= LARGE_LOSS:
        exponent = math.floor(math.log10(size))
        scaled, scaled_error = (value / 10.0**exponent for value in (score, error))
        return f"({scaled:.2f} ± {scaled_error:.2f})e{exponent}"
    # A small error still has a digit.
    decimals = max(_loss_decimals(abs(score)), min(12, -math.floor(math.log10(error))) if error else 0)
    return f"{score:.{decimals}f} ± {error:.{decimals}f}"


def _loss_decimals(size: float) -> int:
    if size >= 10:
        return 2 if size < 1e4 else 0
    return min(7, max(4, 3 - math.floor(math.log10(size)))) if size > 0 else 4


# --- shares -------------------------------------------------------------------------------------------------------


def as_share(difference: float, score: float, metric: Metric) -> float | None:
    """Return a difference of scores in the unit of margins: as a share of the score, or unchanged.

    None for a score of 0, which has no shares.
    """
    if metric.margin_is == "difference":
        return difference
    return difference / abs(score) if score else None


def share_text(share: float, metric: Metric) -> str:
    """Return a share exactly as set, such as a margin."""
    return f"{metric.margin_factor * share:.10g}{metric.margin_unit}"


def bound_text(bound: float, metric: Metric) -> str:
    """Return a bound, rounded up to two digits: rounded down, it would not hold."""
    shown = metric.margin_factor * bound
    # Four decimals of a percentage at most: a bound of 1e-9 is no news.
    most = 4 if metric.margin_factor == 100 else 12
    digits = min(most, 1 - math.floor(math.log10(abs(shown)))) if shown else 0
    # Rounded to more places first: an error in the last bit must not raise the second digit.
    rounded_up = math.ceil(round(shown * 10.0**digits, 6)) / 10.0**digits
    # Only a bound of 0 is 0.
    if shown > 0 and not rounded_up:
        rounded_up = 10.0**-digits
    return f"{rounded_up:g}{metric.margin_unit}"


def deviation_text(deviation: float, metric: Metric) -> str:
    """Return a standard deviation or error as a share, to the nearest of two digits."""
    shown = metric.margin_factor * deviation
    return f"{shown:.{_decimals_of_error(shown)}f}{metric.margin_unit}"


def difference_text(difference: float, error: float | None, metric: Metric, signed: bool = True) -> str:
    """Return a difference as a share with its standard error, whose two digits set the decimals of both."""
    sign, factor = "+" if signed else "", metric.margin_factor
    decimals = _decimals_of_error(factor * (error if error else abs(difference)))
    text = f"{factor * difference:{sign}.{decimals}f}"
    text += f" ± {factor * error:.{decimals}f}" if error is not None else ""
    # A real minus sign, as wide as the plus sign.
    return text.replace("-", "−") + metric.margin_unit


def _decimals_of_error(shown_error: float) -> int:
    return min(6, max(0, 1 - math.floor(math.log10(shown_error)))) if shown_error > 0 else 2


# --- others -------------------------------------------------------------------------------------------------------


def probability_text(probability: float) -> str:
    """Return a probability in whole percent, never 0% or 100%: draws of a posterior do not resolve more."""
    if probability > 0.99:
        return "more than 99%"
    return f"{100 * probability:.0f}%" if probability >= 0.01 else "less than 1%"


def percent_up(share: float) -> int:
    """Return a share in whole percent, rounded up: rounded down, it would not hold."""
    return math.ceil(round(100 * share, 6))  # to more places first, for errors in the last bit


def confidence_text(confidence: float) -> str:
    """Return a confidence as set: 95%."""
    return f"{100 * confidence:.10g}%"


def hours_text(hours: float) -> str:
    """Return device hours with two digits."""
    return f"{hours:.0f}" if hours >= 10 else f"{max(hours, 1e-4) if hours else 0:.2g}"


def three_digits(value: float) -> str:
    """Return a number with three significant digits: 0.0156, 22.6, 3.05e-7."""
    text = f"{value:.3g}"
    if "e" not in text:
        return text
    # "%g" has an exponent from 1000 on: short numbers are written in full instead.
    mantissa, exponent = text.split("e")
    return f"{value:.0f}" if 0 < int(exponent) < 5 else f"{mantissa}e{int(exponent)}"
