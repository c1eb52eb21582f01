"""The fitted surface behind a verdict, as frames: the curve along a single axis, and the optimum with an error.

Shapes: P points, D axes, Z positions, S seeds.
"""

import math
from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from ettsweep.report.families import JudgedFamily
from ettsweep.study.lattice import Axis
from ettsweep.study.posterior import Posterior
from ettsweep.study.surface import Array
from ettsweep.study.surface_optimum import SurfaceOptimum, find_optimum, mesh_over
from ettsweep.study.verdict import Verdict

CURVE_COLUMNS = ("sweep", "family", "x_steps", "y_steps", "score", "low", "high")
OPTIMUM_COLUMNS = ("sweep", "family", "x_steps", "y_steps", "score", "x_error", "y_error")


def fitted_surface(verdict: Verdict) -> tuple[Posterior, SurfaceOptimum] | None:
    """Return the surface behind a verdict and its optimum; None if either is missing."""
    posterior = verdict.bound.posterior if verdict.bound else None
    if not all(axis.is_even for axis in verdict.study.axes.values()):
        return None  # steps of the fit are not those of the list
    best = find_optimum(posterior) if posterior else None
    return (posterior, best) if posterior and best else None


def optimum_text(verdict: Verdict) -> str:
    """Return the values of the fitted optimum with standard errors, such as "lr 2^(-6.12 ± 0.20)".

    Empty without a surface.
    """
    if (surface := fitted_surface(verdict)) is None or verdict.point is None:
        return ""
    study, (_, best) = verdict.study, surface
    moved_D, error_D = best.position_D.tolist(), [None] * len(study.free) if best.error is None else best.error.tolist()
    texts = [
        _value_text(name, axis, axis.shifted(verdict.point[name], moved), error)
        for (name, axis), moved, error in zip(study.free.items(), moved_D, error_D, strict=True)
    ]
    return ", ".join(texts) + (", with an error that reaches beyond the fitted points" if best.error is None else "")


def _value_text(name: str, axis: Axis, value: float, steps: float | None) -> str:
    """Return a value of an axis with its error, which is in steps."""
    if axis.scale == "linear":
        return f"{name} {value:.2g}" if steps is None else f"{name} {value:.3g} ± {axis.step * steps:.2g}"
    at = math.log2(value)
    return f"{name} 2^{at:.1f}" if steps is None else f"{name} 2^({at:.2f} ± {axis.step * steps:.2f})"


def fitted_curve_frame(families: Iterable[JudgedFamily]) -> pd.DataFrame:
    """Return the fitted curve of each family with one free axis, in lattice steps from the candidate.

    Columns:
        score, low, high: the fit, and the fit minus and plus its standard error. The error is that of the shape: of
            scores less their mean over all points.
    """
    rows = [row for family in families for row in _curve_rows(family.verdict)]
    return pd.DataFrame(rows, columns=list(CURVE_COLUMNS))


def optimum_frame(families: Iterable[JudgedFamily]) -> pd.DataFrame:
    """Return the optimum of each surface, in lattice steps from the candidate.

    Errors are missing if the fit only shows that the optimum lies among the fitted points, or at their edge.
    """
    rows = []
    for verdict in (family.verdict for family in families):
        if surface := fitted_surface(verdict):
            posterior, best = surface
            lr, wd = _lattice_steps(verdict, best.position_D)
            score = _to_scores(verdict, posterior, np.array([best.value]))[0]
            errors = (None, None) if best.error is None else _lattice_steps(verdict, best.error)
            rows.append((*verdict.key, lr, wd, score, *errors))
    return pd.DataFrame(rows, columns=list(OPTIMUM_COLUMNS)).astype(dict.fromkeys(OPTIMUM_COLUMNS[2:], "float64"))


def _curve_rows(verdict: Verdict) -> Iterator[tuple[object, ...]]:
    if (surface := fitted_surface(verdict)) is None:
        return
    posterior, _ = surface
    x_PD = posterior.surface.scores.x_PD
    if x_PD.shape[1] > 1:
        return
    mesh_ZD = mesh_over(x_PD.min(0), x_PD.max(0))
    f_Z, error_Z = posterior.surface.means_at(mesh_ZD), _standard_errors(posterior, mesh_ZD)
    ends = (_to_scores(verdict, posterior, f_Z + sign * error_Z) for sign in (0, -1, 1))
    for at_D, *scores in zip(mesh_ZD, *(end.tolist() for end in ends), strict=True):
        yield (*verdict.key, *_lattice_steps(verdict, at_D), *scores)


def _lattice_steps(verdict: Verdict, at_D: Array) -> tuple[float, float]:
    """Return a position along the free axes as steps along lr and wd; 0 along a fixed one."""
    along = iter(at_D.tolist())
    first, *second = (0.0 if axis.fixed else round(next(along), 6) for axis in verdict.study.axes.values())
    return first, second[0] if second else 0.0


def _position_variances(verdict: Verdict, best: SurfaceOptimum) -> tuple[float | None, float | None, float | None]:
    if best.cov_DD is None:
        return None, None, None
    free = [not axis.fixed for axis in verdict.study.axes.values()]
    free += [False] * (2 - len(free))
    # A fixed axis keeps a variance of 0.
    cov = np.zeros((2, 2))
    cov[np.ix_(free, free)] = best.cov_DD
    return float(cov[0, 0]), float(cov[1, 1]), float(cov[0, 1])


def _to_scores(verdict: Verdict, posterior: Posterior, f: Array) -> Array:
    """Return fitted values as scores; the mean of all scores sets the constant that the fit leaves open."""
    layout = posterior.surface.scores
    weight_P = layout.scored_PS.sum(1) / layout.scored_PS.sum()
    level = layout.y_PS.sum() / layout.scored_PS.sum() - weight_P @ posterior.surface.mean_P
    sign = 1 if verdict.study.metric.mode == "min" else -1
    return np.asarray(sign * (np.exp(f + level) if posterior.is_log else f + level))


def _standard_errors(posterior: Posterior, mesh_ZD: Array) -> Array:
    """Return the standard error of fitted values less their mean over all scores."""
    layout = posterior.surface.scores
    weight_P = layout.scored_PS.sum(1) / layout.scored_PS.sum()
    contrast = np.hstack([np.eye(len(mesh_ZD)), np.broadcast_to(-weight_P, (len(mesh_ZD), len(weight_P)))])
    cov = posterior.surface.covariance_at(np.vstack([mesh_ZD, layout.x_PD]))
    # Rounding can make a variance of 0 slightly negative.
    return np.asarray(np.sqrt(np.maximum(np.diag(contrast @ cov @ contrast.T), 0)))
