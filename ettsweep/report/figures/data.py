"""What figures share: data as they stand in a specification, and the range of a scale."""

import math
from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

DIGITS = 5
"""Of numbers in a specification: more cannot be seen."""


def inline(frame: pd.DataFrame) -> alt.InlineData:
    """Return a frame as rows of a specification: numbers to some digits, null where a value is missing."""
    columns = {str(name): _values(frame[name]) for name in frame.columns}
    return alt.InlineData(values=[dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])


def _values(column: pd.Series) -> list[Any]:
    if pd.api.types.is_float_dtype(column.dtype):
        return [_rounded(value) for value in column.tolist()]
    return [None if value is None or value is pd.NA or value != value else value for value in column.tolist()]


def _rounded(value: float) -> float | int | None:
    if value is pd.NA or not math.isfinite(value):
        return None
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


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
