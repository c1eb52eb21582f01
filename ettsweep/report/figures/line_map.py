"""The map of a family with one free axis: scores along it, with the fitted curve."""

import pandas as pd

from ettsweep.files import Json
from ettsweep.report.figures.chart_data import (
    CROSS,
    STATE_SIGNS,
    Datasets,
    clipped_range,
    hover_layer,
    is_linear,
    nominal,
    origin_and_step,
    quantitative,
    suggestion_numbers,
    tooltip_frame,
)
from ettsweep.report.formats import axis_title_and_factor
from ettsweep.report.theme import INK

CLIP_REACH = 8
"""Scores farther from the best than this many times the median's distance are clamped to the worse edge."""


def line_map(
    points: pd.DataFrame, fitted_curve: pd.DataFrame, optimum: pd.DataFrame, ranges: pd.DataFrame | None
) -> Json:
    """Draw scores with standard errors along the free axis, in log2 unless it is linear.

    Points without a score are at the worse edge. The arguments are those of `lattice`.
    """
    data = Datasets()
    # A single point does not show which axis is free; the searched ranges may.
    located = points if ranges is None else pd.concat([points, ranges])
    along = "y" if located["y_steps"].nunique() > located["x_steps"].nunique() else "x"
    names = dict(zip("xy", points["axes"].iloc[0].split(", "), strict=False))
    title = _axis_title(names[along], points, along)
    if len(names) > 1:
        across = "y" if along == "x" else "x"
        title += f", {names[across]} {points[across].iloc[0]:.4g}"
    metric, colour = points["metric"].iloc[0], points["colour"].iloc[0]
    name, factor = axis_title_and_factor(metric)
    low, high = _score_range(points, (metric.mode == "max"))
    worst_y = factor * (low if (metric.mode == "max") else high)
    at = points.assign(
        x=points[f"{along}_place"],
        y=(factor * points["score"]).fillna(worst_y),
        low=factor * (points["score"] - points["error"]),
        high=factor * (points["score"] + points["error"]),
    )
    y_scale = {"domain": [factor * low, factor * high], "zero": False, "nice": False, "clamp": True}
    encoding = {
        "x": quantitative(
            "x",
            title=title,
            scale={"zero": False, "padding": 24},
        ),
        "y": quantitative("y", title=name, scale=y_scale),
    }
    scored, unscored = at[at["score"].notna()], at[at["score"].isna()]
    scores, candidate = data.add(scored[["x", "y", "low", "high"]]), scored[scored["role"] == "candidate"]
    ring = {"filled": False, "stroke": INK, "strokeWidth": 2.2, "size": 170, "opacity": 1}
    layers = [
        *_fitted_layers(data, points, fitted_curve, optimum, along, factor, colour),
        {
            "data": scores,
            "mark": {"type": "rule", "stroke": colour, "strokeWidth": 1.4},
            "encoding": {"y": quantitative("low"), "y2": {"field": "high"}},
        },
        {"data": scores, "mark": {"type": "point", "filled": True, "fill": colour, "size": 45, "opacity": 1}},
        {"data": data.add(candidate[["x", "y"]]), "mark": {"type": "point", **ring}},
    ]
    if len(unscored):
        layers.append(_unscored_layer(data, unscored))
    if ranges is not None:
        layers += _search_layers(data, at, ranges, along, factor * (high if (metric.mode == "max") else low))
    tooltip_rows = data.add(tooltip_frame(at).assign(x=at["x"], y=at["y"]))
    layers.append(hover_layer(tooltip_rows, {"shape": "circle", "size": 260, "opacity": 1}, points))
    return data.attach_to({"width": "container", "height": 260, "encoding": encoding, "layer": layers})


def _axis_title(name: str, points: pd.DataFrame, along: str) -> str:
    if is_linear(points, along):
        return name
    zeros = points.loc[points[along] == 0, f"{along}_place"]
    return f"log2 {name}" + (f", 0 at {zeros.iloc[0]:g}" if len(zeros) else "")


