"""The paper's figure of a search (fig:hyper-ViT): the evaluations of all points, with their best values."""

import pandas as pd

from ettsweep.files import Json
from ettsweep.report.figures.chart_data import (
    HIDDEN,
    IS_HIDDEN,
    Datasets,
    label_points,
    legend_columns,
    nominal,
    quantitative,
    value_if,
)
from ettsweep.report.formats import axis_title_and_factor, point_title
from ettsweep.report.run_histories import quantity_label


def trajectories(curves: pd.DataFrame, points: pd.DataFrame) -> Json:
    """Draw the evaluations of all points of a family, means over the seeds that count.

    The candidate's line is thick, its neighbours have colours, all others are grey. The legend has (lr, wd) and the
    score of the former; a click on an entry hides or shows it.

    Args:
        curves: the rows of `curves_frame` of one family; at least one is an evaluation.
        points: its rows of `points_frame`.
    """
    metric = points["metric"].iloc[0]
    quantity, accuracy = metric.column, metric.is_fraction
    factor = metric.factor
    data, labelled = Datasets(), label_points(points)
    counted_curves = curves[curves["counted"]].dropna(subset=[quantity])
    means = mean_curves(counted_curves, quantity, ["point"]).merge(labelled, on="point")
    means = drop_lowest_accuracies(means.assign(value=factor * means["value"]), accuracy)
    # Points without a curve get no entry.
    kinds = labelled[labelled["label"].isin(means["label"])].drop_duplicates("label")
    legend = {
        "title": f"{point_title(points['point'])} [{axis_title_and_factor(metric)[0]}]",
        "orient": "bottom",
        "columns": legend_columns(420, 620),
        "symbolType": "stroke",
        "symbolStrokeWidth": 3,
    }
    colours = {"domain": kinds["label"].tolist(), "range": kinds["colour"].tolist()}
    encoding = {
        "x": quantitative("trained", title=str(curves["unit"].iloc[0])),
        "y": quantitative(
            "value",
            title=quantity_label(quantity) + metric.unit_suffix,
            scale=value_scale(means["value"], accuracy),
        ),
        "detail": nominal("point"),
        "color": nominal("label", scale=colours, legend=legend),
        "opacity": value_if(IS_HIDDEN, 0, 1),
        "tooltip": [
            nominal("point", title=point_title(points["point"])),
            nominal("label"),
            quantitative("trained"),
            quantitative("value"),
        ],
    }
    # One above the other: what stands out must not disappear behind grey.
    layers: list[Json] = [
        {
            "transform": [{"filter": f"datum.role == '{role}'"}],
            "mark": {"type": "line", "strokeWidth": width},
        }
        for role, width in (("other", 1.0), ("neighbour", 1.6), ("candidate", 3.4))
    ]
    layers[0]["params"] = [HIDDEN]
    return data.attach_to(
        {
            "title": str(points["strategy"].iloc[0]),
            "width": "container",
            "height": 300,
            "data": data.add(means[["point", "label", "role", "trained", "value"]]),
            "encoding": encoding,
            "layer": layers,
        }
    )


def mean_curves(evaluated: pd.DataFrame, quantity: str, by: list[str]) -> pd.DataFrame:
    """Return the mean over the runs of each group: `trained` and `value`.

    Only where all runs of the group have an evaluation: a run that ends early would make the mean jump.
    """
    groups = evaluated.groupby([*by, "trained"], as_index=False).agg(value=(quantity, "mean"), runs=("run", "nunique"))
    return groups[groups["runs"] == groups.groupby(by)["runs"].transform("max")].drop(columns="runs")


def drop_lowest_accuracies(curves: pd.DataFrame, accuracy: bool) -> pd.DataFrame:
    """Drop the lowest quarter of accuracies, the steep beginning, so that the ends fill the axis; keep all losses."""
    return curves[curves["value"] >= curves["value"].quantile(0.25)] if accuracy else curves


def value_scale(values: pd.Series, accuracy: bool) -> Json:
    """Return the y scale of some values: logarithmic for losses that fall to less than a quarter."""
    low, high = float(values.min()), float(values.max())
    if not accuracy and low > 0 and high > 4 * low:
        return {"type": "log", "domain": [low / 1.1, high * 1.1], "nice": False}
    # Equal values, or all 0, need a range too.
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return {"domain": [low - margin, high + margin], "nice": False, "zero": False}
