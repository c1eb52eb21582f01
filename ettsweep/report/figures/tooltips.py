"""What hovering over a point of a map shows."""

import pandas as pd

from ettsweep.files import Json
from ettsweep.report.figures.chart_data import nominal, quantitative
from ettsweep.report.formats import point_title
from ettsweep.report.theme import INK

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
        nominal("point", title=point_title(points["point"])),
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
