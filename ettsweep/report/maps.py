"""The map of the (lr, wd) lattice: hexagons whose six neighbours are those of a verdict."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import RegularPolygon
from matplotlib.patheffects import withStroke
from matplotlib.ticker import ScalarFormatter

from ettsweep.report.fitted import draw_contours, draw_curve, surface_of
from ettsweep.report.style import (
    axis_of,
    is_accuracy,
    metric_name,
    new_figure,
    short,
    strategy_colour,
    tick_text,
    titled,
)
from ettsweep.sweep.search import Point, Search, snap
from ettsweep.sweep.verdict import Verdict

INK = "#1c1c1e"
CANDIDATE = "#d62728"
SEARCHED = "#8a8a8a"

MOST_ACROSS = 20
"""Hexagons side by side on which numbers can be read."""

SIX = ((1, 0), (0, 1), (-1, 1), (-1, 0), (0, -1), (1, -1))
"""Steps to the hexagons that touch one, counterclockwise: each 60 degrees on from the last, the first to the right."""

Ends = tuple[tuple[int, int], tuple[int, int]]
"""Of lr and of wd, the first and the last position, in steps."""


@dataclass(frozen=True)
class Cell:
    """A lattice point on a map.

    Attributes:
        score: the mean over the seeds that count; None where it is not finished, or diverged.
        error: the standard error of that; None of one seed.
        seeds: those that count and are finished.
        state: done, diverged, or that of an unfinished run.
    """

    point: Point
    score: float | None
    error: float | None
    seeds: int
    state: str


@dataclass(frozen=True)
class Lattice:
    """Positions on a map, in steps from its origin."""

    origin: Point
    lr_step: float
    wd_step: float

    def index(self, point: Point) -> tuple[int, int] | None:
        """Return a point's position, or None if it is off the lattice."""
        (lr0, wd0), (lr, wd) = self.origin.log2(), point.log2()
        if math.inf in (-wd0, -wd) and wd0 != wd:
            return None
        i = round((lr - lr0) / self.lr_step)
        j = round((wd - wd0) / self.wd_step) if wd0 != wd else 0
        return (i, j) if snap(self.origin.moved(i * self.lr_step, j * self.wd_step), [point]) == point else None


def hexagon_xy(lr_index: Any, wd_index: Any) -> tuple[Any, Any]:
    """Return the centre of the hexagon of a lattice position, counted in steps.

    One step along each axis is a unit vector, 60 degrees apart, so that (+1, -1) is as long. The six neighbours of a
    point are then the six hexagons that touch its own, and (+1, +1) does not.
    """
    return lr_index + wd_index / 2, wd_index * math.sqrt(3) / 2


def headline(verdict: Verdict) -> str:
    """Return whose map it is: sweep and strategy."""
    return f"{verdict.search.sweep}: {verdict.strategy}" if verdict.search.sweep else verdict.strategy


def lattice_figure(title: str, verdict: Verdict, cells: Collection[Cell]) -> Figure:
    """Draw the map of a family: hexagons on two free axes, a line plot on one.

    Points off the lattice of the candidate are left out, and counted in a note.
    """
    search, origin = verdict.search, verdict.point or min((cell.point for cell in cells), key=tuple)
    free = search.wd if search.lr.fixed else search.lr  # whose steps are those along a fixed axis too
    lattice = Lattice(origin, free.step, (free if search.wd.fixed else search.wd).step)
    placed = {index: cell for cell in cells if (index := lattice.index(cell.point)) is not None}
    one_lr = len({i for i, _ in placed}) <= 1
    one_wd = len({j for _, j in placed}) <= 1
    if one_lr or one_wd:
        return _line_map(
            title, verdict, list(placed.values()), along_lr=one_wd, step=lattice.lr_step if one_wd else lattice.wd_step
        )
    off = sum(lattice.index(cell.point) is None for cell in cells)
    return _hexagon_map(title, verdict, lattice, placed, off)


