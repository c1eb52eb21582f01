"""The paper's figure of optima (fig:seeds-ViT): the best points of all strategies over their seeds, on one axis."""

import altair as alt
import pandas as pd

from ettsweep.metric import Metric
from ettsweep.report.figures.chart_data import FILE_WIDTH, Datasets, layer_charts, legend_columns
from ettsweep.report.figures.trajectories import drop_lowest_accuracies, value_scale
from ettsweep.report.formats import (
    axis_title_and_factor,
    mean_text,
    strategy_colour,
    strategy_rank,
)
from ettsweep.report.run_histories import quantity_label

SEED_KINDS = ["search's seeds", "fresh seeds"]


def seeds(curves: pd.DataFrame, runs: pd.DataFrame) -> alt.LayerChart:
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
    # empty=False: before any click no line is hidden.
    hidden = alt.selection_point(name="hidden", fields=["label"], bind="legend", toggle="true", empty=False)
    lines = (
        alt.Chart(data.add(evaluations[["run", "strategy", "seed", "label", "trained", "value"]]))
        .mark_line(strokeWidth=1.6)
        .encode(
            alt.X("trained:Q", title=str(curves["unit"].iloc[0])),
            alt.Y(
                "value:Q",
                title=quantity_label(quantity) + metric.unit_suffix,
                scale=value_scale(evaluations["value"], accuracy),
            ),
            detail="run:N",
            color=_strategy_colours(
                "label", [labels[name] for name in _ordered_strategies(selected)], _ordered_strategies(selected)
            ),
            opacity=alt.condition(hidden, alt.value(0), alt.value(0.85)),
            tooltip=["strategy:N", "seed:Q", "run:N", "trained:Q", "value:Q"],
        )
        .add_params(hidden)
    )
    chart = layer_charts(lines)
    return data.attach_to(chart.properties(width="container", height=320))


def scores(runs: pd.DataFrame) -> alt.LayerChart:
    """Draw the score of each run of each candidate, with means and standard errors where none diverged.

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
    # pandas leaves NaN out: a mean over the runs that did not diverge would flatter the point.
    spread, others = statistics[statistics["diverged"] == 0], statistics[statistics["diverged"] > 0]
    spread = spread.assign(low=spread["mean"] - spread["error"], high=spread["mean"] + spread["error"])
    y = alt.Y("strategy:N", title=None, scale=alt.Scale(domain=order), axis=alt.Axis(ticks=False, domain=False))
    apart = alt.YOffset("kind:N", scale=alt.Scale(domain=SEED_KINDS))
    x = alt.X("value:Q", title=name, scale=alt.Scale(zero=False, padding=12))
    colour = _strategy_colours("strategy", order, order, legend=False)
    base = alt.Chart(data.add(spread)).encode(y, apart, color=colour)
    texts = [f"{n} of {runs} diverged" for n, runs in zip(others["diverged"], others["runs"], strict=True)]
    notes = alt.Chart(data.add(others.assign(told=texts)[["strategy", "kind", "told"]])).encode(y, apart, color=colour)
    dots = alt.Chart(data.add(scored[["strategy", "kind", "seed", "run", "value"]])).encode(x, y, apart, color=colour)
    hover = ["strategy:N", alt.Tooltip("kind:N", title="seeds"), "seed:Q", "run:N", "value:Q"]
    layers = [
        base.mark_rule(strokeWidth=1.2).encode(alt.X("low:Q", title=name), x2="high:Q"),
        base.mark_tick(thickness=2.4, size=16).encode(alt.X("mean:Q", title=name)),
        notes.mark_text(align="right", dx=-4, fontSize=10).encode(text="told:N", x=alt.value("width")),
    ]
    for kind, filled in zip(SEED_KINDS, (False, True), strict=True):
        mark = dots.transform_filter(alt.datum.kind == kind).mark_point(
            filled=filled, size=48, strokeWidth=1.5, opacity=0.9
        )
        layers.append(mark.encode(tooltip=hover))
    chart = layer_charts(*layers)
    return data.attach_to(chart.properties(width="container", height=46 * len(order)))


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


def _strategy_colours(field: str, domain: list[str], strategies: list[str], legend: bool = True) -> alt.Color:
    scale = alt.Scale(domain=domain, range=[strategy_colour(name) for name in strategies])
    legend_style = alt.Legend(
        title=None, orient="bottom", columns=legend_columns(FILE_WIDTH), symbolType="stroke", symbolStrokeWidth=3
    )
    return alt.Color(f"{field}:N", scale=scale, legend=legend_style if legend else None)
