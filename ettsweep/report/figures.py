"""Figures: training curves, optima over fresh seeds, and the hexagonal map of the (lr, wd) lattice.

Every function takes plain data and returns a matplotlib Figure; nothing here reads a run folder.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import RegularPolygon
from matplotlib.ticker import MaxNLocator, ScalarFormatter

from ettsweep.rundir import write_atomic

DPI = 180

STRATEGY_COLOURS = {"standard": "#000000", "ntk": "#0072b2", "hybrid": "#aa3f9c", "mup": "#d55e00"}
"""The paper's black, blue, purple and red (fig:seeds-ViT), in shades that colour-blind readers tell apart."""

OTHER_COLOURS = ("#009e73", "#e69f00", "#56b4e9", "#8c6d1f")

NAMED_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
"""Okabe and Ito's palette, for the points that a legend names beside the optimum."""

GREY = "#b8b8b8"
INK = "#1c1c1e"


@dataclass(frozen=True)
class Curve:
    """Evaluations of one run, or their mean over seeds; NaN where a value is missing."""

    epochs: tuple[float, ...]
    accuracy: tuple[float, ...]
    loss: tuple[float, ...]


@dataclass(frozen=True)
class PointCurves:
    """A lattice point with a curve per seed. `score` is None if it diverged."""

    lr: float
    wd: float
    score: float | None
    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class Cell:
    """A lattice point on a map. `state` is done, diverged, or that of an unfinished run."""

    lr: float
    wd: float
    score: float | None
    std: float | None
    state: str


@dataclass(frozen=True)
class LatticeMap:
    """A family's points, its candidate and the candidate's neighbours; `candidate` is None while none finished."""

    title: str
    strategy: str
    metric: str
    mode: str
    cells: tuple[Cell, ...]
    candidate: tuple[float, float] | None
    neighbours: tuple[tuple[float, float], ...]
    lr_step: float
    wd_step: float


@dataclass(frozen=True)
class StrategyCurves:
    """The optimum of one strategy: curves over seeds, scores of the search's seeds and of fresh ones."""

    strategy: str
    lr: float
    wd: float
    curves: tuple[Curve, ...]
    search_scores: tuple[float, ...]
    fresh_scores: tuple[float, ...]


# --- text -------------------------------------------------------------------------------------------------


def short(value: float) -> str:
    """Return a number to three digits: 0.0156, 22.6, 3.05e-7."""
    text = f"{value:.3g}"
    if "e" not in text:
        return text
    mantissa, exponent = text.split("e")
    return f"{value:.0f}" if 0 < int(exponent) < 5 else f"{mantissa}e{int(exponent)}"


def is_accuracy(metric: str) -> bool:
    """Say whether a metric is a fraction, shown in percent."""
    return metric.endswith("accuracy")


def score_text(value: float, metric: str, unit: bool = True) -> str:
    """Return a score as people read it: 97.70%, or a loss to four digits."""
    if is_accuracy(metric):
        return f"{100 * value:.2f}" + ("%" if unit else "")
    return f"{value:.4g}" if abs(value) >= 1e-4 or value == 0 else short(value)


def plus_minus(mean: float, std: float | None, metric: str) -> str:
    """Return mean ± standard deviation, a loss with as many decimals as two digits of its deviation need."""
    if std is None:
        return score_text(mean, metric)
    if is_accuracy(metric):
        return f"{score_text(mean, metric, unit=False)} ± {score_text(std, metric)}"
    decimals = min(8, max(2, 1 - math.floor(math.log10(std)))) if std > 0 else 4
    return f"{mean:.{decimals}f} ± {std:.{decimals}f}"


def metric_name(metric: str) -> str:
    """Return what an axis is called."""
    which, what = metric.split("_", 1)
    prefix = {"best": "lowest " if what == "loss" else "best ", "final": "final "}[which]
    return prefix + ("validation accuracy" if what == "accuracy" else "validation loss")


def strategy_colour(strategy: str) -> str:
    """Return a strategy's colour, the same in all figures and reports."""
    if strategy in STRATEGY_COLOURS:
        return STRATEGY_COLOURS[strategy]
    return OTHER_COLOURS[sum(strategy.encode()) % len(OTHER_COLOURS)]


