"""Figures of curves: points of a search, and optima over fresh seeds. The map of a lattice is in maps.

Every function takes plain data and returns a matplotlib Figure; nothing here reads a run folder.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ettsweep.errors import InputError
from ettsweep.report.canvas import new_figure, plain_text, titled
from ettsweep.report.text import is_accuracy, mean_std, metric_name, plus_minus, point_text, score_text, short
from ettsweep.scaling.strategies import parse_strategy
from ettsweep.sweep.search import Point
from ettsweep.tasks.kinds import Score

STRATEGY_COLOURS = {"standard": "#000000", "ntk": "#0072b2", "hybrid": "#aa3f9c", "mup": "#d55e00"}
"""The paper's black, blue, purple and red (fig:seeds-ViT), in shades that colour-blind readers tell apart."""

FAMILY_COLOURS = {
    0.0: STRATEGY_COLOURS["ntk"],
    0.25: "#009e73",
    0.5: STRATEGY_COLOURS["hybrid"],
    0.75: "#8c6d1f",
    1.0: STRATEGY_COLOURS["mup"],
}
"""Colours along s; any other s lies between its two nearest, so that no two share a colour."""

NAMED_COLOURS = ("#e69f00", "#009e73", "#56b4e9", "#8c510a", "#0072b2", "#d55e00", "#cc79a7")
"""Okabe and Ito's palette and a brown, for the points that a legend names beside the optimum."""

GREY = "#b8b8b8"


@dataclass(frozen=True)
class Curve:
    """Evaluations of one run, or their mean over seeds; NaN where a value is missing.

    Attributes:
        trained: how far the run was, in units.
        accuracy: as a fraction.
        loss: in nats.
        unit: epochs, or steps where the length of an epoch depends on the data.
    """

    trained: tuple[float, ...]
    accuracy: tuple[float, ...]
    loss: tuple[float, ...]
    unit: Literal["epoch", "step"] = "epoch"


@dataclass(frozen=True)
class PointCurves:
    """A lattice point with a curve per seed. `score` is None if it diverged."""

    point: Point
    score: float | None
    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class StrategyCurves:
    """The optimum of one strategy: curves over seeds, scores of the search's seeds and of fresh ones."""

    strategy: str
    point: Point
    curves: tuple[Curve, ...]
    search_scores: tuple[float, ...]
    fresh_scores: tuple[float, ...]


def strategy_rank(strategy: str) -> tuple[float, str]:
    """Return what sorts strategies: standard, then the family by s, then names that are none."""
    try:
        s = parse_strategy(strategy)
    except InputError:
        return math.inf, strategy
    return -1.0 if s is None else s, strategy


def strategy_colour(strategy: str) -> str:
    """Return a strategy's colour, the same in all figures and reports."""
    if strategy in STRATEGY_COLOURS:
        return STRATEGY_COLOURS[strategy]
    s, _ = strategy_rank(strategy)
    if not 0 <= s <= 1:
        return GREY
    channels = zip(*map(to_rgb, FAMILY_COLOURS.values()), strict=True)
    red, green, blue = (float(np.interp(s, list(FAMILY_COLOURS), channel)) for channel in channels)
    return to_hex((red, green, blue))


