"""Numbers as people read them, the same in figures and on the page."""

import math
from collections.abc import Sequence

from ettsweep.sweep.search import Point


def short(value: float) -> str:
    """Return a number to three digits: 0.0156, 22.6, 3.05e-7."""
    text = f"{value:.3g}"
    if "e" not in text:
        return text
    mantissa, exponent = text.split("e")
    return f"{value:.0f}" if 0 < int(exponent) < 5 else f"{mantissa}e{int(exponent)}"


def point_text(point: Point) -> str:
    """Return a point to three digits: (0.0156, 0.5)."""
    return f"({short(point.lr)}, {short(point.wd)})"


def is_accuracy(metric: str) -> bool:
    """Say whether a metric is a fraction, shown in percent."""
    return metric.endswith("accuracy")


def score_text(value: float, metric: str, unit: bool = True) -> str:
    """Return a score as people read it: 97.70%, or a loss to four digits."""
    if is_accuracy(metric):
        return f"{100 * value:.2f}" + ("%" if unit else "")
    return f"{value:.4g}" if abs(value) >= 1e-4 or value == 0 else short(value)


def mean_std(scores: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Return mean and sample standard deviation; the mean is None where a score is, or there are none."""
    known = [score for score in scores if score is not None]
    if not known or len(known) < len(scores):
        return None, None
    mean = math.fsum(known) / len(known)
    if len(known) < 2:
        return mean, None
    return mean, math.sqrt(math.fsum((x - mean) ** 2 for x in known) / (len(known) - 1))


def plus_minus(mean: float, std: float | None, metric: str) -> str:
    """Return mean ± standard deviation, a loss with as many decimals as two digits of its deviation need."""
    if std is None:
        return score_text(mean, metric)
    if is_accuracy(metric):
        return f"{score_text(mean, metric, unit=False)} ± {score_text(std, metric)}"
    decimals = min(8, max(2, 1 - math.floor(math.log10(std)))) if std > 0 else 4
    return f"{mean:.{decimals}f} ± {std:.{decimals}f}"


def metric_name(metric: str) -> str:
    """Return what an axis is called."""
    which, what = metric.split("_", 1)
    prefix = {"best": "lowest " if what == "loss" else "best ", "final": "final "}[which]
    return prefix + ("validation accuracy" if what == "accuracy" else "validation loss")


def axis_of(metric: str) -> tuple[str, int]:
    """Return what the axis of a metric is called, and what values are multiplied by there."""
    return (metric_name(metric) + " (%)", 100) if is_accuracy(metric) else (metric_name(metric), 1)
