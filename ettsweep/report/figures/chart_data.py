"""What figures share: data as they stand in a specification, and the range of a scale."""

import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

FILE_WIDTH = 640
"""Pixels of a figure that is as wide as its page, where it is a file."""

LEAST_DIGITS, MOST_DIGITS = 5, 15
"""Of numbers in a specification: as many as tell those of a column apart to a ten-thousandth of their range."""


class Data:
    """The data sets of a figure: charts refer to them by name, so that no copy of a chart copies them."""

    def __init__(self) -> None:
        self._rows: dict[str, list[dict[str, Any]]] = {}

    def of(self, frame: pd.DataFrame) -> alt.NamedData:
        """Return a reference to a frame: rows with numbers to some digits, null where a value is missing.

        What is equal has one name, in all figures.
        """
        columns = {str(name): _values(frame[name]) for name in frame.columns}
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        name = f"data-{hashlib.sha256(json.dumps(columns).encode()).hexdigest()[:16]}"
        self._rows[name] = rows
        return alt.NamedData(name=name)

    def complete(self, chart: alt.LayerChart) -> alt.LayerChart:
        """Give a finished chart its data."""
        chart.datasets = self._rows
        return chart


def _values(column: pd.Series) -> list[Any]:
    if pd.api.types.is_float_dtype(column.dtype):
        digits = digits_of(column)
        return [_rounded(value, digits) for value in column.tolist()]
    return [None if value is None or value is pd.NA or value != value else value for value in column.tolist()]


def digits_of(column: pd.Series) -> int:
    """Return how many digits tell the numbers of a column apart."""
    finite = column[np.isfinite(column)]
    largest, spread = float(finite.abs().max()), float(finite.max() - finite.min())
    extra = math.ceil(math.log10(largest / spread)) if spread > 0 else 0
    return min(MOST_DIGITS, max(LEAST_DIGITS, extra + LEAST_DIGITS - 1))


def _rounded(value: Any, digits: int) -> float | int | None:
    if value is pd.NA or not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def layered(*charts: alt.Chart) -> alt.LayerChart:
    """Lay charts over each other, the first one below."""
    chart = alt.layer(*charts)
    assert isinstance(chart, alt.LayerChart), "none of them has facets"
    return chart


def columns_from(second: int, third: int = 0) -> Any:
    """Return how many columns a legend has: as many as the page has pixels for, where a file has them all.

    The room around a figure decides, not its width: that depends on the legend in turn, and is not settled by it.
    """
    page_width = f"(width && containerSize()[0] || {FILE_WIDTH})"
    return alt.expr(
        f"{page_width} < {second} ? 1 : {page_width} < {third} ? 2 : 3" if third else f"{page_width} < {second} ? 1 : 2"
    )


def clipped_range(scores: Sequence[float], lower_is_better: bool, reach: float = 3.0) -> tuple[float, float]:
    """Return the scores that the ends of a scale stand for: the best, and one not too bad.

    A few awful points would leave one colour to all others, so the far end is at most `reach` times as far from
    the best as the median is.
    """
    best, worst = (min(scores), max(scores)) if lower_is_better else (max(scores), min(scores))
    limit = best + reach * (float(np.median(scores)) - best)
    worst = min(worst, limit) if lower_is_better else max(worst, limit)
    low, high = min(best, worst), max(best, worst)
    return (low, high) if high > low else (low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2)