# --- curves ---------------------------------------------------------------------------------------------


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Return the mean over seeds, as far as the shortest curve."""
    length = min(len(curve.trained) for curve in curves)

    def mean(rows: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
        return tuple(np.mean([row[:length] for row in rows], axis=0).tolist())

    accuracy, loss = mean([c.accuracy for c in curves]), mean([c.loss for c in curves])
    return Curve(curves[0].trained[:length], accuracy, loss, curves[0].unit)


def curves_figure(
    title: str,
    strategy: str,
    measure: Score,
    points: Sequence[PointCurves],
    best: Point | None,
    named: Sequence[Point],
) -> Figure:
    """Plot accuracy and loss against epochs or steps, a line per point, as fig:hyper-ViT does.

    Args:
        title: above both panels.
        strategy: gives the optimum its colour.
        measure: what the legend states in brackets.
        points: curves, and the score that the legend states.
        best: the optimum, drawn thick.
        named: points with a colour and a legend entry of their own; all others are grey.
    """
    quantities = _quantities([curve for point in points for curve in point.curves])
    figure = new_figure(3.6 * len(quantities) + 2.4, 3.1)
    panels = figure.subplots(1, len(quantities), squeeze=False)[0]
    ordered = sorted(points, key=lambda p: measure.rank(p.score))
    special = [p for p in ordered if p.point in named and p.point != best]
    palette = [colour for colour in NAMED_COLOURS if colour != strategy_colour(strategy)]
    colours = {p.point: palette[i % len(palette)] for i, p in enumerate(special)}
    others = [p for p in ordered if p.point not in colours and p.point != best]
    for panel, quantity in zip(panels, quantities, strict=True):
        for point in others:
            _line(panel, point, quantity, color=GREY, linewidth=0.6, zorder=1)
        for point in reversed(special):
            _line(panel, point, quantity, color=colours[point.point], linewidth=1.1, zorder=2)
        for point in ordered:
            if point.point == best:
                _line(panel, point, quantity, color=strategy_colour(strategy), linewidth=2.2, zorder=3)
        _dress(panel, quantity, [curve for point in points for curve in point.curves])
    handles = [_handle(strategy_colour(strategy), 2.2, p, measure.metric) for p in ordered if p.point == best]
    handles += [_handle(colours[p.point], 1.1, p, measure.metric) for p in special]
    if others:
        handles.append(_legend_line(GREY, 0.8, f"{len(others)} other point{'s' * (len(others) > 1)}"))
    legend = figure.legend(
        handles=handles,
        loc="outside right upper",
        frameon=False,
        fontsize=7,
        title=f"(lr, wd) [{metric_name(measure.metric).replace('validation ', '')}]",
        title_fontsize=7,
        alignment="left",
    )
    plain_text(legend.get_texts())
    titled(figure, title)
    return figure


def _quantities(curves: Sequence[Curve]) -> list[str]:
    known = [name for name in ("accuracy", "loss") if any(np.isfinite(getattr(c, name)).any() for c in curves)]
    return known or ["loss"]


def _line(panel: Axes, point: PointCurves, quantity: str, **style: Any) -> None:
    if not point.curves:
        return
    curve = mean_curve(point.curves)
    _plot(panel, curve, quantity, **style)
    if point.score is None and curve.trained:
        last = getattr(curve, quantity)[-1] * (100 if quantity == "accuracy" else 1)
        panel.plot(curve.trained[-1:], [last], marker="x", markersize=4, color=style["color"], zorder=style["zorder"])


def _plot(panel: Axes, curve: Curve, quantity: str, **style: Any) -> None:
    values = np.array(getattr(curve, quantity), dtype=float) * (100 if quantity == "accuracy" else 1)
    panel.plot(curve.trained, values, **style)


def _dress(panel: Axes, quantity: str, curves: Sequence[Curve]) -> None:
    """Name the axes, and choose a range that shows the differences where curves end."""
    panel.set_xlabel(next((curve.unit for curve in curves), "epoch"))
    panel.set_xlim(left=0)
    panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    rows = [np.array(getattr(curve, quantity), dtype=float) for curve in curves if curve.trained]
    rows = [row[np.isfinite(row)] for row in rows]
    rows = [row for row in rows if len(row)]
    if not rows:
        return
    if quantity == "accuracy":
        panel.set_ylabel("validation accuracy (%)")
        # Where the better half of the curves is after a fifth of training: below, all lines rise alike.
        low = 100 * float(np.median([row[len(row) // 5] for row in rows]))
        high = 100 * max(float(row.max()) for row in rows)
        if high > low:
            panel.set_ylim(low - 0.02 * (high - low), high + 0.05 * (high - low))
    else:
        panel.set_ylabel("validation loss (nats)")
        low = min(float(row.min()) for row in rows)
        high = float(np.median([row[0] for row in rows]))
        if low > 0 and high > 4 * low:
            panel.set_yscale("log")
            _log_ticks(panel, low, high)
            panel.set_ylim(low / 1.15, high * 1.15)
        elif high > low:
            panel.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))


def _log_ticks(panel: Axes, low: float, high: float) -> None:
    """Label 1, 2, 5 times powers of ten as plain numbers."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [m * 10.0**p for p in powers for m in (1, 2, 5)]
    ticks = [t for t in ticks if low / 1.15 <= t <= high * 1.15]
    panel.set_yticks(ticks, [short(t) for t in ticks])
    panel.set_yticks([], minor=True)