def clipped_range(scores: Sequence[float], mode: str, reach: float = 3.0) -> tuple[float, float]:
    """Return the scores that the ends of a scale stand for: the best, and one not too bad.

    A few awful points would leave one colour to all others, so the far end is at most `reach` times as far from
    the best as the median is.
    """
    best, worst = (min(scores), max(scores)) if mode == "min" else (max(scores), min(scores))
    limit = best + reach * (float(np.median(scores)) - best)
    worst = min(worst, limit) if mode == "min" else max(worst, limit)
    low, high = min(best, worst), max(best, worst)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _hexagon_map(
    title: str, verdict: Verdict, lattice: Lattice, placed: dict[tuple[int, int], Cell], off: int
) -> Figure:
    """Draw a hexagon for each position of the bounding box, filled where there is a point."""
    measure, searched = verdict.search.measure, _searched(verdict.search, lattice)
    (i0, i1), (j0, j1) = shown = _shown(_ends(placed), searched)
    columns, rows = i1 - i0 + 1, j1 - j0 + 1
    inch = min(0.62, 8.0 / (columns + rows / 2))
    figure = new_figure((columns + rows / 2) * inch + 2.3, rows * inch * 0.87 + 1.75)
    panel = figure.subplots()
    scores = [cell.score for cell in placed.values() if cell.score is not None]
    low, high = clipped_range(scores or [0.0], measure.mode)
    colours = ScalarMappable(Normalize(low, high, clip=True), "viridis_r" if measure.mode == "min" else "viridis")
    for index in product(range(i0, i1 + 1), range(j0, j1 + 1)):
        panel.add_patch(_hexagon(index, facecolor="none", edgecolor="#dcdcdc", linewidth=0.6, zorder=1))
        if index in placed:
            _draw_cell(panel, index, placed[index], colours, measure.metric, 6.6 * inch / 0.62)
            if number := verdict.search.numbers.get(placed[index].point):
                x, y = hexagon_xy(*index)
                _draw_number(panel, x, y + 0.42, number, 5.4 * inch / 0.62)
    if searched:
        panel.add_collection(LineCollection(_outline(searched, shown), colors=SEARCHED, linewidths=1.6, zorder=3))
    for around in {lattice.index(n.point) for n in verdict.neighbours}:
        if around is not None:
            panel.add_patch(_hexagon(around, 0.95, facecolor="none", edgecolor=INK, linewidth=1.3, zorder=4))
    if verdict.point is not None:
        for colour, width, layer in (("white", 4.2, 5), (CANDIDATE, 2.4, 6)):
            style = {"facecolor": "none", "edgecolor": colour, "linewidth": width, "zorder": layer}
            panel.add_patch(_hexagon((0, 0), 0.92, **style))
    _hexagon_axes(panel, lattice, (i0, i1), (j0, j1))
    surface = _draw_surface(panel, verdict, placed)
    bar = figure.colorbar(colours, ax=panel, shrink=0.75, aspect=22, pad=0.02, extend=_extend(scores, low, high))
    better = "lower" if measure.mode == "min" else "higher"
    bar.set_label(f"{metric_name(measure.metric)} ({better} is better)", fontsize=7.5)
    bar.ax.tick_params(labelsize=7)
    if is_accuracy(measure.metric):
        ticks = [t for t in bar.get_ticks() if low <= t <= high]
        bar.set_ticks(ticks, labels=[f"{100 * t:.4g}%" for t in ticks])
    if measure.mode == "min":
        bar.ax.invert_yaxis()
    note = f"; {off} point{'s' * (off > 1)} off this lattice not drawn" if off else ""
    subtitle = f"red: candidate, black: its neighbours; mean ± standard error, n seeds{note}"
    proposed = "numbers on top: order of proposals; grey: ends of the ranges" if searched else ""
    titled(figure, headline(verdict), f"{subtitle}\n{surface}\n{proposed}", small=title)
    return figure


