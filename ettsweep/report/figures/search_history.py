"""The history of a search: the best score against the number of finished runs."""

from typing import Any

import altair as alt
import pandas as pd

from ettsweep.report.figures.chart_data import Datasets, clipped_range, layer_charts
from ettsweep.report.figures.shapes import STATE_SIGNS
from ettsweep.report.formats import axis_title_and_factor, strategy_colour
from ettsweep.report.theme import CANDIDATE, INK


def course(history: pd.DataFrame, points: pd.DataFrame) -> alt.LayerChart:
    """Draw each finished run, suggestions filled, the best score so far, and the candidate's mean with its error.

    Runs that diverged, or are far worse than the others, are at the worse edge.

    Args:
        history: rows of `search_history_frame` of one family; at least one.
        points: its rows of `points_frame`.
    """
    metric, colour = points["metric"].iloc[0], strategy_colour(str(points["strategy"].iloc[0]))
    name, factor = axis_title_and_factor(metric)
    data = Datasets()
    candidate = points[(points["role"] == "candidate") & points["score"].notna()]
    finite = [*history["score"].dropna(), *candidate["score"]]
    # All runs may have diverged; the axis still needs a range.
    low, high = clipped_range(finite or [0.0], metric.mode == "min", reach=5)
    margin = 0.08 * (high - low)
    low, high = factor * (low - margin), factor * (high + margin)
    worst = low if metric.mode == "max" else high
    value = (factor * history["score"]).fillna(worst)
    rows = history.assign(
        # Drawn at the edge; `beyond` gives these another mark.
        value=value.clip(low, high),
        so_far=factor * history["best"],
        kind=history["proposal"].notna().map({True: "suggestion", False: "other run"}),
        beyond=history["score"].isna() | (value < low) | (value > high),
    )
    base = alt.Chart(data.add(rows)).encode(
        alt.X(
            "number:Q",
            title="runs finished",
            scale=alt.Scale(domain=[0.5, len(history) + 0.5], nice=False),
            axis=alt.Axis(tickMinStep=1),
        ),
        alt.Y("value:Q", title=name, scale=alt.Scale(domain=[low, high], nice=False, zero=False)),
    )
    tooltip = [
        "number:Q",
        alt.Tooltip("point:N", title="(lr, wd)"),
        "seed:Q",
        "run:N",
        "kind:N",
        alt.Tooltip("told:N", title="score"),
    ]
    mean = factor * candidate[["score"]].assign(
        low=candidate["score"] - candidate["error"], high=candidate["score"] + candidate["error"]
    )
    level = alt.Chart(data.add(mean))
    layers = [
        level.mark_rect(fill=CANDIDATE, opacity=0.12).encode(y="low:Q", y2="high:Q"),
        level.mark_rule(stroke=CANDIDATE, strokeDash=[5, 3], strokeWidth=1.2).encode(y="score:Q"),
        base.mark_line(interpolate="step-after", stroke=colour, strokeWidth=1.8).encode(y="so_far:Q"),
    ]
    marks: tuple[tuple[str, dict[str, Any]], ...] = (
        ("!datum.beyond && datum.kind == 'suggestion'", {"filled": True, "fill": colour}),
        ("!datum.beyond && datum.kind != 'suggestion'", {"filled": False, "stroke": colour}),
        ("datum.beyond", {"filled": False, "stroke": colour, "shape": STATE_SIGNS["diverged"]}),
    )
    for test, mark in marks:
        layers.append(base.transform_filter(test).mark_point(size=36, opacity=1, **mark).encode(tooltip=tooltip))
    chart = layer_charts(*layers, *_separator_layers(data, rows, high))
    return data.attach_to(chart.properties(width="container", height=260))


def _separator_layers(data: Datasets, rows: pd.DataFrame, top: float) -> list[alt.Chart]:
    """Separate the suggested points from the runs that the verdict needed after them."""
    end = rows.loc[rows["proposal"].notna(), "number"].max()
    if not end < len(rows):  # also if `end` is NaN, without any suggestion
        return []
    labels = pd.DataFrame({"number": end + 0.5, "top": top, "side": ["suggestions", "for the verdict"]})
    base = alt.Chart(data.add(labels)).encode(alt.X("number:Q"))
    rule = base.mark_rule(stroke=INK, strokeOpacity=0.4, strokeDash=[4, 3])
    text_style: dict[str, Any] = {"fill": INK, "fillOpacity": 0.7, "fontSize": 10, "baseline": "bottom", "dy": -3}
    sides: tuple[tuple[str, dict[str, Any]], ...] = (
        ("suggestions", {"align": "right", "dx": -5}),
        ("for the verdict", {"align": "left", "dx": 5}),
    )
    texts = [
        base.transform_filter(f"datum.side == '{side}'").mark_text(**text_style, **alignment)
        for side, alignment in sides
    ]
    return [rule, *(text.encode(alt.Y("top:Q"), text="side:N") for text in texts)]
