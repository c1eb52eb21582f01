"""The curves of a family: steps, evaluations and spikes, means over seeds."""

import json
from collections.abc import Sequence

import pandas as pd

from ettsweep.files import Json
from ettsweep.metric import Metric
from ettsweep.report.figures.chart_data import (
    HIDDEN,
    IS_HIDDEN,
    NEIGHBOUR_COLOURS,
    Datasets,
    label_points,
    legend_columns,
    nominal,
    quantitative,
    value_if,
)
from ettsweep.report.formats import point_title
from ettsweep.report.run_histories import EVALUATIONS, TRAINING, quantity_label
from ettsweep.report.theme import SPIKE

MAX_OTHER_POINTS = 12
"""Further points drawn in grey, the best first; more if there are no neighbours."""

LOG_TICKS = [
    round(exponent + log_mantissa, 5) for exponent in range(-9, 10) for log_mantissa in (0.0, 0.30103, 0.69897)
]
"""log10 of 1, 2 and 5 times the powers of ten."""

TRIANGLE = "M-1,-1L1,-1L0,0.8Z"


def curves(curves: pd.DataFrame, spikes: pd.DataFrame, points: pd.DataFrame) -> Json:
    """Draw training loss, gradient norm, validation loss or accuracy of a family, as chosen by a control.

    It starts with the scored quantity. Lines are means over the seeds that count: of the candidate, its neighbours and,
    in grey, the best other points. Controls set the quantity, the width of the smoothing bins, and logarithmic axes; a
    click on a legend entry hides or shows its line. Spikes of the candidate and its neighbours are marked, with details
    on hover.

    Args:
        curves: the rows of `curves_frame` of one family; at least one of a seed that counts.
        spikes: its rows of `spikes_frame`.
        points: its rows of `points_frame`.
    """
    curves = curves[curves["counted"]]
    data, drawn = Datasets(), points[points["point"].isin(curves["point"])]
    # Without neighbours there is room for as many others.
    room = MAX_OTHER_POINTS + (0 if (drawn["role"] == "neighbour").any() else len(NEIGHBOUR_COLOURS))
    labelled = label_points(drawn, room)
    curves = curves[curves["point"].isin(labelled["point"])]
    metric: Metric = points["metric"].iloc[0]
    scored = metric.column
    names = dict.fromkeys((*TRAINING, *EVALUATIONS, scored))
    quantities = [name for name in names if curves[name].notna().any()] or [scored]  # none is finite
    quantity = scored if scored in quantities else quantities[0]
    unit, longest = str(curves["unit"].iloc[0]), float(curves["trained"].max())
    percent = curves.assign(val_accuracy=100 * curves["val_accuracy"])
    runs = curves[["run", "point"]].drop_duplicates().merge(labelled[["point", "label"]], on="point")
    rows = data.add(percent[["run", "trained", *quantities]])
    spikes = spikes[spikes["run"].isin(runs["run"]) & (spikes["role"] != "other")]
    layers = [
        {"data": rows, **_mean_layer(_quantity_transform(data, runs), labelled, unit)},
        _spike_layer(data, spikes, point_title(labelled["point"])),
    ]
    labels = {name: quantity_label(name) + _unit_suffix(name, metric) for name in quantities}
    controls = [
        {"name": "quantity", "value": quantity, "bind": _quantity_radio(quantities)},
        {"name": "smoothing", "value": 0, "bind": _smoothing_slider(f"smoothing, {unit}s ", longest)},
        {"name": "logx", "value": False, "bind": {"input": "checkbox", "name": f"log {unit}s "}},
        {"name": "logy", "value": False, "bind": {"input": "checkbox", "name": "log scale "}},
    ]
    title = {"text": {"expr": f"({json.dumps(labels)})[quantity]"}, "fontWeight": "normal", "fontSize": 12}
    # A scale's type cannot depend on a parameter: logarithms are taken of the data, and undone in the labels.
    scale = {"zero": False, "nice": False}
    encoding = {
        "x": quantitative("x", title=unit, scale=scale, axis=_axis("logx")),
        "y": quantitative("y", title=None, scale=scale, axis=_axis("logy")),
    }
    return data.attach_to(
        {
            "title": title,
            "params": controls,
            "width": "container",
            "height": 320,
            "encoding": encoding,
            "layer": layers,
        }
    )