def _ends(indices: Collection[tuple[int, int]]) -> Ends:
    (i0, i1), (j0, j1) = ((min(axis), max(axis)) for axis in zip(*indices, strict=True))
    return (i0, i1), (j0, j1)


def _searched(search: Search, lattice: Lattice) -> Ends | None:
    """Return the ranges that proposers chose from; None where none has named a point."""
    corners = [lattice.index(corner) for corner in search.box] if search.proposed else []
    on_lattice = [corner for corner in corners if corner is not None]
    return _ends(on_lattice) if on_lattice else None


def _shown(placed: Ends, searched: Ends | None) -> Ends:
    """Return the part of the lattice that a map shows: all that was searched too, where numbers can be read then."""
    both = _ends([*zip(*placed, strict=True), *zip(*(searched or placed), strict=True)])
    (i0, i1), (j0, j1) = both
    return both if i1 - i0 + (j1 - j0) / 2 < MOST_ACROSS else placed


def _outline(searched: Ends, shown: Ends) -> list[list[tuple[float, float]]]:
    """Return the sides of hexagons that part what was searched from what was not, as far as these are shown."""

    def within(i: int, j: int) -> bool:
        return all(low <= k <= high for k, (low, high) in zip((i, j), searched, strict=True))

    return [
        _side((i, j), k)
        for i, j in product(*(range(low, high + 1) for low, high in shown))
        for k, (di, dj) in enumerate(SIX)
        if within(i, j) and not within(i + di, j + dj)
    ]


def _side(index: tuple[int, int], towards: int) -> list[tuple[float, float]]:
    """Return both ends of the side that a hexagon shares with the one in a direction of `SIX`."""
    x, y = hexagon_xy(*index)
    turns = [math.radians(60 * towards + half) for half in (-30, 30)]
    return [(x + math.cos(turn) / math.sqrt(3), y + math.sin(turn) / math.sqrt(3)) for turn in turns]


def _draw_number(panel: Axes, x: float, y: float, number: int, font: float, **where: Any) -> None:
    """Draw the number of a proposal on a disc of its own, so that it is read on every colour."""
    disc = {"boxstyle": "circle,pad=0.15", "facecolor": "white", "edgecolor": INK, "linewidth": 0.5}
    look: dict[str, Any] = {"ha": "center", "va": "center", "color": INK, "fontweight": "bold", "zorder": 8}
    panel.text(x, y, str(number), fontsize=font, bbox=disc, **look, **where)


def _draw_surface(panel: Axes, verdict: Verdict, placed: Collection[tuple[int, int]]) -> str:
    """Draw the fitted surface on the hexagons of the points that it is fitted to; return what is drawn, in words."""
    if (found := surface_of(verdict)) is None:
        return ""
    fitted = {(round(i), round(j)) for i, j in found[0].positions}
    hexagons = [_hexagon(index) for index in placed if index in fitted]
    paths = [one.get_path().transformed(one.get_patch_transform()) for one in hexagons]
    return draw_contours(panel, verdict, hexagon_xy, paths, layer=3)


def _extend(scores: Sequence[float], low: float, high: float) -> str:
    below, above = any(s < low for s in scores), any(s > high for s in scores)
    return {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}[below, above]


def _hexagon(index: tuple[int, int], scale: float = 1.0, **style: Any) -> RegularPolygon:
    return RegularPolygon(hexagon_xy(*index), 6, radius=scale / math.sqrt(3), joinstyle="round", **style)


