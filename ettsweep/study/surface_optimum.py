"""The optimum of a fitted surface, which may lie between lattice points, and the error of its position.

Shapes: P points, D axes, Z positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from ettsweep.study.posterior import Posterior
from ettsweep.study.surface import Array, Surface

MESH_STEP = 0.1
"""Lattice steps of the grid of the first search for the optimum, which a parabola then refines."""

CURVATURE_SPAN = 1.0
"""Lattice steps from the optimum at which curvature is measured: nearer, the posterior of the curvature is wide."""

MIN_CURVATURE_Z = 1.0
"""Least curvature, in standard errors along each direction, for which the position gets an error."""


@dataclass(frozen=True)
class SurfaceOptimum:
    """The minimum of the posterior mean within the box of the fitted points.

    Attributes:
        position_D: lattice steps from the candidate.
        value: posterior mean there, up to the surface's constant.
        cov_DD: covariance of the position, in steps squared; None if the optimum lies at the edge of the box, or the
            surface is too flat for an error.
    """

    position_D: Array
    value: float
    cov_DD: Array | None

    @property
    def error(self) -> Array | None:
        """The standard error of the position along each axis."""
        return None if self.cov_DD is None else np.sqrt(np.diag(self.cov_DD))


def find_optimum(posterior: Posterior) -> SurfaceOptimum | None:
    """Return the optimum of a posterior's surface; None if the surface is not reliable.

    The gradient is zero at the optimum, so by the delta method the covariance of its position is
    H^-1 cov(gradient) H^-1, with the Hessian H of the posterior mean, which must be well known.
    """
    if not posterior.is_reliable:
        return None
    surface, x_PD = posterior.surface, posterior.surface.scores.x_PD
    low_D, high_D = x_PD.min(0), x_PD.max(0)
    mesh = mesh_over(low_D, high_D)
    # The posterior mean may have several minima: the mesh finds the lowest one.
    at_D = mesh[int(np.argmin(surface.means_at(mesh)))]
    for _ in range(2):  # Newton steps, each no longer than the mesh: they refine, and must not leave its basin
        parabola = _Parabola(surface, at_D)
        if _is_inside(at_D, low_D, high_D, MESH_STEP / 2) and parabola.curvature > 0:
            at_D = at_D - np.clip(np.linalg.solve(parabola.hessian_DD, parabola.gradient_D), -MESH_STEP, MESH_STEP)
    at_D = np.clip(at_D, low_D, high_D)  # beyond the fitted points the surface only extrapolates
    parabola, f = _Parabola(surface, at_D), float(surface.means_at(at_D[None])[0])
    if (
        not _is_inside(at_D, low_D, high_D, MESH_STEP / 2)
        or parabola.curvature <= MIN_CURVATURE_Z * parabola.curvature_error
    ):
        return SurfaceOptimum(at_D, f, None)
    inverse_DD = np.linalg.inv(parabola.hessian_DD)
    result = SurfaceOptimum(at_D, f, np.asarray(inverse_DD @ parabola.gradient_cov_DD @ inverse_DD))
    # An error that reaches beyond the box would rest on extrapolation.
    return result if _is_inside(at_D, low_D, high_D, result.error) else SurfaceOptimum(at_D, f, None)


def mesh_over(low_D: Sequence[float] | Array, high_D: Sequence[float] | Array) -> Array:
    """Return a regular grid of positions over a box, [Z, D], the last axis running fastest."""
    axes = [np.linspace(a, b, round((b - a) / MESH_STEP) + 1) for a, b in zip(low_D, high_D, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))


def _is_inside(at_D: Array, low_D: Array, high_D: Array, margin: Array | float | None) -> bool:
    return margin is not None and bool(np.all(at_D - low_D >= margin) and np.all(high_D - at_D >= margin))


class _Parabola:
    """The least-squares parabola through a surface around a position.

    Attributes:
        gradient_D, hessian_DD: derivatives of the posterior mean.
        gradient_cov_DD: posterior covariance of the gradient.
        curvature, curvature_error: curvature along the flattest direction, and its standard error.
    """

    def __init__(self, surface: Surface, at_D: Array) -> None:
        axes = len(at_D)
        near_ZD = CURVATURE_SPAN * np.array(list(product((-1, 0, 1), repeat=axes)), dtype=float)
        pairs = [(a, b) for a in range(axes) for b in range(a, axes)]
        # x_a x_b, and x_a^2 / 2: the coefficients are second derivatives.
        squares = [near_ZD[:, a] * near_ZD[:, b] / (1 + (a == b)) for a, b in pairs]
        # Linear maps from values of f to the parabola's terms: with them, covariances follow from that of f.
        to_terms = np.linalg.pinv(np.column_stack([np.ones(len(near_ZD)), near_ZD, *squares]))
        to_gradient_DZ, to_squares = to_terms[1 : axes + 1], to_terms[axes + 1 :]
        f_Z, cov_ZZ = surface.means_at(at_D + near_ZD), surface.covariance_at(at_D + near_ZD)
        self.gradient_D, self.gradient_cov_DD = to_gradient_DZ @ f_Z, to_gradient_DZ @ cov_ZZ @ to_gradient_DZ.T
        self.hessian_DD = np.empty((axes, axes))
        for (a, b), value in zip(pairs, to_squares @ f_Z, strict=True):
            self.hessian_DD[a, b] = self.hessian_DD[b, a] = value
        curvatures, directions = np.linalg.eigh(self.hessian_DD)
        # eigh sorts in ascending order.
        flattest = directions[:, 0]
        # Mixed terms occur twice in d^T H d.
        to_curvature_Z = np.array([flattest[a] * flattest[b] * (1 + (a != b)) for a, b in pairs]) @ to_squares
        self.curvature = float(curvatures[0])
        self.curvature_error = float(np.sqrt(max(float(to_curvature_Z @ cov_ZZ @ to_curvature_Z), 0.0)))
