"""Coordinate check: plot the change of activations in the first steps of training against the width."""

import json
import math
import textwrap
from collections.abc import Iterator, Sequence
from itertools import product

import altair as alt
import numpy as np
import pandas as pd

from ettsweep.quantities import three_digits
from ettsweep.report.figure_files import Figure
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
    base = alt.Chart(frame).encode(_width_axis(widths), _change_axis(frame["change"]), alt.Detail("line:N"))
    kinds, legend = list(LINE_STYLES), alt.Legend(title=None, orient="bottom", symbolType="stroke", symbolSize=300)
    colours, dashes = zip(*LINE_STYLES.values(), strict=True)
    styles = (
        alt.Color("kind:N", scale=alt.Scale(domain=kinds, range=list(colours)), legend=legend),
        alt.StrokeDash("kind:N", scale=alt.Scale(domain=kinds, range=list(dashes)), legend=legend),
    )
    stages, trained, implied = (base.transform_filter(alt.datum.kind == kind) for kind in (STAGE, OUTPUTS, IMPLIED))
    # Later layers lie on top: outputs and implied slopes stay visible over the many hidden stages.
    layers = alt.layer(
        stages.mark_line(strokeWidth=1).encode(_depth_colours(hidden, len(curves) * PANEL_HEIGHT)),
        trained.mark_line(strokeWidth=2.6, point={"size": 30, "filled": True, "opacity": 1}).encode(*styles),
        implied.mark_line(strokeWidth=1).encode(*styles),
    )
    rows, columns = (alt.Header(labelFontSize=12, labelPadding=padding, labelFontWeight="bold") for padding in (4, 6))
    chart = layers.properties(width=PANEL_WIDTH, height=PANEL_HEIGHT).facet(
        row=alt.Row("row:N", title=None, sort=list(frame["row"].unique()), header=rows),
        column=alt.Column("column:N", title=None, sort=list(frame["column"].unique()), header=columns),
        title=[line for text in about.splitlines() for line in textwrap.wrap(text, 25 * (len(steps) + 1))],
    )
    return Figure("coordinates", "figure", TITLE, "", chart.to_dict())


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


def _width_axis(widths: Sequence[int]) -> alt.X:
    angle = -45 if widths[-1] >= 1000 else 0  # labels of four digits would overlap
    axis = alt.Axis(values=list(widths), labelAngle=angle, labelOverlap=False, labelFlush=False, grid=False, format="d")
    return alt.X("width:Q", title="width", scale=alt.Scale(type="log", base=2, nice=False, padding=6), axis=axis)


def _change_axis(changes: "pd.Series[float]") -> alt.Y:
    positive = changes.dropna()
    # Without any value (training blew up), the axis still needs a decade.
    low, high = (math.log10(positive.min()), math.log10(positive.max())) if len(positive) else (0.0, 0.0)
    decades = [float(f"1e{power}") for power in range(math.floor(low), math.ceil(high) + 1)]
    axis = alt.Axis(values=decades, format=".0e")
    return alt.Y("change:Q", title="rms change", scale=alt.Scale(type="log", nice=False, padding=6), axis=axis)


def _depth_colours(hidden: Sequence[str], height: int) -> alt.Stroke:
    """Colour stages by depth, with a colour bar as high as the panels that names some of them."""
    # A set: with fewer stages than labels, several round to the same depth.
    labelled_depths = sorted({round(depth) for depth in np.linspace(0, len(hidden) - 1, MAX_LABELS)})
    # A Vega expression: the list of names, indexed by the depth.
    names = f"{json.dumps(list(hidden))}[datum.value]"
    colour_bar = alt.Legend(
        title=None, values=labelled_depths, labelExpr=names, gradientLength=height, gradientThickness=12, labelOffset=6
    )
    colours = alt.SchemeParams(name="viridis", extent=[0, MAX_COLOUR])
    return alt.Stroke("depth:Q", scale=alt.Scale(scheme=colours, domain=[0, len(hidden) - 1]), legend=colour_bar)