def _draw_cell(
    panel: Axes, index: tuple[int, int], cell: Cell, colours: ScalarMappable, metric: str, font: float
) -> None:
    x, y = hexagon_xy(*index)
    centred: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 7}
    if cell.score is not None:
        colour = colours.to_rgba(np.array(cell.score))
        luminance = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]
        centred["color"] = "black" if luminance > 0.5 else "white"
        panel.add_patch(_hexagon(index, facecolor=colour, edgecolor="white", linewidth=0.8, zorder=2))
        centred["path_effects"] = [withStroke(linewidth=1.6, foreground=colour)]  # contours run below
        lines = [(_cell_text(cell.score, metric), 1.0), (f"n={cell.seeds}", 0.68)]
        if cell.error is not None:
            lines.insert(1, ("±" + _cell_text(cell.error, metric), 0.74))
        for (text, size), down in zip(lines, (-0.2, 0.04, 0.25)[3 - len(lines) :], strict=True):
            panel.text(x, y - down, text, fontsize=size * font, **centred)
        return
    if cell.state == "diverged":
        scale, style = 0.96, {"facecolor": "#e4e4e4", "edgecolor": "#9a9a9a", "hatch": "/////", "linewidth": 0.6}
    else:
        dashed = {"linestyle": (0, (3, 2)), "linewidth": 1.1}
        scale, style = 0.83, {"facecolor": "#fdf3dc", "edgecolor": "#b57a00", **dashed}
    panel.add_patch(_hexagon(index, scale, zorder=2, **style))
    box = {"facecolor": style["facecolor"], "edgecolor": "none", "pad": 0.6}
    panel.text(x, y, cell.state, fontsize=0.74 * font, color="#333333", bbox=box, **centred)


def _cell_text(value: float, metric: str) -> str:
    """Return a number short enough for a hexagon."""
    if is_accuracy(metric):
        return f"{100 * value:.2f}"
    text = f"{value:.3f}" if value < 10 else short(value)
    return text[1:] if text.startswith("0.") else text


def _hexagon_axes(panel: Axes, lattice: Lattice, lr_range: tuple[int, int], wd_range: tuple[int, int]) -> None:
    """Label rows with wd at their left end and columns with lr at their lower end."""
    (i0, i1), (j0, j1) = lr_range, wd_range
    lr0, wd0 = lattice.origin
    small: dict[str, Any] = {"fontsize": 7, "color": INK, "ha": "right"}
    for j in range(j0, j1 + 1):
        x, y = hexagon_xy(i0, j)
        panel.text(x - 0.62, y, tick_text(wd0 * 2.0 ** (j * lattice.wd_step)), va="center", **small)
    for i in range(i0, i1 + 1):
        x, y = hexagon_xy(i, j0)
        lr = tick_text(lr0 * 2.0 ** (i * lattice.lr_step))
        panel.text(x - 0.1, y - 0.66, lr, va="top", rotation=60, rotation_mode="anchor", **small)
    left, bottom = hexagon_xy(i0, j0)
    right, top = hexagon_xy(i1, j1)
    name: dict[str, Any] = {"fontsize": 9, "color": INK, "fontweight": "bold"}
    panel.text(hexagon_xy(i0, j1)[0] - 0.62, top + 0.62, "wd", ha="right", va="center", **name)
    panel.text(hexagon_xy(i1, j0)[0] + 0.62, bottom - 0.8, "lr", ha="center", va="center", **name)
    panel.set_xlim(left - 1.9, right + 0.6)
    panel.set_ylim(bottom - 1.65, top + 0.85)
    panel.set_aspect("equal")
    panel.set_axis_off()


