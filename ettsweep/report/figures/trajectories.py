"""The paper's figure of a search (fig:hyper-ViT): the evaluations of all points, with their best values."""

import altair as alt
import numpy as np
import pandas as pd

from ettsweep.report.figures.chart_data import Datasets, layer_charts, legend_columns
from ettsweep.report.formats import GREY, axis_title_and_factor, is_accuracy, score_text
from ettsweep.report.run_histories import QUANTITY_LABELS
from ettsweep.trainer.tasks.registry import evaluation_column

MAX_LEGEND_POINTS = 30
"""Most points in a legend, the best ones; all others are grey."""


def trajectories(curves: pd.DataFrame, points: pd.DataFrame) -> alt.LayerChart:
    """Draw the evaluations of all points of a family, means over the seeds that count.

    The legend has (lr, wd) and the best value of each point, the best first; a click on an entry hides or shows it. The
    candidate's line is thick.

    Args:
        curves: the rows of `curves_frame` of one family; at least one is an evaluation.
        points: its rows of `points_frame`.
    """
    metric = str(points["metric"].iloc[0])
    quantity, accuracy = evaluation_column(metric), is_accuracy(metric)
    factor = 100 if accuracy else 1
    data, legend_points = Datasets(), _legend_labels(points, metric)
    counted_curves = curves[curves["counted"]].dropna(subset=[quantity])
    means = mean_curves(counted_curves, quantity, ["point"]).merge(legend_points, on="point")
    means = drop_lowest_accuracies(means.assign(value=factor * means["value"]), accuracy)
    # In the order of ranks; points without a curve get no entry.
    labels = [label for label in dict.fromkeys(legend_points["label"]) if label in set(means["label"])]
    # empty=False: before any click no line is hidden.
    hidden = alt.selection_point(name="hidden", fields=["label"], bind="legend", toggle="true", empty=False)
    legend = alt.Legend(
        title=f"(lr, wd) [{axis_title_and_factor(metric)[0].replace('validation ', '')}]",
        orient="bottom",
        columns=legend_columns(420, 620),
        symbolType="stroke",
        symbolStrokeWidth=3,
        # One more for "other points".
        symbolLimit=MAX_LEGEND_POINTS + 1,
    )
    lines = (
        alt.Chart(data.add(means[["point", "label", "role", "trained", "value"]]))
        .mark_line()
        .encode(
            alt.X("trained:Q", title=str(curves["unit"].iloc[0])),
            alt.Y(
                "value:Q",
                title=QUANTITY_LABELS[quantity] + (" (%)" if accuracy else " (nats)"),
                scale=value_scale(means["value"], accuracy),
            ),
            color=alt.Color("label:N", scale=alt.Scale(domain=labels, range=_rank_colours(labels)), legend=legend),
            opacity=alt.condition(hidden, alt.value(0), alt.value(1)),
            strokeWidth=alt.condition("datum.role == 'candidate'", alt.value(3.4), alt.value(1.4)),
            detail="point:N",
            tooltip=[alt.Tooltip("label:N", title="(lr, wd) [best]"), alt.Tooltip("trained:Q"), alt.Tooltip("value:Q")],
        )
        .add_params(hidden)
    )
    chart = layer_charts(lines)
    return data.attach_to(chart.properties(width="container", height=300, title=str(points["strategy"].iloc[0])))


def mean_curves(evaluated: pd.DataFrame, quantity: str, by: list[str]) -> pd.DataFrame:
    """Return the mean over the runs of each group: `trained` and `value`.

    Only where all runs of the group have an evaluation: a run that ends early would make the mean jump.
    """
    groups = evaluated.groupby([*by, "trained"], as_index=False).agg(value=(quantity, "mean"), runs=("run", "nunique"))
    return groups[groups["runs"] == groups.groupby(by)["runs"].transform("max")].drop(columns="runs")


def drop_lowest_accuracies(curves: pd.DataFrame, accuracy: bool) -> pd.DataFrame:
    """Drop the lowest quarter of accuracies, the steep beginning, so that the ends fill the axis; keep all losses."""
    return curves[curves["value"] >= curves["value"].quantile(0.25)] if accuracy else curves


def value_scale(values: pd.Series, accuracy: bool) -> alt.Scale:
    """Return the y scale of some values: logarithmic for losses that fall to less than a quarter."""
    low, high = float(values.min()), float(values.max())
    if not accuracy and low > 0 and high > 4 * low:
        return alt.Scale(type="log", nice=False, domain=[low / 1.1, high * 1.1])
    # Equal values, or all 0, need a range too.
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return alt.Scale(zero=False, nice=False, domain=[low - margin, high + margin])


def _legend_labels(points: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the points with their legend labels, the best first, diverged ones last."""
    ranked = points.sort_values("score", ascending=not is_accuracy(metric), na_position="last").reset_index(drop=True)
    best = [
        score_text(score, metric) if score == score else state
        for score, state in zip(ranked["score"], ranked["state"], strict=True)
    ]
    label = ranked["point"] + [f" [{text}]" for text in best]
    return pd.DataFrame(
        {
            "point": ranked["point"],
            "role": ranked["role"],
            "label": label.where(ranked.index < MAX_LEGEND_POINTS, "other points"),
        }
    )


def _rank_colours(labels: list[str]) -> list[str]:
    """Return a colour per label, from blue for the best to red; grey for points that are not listed."""
    listed_labels = [label for label in labels if label != "other points"]
    at = np.linspace(0, 1, max(2, len(listed_labels)))
    stops = [
        (0.0, (37, 99, 190)),
        (0.25, (20, 150, 160)),
        (0.5, (84, 165, 60)),
        (0.75, (224, 150, 30)),
        (1.0, (205, 60, 40)),
    ]
    positions = [position for position, _ in stops]
    channels = [np.interp(at, positions, [rgb[k] for _, rgb in stops]).round().astype(int) for k in range(3)]
    shades = [f"#{r:02x}{g:02x}{b:02x}" for r, g, b in zip(*channels, strict=True)]
    return [GREY if label == "other points" else shades[listed_labels.index(label)] for label in labels]