# --- curves -----------------------------------------------------------------------------------------------


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Return the mean over seeds, as far as the shortest curve."""
    length = min(len(curve.epochs) for curve in curves)

    def mean(rows: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
        return tuple(np.mean([row[:length] for row in rows], axis=0).tolist())

    return Curve(
        curves[0].epochs[:length], mean([c.accuracy for c in curves]), mean([c.loss for c in curves])
    )


def curves_figure(
    title: str,
    strategy: str,
    metric: str,
    mode: str,
    points: Sequence[PointCurves],
    best: tuple[float, float] | None,
    named: Sequence[tuple[float, float]],
) -> Figure:
    """Plot accuracy and loss against epochs, a line per point, as fig:hyper-ViT does.

    Args:
        title: above both panels.
        strategy: gives the optimum its colour.
        metric, mode: what the legend states in brackets, and whether less or more of it is better.
        points: curves, and the score that the legend states.
        best: the optimum, drawn thick.
        named: points with a colour and a legend entry of their own; all others are grey.
    """
    quantities = _quantities([curve for point in points for curve in point.curves])
    figure = _figure(3.6 * len(quantities) + 2.4, 3.1)
    panels = figure.subplots(1, len(quantities), squeeze=False)[0]
    worst = math.inf if mode == "min" else -math.inf
    ordered = sorted(points, key=lambda p: worst if p.score is None else p.score, reverse=mode == "max")
    special = [p for p in ordered if (p.lr, p.wd) in named and (p.lr, p.wd) != best]
    colours = {(p.lr, p.wd): NAMED_COLOURS[i % len(NAMED_COLOURS)] for i, p in enumerate(special)}
    others = [p for p in ordered if (p.lr, p.wd) not in colours and (p.lr, p.wd) != best]
    for panel, quantity in zip(panels, quantities, strict=True):
        for point in others:
            _line(panel, point, quantity, color=GREY, linewidth=0.6, zorder=1)
        for point in reversed(special):
            _line(panel, point, quantity, color=colours[point.lr, point.wd], linewidth=1.1, zorder=2)
        for point in ordered:
            if (point.lr, point.wd) == best:
                _line(panel, point, quantity, color=strategy_colour(strategy), linewidth=2.2, zorder=3)
        _dress(panel, quantity, [curve for point in points for curve in point.curves])
    handles = [_handle(strategy_colour(strategy), 2.2, p, metric) for p in ordered if (p.lr, p.wd) == best]
    handles += [_handle(colours[p.lr, p.wd], 1.1, p, metric) for p in special]
    if others:
        handles.append(_legend_line(GREY, 0.8, f"{len(others)} other point{'s' * (len(others) > 1)}"))
    legend = figure.legend(
        handles=handles,
        loc="outside right upper",
        frameon=False,
        fontsize=7,
        title=f"(lr, wd) [{metric_name(metric).replace('validation ', '')}]",
        title_fontsize=7,
        alignment="left",
    )
    _plain_text(legend.get_texts())
    _title(figure, title)
    return figure


def _quantities(curves: Sequence[Curve]) -> list[str]:
    known = [
        name for name in ("accuracy", "loss") if any(np.isfinite(getattr(c, name)).any() for c in curves)
    ]
    return known or ["loss"]


def _line(panel: Axes, point: PointCurves, quantity: str, **style: Any) -> None:
    if not point.curves:
        return
    curve = mean_curve(point.curves)
    _plot(panel, curve, quantity, **style)
    if point.score is None and curve.epochs:
        last = getattr(curve, quantity)[-1] * (100 if quantity == "accuracy" else 1)
        panel.plot(
            curve.epochs[-1:], [last], marker="x", markersize=4, color=style["color"], zorder=style["zorder"]
        )


def _plot(panel: Axes, curve: Curve, quantity: str, **style: Any) -> None:
    values = np.array(getattr(curve, quantity), dtype=float) * (100 if quantity == "accuracy" else 1)
    panel.plot(curve.epochs, values, **style)


def _dress(panel: Axes, quantity: str, curves: Sequence[Curve]) -> None:
    """Name the axes, and choose a range that shows the differences where curves end."""
    panel.set_xlabel("epoch")
    panel.set_xlim(left=0)
    panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    rows = [np.array(getattr(curve, quantity), dtype=float) for curve in curves if curve.epochs]
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


def _handle(colour: str, width: float, point: PointCurves, metric: str) -> Any:
    score = "diverged" if point.score is None else score_text(point.score, metric)
    return _legend_line(colour, width, f"({short(point.lr)}, {short(point.wd)}) [{score}]")


def _legend_line(colour: str, width: float, label: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, linewidth=width, label=label)


# --- seeds ------------------------------------------------------------------------------------------------


def seeds_figure(title: str, metric: str, optima: Sequence[StrategyCurves]) -> Figure:
    """Plot the optima of all strategies over their seeds on one axis, as fig:seeds-ViT, and their scores beside it.

    Lines of one strategy share its colour and differ in whiteness. In the strip of scores, open circles are the
    seeds of the search, which chose the point, and filled ones are fresh; bars are their mean and deviation.
    """
    quantities = _quantities([curve for optimum in optima for curve in optimum.curves])
    figure = _figure(3.1 * len(quantities) + 2.6, 3.7)
    panels = figure.subplots(
        1, len(quantities) + 1, width_ratios=[3.1] * len(quantities) + [2.2], squeeze=False
    )[0]
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
    _plain_text(legend.get_texts())
    _title(figure, title)
    return figure


def _optimum_label(optimum: StrategyCurves, metric: str) -> str:
    scores = optimum.fresh_scores or optimum.search_scores
    which = "fresh seed" if optimum.fresh_scores else "search seed"
    label = f"{optimum.strategy} ({short(optimum.lr)}, {short(optimum.wd)})"
    if not scores:
        return label
    text = plus_minus(fmean(scores), stdev(scores) if len(scores) > 1 else None, metric)
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
    _plain_text(panel.get_xticklabels())
    if len(optima) > 3 or any(len(o.strategy) > 8 for o in optima):
        panel.tick_params(axis="x", rotation=25)
    panel.set_xlim(-0.5, len(optima) - 0.5)
    panel.set_ylabel(metric_name(metric) + (" (%)" if factor == 100 else ""))
    panel.set_title("open: search's seeds, filled: fresh seeds", fontsize=7, color="#555555", loc="right")


# --- the lattice ------------------------------------------------------------------------------------------

LR_STEP_XY = (1.0, 0.0)
WD_STEP_XY = (0.5, math.sqrt(3) / 2)
"""Where one step along each axis leads on paper: unit vectors 60 degrees apart, so that (+1, -1) is one step long too
and the six neighbours of a point are the six hexagons that touch its own, while (+1, +1) is not."""


def hexagon_xy(lr_index: float, wd_index: float) -> tuple[float, float]:
    """Return the centre of the hexagon of a lattice position, counted in steps."""
    return (
        lr_index * LR_STEP_XY[0] + wd_index * WD_STEP_XY[0],
        lr_index * LR_STEP_XY[1] + wd_index * WD_STEP_XY[1],
    )


def lattice_figure(lattice: LatticeMap) -> Figure:
    """Draw the map of a family: hexagons on two free axes, a line plot on one.

    Points off the lattice of the candidate are left out, and counted in a note.
    """
    placed, off = _placed(lattice)
    one_lr = len({i for i, _ in placed}) <= 1
    one_wd = len({j for _, j in placed}) <= 1
    if one_lr or one_wd:
        return _line_map(lattice, along_lr=one_wd)
    return _hexagon_map(lattice, placed, off)


def _origin(lattice: LatticeMap) -> tuple[float, float]:
    return lattice.candidate or min((cell.lr, cell.wd) for cell in lattice.cells)


def _index(lattice: LatticeMap, lr: float, wd: float) -> tuple[int, int] | None:
    """Return a point's position in steps from the origin, or None if it is off the lattice."""
    lr0, wd0 = _origin(lattice)
    if (wd == 0) != (wd0 == 0):
        return None
    i = math.log2(lr / lr0) / lattice.lr_step
    j = math.log2(wd / wd0) / lattice.wd_step if wd else 0.0
    if abs(i - round(i)) > 1e-5 or abs(j - round(j)) > 1e-5:
        return None
    return round(i), round(j)


