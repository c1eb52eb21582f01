"""The fitted surface on a map: contours around its optimum, or a curve with a band where one axis is free.

Shapes: P points, D axes, Z positions.
"""

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Ellipse, PathPatch
from matplotlib.path import Path

from ettsweep.sweep.evidence import Evidence
from ettsweep.sweep.optimum import Optimum, mesh_over, optimum
from ettsweep.sweep.surface import Array
from ettsweep.sweep.verdict import Verdict

OPTIMUM = "#d62728"

BEYOND = 0.7
"""Steps beyond the fitted points up to which there may be hexagons of theirs."""


def surface_of(verdict: Verdict) -> tuple[Evidence, Optimum] | None:
    """Return the surface that a verdict rests on, and its optimum; None where there is none that may be shown."""
    found = verdict.bound.evidence if verdict.bound else None
    best = optimum(found) if found else None
    return (found, best) if found and best else None


def place_of(verdict: Verdict) -> str:
    """Return where the fitted optimum is, with its standard error; nothing where there is no surface."""
    if (found := surface_of(verdict)) is None or verdict.point is None:
        return ""
    search, (_, best) = verdict.search, found
    free = [
        (name, at, axis.step)
        for name, at, axis in zip(("lr", "wd"), verdict.point.log2(), (search.lr, search.wd), strict=True)
        if not axis.fixed
    ]
    log2 = [at + step * float(moved) for (_, at, step), moved in zip(free, best.position_D, strict=True)]
    if best.error is None:
        told = ", ".join(f"{name} 2^{at:.1f}" for (name, _, _), at in zip(free, log2, strict=True))
        return f"{told}, where its error reaches beyond the fitted points"
    errors = [step * error for (_, _, step), error in zip(free, best.error.tolist(), strict=True)]
    return ", ".join(
        f"{name} 2^({at:.2f} ± {error:.2f})" for (name, _, _), at, error in zip(free, log2, errors, strict=True)
    )


def levels(margin: float, most: float) -> list[float]:
    """Return what contours stand for: the margin, and its doubles up to the most there is."""
    first = margin or most / 32
    return list(takewhile(lambda level: level < most, (first * 2.0**k for k in range(12)))) if most > 0 else []


def draw_contours(
    panel: Axes, verdict: Verdict, to_xy: Callable[[Any, Any], tuple[Any, Any]], hexagons: Sequence[Path], layer: float
) -> str:
    """Draw contours on the hexagons of the fitted points, the optimum, and an ellipse of its one standard error.

    A contour is where scores are worse than at the optimum by the margin, or twice, four times, ... as much. `to_xy`
    maps steps of the lattice from the candidate to the panel. Return what is drawn, in words.
    """
    if (found := surface_of(verdict)) is None:
        return ""
    evidence, best = found
    x_PD = evidence.surface.layout.x_PD
    mesh_ZD = mesh_over(x_PD.min(0) - BEYOND, x_PD.max(0) + BEYOND)
    sides = [len(np.unique(axis)) for axis in mesh_ZD.T]
    f = evidence.surface.means_at(mesh_ZD) - best.f
    worse = (np.expm1(f) if evidence.log else f / evidence.level).reshape(sides)
    x, y = (np.reshape(axis, sides) for axis in to_xy(*mesh_ZD.T))
    if drawn := levels(verdict.search.criterion.margin_for(verdict.search.measure), float(worse.max())):
        within = PathPatch(Path.make_compound_path(*hexagons), transform=panel.transData)
        for width, colour in ((2.0, "#00000030"), (0.9, "white")):
            lines = panel.contour(x, y, worse, drawn, colors=colour, linewidths=width, zorder=layer)
            lines.set_clip_path(within)
    centre, marker = to_xy(*best.position_D), "+" if best.cov_DD is None else "o"
    for colour, width, size in (("white", 3.2, 3.6), (OPTIMUM, 1.4, 2)):
        across = size + 5 * (marker == "+")
        panel.plot(*centre, marker, markersize=across, markeredgewidth=width, color=colour, zorder=layer + 4)
        if best.cov_DD is not None:
            basis = np.column_stack([to_xy(1.0, 0.0), to_xy(0.0, 1.0)])
            squares, directions = np.linalg.eigh(basis @ best.cov_DD @ basis.T)
            angle = np.degrees(np.arctan2(directions[1, 0], directions[0, 0]))
            style: dict[str, Any] = {"facecolor": "none", "edgecolor": colour, "linewidth": width, "zorder": layer + 4}
            panel.add_patch(Ellipse(centre, *(2 * np.sqrt(squares)), angle=angle, **style))
    said = [verdict.search.measure.said(level) for level in drawn[:2]] + ["..."] * (len(drawn) > 2)
    what = "cross: fitted optimum" if best.cov_DD is None else "ellipse: fitted optimum ± standard error"
    return what + (f"; contours: {', '.join(said)} worse" if said else "")


def draw_curve(panel: Axes, verdict: Verdict, to_x: Callable[[Array], Array], factor: float, colour: str) -> None:
    """Draw the fitted curve, a band of its standard error, and the optimum with its own.

    The band is that of the shape: of scores less their mean over all points. `to_x` maps steps from the candidate.
    """
    if (found := surface_of(verdict)) is None:
        return
    evidence, best = found
    surface, layout = evidence.surface, evidence.surface.layout
    n_P = layout.scored_PS.sum(1)
    n_P = n_P / n_P.sum()
    z_ZD = mesh_over(layout.x_PD.min(0), layout.x_PD.max(0))
    contrast = np.hstack([np.eye(len(z_ZD)), np.broadcast_to(-n_P, (len(z_ZD), len(n_P)))])
    cov = surface.covariance_at(np.vstack([z_ZD, layout.x_PD]))
    error_Z = np.sqrt(np.maximum(np.diag(contrast @ cov @ contrast.T), 0))
    level = layout.y_PS.sum() / layout.scored_PS.sum() - n_P @ surface.mean
    sign = factor if verdict.search.measure.mode == "min" else -factor

    def scores(f: Array) -> Array:
        return np.asarray(sign * (np.exp(f + level) if evidence.log else f + level))

    x, f_Z = to_x(z_ZD[:, 0]), surface.means_at(z_ZD)
    panel.plot(x, scores(f_Z), color=colour, linewidth=1.2, zorder=2)
    panel.fill_between(x, scores(f_Z - error_Z), scores(f_Z + error_Z), color=colour, alpha=0.18, linewidth=0, zorder=1)
    at = to_x(best.position_D)
    panel.plot(at, scores(np.array([best.f])), marker="+", markersize=8, markeredgewidth=1.6, color=OPTIMUM, zorder=5)
    if best.error is not None:
        ends = to_x(np.array([best.position_D[0] - best.error[0], best.position_D[0] + best.error[0]]))
        panel.plot(ends, scores(np.array([best.f] * 2)), color=OPTIMUM, linewidth=1.6, zorder=5)