def _line_map(title: str, verdict: Verdict, cells: Sequence[Cell], along_lr: bool, step: float) -> Figure:
    """Plot score against the one free axis; diverged and unfinished points are named at the worse edge."""

    def at(point: Point) -> float:
        return point.lr if along_lr else point.wd

    def along(cell: Cell) -> float:
        return at(cell.point)

    figure = new_figure(4.6, 3.1)
    panel = figure.subplots()
    mode = verdict.search.measure.mode
    name, factor = axis_of(verdict.search.measure.metric)
    cells = sorted(cells, key=along)
    done = [(along(cell), cell.score, cell.error or 0.0) for cell in cells if cell.score is not None]
    panel.set_xscale("log", base=2)
    half = 2.0 ** (step / 2)  # a margin for the states at both ends
    panel.set_xlim(along(cells[0]) / half, along(cells[-1]) * half)
    colour, fitted = strategy_colour(verdict.strategy), surface_of(verdict) is not None
    curve = "; curve: fitted, with its standard error; cross: its optimum" if fitted else ""
    line: dict[str, Any] = {"marker": "o", "markersize": 4, "capsize": 2.5, "elinewidth": 1.2}
    xs, scores, errors = np.array(done).reshape(-1, 3).T
    panel.errorbar(xs, factor * scores, factor * errors, color=colour, linewidth=0 if fitted else 1.2, **line)
    if fitted and verdict.point:
        origin = verdict.point.lr if along_lr else verdict.point.wd
        draw_curve(panel, verdict, lambda steps: origin * 2.0 ** (step * steps), factor, colour)
    for cell in cells:
        if cell.point == verdict.point and cell.score is not None:
            ring: dict[str, Any] = {"marker": "o", "markersize": 11, "markerfacecolor": "none", "markeredgewidth": 2}
            panel.plot(along(cell), factor * cell.score, markeredgecolor=CANDIDATE, **ring)
        if cell.score is None:
            edge, va = (0.97, "top") if mode == "min" else (0.03, "bottom")
            turned: dict[str, Any] = {"rotation": 90, "ha": "center", "va": va, "fontsize": 6.5, "color": "#666666"}
            panel.text(along(cell), edge, cell.state, transform=panel.get_xaxis_transform(), **turned)
    if done:
        ends = [score + sign * error for _, score, error in done for sign in (-1, 1)]
        low, high = clipped_range(ends, mode, reach=8)
        room = 0.12 * (high - low)
        panel.set_ylim(factor * (low - room), factor * (high + room))
    ticks = [along(cell) for cell in cells]
    panel.set_xticks(ticks, [tick_text(t) for t in ticks], fontsize=7, rotation=45 if len(ticks) > 6 else 0)
    panel.set_xticks([], minor=True)
    other = {cell.point.wd if along_lr else cell.point.lr for cell in cells}
    fixed = f" at {'wd' if along_lr else 'lr'} {tick_text(next(iter(other)))}" if len(other) == 1 else ""
    panel.set_xlabel(("lr" if along_lr else "wd") + fixed)
    panel.set_ylabel(name)
    if factor == 1:
        panel.yaxis.set_major_formatter(ScalarFormatter(useOffset=False))
    proposed = _mark_search(panel, verdict.search, [cell.point for cell in cells], at, half)
    titled(figure, headline(verdict), f"red: candidate; mean ± standard error{curve}\n{proposed}", small=title)
    return figure


def _mark_search(
    panel: Axes, search: Search, points: Sequence[Point], at: Callable[[Point], float], half_step: float
) -> str:
    """Number proposals along the better edge of a line plot, and mark the ends of the ranges; return this in words."""
    if not search.proposed:
        return ""
    ends, (left, right), across = list(map(at, search.box)), panel.get_xlim(), panel.get_xaxis_transform()
    low, high = min(ends, default=left) / half_step, max(ends, default=right) * half_step
    panel.set_xlim(min(low / half_step, left), max(high * half_step, right))
    panel.vlines([low, high], 0, 1, SEARCHED, linewidth=1.6, transform=across)
    (bottom, top), lower = panel.get_ylim(), search.measure.mode == "min"
    room = 0.1 * (top - bottom)
    panel.set_ylim(bottom - room * lower, top + room * (not lower))
    for point in points:
        if number := search.numbers.get(point):
            _draw_number(panel, at(point), 0.05 if lower else 0.95, number, 5, transform=across)
    return "numbers: order of proposals; grey: ends of the range"
