"""The explorer of a family's curves: steps, evaluations and spikes, by point and by run."""

import json
from collections.abc import Sequence

import altair as alt
import pandas as pd

from ettsweep.metric import Metric
from ettsweep.report.figures.chart_data import Datasets, layer_charts, legend_columns
from ettsweep.report.figures.highlights import NEIGHBOUR_COLOURS, label_points
from ettsweep.report.run_histories import EVALUATIONS, TRAINING, quantity_label
from ettsweep.report.theme import CANDIDATE, INK

MAX_OTHER_POINTS = 12
"""Further points drawn in grey, the best first; more where there are no neighbours."""

CHOSEN_POINT = "chosen"
"""Vega parameter: the label of the point whose runs are drawn one by one; empty for none. The page sets it."""

LOG_TICKS = [
    round(exponent + log_mantissa, 5) for exponent in range(-9, 10) for log_mantissa in (0.0, 0.30103, 0.69897)
]
"""log10 of 1, 2 and 5 times the powers of ten."""

TRIANGLE = "M-1,-1L1,-1L0,0.8Z"


def curves(curves: pd.DataFrame, spikes: pd.DataFrame, points: pd.DataFrame) -> alt.LayerChart:
    """Draw training loss, gradient norm, validation loss or accuracy of a family, as chosen by a control.

    It starts with the scored quantity. Lines are means over the seeds that count: of the candidate, its neighbours and,
    in grey, the best other points; choosing a point adds the curves of all its runs. Controls set the quantity, the
    width of the smoothing bins, and logarithmic axes; a click on a legend entry hides or shows its line. Spikes are
    marked, with details on hover.

    Args:
        curves: the rows of `curves_frame` of one family; at least one.
        spikes: its rows of `spikes_frame`.
        points: its rows of `points_frame`.
    """
    data, drawn = Datasets(), points[points["point"].isin(curves["point"])]
    # Without neighbours there is room for as many others.
    room = MAX_OTHER_POINTS + (0 if (drawn["role"] == "neighbour").any() else len(NEIGHBOUR_COLOURS))
    labelled = label_points(drawn, room)
    metric: Metric = points["metric"].iloc[0]
    scored = metric.column
    names = dict.fromkeys((*TRAINING, *EVALUATIONS, scored))
    quantities = [name for name in names if curves[name].notna().any()]
    quantity = scored if scored in quantities else quantities[0]
    unit, longest = str(curves["unit"].iloc[0]), float(curves["trained"].max())
    percent = curves.assign(val_accuracy=100 * curves["val_accuracy"])
    # how="left" keeps points without a label: a click on the map may choose any of them.
    runs = curves[["run", "point", "seed", "counted"]].drop_duplicates("run").merge(labelled, on="point", how="left")
    base = _quantity_chart(data, percent[["run", "trained", *quantities]], runs)
    layers = [_mean_layer(base, labelled, unit), *_run_layers(base, unit), _spike_layer(data, spikes, runs, unit)]
    labels = {name: quantity_label(name) + _unit_suffix(name, metric) for name in quantities}
    controls = [
        alt.param(name="quantity", value=quantity, bind=_quantity_radio(quantities)),
        alt.param(name="smoothing", value=0, bind=_smoothing_slider(f"smoothing, {unit}s ", longest)),
        alt.param(name="logx", value=False, bind=alt.binding_checkbox(name=f"log {unit}s ")),
        alt.param(name="logy", value=False, bind=alt.binding_checkbox(name="log scale ")),
        alt.param(name=CHOSEN_POINT, value=""),
    ]
    chart = layer_charts(*layers).add_params(*controls)
    title = alt.TitleParams(text=alt.expr(f"({json.dumps(labels)})[quantity]"), fontWeight="normal", fontSize=12)
    return data.attach_to(chart.properties(width="container", height=320, title=title))


def _quantity_chart(data: Datasets, curves: pd.DataFrame, runs: pd.DataFrame) -> alt.Chart:
    """Return a chart of the chosen quantity of each run: `value` over `t`, the middle of its smoothing bin."""
    fields = ["point", "seed", "counted", "label"]
    return (
        alt.Chart(data.add(curves))
        .transform_calculate(value="datum[quantity]")
        # Rows of steps have no evaluations, and the reverse.
        .transform_filter("isValid(datum.value)")
        # Looked up by run, since repeating them in each row would bloat the page.
        .transform_lookup("run", from_=alt.LookupData(data=data.add(runs[["run", *fields]]), key="run", fields=fields))
        .transform_calculate(t="smoothing > 0 ? (floor(datum.trained / smoothing) + 0.5) * smoothing : datum.trained")
    )