def _placed(lattice: LatticeMap) -> tuple[dict[tuple[int, int], Cell], int]:
    placed: dict[tuple[int, int], Cell] = {}
    off = 0
    for cell in lattice.cells:
        index = _index(lattice, cell.lr, cell.wd)
        if index is None:
            off += 1
        else:
            placed[index] = cell
    return placed, off


def clipped_range(scores: Sequence[float], mode: str) -> tuple[float, float]:
    """Return the scores that the ends of the colour scale stand for: the best, and one not too bad.

    A few awful points would leave one colour to all others, so the far end is at most three times as far from the
    best as the median is.
    """
    best, worst = (min(scores), max(scores)) if mode == "min" else (max(scores), min(scores))
    limit = best + 3 * (float(np.median(scores)) - best)
    worst = min(worst, limit) if mode == "min" else max(worst, limit)
    low, high = min(best, worst), max(best, worst)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _hexagon_map(lattice: LatticeMap, placed: dict[tuple[int, int], Cell], off: int) -> Figure:
    (i0, i1), (j0, j1) = [(min(axis), max(axis)) for axis in zip(*placed, strict=True)]
    columns, rows = i1 - i0 + 1, j1 - j0 + 1
    inch = min(0.62, 8.0 / (columns + rows / 2))
    figure = _figure((columns + rows / 2) * inch + 2.3, rows * inch * 0.87 + 1.75)
    panel = figure.subplots()
    scores = [cell.score for cell in placed.values() if cell.score is not None]
    low, high = clipped_range(scores or [0.0], lattice.mode)
    colours = colormaps["viridis_r" if lattice.mode == "min" else "viridis"]
    norm = Normalize(low, high, clip=True)
    font = 6.6 * inch / 0.62
    around = {_index(lattice, *n) for n in lattice.neighbours}
    best = (0, 0) if lattice.candidate else None
    for i in range(i0, i1 + 1):
        for j in range(j0, j1 + 1):
            cell = placed.get((i, j))
            panel.add_patch(_hexagon(i, j, facecolor="none", edgecolor="#dcdcdc", linewidth=0.6, zorder=1))
            if cell is not None:
                _draw_cell(panel, i, j, cell, colours, norm, lattice.metric, font)
    for index in around - {None, best}:
        assert index is not None
        panel.add_patch(
            _hexagon(*index, facecolor="none", edgecolor=INK, linewidth=1.3, zorder=4, scale=0.95)
        )
    if best is not None:
        panel.add_patch(
            _hexagon(0, 0, facecolor="none", edgecolor="white", linewidth=4.2, zorder=5, scale=0.92)
        )
        panel.add_patch(
            _hexagon(0, 0, facecolor="none", edgecolor="#d62728", linewidth=2.4, zorder=6, scale=0.92)
        )
    _hexagon_axes(panel, lattice, (i0, i1), (j0, j1))
    bar = figure.colorbar(
        _mappable(norm, colours),
        ax=panel,
        shrink=0.75,
        aspect=22,
        pad=0.02,
        extend=_extend(scores, low, high),
    )
    better = "lower" if lattice.mode == "min" else "higher"
    bar.set_label(f"{metric_name(lattice.metric)} ({better} is better)", fontsize=7.5)
    bar.ax.tick_params(labelsize=7)
    if is_accuracy(lattice.metric):
        ticks = [t for t in bar.get_ticks() if low <= t <= high]
        bar.set_ticks(ticks, labels=[f"{100 * t:.4g}%" for t in ticks])
    if lattice.mode == "min":
        bar.ax.invert_yaxis()
    note = f"; {off} point{'s' * (off > 1)} off this lattice not drawn" if off else ""
    _title(figure, lattice.title, f"red: candidate, black: its neighbours{note}")
    return figure


