"""The paper's figure of optima (fig:seeds-ViT): the best points of all strategies over their seeds, on one axis."""

import pandas as pd

from ettsweep.files import Json
from ettsweep.metric import Metric
from ettsweep.report.figures.chart_data import (
    FILE_WIDTH,
    HIDDEN,
    IS_HIDDEN,
    Datasets,
    colour_scale,
    legend_columns,
    nominal,
    quantitative,
    value_if,
)
from ettsweep.report.formats import (
    axis_title_and_factor,
    mean_text,
    strategy_rank,
)
from ettsweep.report.run_histories import quantity_label

SEED_KINDS = ["search's seeds", "fresh seeds"]


def seeds(curves: pd.DataFrame, runs: pd.DataFrame) -> Json:
    """Draw the evaluations of each strategy's candidate, a line for each run.

    The legend has (lr, wd) and the mean ± standard error of the scores; a click on an entry hides or shows it.

    Args:
        curves: rows of `curves_frame` of families that differ only in strategy; at least one is an evaluation.
        runs: rows of `optima_frame` of the same; a strategy's fresh runs are drawn, or the search's if it has none.
    """
    data, metric, selected = Datasets(), runs["metric"].iloc[0], prefer_fresh_runs(runs)
    quantity, accuracy = metric.column, metric.is_fraction
    evaluations = curves[["run", "trained", quantity]].dropna().merge(selected[["run", "strategy", "seed"]], on="run")
    evaluations = drop_lowest_accuracies(evaluations.assign(value=metric.factor * evaluations[quantity]), accuracy)
    labels = {
        str(strategy): _legend_label(str(strategy), rows, metric) for strategy, rows in selected.groupby("strategy")
    }
    evaluations["label"] = evaluations["strategy"].map(labels)
    order = _ordered_strategies(selected)
    lines = {
        "params": [HIDDEN],
        # Not `opacity`: each line would be a layer of its own in a PNG, which takes twenty times as long.
        "mark": {"type": "line", "strokeWidth": 1.6, "strokeOpacity": 0.85},
        "encoding": {
            "x": quantitative("trained", title=str(curves["unit"].iloc[0])),
            "y": quantitative(
                "value",
                title=quantity_label(quantity) + metric.unit_suffix,
                scale=value_scale(evaluations["value"], accuracy),
            ),
            "detail": nominal("run"),
            "color": _strategy_colours("label", colour_scale(selected, order, [labels[name] for name in order])),
            "opacity": value_if(IS_HIDDEN, 0, 1),
            "tooltip": [
                nominal("strategy"),
                quantitative("seed"),
                nominal("run"),
                quantitative("trained"),
                quantitative("value"),
            ],
        },
    }
    rows = data.add(evaluations[["run", "strategy", "seed", "label", "trained", "value"]])
    return data.attach_to({"width": "container", "height": 320, "data": rows, "layer": [lines]})


