"""The history of a search: the best score against the number of finished runs."""

import pandas as pd

from ettsweep.files import Json
from ettsweep.report.figures.chart_data import Datasets, clipped_range, nominal, quantitative
from ettsweep.report.figures.shapes import STATE_SIGNS
from ettsweep.report.formats import axis_title_and_factor, strategy_colour
from ettsweep.report.theme import CANDIDATE, INK


def course(history: pd.DataFrame, points: pd.DataFrame) -> Json:
    """Draw each finished run, suggestions filled, the best score so far, and the candidate's mean with its error.

    Runs that diverged, or are far worse than the others, are at the worse edge.

    Args:
        history: rows of `search_history_frame` of one family; at least one.
        points: its rows of `points_frame`.
    """
    metric, colour = points["metric"].iloc[0], strategy_colour(str(points["strategy"].iloc[0]))
    name, factor = axis_title_and_factor(metric)
    data = Datasets()
    candidate = points[(points["role"] == "candidate") & points["score"].notna()]
    finite = [*history["score"].dropna(), *candidate["score"]]
    # All runs may have diverged; the axis still needs a range.
    low, high = clipped_range(finite or [0.0], metric.mode == "min", reach=5)
    margin = 0.08 * (high - low)
    low, high = factor * (low - margin), factor * (high + margin)
    worst = low if metric.mode == "max" else high
    value = (factor * history["score"]).fillna(worst)
    rows = history.assign(
        # Drawn at the edge; `beyond` gives these another mark.
        value=value.clip(low, high),
        so_far=factor * history["best"],
        kind=history["proposal"].notna().map({True: "suggestion", False: "other run"}),
        beyond=history["score"].isna() | (value < low) | (value > high),
    )
    x = quantitative(
        "number",
        title="runs finished",
        scale={"domain": [0.5, len(history) + 0.5], "nice": False},
        axis={"tickMinStep": 1},
    )
    y = quantitative("value", title=name, scale={"domain": [low, high], "nice": False, "zero": False})
    tooltip = [
        quantitative("number"),
        nominal("point", title="(lr, wd)"),
        quantitative("seed"),
        nominal("run"),
        nominal("kind"),
        nominal("told", title="score"),
    ]
    mean = factor * candidate[["score"]].assign(
        low=candidate["score"] - candidate["error"], high=candidate["score"] + candidate["error"]
    )
    level, runs = data.add(mean), data.add(rows)
    layers: list[Json] = [
        {
            "data": level,
            "mark": {"type": "rect", "fill": CANDIDATE, "opacity": 0.12},
            "encoding": {"y": quantitative("low"), "y2": {"field": "high"}},
        },
        {
            "data": level,
            "mark": {"type": "rule", "stroke": CANDIDATE, "strokeDash": [5, 3], "strokeWidth": 1.2},
            "encoding": {"y": quantitative("score")},
        },
        {
            "data": runs,
            "mark": {"type": "line", "interpolate": "step-after", "stroke": colour, "strokeWidth": 1.8},
            "encoding": {"x": x, "y": quantitative("so_far")},
        },
    ]
    marks: tuple[tuple[str, Json], ...] = (
        ("!datum.beyond && datum.kind == 'suggestion'", {"filled": True, "fill": colour}),
        ("!datum.beyond && datum.kind != 'suggestion'", {"filled": False, "stroke": colour}),
        ("datum.beyond", {"filled": False, "stroke": colour, "shape": STATE_SIGNS["diverged"]}),
    )
    layers += [
        {
            "data": runs,
            "transform": [{"filter": test}],
            "mark": {"type": "point", "size": 36, "opacity": 1, **mark},
            "encoding": {"x": x, "y": y, "tooltip": tooltip},
        }
        for test, mark in marks
    ]
    layers += _separator_layers(data, rows, high)
    return data.attach_to({"width": "container", "height": 260, "layer": layers})


def _separator_layers(data: Datasets, rows: pd.DataFrame, top: float) -> list[Json]:
    """Separate the suggested points from the runs that the verdict needed after them."""
    end = rows.loc[rows["proposal"].notna(), "number"].max()
    if not end < len(rows):  # also if `end` is NaN, without any suggestion
        return []
    sides: dict[str, Json] = {
        "suggestions": {"align": "right", "dx": -5},
        "for the verdict": {"align": "left", "dx": 5},
    }
    labels = data.add(pd.DataFrame({"number": end + 0.5, "top": top, "side": list(sides)}))
    rule: Json = {
        "data": labels,
        "mark": {"type": "rule", "stroke": INK, "strokeOpacity": 0.4, "strokeDash": [4, 3]},
        "encoding": {"x": quantitative("number")},
    }
    text: Json = {"type": "text", "fill": INK, "fillOpacity": 0.7, "fontSize": 10, "baseline": "bottom", "dy": -3}
    texts: list[Json] = [
        {
            "data": labels,
            "transform": [{"filter": f"datum.side == '{side}'"}],
            "mark": {**text, **alignment},
            "encoding": {"x": quantitative("number"), "y": quantitative("top"), "text": nominal("side")},
        }
        for side, alignment in sides.items()
    ]
    return [rule, *texts]
