"""Numbers and colours as text, the same in all figures and on the page."""

import math
from collections.abc import Sequence

import numpy as np

from ettsweep.errors import InputError
from ettsweep.powers import format_power
from ettsweep.report.theme import INK
from ettsweep.strategies.strategy import parse_strategy
from ettsweep.study.lattice import Point

STRATEGY_COLOURS = {"standard": INK, "ntk": "#0072b2", "hybrid": "#aa3f9c", "mup": "#d55e00"}
"""The paper's black, blue, purple and red (fig:seeds-ViT), in shades that colour-blind readers tell apart.

Standard has the colour of the text around it, which is light in the dark theme.
"""

FAMILY_COLOURS = {
    0.0: STRATEGY_COLOURS["ntk"],
    0.25: "#009e73",
    0.5: STRATEGY_COLOURS["hybrid"],
    0.75: "#8c6d1f",
    1.0: STRATEGY_COLOURS["mup"],
}
"""Colours along s; any other s gets a mixture of its two nearest, so that no two share a colour."""

GREY = "#9a9a9a"
"""The colour of points and strategies that do not stand out."""

LARGE_LOSS = 1e6
"""Losses from here on are written with a power of ten."""


# --- numbers --------------------------------------------------------------------------------------------


def three_digits(value: float) -> str:
    """Return a number with three significant digits: 0.0156, 22.6, 3.05e-7."""
    text = f"{value:.3g}"
    if "e" not in text:
        return text
    # "%g" has an exponent from 1000 on: short numbers are written in full instead.
    mantissa, exponent = text.split("e")
    return f"{value:.0f}" if 0 < int(exponent) < 5 else f"{mantissa}e{int(exponent)}"


def point_text(point: Point) -> str:
    """Return a point as powers of two: (2^-6, 2^-1)."""
    return f"({format_power(point.lr, 3)}, {format_power(point.wd, 3)})"


def is_accuracy(metric: str) -> bool:
    """`True` if a metric is a fraction, shown in percent."""
    return metric.endswith("accuracy")


def score_text(value: float, metric: str, unit: bool = True) -> str:
    """Return a score as text: 97.70%, or a loss with four digits."""
    if is_accuracy(metric):
        return f"{100 * value:.2f}" + ("%" if unit else "")
    size = abs(value)
    if size >= LARGE_LOSS:
        mantissa, exponent = f"{value:.3e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    if size >= 1e4:
        return f"{value:.0f}"
    return f"{value:.4g}" if size >= 1e-4 or value == 0 else three_digits(value)


def cell_text(value: float, metric: str) -> str:
    """Return a score short enough for a hexagon."""
    if is_accuracy(metric):
        return f"{100 * value:.2f}"
    # A hexagon has room for about five characters.
    text = f"{value:.3f}" if 1e-3 <= abs(value) < 10 else three_digits(value)
    return text.removeprefix("0") if text.startswith("0.") else text


def error_text(error: float, score: float, metric: str) -> str:
    """Return the error of a score for a hexagon, with no more decimals than the score has there."""
    score_digits = cell_text(score, metric)
    decimals = 0 if "e" in score_digits else len(score_digits.partition(".")[2])
    text = f"{(100 if is_accuracy(metric) else 1) * error:.{decimals}f}" if decimals else three_digits(error)
    # As in `cell_text`, the 0 before the point is left out for room.
    return text[1:] if text.startswith("0.") and not is_accuracy(metric) else text


def mean_std(scores: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Return mean and sample standard deviation; both are None if a score is missing, or there are none."""
    finite = [score for score in scores if score is not None]
    if not finite or len(finite) < len(scores):
        return None, None
    mean = math.fsum(finite) / len(finite)
    if len(finite) < 2:
        return mean, None
    return mean, math.sqrt(math.fsum((x - mean) ** 2 for x in finite) / (len(finite) - 1))


def standard_error(scores: Sequence[float | None]) -> float | None:
    """Return the standard error of the mean; None if a score is missing, or there are fewer than two."""
    _, std = mean_std(scores)
    return None if std is None else std / math.sqrt(len(scores))


def plus_minus(mean: float | None, std: float | None, metric: str) -> str | None:
    """Return mean ± deviation; a loss has as many decimals as two digits of its deviation need."""
    if mean is None:
        return None
    if std is None:
        return score_text(mean, metric)
    if is_accuracy(metric):
        return f"{score_text(mean, metric, unit=False)} ± {score_text(std, metric)}"
    # Mean and deviation share one power of ten: (1.20 ± 0.31)e7.
    if (size := max(abs(mean), std)) >= LARGE_LOSS:
        exponent = math.floor(math.log10(size))
        return f"({plus_minus(mean / 10.0**exponent, std / 10.0**exponent, metric)})e{exponent}"
    # Two significant digits of the deviation.
    decimals = min(12, max(2, 1 - math.floor(math.log10(std)))) if std > 0 else 4
    return f"{mean:.{decimals}f} ± {std:.{decimals}f}"


def metric_name(metric: str) -> str:
    """Return the label of a metric, such as lowest validation loss."""
    reduction, quantity = metric.split("_", 1)
    prefix = {"best": "lowest " if quantity == "loss" else "best ", "final": "final "}[reduction]
    return prefix + ("validation accuracy" if quantity == "accuracy" else "validation loss")


def axis_title_and_factor(metric: str) -> tuple[str, int]:
    """Return the title of a metric's axis, and the factor from values to that axis (100 for percent)."""
    return (metric_name(metric) + " (%)", 100) if is_accuracy(metric) else (metric_name(metric), 1)


# --- strategies -----------------------------------------------------------------------------------------


def strategy_rank(strategy: str) -> tuple[float, str]:
    """Return a sort key: standard first, then the strategies of the family by s, then unknown names."""
    try:
        s = parse_strategy(strategy)
    except InputError:
        return math.inf, strategy
    return -1.0 if s is None else s, strategy


def strategy_colour(strategy: str) -> str:
    """Return a strategy's colour, the same in all figures and reports."""
    if strategy in STRATEGY_COLOURS:
        return STRATEGY_COLOURS[strategy]
    s, _ = strategy_rank(strategy)
    # The rank of an unknown name is infinite.
    if not 0 <= s <= 1:
        return GREY
    channels = zip(*(bytes.fromhex(colour[1:]) for colour in FAMILY_COLOURS.values()), strict=True)
    return "#" + bytes(round(np.interp(s, list(FAMILY_COLOURS), channel)) for channel in channels).hex()