def scores(runs: pd.DataFrame) -> Json:
    """Draw the score of each run of each candidate, with means and standard errors if none diverged.

    Open circles are the search's seeds, which chose the point, so their mean is optimistic; filled ones are fresh.

    Args:
        runs: rows of `optima_frame` of families that differ only in strategy.
    """
    name, factor = axis_title_and_factor(runs["metric"].iloc[0])
    data, order = Datasets(), _ordered_strategies(runs)
    all_runs = runs.assign(value=factor * runs["score"], kind=_seed_kinds(runs), diverged=runs["score"].isna())
    scored = all_runs[~all_runs["diverged"]]
    groups = all_runs.groupby(["strategy", "kind"], as_index=False)
    statistics = groups.agg(
        mean=("value", "mean"), error=("value", "sem"), runs=("run", "size"), diverged=("diverged", "sum")
    )
    # pandas leaves NaN out: a mean without the diverged runs would look too good.
    spread, others = statistics[statistics["diverged"] == 0], statistics[statistics["diverged"] > 0]
    spread = spread.assign(low=spread["mean"] - spread["error"], high=spread["mean"] + spread["error"])
    encoding = {
        "y": nominal("strategy", title=None, scale={"domain": order}, axis={"ticks": False, "domain": False}),
        "yOffset": nominal("kind", scale={"domain": SEED_KINDS}),
        "color": _strategy_colours("strategy", colour_scale(all_runs, order), legend=False),
    }
    texts = [f"{n} of {runs} diverged" for n, runs in zip(others["diverged"], others["runs"], strict=True)]
    means = data.add(spread)
    dots = data.add(scored[["strategy", "kind", "seed", "run", "value"]])
    hover = [
        nominal("strategy"),
        nominal("kind", title="seeds"),
        quantitative("seed"),
        nominal("run"),
        quantitative("value"),
    ]
    layers: list[Json] = [
        {
            "data": means,
            "mark": {"type": "rule", "strokeWidth": 1.2},
            "encoding": {"x": quantitative("low", title=name), "x2": {"field": "high"}},
        },
        {
            "data": means,
            "mark": {"type": "tick", "thickness": 2.4, "size": 16},
            "encoding": {"x": quantitative("mean", title=name)},
        },
        {
            "data": data.add(others.assign(told=texts)[["strategy", "kind", "told"]]),
            "mark": {"type": "text", "align": "right", "dx": -4, "fontSize": 10},
            "encoding": {"x": {"value": "width"}, "text": nominal("told")},
        },
    ]
    layers += [
        {
            "data": dots,
            "transform": [{"filter": {"field": "kind", "equal": kind}}],
            "mark": {"type": "point", "filled": filled, "size": 48, "strokeWidth": 1.5, "opacity": 0.9},
            "encoding": {
                "x": quantitative("value", title=name, scale={"zero": False, "padding": 12}),
                "tooltip": hover,
            },
        }
        for kind, filled in zip(SEED_KINDS, (False, True), strict=True)
    ]
    return data.attach_to({"width": "container", "height": 46 * len(order), "encoding": encoding, "layer": layers})


def prefer_fresh_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the fresh runs of each strategy, or those of the search if it has none."""
    fresh = runs[~runs["counted"]]
    return pd.concat([fresh, runs[runs["counted"] & ~runs["strategy"].isin(fresh["strategy"])]])


def _seed_kinds(runs: pd.DataFrame) -> pd.Series:
    return runs["counted"].map(dict(zip((True, False), SEED_KINDS, strict=True)))


def _ordered_strategies(runs: pd.DataFrame) -> list[str]:
    return sorted(runs["strategy"].unique(), key=strategy_rank)


def _legend_label(strategy: str, runs: pd.DataFrame, metric: Metric) -> str:
    # NaN, where a run diverged, differs from itself.
    scores = [None if score != score else score for score in runs["score"]]
    kind = "search" if bool(runs["counted"].iloc[0]) else "fresh"
    score_label = mean_text(scores, metric) or f"{sum(score is None for score in scores)} diverged"
    return f"{strategy} {runs['point'].iloc[0]} [{score_label}, {len(runs)} {kind}]"


def _strategy_colours(field: str, scale: Json, legend: bool = True) -> Json:
    legend_style = {
        "title": None,
        "orient": "bottom",
        "columns": legend_columns(FILE_WIDTH),
        "symbolType": "stroke",
        "symbolStrokeWidth": 3,
    }
    return nominal(field, scale=scale, legend=legend_style if legend else None)


def drop_lowest_accuracies(curves: pd.DataFrame, accuracy: bool) -> pd.DataFrame:
    """Drop the lowest quarter of accuracies, the steep beginning, to zoom in on the ends; keep all losses."""
    return curves[curves["value"] >= curves["value"].quantile(0.25)] if accuracy else curves


def value_scale(values: pd.Series, accuracy: bool) -> Json:
    """Return the y scale of some values: logarithmic for losses that fall to less than a quarter."""
    low, high = float(values.min()), float(values.max())
    if not accuracy and low > 0 and high > 4 * low:
        return {"type": "log", "domain": [low / 1.1, high * 1.1], "nice": False}
    # Equal values, or all 0, need a range too.
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return {"domain": [low - margin, high + margin], "nice": False, "zero": False}