def _score_range(points: pd.DataFrame, accuracy: bool) -> tuple[float, float]:
    """Return the scores at both ends of the y axis."""
    scored = points.dropna(subset=["score"])
    error = scored["error"].fillna(0)
    ends = [*(scored["score"] - error), *(scored["score"] + error)]
    # Without any score, the axis still needs a range.
    low, high = clipped_range(ends or [0.0], not accuracy, CLIP_REACH)
    margin = 0.12 * (high - low)
    return low - margin, high + margin


def _unscored_layer(data: Datasets, unscored: pd.DataFrame) -> Json:
    """Draw a sign for each point without a score, explained by a legend."""
    states = [state for state in STATE_SIGNS if state in set(unscored["state"])]
    signs = {"domain": states, "range": [STATE_SIGNS[state] for state in states]}
    return {
        "data": data.add(unscored[["x", "y", "state"]]),
        "mark": {"type": "point", "filled": False, "stroke": INK, "strokeWidth": 1.8, "size": 90, "opacity": 1},
        "encoding": {"shape": nominal("state", scale=signs, legend={"title": None, "orient": "bottom"})},
    }


def _search_layers(data: Datasets, at: pd.DataFrame, ranges: pd.DataFrame, along: str, best_y: float) -> list[Json]:
    """Number the suggestions along the better edge, and mark the ends of the searched range."""
    numbered = at.dropna(subset=["proposal"])
    layers = suggestion_numbers(data.add(numbered.assign(y=best_y)[["x", "y", "proposal"]]))
    if at[f"{along}_steps"].nunique() < 2:
        return layers  # one point does not show how long a step is
    origin, step = origin_and_step(at, along)
    steps = ranges[f"{along}_steps"]
    ends = pd.DataFrame({"x": [origin + step * (steps.min() - 0.5), origin + step * (steps.max() + 0.5)]})
    edges = {
        "data": data.add(ends),
        "mark": {"type": "rule", "stroke": INK, "strokeWidth": 2, "strokeOpacity": 0.6},
        "encoding": {"y": {"value": 0}, "y2": {"value": "height"}},
    }
    return [edges, *layers]


def _fitted_layers(
    data: Datasets,
    points: pd.DataFrame,
    fitted_curve: pd.DataFrame,
    optimum: pd.DataFrame,
    along: str,
    factor: float,
    colour: str,
) -> list[Json]:
    """Draw the fitted curve with a band of its standard error, and its optimum; without a fit, join the scores."""
    scored = points.dropna(subset=["score"]).sort_values(f"{along}_place")
    if fitted_curve.empty:
        line = pd.DataFrame({"x": scored[f"{along}_place"], "y": factor * scored["score"]})
        return [{"data": data.add(line), "mark": {"type": "line", "stroke": colour, "strokeWidth": 1.2}}]
    origin, step = origin_and_step(points, along)
    mesh = fitted_curve.assign(x=origin + step * fitted_curve[f"{along}_steps"])
    mesh = mesh.assign(**{name: factor * mesh[name] for name in ("score", "low", "high")}, y=factor * mesh["score"])
    best = optimum.assign(x=origin + step * optimum[f"{along}_steps"], y=factor * optimum["score"])
    error = step * best[f"{along}_error"]
    best = best.assign(left=best["x"] - error, right=best["x"] + error)[["x", "y", "left", "right"]]
    fitted, cross = data.add(mesh[["x", "y", "low", "high"]]), data.add(best)
    return [
        {
            "data": fitted,
            "mark": {"type": "area", "fill": colour, "opacity": 0.2},
            "encoding": {"y": quantitative("low"), "y2": {"field": "high"}},
        },
        {"data": fitted, "mark": {"type": "line", "stroke": colour, "strokeWidth": 1.4}},
        {
            "data": cross,
            "mark": {"type": "rule", "stroke": INK, "strokeWidth": 1.8},
            "encoding": {"x": quantitative("left"), "x2": {"field": "right"}},
        },
        {
            "data": cross,
            "mark": {"type": "point", "shape": CROSS, "size": 70, "stroke": INK, "strokeWidth": 2, "opacity": 1},
        },
    ]