def _handle(colour: str, width: float, point: PointCurves, metric: str) -> Line2D:
    score = "diverged" if point.score is None else score_text(point.score, metric)
    return _legend_line(colour, width, f"{point_text(point.point)} [{score}]")


def _legend_line(colour: str, width: float, label: str) -> Line2D:
    return Line2D([], [], color=colour, linewidth=width, label=label)


# --- seeds ----------------------------------------------------------------------------------------------


def seeds_figure(title: str, metric: str, optima: Sequence[StrategyCurves]) -> Figure:
    """Plot the optima of all strategies over their seeds on one axis, as fig:seeds-ViT, beside their scores.

    Lines of one strategy share its colour and differ in whiteness. In the strip of scores, open circles are
    the search's seeds, which chose the point, filled ones are fresh; bars are mean and standard deviation.
    """
    quantities = _quantities([curve for optimum in optima for curve in optimum.curves])
    figure = new_figure(3.1 * len(quantities) + 2.6, 3.7)
    panels = figure.subplots(1, len(quantities) + 1, width_ratios=[3.1] * len(quantities) + [2.2], squeeze=False)[0]
    for panel, quantity in zip(panels[:-1], quantities, strict=True):
        for optimum in optima:
            for i, curve in enumerate(optimum.curves):
                alpha = 1.0 - 0.65 * i / max(1, len(optimum.curves) - 1)
                _plot(
                    panel,
                    curve,
                    quantity,
                    color=strategy_colour(optimum.strategy),
                    alpha=alpha,
                    linewidth=1.1,
                )
        _dress(panel, quantity, [curve for optimum in optima for curve in optimum.curves])
    _strip(panels[-1], metric, optima)
    handles = [_legend_line(strategy_colour(o.strategy), 2.0, _optimum_label(o, metric)) for o in optima]
    legend = figure.legend(
        handles=handles, loc="outside lower center", ncols=min(2, len(handles)), frameon=False, fontsize=7
    )
    plain_text(legend.get_texts())
    titled(figure, title)
    return figure


def _optimum_label(optimum: StrategyCurves, metric: str) -> str:
    scores = optimum.fresh_scores or optimum.search_scores
    which = "fresh seed" if optimum.fresh_scores else "search seed"
    label = f"{optimum.strategy} {point_text(optimum.point)}"
    if not scores:
        return label
    text = plus_minus(fmean(scores), mean_std(scores)[1], metric)
    return f"{label} [{text}, {len(scores)} {which}{'s' * (len(scores) > 1)}]"


def _strip(panel: Axes, metric: str, optima: Sequence[StrategyCurves]) -> None:
    factor = 100 if is_accuracy(metric) else 1
    for x, optimum in enumerate(optima):
        colour = strategy_colour(optimum.strategy)
        for scores, offset, fill in (
            (optimum.search_scores, -0.14, "white"),
            (optimum.fresh_scores, 0.14, colour),
        ):
            if not scores:
                continue
            values = factor * np.array(scores)
            spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
            panel.errorbar(
                x + offset,
                values.mean(),
                spread,
                color=colour,
                capsize=2,
                linewidth=1,
                marker="_",
                markersize=12,
            )
            panel.scatter(
                np.full(len(values), x + offset),
                values,
                s=16,
                facecolor=fill,
                edgecolor=colour,
                linewidth=0.9,
                zorder=3,
                alpha=0.85,
            )
    panel.set_xticks(range(len(optima)), [optimum.strategy for optimum in optima], fontsize=7)
    plain_text(panel.get_xticklabels())
    if len(optima) > 3 or any(len(o.strategy) > 8 for o in optima):
        panel.tick_params(axis="x", rotation=25)
    panel.set_xlim(-0.5, len(optima) - 0.5)
    panel.set_ylabel(metric_name(metric) + (" (%)" if factor == 100 else ""))
    panel.set_title("open: search's seeds, filled: fresh seeds", fontsize=7, color="#555555", loc="right")