def _mappable(norm: Normalize, colours: Any) -> Any:
    from matplotlib.cm import ScalarMappable

    return ScalarMappable(norm, colours)


def _extend(scores: Sequence[float], low: float, high: float) -> str:
    below, above = any(s < low for s in scores), any(s > high for s in scores)
    return {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}[
        below, above
    ]


def _hexagon(i: int, j: int, scale: float = 1.0, **style: Any) -> RegularPolygon:
    return RegularPolygon(hexagon_xy(i, j), 6, radius=scale / math.sqrt(3), joinstyle="round", **style)


def _draw_cell(
    panel: Axes, i: int, j: int, cell: Cell, colours: Any, norm: Normalize, metric: str, font: float
) -> None:
    x, y = hexagon_xy(i, j)
    if cell.score is not None:
        colour = colours(norm(cell.score))
        luminance = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]
        ink = "black" if luminance > 0.5 else "white"
        panel.add_patch(_hexagon(i, j, facecolor=colour, edgecolor="white", linewidth=0.8, zorder=2))
        text = _cell_text(cell.score, metric)
        lift = 0.1 if cell.std is not None else 0.0
        panel.text(x, y + lift, text, ha="center", va="center", fontsize=font, color=ink, zorder=7)
        if cell.std is not None:
            spread = "±" + _cell_text(cell.std, metric)
            panel.text(
                x, y - 0.2, spread, ha="center", va="center", fontsize=0.74 * font, color=ink, zorder=7
            )
        return
    diverged = cell.state == "diverged"
    style: dict[str, Any] = (
        {"facecolor": "#e4e4e4", "edgecolor": "#9a9a9a", "hatch": "/////", "linewidth": 0.6}
        if diverged
        else {"facecolor": "#fdf3dc", "edgecolor": "#b57a00", "linestyle": (0, (3, 2)), "linewidth": 1.1}
    )
    panel.add_patch(_hexagon(i, j, scale=0.83, zorder=2, **style))
    box = {"facecolor": style["facecolor"], "edgecolor": "none", "pad": 0.6}
    panel.text(
        x, y, cell.state, ha="center", va="center", fontsize=0.74 * font, color="#333333", zorder=7, bbox=box
    )