def _quantity_transform(data: Datasets, runs: pd.DataFrame) -> list[Json]:
    """Return the transforms to the chosen quantity of each run: `value` over `t`, the middle of its smoothing bin."""
    return [
        {"calculate": "datum[quantity]", "as": "value"},
        # Rows of steps have no evaluations, and the reverse.
        {"filter": "isValid(datum.value)"},
        # Looked up by run, since repeating them in each row would bloat the page.
        {"lookup": "run", "from": {"data": data.add(runs), "key": "run", "fields": ["point", "label"]}},
        {
            "calculate": "smoothing > 0 ? (floor(datum.trained / smoothing) + 0.5) * smoothing : datum.trained",
            "as": "t",
        },
    ]


AXES_TRANSFORM: list[Json] = [
    {"filter": "(!logx || datum.t > 0) && (!logy || datum.value > 0)"},
    {"calculate": "logx ? log(datum.t) / LN10 : datum.t", "as": "x"},
    {"calculate": "logy ? log(datum.value) / LN10 : datum.value", "as": "y"},
]
"""Places `value` over `t`, each axis linear or logarithmic as the controls say."""

MEAN_VALUE = {"op": "mean", "field": "value", "as": "value"}


def _axis(log: str) -> Json:
    return {
        "values": {"expr": f"{log} ? {LOG_TICKS} : null"},
        "labelExpr": f"{log} ? format(pow(10, datum.value), '~g') : datum.label",
    }


def _mean_layer(chosen_quantity: list[Json], labelled: pd.DataFrame, unit: str) -> Json:
    """Draw the mean over seeds of each point, up to where its shortest run ends."""
    kinds = labelled.drop_duplicates("label")
    candidate = next(iter(labelled.loc[labelled["role"] == "candidate", "point"]), "")
    means = [
        {
            "aggregate": [MEAN_VALUE, {"op": "distinct", "field": "run", "as": "runs"}],
            "groupby": ["point", "label", "t"],
        },
        {"joinaggregate": [{"op": "max", "field": "runs", "as": "seeds"}], "groupby": ["point"]},
        # Beyond the end of the shortest run, the mean would jump.
        {"filter": "datum.runs == datum.seeds"},
    ]
    legend = {
        "title": f"{point_title(labelled['point'])} [score]",
        "orient": "bottom",
        "columns": legend_columns(420, 620),
        "symbolType": "stroke",
    }
    colours = {"domain": kinds["label"].tolist(), "range": kinds["colour"].tolist()}
    return {
        "params": [HIDDEN],
        "transform": [*chosen_quantity, *means, *AXES_TRANSFORM],
        "mark": {"type": "line"},
        "encoding": {
            "detail": nominal("point"),
            "color": nominal("label", scale=colours, legend=legend),
            "strokeWidth": {"condition": {"test": {"field": "point", "equal": candidate}, "value": 2.6}, "value": 1.3},
            "opacity": value_if(IS_HIDDEN, 0, 1),
            "tooltip": [
                nominal("point", title=point_title(labelled["point"])),
                quantitative("t", title=unit, format=".4~g"),
                quantitative("value", format=".4~g"),
                quantitative("runs", title="seeds"),
            ],
        },
    }


def _spike_layer(data: Datasets, spikes: pd.DataFrame, title: str) -> Json:
    """Mark the spikes of the quantity that is shown."""
    # As in `curves`, which draws accuracies in percent.
    percent = spikes["value"].where(spikes["quantity"] != "val_accuracy", 100 * spikes["value"])
    rows = spikes[["point", "run", "seed", "quantity", "told"]].assign(t=spikes["trained"], value=percent)
    triangle = {"shape": TRIANGLE, "size": 60, "yOffset": -7, "opacity": 1, "fill": SPIKE, "stroke": "#fff"}
    return {
        "data": data.add(rows),
        "transform": [{"filter": "datum.quantity == quantity && isValid(datum.value)"}, *AXES_TRANSFORM],
        "mark": {"type": "point", **triangle},
        "encoding": {
            "tooltip": [
                nominal("told", title="spike"),
                nominal("point", title=title),
                quantitative("seed"),
                nominal("run"),
            ]
        },
    }


def _quantity_radio(names: Sequence[str]) -> Json:
    return {"input": "radio", "options": list(names), "labels": [quantity_label(name) for name in names], "name": " "}


def _unit_suffix(column: str, metric: Metric) -> str:
    if column == metric.column:
        return metric.unit_suffix
    if column == "val_accuracy":
        return " (%)"
    return f" ({metric.loss_unit})" if metric.loss_unit and column in ("loss", "val_loss") else ""


def _smoothing_slider(name: str, longest: float) -> Json:
    return {"input": "range", "min": 0, "max": round(longest / 4, 3), "step": round(longest / 100, 4), "name": name}
