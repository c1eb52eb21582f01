"""Figures of curves: points of a search, and optima over fresh seeds. The map of a lattice is in maps.

Nothing here reads a run folder.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from ettsweep.output import count
from ettsweep.report import style
from ettsweep.sweep.search import Point
from ettsweep.sweep.verdict import Verdict

NAMED_COLOURS = ("#e69f00", "#009e73", "#56b4e9", "#8c510a", "#0072b2", "#d55e00", "#cc79a7")
"""Okabe and Ito's palette and a brown, for the points that a legend names beside the optimum."""


@dataclass(frozen=True)
class Curve:
    """Evaluations of one run, or their mean over seeds; NaN where a value is missing.

    `trained` is how far the run was, in epochs, or in steps where the length of an epoch depends on the data; accuracy
    is a fraction, loss in nats.
    """

    trained: tuple[float, ...]
    accuracy: tuple[float, ...]
    loss: tuple[float, ...]
    unit: Literal["epoch", "step"] = "epoch"

    def drawn(self, quantity: str) -> NDArray[np.float64]:
        """Return the values that a panel shows: loss, or accuracy in percent."""
        return np.array(getattr(self, quantity)) * (100 if quantity == "accuracy" else 1)


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


# --- curves ---------------------------------------------------------------------------------------------


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Return the mean over seeds, as far as the shortest curve."""
    length = min(len(curve.trained) for curve in curves)

    def mean(rows: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
        return tuple(np.mean([row[:length] for row in rows], axis=0).tolist())

    accuracy, loss = mean([c.accuracy for c in curves]), mean([c.loss for c in curves])
    return Curve(curves[0].trained[:length], accuracy, loss, curves[0].unit)


def curves_figure(title: str, verdict: Verdict, points: Sequence[PointCurves]) -> Figure:
    """Plot accuracy and loss against epochs or steps, a line per point, as fig:hyper-ViT does.

    The candidate is thick, in its strategy's colour. Its neighbours, or some points where it has none, have a colour
    and a legend entry of their own; all others are grey.
    """
    measure, best = verdict.search.measure, verdict.point
    named = [n.point for n in verdict.neighbours] or [p.point for p in points[:6]]
    ordered = sorted(points, key=lambda p: measure.rank(p.score))
    special = [p for p in ordered if p.point in named and p.point != best]
    others = [p for p in ordered if p.point not in named and p.point != best]
    colour = style.strategy_colour(verdict.strategy)
    palette = [other for other in NAMED_COLOURS if other != colour]
    told = [(p, colour, 2.2, 3) for p in ordered if p.point == best]
    told += [(p, palette[i % len(palette)], 1.1, 2) for i, p in enumerate(special)]
    lines = [*((p, style.GREY, 0.6, 1) for p in others), *reversed(told)]  # the best is drawn last

    curves = [curve for point in points for curve in point.curves]
    quantities = _quantities(curves)
    figure = style.new_figure(3.6 * len(quantities) + 2.4, 3.1)
    for quantity, panel in zip(quantities, figure.subplots(1, len(quantities), squeeze=False)[0], strict=True):
        for point, colour, width, layer in lines:
            mean = mean_curve(point.curves)
            values = mean.drawn(quantity)
            panel.plot(mean.trained, values, color=colour, linewidth=width, zorder=layer)
            if point.score is None:
                panel.plot(mean.trained[-1:], values[-1:], marker="x", markersize=4, color=colour, zorder=layer)
        _dress(panel, quantity, curves)
    handles = [_legend_line(colour, width, _point_label(p, measure.metric)) for p, colour, width, _ in told]
    if others:
        handles.append(_legend_line(style.GREY, 0.8, f"{len(others)} other point{'s' * (len(others) > 1)}"))
    name = f"(lr, wd) [{style.metric_name(measure.metric).replace('validation ', '')}]"
    _legend(figure, handles, loc="outside right upper", title=name, title_fontsize=7, alignment="left")
    style.titled(figure, title)
    return figure


def _quantities(curves: Sequence[Curve]) -> list[str]:
    known = [name for name in ("accuracy", "loss") if any(np.isfinite(c.drawn(name)).any() for c in curves)]
    return known or ["loss"]


def _dress(panel: Axes, quantity: str, curves: Sequence[Curve]) -> None:
    """Name the axes, and choose a range that shows the differences where curves end."""
    panel.set_xlabel(curves[0].unit)
    panel.set_xlim(left=0)
    panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    rows = [values[np.isfinite(values)] for values in (curve.drawn(quantity) for curve in curves)]
    rows = [row for row in rows if len(row)]
    if not rows:
        return
    if quantity == "accuracy":
        panel.set_ylabel("validation accuracy (%)")
        # Where the better half of the curves is after a fifth of training: below, all lines rise alike.
        low, high, below = np.median([row[len(row) // 5] for row in rows]), max(row.max() for row in rows), 0.02
    else:
        panel.set_ylabel("validation loss (nats)")
        low, high, below = min(row.min() for row in rows), np.median([row[0] for row in rows]), 0.05
        if low > 0 and high > 4 * low:
            panel.set_yscale("log")
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=99))  # all of them
            panel.yaxis.set_major_formatter(lambda value, position: style.short(value))
            panel.yaxis.set_minor_locator(NullLocator())
            panel.set_ylim(low / 1.15, high * 1.15)
            return
    if high > low:
        panel.set_ylim(low - below * (high - low), high + 0.05 * (high - low))


def _point_label(point: PointCurves, metric: str) -> str:
    score = "diverged" if point.score is None else style.score_text(point.score, metric)
    return f"{style.point_text(point.point)} [{score}]"


def _legend_line(colour: str, width: float, label: str) -> Line2D:
    return Line2D([], [], color=colour, linewidth=width, label=label)


def _legend(figure: Figure, handles: Sequence[Line2D], **look: Any) -> None:
    legend = figure.legend(handles=handles, frameon=False, fontsize=7, **look)
    style.plain_text(legend.get_texts())


# --- seeds ----------------------------------------------------------------------------------------------


def seeds_figure(title: str, metric: str, optima: Sequence[StrategyCurves]) -> Figure:
    """Plot the optima of all strategies over their seeds on one axis, as fig:seeds-ViT, beside their scores.

    Lines of one strategy share its colour and differ in whiteness. In the strip of scores, open circles are
    the search's seeds, which chose the point, filled ones are fresh; bars are mean and standard deviation.
    """
    curves = [curve for optimum in optima for curve in optimum.curves]
    quantities = _quantities(curves)
    figure = style.new_figure(3.1 * len(quantities) + 2.6, 3.7)
    *panels, strip = figure.subplots(
        1, len(quantities) + 1, width_ratios=[3.1] * len(quantities) + [2.2], squeeze=False
    )[0]
    for panel, quantity in zip(panels, quantities, strict=True):
        for optimum in optima:
            colour, last = style.strategy_colour(optimum.strategy), max(1, len(optimum.curves) - 1)
            for i, curve in enumerate(optimum.curves):
                line: dict[str, Any] = {"color": colour, "alpha": 1.0 - 0.65 * i / last, "linewidth": 1.1}
                panel.plot(curve.trained, curve.drawn(quantity), **line)
        _dress(panel, quantity, curves)
    _strip(strip, metric, optima)
    handles = [_legend_line(style.strategy_colour(o.strategy), 2.0, _optimum_label(o, metric)) for o in optima]
    _legend(figure, handles, loc="outside lower center", ncols=min(2, len(handles)))
    style.titled(figure, title)
    return figure


def _optimum_label(optimum: StrategyCurves, metric: str) -> str:
    scores = optimum.fresh_scores or optimum.search_scores
    which = "fresh seed" if optimum.fresh_scores else "search seed"
    label = f"{optimum.strategy} {style.point_text(optimum.point)}"
    if not scores:
        return label
    text = style.plus_minus(fmean(scores), style.mean_std(scores)[1], metric)
    return f"{label} [{text}, {count(len(scores), which)}]"


def _strip(panel: Axes, metric: str, optima: Sequence[StrategyCurves]) -> None:
    name, factor = style.axis_of(metric)
    bar: dict[str, Any] = {"capsize": 2, "linewidth": 1, "marker": "_", "markersize": 12}
    dot: dict[str, Any] = {"s": 16, "linewidth": 0.9, "zorder": 3, "alpha": 0.85}
    for x, optimum in enumerate(optima):
        colour = style.strategy_colour(optimum.strategy)
        for scores, offset, fill in ((optimum.search_scores, -0.14, "white"), (optimum.fresh_scores, 0.14, colour)):
            if not scores:
                continue
            values = factor * np.array(scores)
            spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
            panel.errorbar(x + offset, values.mean(), spread, color=colour, **bar)
            panel.scatter(np.full(len(values), x + offset), values, facecolor=fill, edgecolor=colour, **dot)
    panel.set_xticks(range(len(optima)), [optimum.strategy for optimum in optima], fontsize=7)
    style.plain_text(panel.get_xticklabels())
    if len(optima) > 3 or any(len(o.strategy) > 8 for o in optima):
        panel.tick_params(axis="x", rotation=25)
    panel.set_xlim(-0.5, len(optima) - 0.5)
    panel.set_ylabel(name)
    panel.set_title("open: search's seeds, filled: fresh seeds", fontsize=7, color="#555555", loc="right")
