"""What one does with a map: hover a point, pick one, switch the fitted surface on and off."""

from typing import Any

import altair as alt
import pandas as pd

from ettsweep.report.formats import metric_name
from ettsweep.report.theme import INK

FITTED = "fitted"
"""The switch of the fitted surface."""

PICKED = "picked"
"""The selection of a point, by its name: the column `point`."""

RUNS = 6
"""Ids that a tooltip has room for."""


def about(points: pd.DataFrame) -> pd.DataFrame:
    """Return points with all that a tooltip tells of them."""
    plateau = points["as_good"].map({True: ", as good within the margin", False: ""})
    return points[["point", "lr_steps", "wd_steps"]].assign(
        state=points["state"] + plateau,
        mean=points["told"].where(points["score"].notna(), "none"),
        seeds=points["seeds"].fillna(0),
        metric=points["metric"].map(metric_name),
        ids=[_ids(runs) for runs in points["runs"]],
    )


def _ids(runs: str) -> str:
    ids = runs.split()
    return " ".join(ids[:RUNS]) + (f" and {len(ids) - RUNS} more" if len(ids) > RUNS else "")


TOOLTIP = [
    alt.Tooltip("point:N", title="(lr, wd)"),
    alt.Tooltip("state:N"),
    alt.Tooltip("metric:N", title="score"),
    alt.Tooltip("mean:N", title="mean ± standard error"),
    alt.Tooltip("seeds:Q"),
    alt.Tooltip("ids:N", title="runs"),
]


def picked(base: alt.Chart, mark: dict[str, Any]) -> alt.Chart:
    """Lay what can be hovered and picked over the points of a chart, a frame around the one that is."""
    selection = alt.selection_point(name=PICKED, fields=["point"], on="click", clear="dblclick", empty=False)
    layer = base.mark_point(**mark, fill=INK, fillOpacity=0, stroke=INK, strokeWidth=2.5, cursor="pointer")
    opacity = alt.condition(selection, alt.value(1), alt.value(0))
    return layer.encode(strokeOpacity=opacity, tooltip=TOOLTIP).add_params(selection)


def fitted_switch(chart: alt.LayerChart, surface: pd.DataFrame) -> alt.LayerChart:
    """Give a map with a fitted surface its switch."""
    if surface.empty:
        return chart
    return chart.add_params(alt.param(name=FITTED, value=True, bind=alt.binding_checkbox(name="fitted surface ")))
