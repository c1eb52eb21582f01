"""Coordinate check: plot the change of activations in the first steps of training against the width."""

import json
import math
import textwrap
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pandas as pd

from ettsweep.files import Json
from ettsweep.quantities import three_digits
from ettsweep.report.figure_files import Figure
from ettsweep.report.figures.chart_data import nominal, quantitative
from ettsweep.theory.scaling_check import CoordinateCurves

TITLE = "Change of activations in the first steps of training"
STAGE, OUTPUTS, IMPLIED = "part", "outputs that are trained", "slope that theory implies"
"""Kinds of lines, also the labels of the legend."""

LINE_STYLES = {OUTPUTS: ("#d55e00", [1, 0]), IMPLIED: ("#555555", [4, 3])}
"""Colour and dash pattern of the lines in the legend; lines of hidden stages are coloured by depth instead."""

COLUMNS = ("kind", "line", "depth", "width", "change")
"""Columns of the plotted data besides the row and column of the panel."""

MAX_COLOUR = 0.92
"""Share of the colour map in use: its light end is invisible on white paper."""

MAX_STEPS, MAX_LABELS = 6, 6
PANEL_WIDTH, PANEL_HEIGHT = 130, 165
"""Size of a panel in pixels."""


def coordinates_figure(about: str, widths: Sequence[int], curves: Sequence[CoordinateCurves]) -> Figure:
    """Plot the rms change of activations against the width: a row per strategy, a column per step (at most six).

    Each stage of the forward pass has a line, from dark (first) to light (last); the outputs have a thick one. Dashed
    lines show the slopes that theory implies.
    """
    # Stages come in the order of the forward pass, the outputs last.
    *hidden, outputs = curves[0].changes
    last = len(curves[0].changes[outputs]) - 1
    steps = sorted({round(step) for step in np.linspace(0, last, min(last + 1, MAX_STEPS))})
    frame = pd.DataFrame(_points(widths, curves, steps), columns=["row", "column", *COLUMNS])
    # A log axis cannot show what is 0 or not finite; missing values leave gaps.
    frame["change"] = frame["change"].where(np.isfinite(frame["change"]) & (frame["change"] > 0))
    kinds, legend = list(LINE_STYLES), {"title": None, "orient": "bottom", "symbolType": "stroke", "symbolSize": 300}
    colours, dashes = (list(styles) for styles in zip(*LINE_STYLES.values(), strict=True))
    styles = {
        "color": nominal("kind", scale={"domain": kinds, "range": colours}, legend=legend),
        "strokeDash": nominal("kind", scale={"domain": kinds, "range": dashes}, legend=legend),
    }
    dots = {"size": 30, "filled": True, "opacity": 1}
    # Later layers lie on top: outputs and implied slopes stay visible over the many hidden stages.
    layers = [
        {
            "transform": [{"filter": {"field": "kind", "equal": STAGE}}],
            "mark": {"type": "line", "strokeWidth": 1},
            "encoding": {"stroke": _depth_colours(hidden, len(curves) * PANEL_HEIGHT)},
        },
        {
            "transform": [{"filter": {"field": "kind", "equal": OUTPUTS}}],
            "mark": {"type": "line", "strokeWidth": 2.6, "point": dots},
            "encoding": styles,
        },
        {
            "transform": [{"filter": {"field": "kind", "equal": IMPLIED}}],
            "mark": {"type": "line", "strokeWidth": 1},
            "encoding": styles,
        },
    ]
    encoding = {"x": _width_axis(widths), "y": _change_axis(frame["change"]), "detail": nominal("line")}
    facet = {
        name: nominal(
            name,
            title=None,
            sort=list(frame[name].unique()),
            header={"labelFontSize": 12, "labelPadding": padding, "labelFontWeight": "bold"},
        )
        for name, padding in (("row", 4), ("column", 6))
    }
    spec = {
        "title": [line for text in about.splitlines() for line in textwrap.wrap(text, 25 * (len(steps) + 1))],
        "data": {"values": frame.astype(object).where(frame.notna(), None).to_dict("records")},
        "facet": facet,
        "spec": {"width": PANEL_WIDTH, "height": PANEL_HEIGHT, "encoding": encoding, "layer": layers},
    }
    return Figure("coordinates", "figure", TITLE, "", spec)


def _points(
    widths: Sequence[int], curves: Sequence[CoordinateCurves], steps: Sequence[int]
) -> Iterator[tuple[str, str, str, str, int, int, float]]:
    """Yield the points of all lines. Implied slopes are drawn through the value at the widest."""
    for curve, step in product(curves, steps):
        cell = f"{curve.strategy}, lr {three_digits(curve.lr)}", f"step {step + 1}"
        *_, last, outputs = curve.changes
        for depth, (stage, changes) in enumerate(curve.changes.items()):
            line = OUTPUTS if stage == outputs else STAGE, stage, depth
            yield from ((*cell, *line, *point) for point in zip(widths, changes[step], strict=True))
        for stage, power in ((outputs, curve.output_power), (last, curve.hidden_power)):
            if power is not None:
                widest = curve.changes[stage][step][-1]
                slope = (widest * (width / widths[-1]) ** power for width in widths)
                yield from (
                    (*cell, IMPLIED, f"slope of {stage}", 0, *point) for point in zip(widths, slope, strict=True)
                )


def _width_axis(widths: Sequence[int]) -> Json:
    angle = -45 if widths[-1] >= 1000 else 0  # labels of four digits would overlap
    labels = {"labelAngle": angle, "labelOverlap": False, "labelFlush": False, "format": "d"}
    scale = {"type": "log", "base": 2, "nice": False, "padding": 6}
    return quantitative("width", title="width", scale=scale, axis={"values": list(widths), "grid": False, **labels})


def _change_axis(changes: "pd.Series[float]") -> Json:
    positive = changes.dropna()
    # Without any value (training blew up), the axis still needs a decade.
    low, high = (math.log10(positive.min()), math.log10(positive.max())) if len(positive) else (0.0, 0.0)
    decades = [float(f"1e{power}") for power in range(math.floor(low), math.ceil(high) + 1)]
    scale = {"type": "log", "nice": False, "padding": 6}
    return quantitative("change", title="rms change", scale=scale, axis={"values": decades, "format": ".0e"})


def _depth_colours(hidden: Sequence[str], height: int) -> Json:
    """Colour stages by depth, with a colour bar as high as the panels that names some of them."""
    # A set: with fewer stages than labels, several round to the same depth.
    labelled_depths = sorted({round(depth) for depth in np.linspace(0, len(hidden) - 1, MAX_LABELS)})
    colour_bar = {
        "title": None,
        "values": labelled_depths,
        # A Vega expression: the list of names, indexed by the depth.
        "labelExpr": f"{json.dumps(list(hidden))}[datum.value]",
        "gradientLength": height,
        "gradientThickness": 12,
        "labelOffset": 6,
    }
    scale = {"scheme": {"name": "viridis", "extent": [0, MAX_COLOUR]}, "domain": [0, len(hidden) - 1]}
    return quantitative("depth", scale=scale, legend=colour_bar)
