"""Shared parts of figures: data sets, fields, legends and scales; points that stand out, shapes of marks, tooltips."""

import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ettsweep.files import Json
from ettsweep.report.formats import GREY, point_title
from ettsweep.report.theme import INK

FILE_WIDTH = 640
"""Pixels in a file of a figure that has the width of its container on the page."""

MIN_DIGITS, MAX_DIGITS = 5, 15
"""Significant digits of numbers in a specification: enough to resolve a ten-thousandth of a column's range."""


class Datasets:
    """The data sets of a figure; layers refer to them by name, and may share one."""

    def __init__(self) -> None:
        self._rows: dict[str, list[dict[str, Any]]] = {}

    def add(self, frame: pd.DataFrame) -> Json:
        """Add a frame and return a reference to it, for `data` of a layer.

        Its rows have rounded numbers, and null for missing values. The name is a hash of the content: equal frames
        share one data set across all figures of the page.
        """
        columns = {str(name): _column_values(frame[name]) for name in frame.columns}
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        name = f"data-{hashlib.sha256(json.dumps(columns).encode()).hexdigest()[:16]}"
        self._rows[name] = rows
        return {"name": name}

    def attach_to(self, spec: Json) -> Json:
        """Return a finished specification with the data sets."""
        return {**spec, "datasets": self._rows}


def _column_values(column: pd.Series) -> list[Any]:
    if pd.api.types.is_float_dtype(column.dtype):
        digits = significant_digits(column)
        return [_rounded(value, digits) for value in column.tolist()]
    # pd.NA first: compared with itself, it has no truth value. NaN differs from itself.
    return [None if value is None or value is pd.NA or value != value else value for value in column.tolist()]


def significant_digits(column: pd.Series) -> int:
    """Return how many significant digits resolve the numbers of a column."""
    finite = column[np.isfinite(column)]
    largest, spread = float(finite.abs().max()), float(finite.max() - finite.min())
    extra = math.ceil(math.log10(largest / spread)) if spread > 0 else 0
    return min(MAX_DIGITS, max(MIN_DIGITS, extra + MIN_DIGITS - 1))


def _rounded(value: Any, digits: int) -> float | int | None:
    if value is pd.NA or not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    # 3 is shorter than 3.0; above 1e15 a float is not exact as an integer.
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def quantitative(field: str, **options: Any) -> Json:
    """Return the definition of a channel or tooltip line for a column of numbers."""
    return {"field": field, "type": "quantitative", **options}


def nominal(field: str, **options: Any) -> Json:
    """Return the same for a column of names."""
    return {"field": field, "type": "nominal", **options}


def value_if(condition: Json, value: float | str, otherwise: float | str) -> Json:
    """Return the definition of a channel with two values; the condition is a `param` or a `test`."""
    return {"condition": {**condition, "value": value}, "value": otherwise}


HIDDEN = {"name": "hidden", "select": {"type": "point", "fields": ["label"], "toggle": "true"}, "bind": "legend"}
"""A selection, for the `params` of a layer: the labels whose entries in the legend were clicked."""

# By default, an empty selection contains all rows; but before any click no line is hidden.
IS_HIDDEN = {"param": "hidden", "empty": False}
"""Condition that is true for the lines with these labels."""


def legend_columns(second: int, third: int = 0) -> Json:
    """Return the number of legend columns: 1, 2 from `second` pixels on, 3 from `third` pixels on, if given.

    The expression measures the container, not the figure: the legend changes the figure's width, and the two would
    oscillate. In a file, which has no container, it is `FILE_WIDTH`.
    """
    page_width = f"(width && containerSize()[0] || {FILE_WIDTH})"
    if third:
        return {"expr": f"{page_width} < {second} ? 1 : {page_width} < {third} ? 2 : 3"}
    return {"expr": f"{page_width} < {second} ? 1 : 2"}


def clipped_range(scores: Sequence[float], lower_is_better: bool, reach: float = 3.0) -> tuple[float, float]:
    """Return (low, high) for a colour or axis scale: from the best score to one not too bad.

    The worse end is at most `reach` times as far from the best as the median: a few awful points must not leave one
    colour to all others.
    """
    best, worst = (min(scores), max(scores)) if lower_is_better else (max(scores), min(scores))
    limit = best + reach * (float(np.median(scores)) - best)
    worst = min(worst, limit) if lower_is_better else max(worst, limit)
    low, high = min(best, worst), max(best, worst)
    # Equal scores: any range around them, since a scale of width 0 divides by 0.
    return (low, high) if high > low else (low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2)


def colour_scale(frame: pd.DataFrame, strategies: Sequence[str], domain: Sequence[str] | None = None) -> Json:
    """Return the scale of colours of strategies or variants, or of `domain`, which stands for these."""
    colours = dict(zip(frame["strategy"], frame["colour"], strict=True))
    return {"domain": list(domain or strategies), "range": [colours[name] for name in strategies]}


def is_linear(points: pd.DataFrame, along: str) -> bool:
    """Whether values along x or y are their own places: those of a linear axis."""
    return bool((points[along] == points[f"{along}_place"]).all())


def origin_and_step(points: pd.DataFrame, along: str) -> tuple[float, float]:
    """Return the place on an axis, x or y, of step 0, and the length of a step; 0 if all points have one place."""
    ordered = points.dropna(subset=[f"{along}_place"]).sort_values(f"{along}_steps")
    if ordered.empty:
        return 0.0, 0.0
    first, last = ordered.iloc[0], ordered.iloc[-1]
    steps = last[f"{along}_steps"] - first[f"{along}_steps"]
    step = (last[f"{along}_place"] - first[f"{along}_place"]) / steps if steps else 0.0
    return first[f"{along}_place"] - step * first[f"{along}_steps"], step