def _mean_layer(base: alt.Chart, labelled: pd.DataFrame, unit: str) -> alt.Chart:
    """Draw the mean over seeds of each point, up to where its shortest run ends; faint while a point is chosen."""
    # empty=False: before any click no line is hidden.
    hidden = alt.selection_point(name="hidden", fields=["label"], bind="legend", toggle="true", empty=False)
    kinds, candidate = (
        labelled.drop_duplicates("label"),
        next(iter(labelled.loc[labelled["role"] == "candidate", "point"]), ""),
    )
    scale = alt.Scale(domain=kinds["label"].tolist(), range=kinds["colour"].tolist())
    legend = alt.Legend(
        title="(lr, wd) [score]", orient="bottom", columns=legend_columns(420, 620), symbolType="stroke"
    )
    means = (
        base.transform_filter("datum.counted && isValid(datum.label)")
        .transform_aggregate(value="mean(value)", runs="distinct(run)", groupby=["point", "label", "t"])
        .transform_joinaggregate(seeds="max(runs)", groupby=["point"])
        # Beyond the end of the shortest run, the mean would jump.
        .transform_filter("datum.runs == datum.seeds")
    )
    return (
        _on_axes(means, unit)
        .mark_line()
        .encode(
            detail="point:N",
            color=alt.Color("label:N", scale=scale, legend=legend),
            strokeWidth=alt.condition(alt.datum.point == candidate, alt.value(2.6), alt.value(1.3)),
            opacity=alt.when(hidden)
            .then(alt.value(0))
            .when(f"{CHOSEN_POINT} != ''")
            .then(alt.value(0.3))
            .otherwise(alt.value(1)),
            tooltip=[
                alt.Tooltip("point:N", title="(lr, wd)"),
                *_position_tooltips(unit),
                alt.Tooltip("runs:Q", title="seeds"),
            ],
        )
        .add_params(hidden)
    )


def _run_layers(base: alt.Chart, unit: str) -> list[alt.Chart]:
    """Draw the runs of the chosen point, labelled with their seeds at the right end."""
    chosen = base.transform_filter(f"{CHOSEN_POINT} != '' && datum.point == {CHOSEN_POINT}").transform_aggregate(
        value="mean(value)", groupby=["run", "point", "seed", "t"]
    )
    lines = _on_axes(chosen, unit).mark_line(stroke=INK, strokeWidth=1.8)
    last = (
        chosen.transform_joinaggregate(end="max(t)", groupby=["run"])
        .transform_filter("datum.t == datum.end")
        # Runs end at the same step: their labels are stacked.
        .transform_window(row="row_number()", sort=[alt.SortField("value")])
    )
    names = _on_axes(last.transform_calculate(name="'seed ' + datum.seed"), unit)
    tooltip = [alt.Tooltip(f"{name}:N") for name in ("run", "seed")]
    return [
        lines.encode(detail="run:N", tooltip=[*tooltip, *_position_tooltips(unit)]),
        names.mark_text(align="right", dy=alt.expr("4 - 11 * datum.row"), fontSize=10).encode(text="name:N"),
    ]


def _spike_layer(data: Datasets, spikes: pd.DataFrame, runs: pd.DataFrame, unit: str) -> alt.Chart:
    """Mark spikes in the means of the candidate and its neighbours, or those of the chosen point."""
    # As in `curves`, which draws accuracies in percent.
    percent = spikes["value"].where(spikes["quantity"] != "val_accuracy", 100 * spikes["value"])
    marked = spikes[["point", "role", "run", "seed", "quantity", "told"]].assign(t=spikes["trained"], value=percent)
    rows = marked.merge(runs[["run", "counted"]], on="run")
    is_visible = f"{CHOSEN_POINT} == '' ? datum.counted && datum.role != 'other' : datum.point == {CHOSEN_POINT}"
    marks = alt.Chart(data.add(rows)).transform_filter(
        f"datum.quantity == quantity && isValid(datum.value) && ({is_visible})"
    )
    tooltip = [alt.Tooltip("told:N", title="spike"), alt.Tooltip("point:N", title="(lr, wd)")]
    triangle = _on_axes(marks, unit).mark_point(
        shape=TRIANGLE, size=60, yOffset=-7, opacity=1, fill=CANDIDATE, stroke="#fff"
    )
    return triangle.encode(tooltip=[*tooltip, alt.Tooltip("seed:Q"), alt.Tooltip("run:N")])


def _on_axes(chart: alt.Chart, unit: str) -> alt.Chart:
    """Draw `value` over `t`, each axis linear or logarithmic as the controls say."""

    def axis(log: str) -> alt.Axis:
        labels = f"{log} ? format(pow(10, datum.value), '~g') : datum.label"
        return alt.Axis(labelExpr=labels, values=alt.expr(f"{log} ? {LOG_TICKS} : null"))

    # A scale's type cannot depend on a parameter: logarithms are taken of the data, and undone in the labels.
    scale = alt.Scale(zero=False, nice=False)
    return (
        chart.transform_filter("(!logx || datum.t > 0) && (!logy || datum.value > 0)")
        .transform_calculate(x="logx ? log(datum.t) / LN10 : datum.t", y="logy ? log(datum.value) / LN10 : datum.value")
        .encode(
            alt.X("x:Q", title=unit, axis=axis("logx"), scale=scale),
            alt.Y("y:Q", title=None, axis=axis("logy"), scale=scale),
        )
    )


def _position_tooltips(unit: str) -> list[alt.Tooltip]:
    return [alt.Tooltip("t:Q", title=unit, format=".4~g"), alt.Tooltip("value:Q", format=".4~g")]


def _quantity_radio(names: Sequence[str]) -> alt.BindRadioSelect:
    return alt.binding_radio(options=list(names), labels=[quantity_label(name) for name in names], name=" ")


def _unit_suffix(column: str, metric: Metric) -> str:
    if column == metric.column:
        return metric.unit_suffix
    if column == "val_accuracy":
        return " (%)"
    return f" ({metric.loss_unit})" if metric.loss_unit and column in ("loss", "val_loss") else ""


def _smoothing_slider(name: str, longest: float) -> alt.BindRange:
    return alt.binding_range(min=0, max=round(longest / 4, 3), step=round(longest / 100, 4), name=name)