def _cell_text(value: float, metric: str) -> str:
    """Return a number short enough for a hexagon."""
    if is_accuracy(metric):
        return f"{100 * value:.1f}"
    text = f"{value:.3f}" if value < 10 else short(value)
    return text[1:] if text.startswith("0.") else text


def _hexagon_axes(
    panel: Axes, lattice: LatticeMap, lr_range: tuple[int, int], wd_range: tuple[int, int]
) -> None:
    """Label rows with wd at their left end and columns with lr at their lower end, values and powers of two."""
    (i0, i1), (j0, j1) = lr_range, wd_range
    lr0, wd0 = _origin(lattice)
    for j in range(j0, j1 + 1):
        x, y = hexagon_xy(i0, j)
        wd = wd0 * 2.0 ** (j * lattice.wd_step)
        panel.text(x - 0.62, y, short(wd), ha="right", va="center", fontsize=7, color=INK)
    for i in range(i0, i1 + 1):
        x, y = hexagon_xy(i, j0)
        lr = lr0 * 2.0 ** (i * lattice.lr_step)
        panel.text(
            x - 0.1,
            y - 0.66,
            short(lr),
            ha="right",
            va="top",
            fontsize=7,
            color=INK,
            rotation=60,
            rotation_mode="anchor",
        )
    left, bottom = hexagon_xy(i0, j0)
    right, top = hexagon_xy(i1, j1)
    middle = hexagon_xy(i0, 0.5 * (j0 + j1))
    panel.text(middle[0] - 1.65, middle[1] + 0.45, "wd", ha="right", va="center", fontsize=9, color=INK)
    panel.text(
        0.5 * (left + hexagon_xy(i1, j0)[0]) - 0.5, bottom - 1.72, "lr", ha="center", fontsize=9, color=INK
    )
    panel.set_xlim(left - 2.0, right + 0.6)
    panel.set_ylim(bottom - 1.8, top + 0.7)
    panel.set_aspect("equal")
    panel.set_axis_off()


