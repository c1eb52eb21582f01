"""The optima of all strategies on one map of (lr, wd), in their own or in common coordinates."""

import altair as alt
import pandas as pd

from ettsweep.report.figures.chart_data import Datasets, layer_charts
from ettsweep.report.formats import strategy_colour, strategy_rank

MAPPED = "mapped"
"""Vega parameter: `true` while all strategies are in the coordinates of `standard`."""

SYMBOLS = {"standard": "circle", "ntk": "square", "hybrid": "triangle-up", "mup": "diamond"}
"""Symbols of strategies; any other is a cross."""


def strategies(points: pd.DataFrame) -> alt.LayerChart:
    """Draw the points of some families, those as good as the candidate within the margin, and the candidates.

    A switch maps all points to the coordinates of the standard strategy, by powers of the width. Optima that agree
    there coincide, so their rings grow and their labels stack upwards.

    Args:
        points: rows of `points_frame` of families that differ only in strategy, with wd above 0.
    """
    data = Datasets()
    order = sorted(points["strategy"].unique(), key=strategy_rank)
    names = ["log2_lr", "log2_wd", "common_log2_lr", "common_log2_wd"]
    rows = points.dropna(subset=names)[["strategy", "point", "role", "as_good", "told", "state", "lr", "wd", *names]]
    scale = alt.Scale(domain=order, range=[strategy_colour(name) for name in order])
    shapes = alt.Scale(domain=order, range=[SYMBOLS.get(name, "cross") for name in order])
    legend = alt.Legend(title=None, orient="bottom", symbolSize=110)
    shape = alt.Shape("strategy:N", scale=shapes, legend=legend)
    base = (
        alt.Chart(data.add(rows))
        .transform_calculate(
            x=f"{MAPPED} ? datum.common_log2_lr : datum.log2_lr", y=f"{MAPPED} ? datum.common_log2_wd : datum.log2_wd"
        )
        .encode(
            alt.X("x:Q", title="log2 lr", scale=alt.Scale(zero=False, padding=14)),
            alt.Y("y:Q", title="log2 wd", scale=alt.Scale(zero=False, padding=14)),
            color=alt.Color("strategy:N", scale=scale, legend=legend),
            tooltip=[
                "strategy:N",
                alt.Tooltip("point:N", title="(lr, wd)"),
                alt.Tooltip("told:N", title="score"),
                "state:N",
            ],
        )
    )
    # Numbered where several coincide, for the sizes of rings and the heights of labels.
    optima = base.transform_filter("datum.role == 'candidate'").transform_window(
        row="row_number()", groupby=["x", "y"], sort=[alt.SortField("strategy")]
    )
    ring = alt.expr("230 + 330 * (datum.row - 1)")
    layers = [
        base.mark_point(size=22, opacity=0.35, filled=True).encode(shape),
        base.transform_filter("datum.as_good").mark_point(size=90, opacity=0.9, strokeWidth=1.5).encode(shape),
        optima.transform_filter("datum.row == 1").mark_point(size=230, opacity=1, filled=True, stroke="#fff"),
        optima.transform_filter("datum.row > 1").mark_point(size=ring, opacity=1, filled=False, strokeWidth=3),
        optima.mark_text(dy=alt.expr("-15 - 13 * (datum.row - 1)"), fontWeight="bold").encode(text="strategy:N"),
    ]
    switch = alt.param(name=MAPPED, value=False, bind=alt.binding_checkbox(name="in the coordinates of standard "))
    chart = layer_charts(*layers).add_params(switch)
    return data.attach_to(chart.properties(width="container", height=340))
