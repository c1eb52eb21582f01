"""Labels and colours, the same in all figures and on the page, and means over seeds."""

import math
from collections.abc import Iterable, Sequence

from ettsweep.errors import InputError
from ettsweep.metric import Metric
from ettsweep.quantities import score_with_error, three_digits
from ettsweep.report.theme import INK
from ettsweep.runs.point import Point
from ettsweep.strategies.strategy import parse_strategy

STRATEGY_COLOURS = {"standard": INK, "ntk": "#0072b2", "hybrid": "#aa3f9c", "mup": "#d55e00"}
"""The paper's black, blue, purple and red (fig:seeds-ViT), in colour-blind-safe shades.

Standard has the colour of the text around it, which is light in the dark theme.
"""

FAMILY_COLOURS = {
    0.0: STRATEGY_COLOURS["ntk"],
    0.25: "#009e73",
    0.5: STRATEGY_COLOURS["hybrid"],
    0.75: "#8c6d1f",
    1.0: STRATEGY_COLOURS["mup"],
}
"""Colours along s; any other s gets a mixture of its two nearest, so no two share a colour."""

VARIANT_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#aa3f9c", "#8c6d1f", "#56b4e9", "#cc79a7", "#5a5a5a")
"""Colours of variants by their number in a sweep; beyond eight they repeat."""

GREY = "#9a9a9a"
"""The colour of points and strategies that do not stand out."""


# --- in figures -----------------------------------------------------------------------------------------


def point_powers(point: Point) -> str:
    """Return a point as powers of two: (2^-6, 2^-1), or 2^-6 on one axis."""
    return point.text(3) if len(point.values) > 1 else point.text(3).partition(" ")[2]


def point_title(axes: Iterable[str]) -> str:
    """Return the title of points as text, given the names of their axes: (lr, wd), or one name alone."""
    names = {*axes}
    title = names.pop() if len(names) == 1 else "point"
    return f"({title})" if "," in title else title


def cell_text(value: float, metric: Metric) -> str:
    """Return a score short enough for a hexagon."""
    if metric.is_fraction:
        return f"{100 * value:.2f}"
    # A hexagon has room for about five characters.
    text = f"{value:.3f}" if 1e-3 <= abs(value) < 10 else three_digits(value)
    return text.removeprefix("0") if text.startswith("0.") else text


def axis_title_and_factor(metric: Metric) -> tuple[str, int]:
    """Return the title of a metric's axis with its unit, and the factor from values to that axis."""
    return metric.label + metric.unit_suffix, metric.factor


# --- over seeds -----------------------------------------------------------------------------------------


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


def mean_text(scores: Sequence[float | None], metric: Metric) -> str | None:
    """Return the mean over seeds with its standard error; None if a score is missing, or there are none."""
    mean, _ = mean_std(scores)
    return None if mean is None else score_with_error(mean, standard_error(scores), metric)


# --- strategies -----------------------------------------------------------------------------------------


def strategy_rank(strategy: str) -> tuple[float, str]:
    """Return a sort key: standard first, then the strategies of the family by s, then unknown names."""
    try:
        s = parse_strategy(strategy)
    except InputError:
        return math.inf, strategy
    return -1.0 if s is None else s, strategy


def strategy_colour(strategy: str, variant_number: int = 0) -> str:
    """Return a strategy's colour, the same in all figures and reports; a family without a strategy has standard's.

    Variants have that of their number.
    """
    s, _ = strategy_rank(strategy)
    # The rank of an unknown name is infinite.
    if "=" in strategy and not 0 <= s <= 1:
        return VARIANT_COLOURS[variant_number % len(VARIANT_COLOURS)]
    if strategy in STRATEGY_COLOURS or not 0 <= s <= 1:
        return STRATEGY_COLOURS.get(strategy, STRATEGY_COLOURS["standard"])
    channels = zip(*(bytes.fromhex(colour[1:]) for colour in FAMILY_COLOURS.values()), strict=True)
    import numpy as np  # slow to import, and only pages need colours

    return "#" + bytes(round(np.interp(s, list(FAMILY_COLOURS), channel)) for channel in channels).hex()