def _line_map(lattice: LatticeMap, along_lr: bool) -> Figure:
    """Plot score against the one free axis; diverged and unfinished points stand at the worse edge."""
    figure = _figure(4.6, 3.1)
    panel = figure.subplots()
    factor = 100 if is_accuracy(lattice.metric) else 1
    cells = sorted(lattice.cells, key=lambda cell: cell.lr if along_lr else cell.wd)
    done = [cell for cell in cells if cell.score is not None]
    panel.set_xscale("log", base=2)
    panel.errorbar(
        [_along(cell, along_lr) for cell in done],
        [factor * (cell.score or 0.0) for cell in done],
        [factor * (cell.std or 0.0) for cell in done],
        color=strategy_colour(lattice.strategy),
        marker="o",
        markersize=4,
        capsize=2.5,
        linewidth=1.2,
    )
    for cell in done:
        if lattice.candidate and _index(lattice, cell.lr, cell.wd) == (0, 0):
            panel.plot(
                _along(cell, along_lr),
                factor * (cell.score or 0.0),
                marker="o",
                markersize=11,
                markerfacecolor="none",
                markeredgecolor="#d62728",
                markeredgewidth=2,
            )
    if done:
        low, high = clipped_range([cell.score for cell in done if cell.score is not None], lattice.mode)
        room = 0.12 * (high - low)
        panel.set_ylim(factor * (low - room), factor * (high + room))
    for cell in cells:
        if cell.score is None:
            edge = 0.97 if lattice.mode == "min" else 0.03
            va = "top" if lattice.mode == "min" else "bottom"
            panel.text(
                _along(cell, along_lr), edge, cell.state, transform=panel.get_xaxis_transform(),
                rotation=90, ha="center", va=va, fontsize=6.5, color="#666666",
            )  # fmt: skip
    ticks = [_along(cell, along_lr) for cell in cells]
    panel.set_xticks(ticks, [short(t) for t in ticks], fontsize=7, rotation=45 if len(ticks) > 6 else 0)
    panel.set_xticks([], minor=True)
    other = {cell.wd if along_lr else cell.lr for cell in cells}
    fixed = f" at {'wd' if along_lr else 'lr'} {short(next(iter(other)))}" if len(other) == 1 else ""
    panel.set_xlabel(("lr" if along_lr else "wd") + fixed)
    panel.set_ylabel(metric_name(lattice.metric) + (" (%)" if factor == 100 else ""))
    if factor == 1:
        panel.yaxis.set_major_formatter(ScalarFormatter(useOffset=False))
    _title(figure, lattice.title, "red: candidate")
    return figure


def _along(cell: Cell, along_lr: bool) -> float:
    return cell.lr if along_lr else cell.wd


# --- files ------------------------------------------------------------------------------------------------


def _figure(width_inch: float, height_inch: float) -> Figure:
    figure = Figure(figsize=(width_inch, height_inch), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _title(figure: Figure, title: str, subtitle: str = "") -> None:
    text = figure.suptitle(title + (f"\n{subtitle}" if subtitle else ""), fontsize=9)
    _plain_text([text])
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(axes.get_label() == "<colorbar>")
        axes.tick_params(labelsize=7)
        axes.xaxis.label.set_size(8)
        axes.yaxis.label.set_size(8)


def _plain_text(texts: Sequence[Any]) -> None:
    """Draw names as they are: a `$` in one starts no formula."""
    for text in texts:
        text.set_parse_math(False)


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and PDF; return both paths.

    Raises:
        StorageError: a file cannot be written.
    """
    png, pdf = folder / f"{name}.png", folder / f"{name}.pdf"
    write_atomic(png, lambda path: figure.savefig(path, format="png", dpi=DPI))
    write_atomic(pdf, lambda path: figure.savefig(path, format="pdf", metadata={"CreationDate": None}))
    return [png, pdf]