# --- points that stand out --------------------------------------------------------------------------------------------

NEIGHBOUR_COLOURS = ("#e69f00", "#009e73", "#56b4e9", "#8c510a", "#0072b2", "#d55e00", "#cc79a7")
"""Okabe and Ito's colour-blind-safe palette and a brown, for the neighbours of a candidate."""

OTHER_POINTS = "other points"
"""Label of all points that do not stand out."""


def label_points(points: pd.DataFrame, max_others: int | None = None) -> pd.DataFrame:
    """Return the points to draw: others, the best first, after the candidate and its neighbours by score.

    Columns: axes, point, role, label (of the legend), colour.
    """
    ranked = points.sort_values("score", ascending=points["metric"].iloc[0].mode == "min", na_position="last")
    candidate, neighbours, others = (ranked[ranked["role"] == role] for role in ("candidate", "neighbour", "other"))
    others = others.head(len(others) if max_others is None else max_others)
    colour = points["colour"].iloc[0]
    # The palette contains the colours of ntk and mup.
    palette = [other for other in NEIGHBOUR_COLOURS if other != colour]
    colours = [*[colour] * len(candidate), *palette[: len(neighbours)], *[GREY] * len(others)]
    selected = pd.concat([candidate, neighbours, others])[["axes", "point", "role", "told", "state"]]
    best = selected["told"].where(selected["told"] != "", selected["state"])
    label = (selected["point"] + " [" + best + "]").where(selected["role"] != "other", OTHER_POINTS)
    return selected.assign(label=label, colour=colours)[["axes", "point", "role", "label", "colour"]].reset_index(
        drop=True
    )


# --- shapes of marks --------------------------------------------------------------------------------------------------

HEXAGON = "M" + "L".join(f"{math.sin(k * math.pi / 3):.5f},{math.cos(k * math.pi / 3):.5f}" for k in range(6)) + "Z"
"""It stands on a corner: its left and right sides are vertical."""

CROSS = "M-1,0L1,0M0,-1L0,1"

CIRCLE = "M-1,0A1,1,0,1,0,1,0A1,1,0,1,0,-1,0"

STATE_SIGNS = {
    "diverged": "M-1,-1L1,1M1,-1L-1,1",
    "failed": "M0,-1L0,0.4M0,0.8L0,1",
    "cancelled": f"{CIRCLE}M-0.7,0.7L0.7,-0.7",
    "running": "M-0.7,-1L1,0L-0.7,1Z",
    "queued": "M-0.5,-0.8L-0.5,0.8M0.5,-0.8L0.5,0.8",
    "held": "M-0.8,-0.8L0.8,-0.8L0.8,0.8L-0.8,0.8Z",
    "interrupted": "M-0.8,-1L0.8,-1L-0.8,1L0.8,1Z",
    "missing": CIRCLE,
    "unknown": "M0,-1L1,0L0,1L-1,0Z",
    "done": CIRCLE,
}
"""Signs of points without a score, by state; legends list them in this order."""


def suggestion_numbers(data: Json) -> list[Json]:
    """Draw the column `proposal` on white discs, which are legible on every colour."""
    # Not INK, which is light in the dark theme: the disc is white in both.
    disc = {"fill": "#fff", "stroke": "#1c1c1e", "strokeWidth": 0.7, "size": 190, "opacity": 1}
    number = {"fontSize": 8.5, "fontWeight": "bold", "fill": "#1c1c1e"}
    return [
        {"data": data, "mark": {"type": "circle", **disc}},
        {"data": data, "mark": {"type": "text", **number}, "encoding": {"text": quantitative("proposal")}},
    ]


# --- what hovering over a point shows ---------------------------------------------------------------------------------

MAX_TOOLTIP_RUNS = 6
"""Most run ids in a tooltip."""


def tooltip_frame(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points with the columns that tooltips show."""
    plateau = points["as_good"].map({True: ", as good within the margin", False: ""})
    return points[["point", "x_steps", "y_steps"]].assign(
        state=points["state"] + plateau,
        mean=points["told"].where(points["score"].notna(), "none"),
        seeds=points["seeds"].fillna(0),
        metric=[metric.label for metric in points["metric"]],
        ids=[_shortened_ids(runs) for runs in points["runs"]],
        lr_wd=points["lr_wd"],
        time_scale=points["time_scale"],
    )


def _shortened_ids(runs: str) -> str:
    ids = runs.split()
    return " ".join(ids[:MAX_TOOLTIP_RUNS]) + (
        f" and {len(ids) - MAX_TOOLTIP_RUNS} more" if len(ids) > MAX_TOOLTIP_RUNS else ""
    )


def hover_layer(data: Json, mark: Json, points: pd.DataFrame) -> Json:
    """Return an invisible layer that shows a tooltip for each point."""
    decay = [nominal("lr_wd", title="lr * wd"), nominal("time_scale", title="time scale")]
    tooltip = [
        nominal("point", title=point_title(points["axes"])),
        *(decay if points["lr_wd"].any() else []),
        nominal("state"),
        nominal("metric", title="score"),
        nominal("mean", title="mean ± standard error"),
        quantitative("seeds"),
        nominal("ids", title="runs"),
    ]
    return {
        "data": data,
        "mark": {"type": "point", **mark, "fill": INK, "fillOpacity": 0, "strokeOpacity": 0},
        "encoding": {"tooltip": tooltip},
    }
