"""The optima of all strategies on one map of (lr, wd), in their own or in common coordinates."""

import pandas as pd

from ettsweep.files import Json
from ettsweep.report.figures.chart_data import Datasets, colour_scale, nominal, quantitative
from ettsweep.report.formats import strategy_rank

MAPPED = "mapped"
"""Vega parameter: `true` while all strategies are in the coordinates of `standard`."""

SYMBOLS = {"standard": "circle", "ntk": "square", "hybrid": "triangle-up", "mup": "diamond"}
"""Symbols of strategies; any other is a cross."""


def strategies(points: pd.DataFrame) -> Json:
    """Draw the points of some families, those as good as the candidate within the margin, and the candidates.

    A switch maps all points to the coordinates of the standard strategy, by powers of the width. Optima that agree
    there coincide: their rings grow, and their labels stack upwards.

    Args:
        points: rows of `points_frame` of families that differ only in strategy, with wd above 0.
    """
    data = Datasets()
    order = sorted(points["strategy"].unique(), key=strategy_rank)
    names = ["x_place", "y_place", "common_log2_lr", "common_log2_wd"]
    rows = points.dropna(subset=names)[["strategy", "point", "role", "as_good", "told", "state", *names]]
    colours = colour_scale(points, order)
    symbols = {"domain": order, "range": [SYMBOLS.get(name, "cross") for name in order]}
    legend = {"title": None, "orient": "bottom", "symbolSize": 110}
    shape = {"shape": nominal("strategy", scale=symbols, legend=legend)}
    encoding = {
        "x": quantitative("x", title="log2 lr", scale={"zero": False, "padding": 14}),
        "y": quantitative("y", title="log2 wd", scale={"zero": False, "padding": 14}),
        "color": nominal("strategy", scale=colours, legend=legend),
        "tooltip": [
            nominal("strategy"),
            nominal("point", title="(lr, wd)"),
            nominal("told", title="score"),
            nominal("state"),
        ],
    }
    place = [
        {"calculate": f"{MAPPED} ? datum.common_log2_lr : datum.x_place", "as": "x"},
        {"calculate": f"{MAPPED} ? datum.common_log2_wd : datum.y_place", "as": "y"},
    ]
    # Numbered where several coincide, for the sizes of rings and the heights of labels.
    optima = [
        *place,
        {"filter": "datum.role == 'candidate'"},
        {"window": [{"op": "row_number", "as": "row"}], "groupby": ["x", "y"], "sort": [{"field": "strategy"}]},
    ]
    ring = {"expr": "230 + 330 * (datum.row - 1)"}
    layers = [
        {"transform": place, "mark": {"type": "point", "size": 22, "opacity": 0.35, "filled": True}, "encoding": shape},
        {
            "transform": [*place, {"filter": "datum.as_good"}],
            "mark": {"type": "point", "size": 90, "opacity": 0.9, "strokeWidth": 1.5},
            "encoding": shape,
        },
        {
            "transform": [*optima, {"filter": "datum.row == 1"}],
            "mark": {"type": "point", "size": 230, "opacity": 1, "filled": True, "stroke": "#fff"},
        },
        {
            "transform": [*optima, {"filter": "datum.row > 1"}],
            "mark": {"type": "point", "size": ring, "opacity": 1, "filled": False, "strokeWidth": 3},
        },
        {
            "transform": optima,
            "mark": {"type": "text", "dy": {"expr": "-15 - 13 * (datum.row - 1)"}, "fontWeight": "bold"},
            "encoding": {"text": nominal("strategy")},
        },
    ]
    switch = {"bind": {"input": "checkbox", "name": "in the coordinates of standard "}}
    is_mapped = (rows["common_log2_lr"] != rows["x_place"]).any()
    return data.attach_to(
        {
            "params": [{"name": MAPPED, "value": False, **(switch if is_mapped else {})}],
            "width": "container",
            "height": 340,
            "data": data.add(rows),
            "encoding": encoding,
            "layer": layers,
        }
    )
