"""Interaction with a map: tooltips, the selected point, and the switch of the fitted surface."""

from typing import Any

import altair as alt
import pandas as pd

from ettsweep.report.theme import INK

FITTED = "fitted"
"""Vega parameter: `true` while the fitted surface is shown."""

PICKED = "picked"
"""Vega selection: the value of the column `point` of the selected point."""

MAX_TOOLTIP_RUNS = 6
"""Most run ids in a tooltip."""


def tooltip_frame(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points with the columns that tooltips show."""
    plateau = points["as_good"].map({True: ", as good within the margin", False: ""})
    return points[["point", "lr_steps", "wd_steps"]].assign(
        state=points["state"] + plateau,
        mean=points["told"].where(points["score"].notna(), "none"),
        seeds=points["seeds"].fillna(0),
        metric=[metric.label for metric in points["metric"]],
        ids=[_shortened_ids(runs) for runs in points["runs"]],
    )


def _shortened_ids(runs: str) -> str:
    ids = runs.split()
    return " ".join(ids[:MAX_TOOLTIP_RUNS]) + (
        f" and {len(ids) - MAX_TOOLTIP_RUNS} more" if len(ids) > MAX_TOOLTIP_RUNS else ""
    )


TOOLTIP = [
    alt.Tooltip("point:N", title="(lr, wd)"),
    alt.Tooltip("state:N"),
    alt.Tooltip("metric:N", title="score"),
    alt.Tooltip("mean:N", title="mean ± standard error"),
    alt.Tooltip("seeds:Q"),
    alt.Tooltip("ids:N", title="runs"),
]


def pick_layer(base: alt.Chart, mark: dict[str, Any]) -> alt.Chart:
    """Return an invisible layer that takes hovers and clicks, with a frame around the selected point."""
    # By default, an empty selection contains all points.
    selection = alt.selection_point(name=PICKED, fields=["point"], on="click", clear="dblclick", empty=False)
    layer = base.mark_point(**mark, fill=INK, fillOpacity=0, stroke=INK, strokeWidth=2.5, cursor="pointer")
    opacity = alt.condition(selection, alt.value(1), alt.value(0))
    return layer.encode(strokeOpacity=opacity, tooltip=TOOLTIP).add_params(selection)


def add_surface_switch(chart: alt.LayerChart, surface: pd.DataFrame) -> alt.LayerChart:
    """Add the switch of the fitted surface to a map, if there is one."""
    if surface.empty:
        return chart
    return chart.add_params(alt.param(name=FITTED, value=True, bind=alt.binding_checkbox(name="fitted surface ")))
