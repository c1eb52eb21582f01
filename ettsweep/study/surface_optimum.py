"""The optimum of a fitted surface, which may lie between points of the lattice, and how well its place is known.

Shapes: P points, D axes, Z positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from ettsweep.study.posterior import Posterior
from ettsweep.study.surface import Array, Surface

MESH = 0.1
"""Steps of the lattice between positions at which the optimum is looked for, before a parabola refines it."""

SPAN = 1.0
"""Steps from the optimum at which the surface says how it is curved: closer by, less is known of that."""

CURVED = 1.0
"""Standard errors by which the surface has to be curved along each direction for the error of the optimum's place."""


@dataclass(frozen=True)
class SurfaceOptimum:
    """Where the posterior mean is best, within the box of the points that it is fitted to.

    Attributes:
        position_D: in steps of the lattice from the candidate.
        f: there, up to the surface's constant.
        cov_DD: of the position, in steps squared; None where it is known no better than that it lies in the box, or
            not even that: at its edge.
    """

    position_D: Array
    f: float
    cov_DD: Array | None

    @property
    def error(self) -> Array | None:
        """The standard error of the position along each axis."""
        return None if self.cov_DD is None else np.sqrt(np.diag(self.cov_DD))


def optimum(posterior: Posterior) -> SurfaceOptimum | None:
    """Return the optimum of a surface; None where there is no surface to vouch for it.

    The position is that at which the gradient is zero; so its covariance is H^-1 cov(gradient) H^-1, with the Hessian H
    of the posterior mean and the posterior covariance of the gradient. That holds where H is known well enough.
    """
    if not posterior.vouches:
        return None
    surface, x_PD = posterior.surface, posterior.surface.layout.x_PD
    low_D, high_D = x_PD.min(0), x_PD.max(0)
    mesh = mesh_over(low_D, high_D)
    at_D = mesh[int(np.argmin(surface.means_at(mesh)))]
    for _ in range(2):
        parabola = _Parabola(surface, at_D)
        if _inside(at_D, low_D, high_D, MESH / 2) and parabola.curvature > 0:
            at_D = at_D - np.clip(np.linalg.solve(parabola.hessian_DD, parabola.gradient_D), -MESH, MESH)
    at_D = np.clip(at_D, low_D, high_D)
    parabola, f = _Parabola(surface, at_D), float(surface.means_at(at_D[None])[0])
    if not _inside(at_D, low_D, high_D, MESH / 2) or parabola.curvature <= CURVED * parabola.curvature_error:
        return SurfaceOptimum(at_D, f, None)
    inverse_DD = np.linalg.inv(parabola.hessian_DD)
    result = SurfaceOptimum(at_D, f, np.asarray(inverse_DD @ parabola.gradient_cov_DD @ inverse_DD))
    return result if _inside(at_D, low_D, high_D, result.error) else SurfaceOptimum(at_D, f, None)


def mesh_over(low_D: Sequence[float] | Array, high_D: Sequence[float] | Array) -> Array:
    """Return positions that fill a box, [Z, D], the last axis running fastest."""
    axes = [np.linspace(a, b, round((b - a) / MESH) + 1) for a, b in zip(low_D, high_D, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))


def _inside(at_D: Array, low_D: Array, high_D: Array, by: Array | float | None) -> bool:
    return by is not None and bool(np.all(at_D - low_D >= by) and np.all(high_D - at_D >= by))


class _Parabola:
    """The one through a surface around a position.

    Attributes:
        gradient_D, hessian_DD: of the posterior mean.
        gradient_cov_DD: the posterior covariance of the gradient.
        curvature, curvature_error: along the direction in which it is least, and the standard error of that.
    """

    def __init__(self, surface: Surface, at_D: Array) -> None:
        axes = len(at_D)
        near_ZD = SPAN * np.array(list(product((-1, 0, 1), repeat=axes)), dtype=float)
        pairs = [(a, b) for a in range(axes) for b in range(a, axes)]
        squares = [near_ZD[:, a] * near_ZD[:, b] / (1 + (a == b)) for a, b in pairs]
        to_terms = np.linalg.pinv(np.column_stack([np.ones(len(near_ZD)), near_ZD, *squares]))
        to_gradient_DZ, to_squares = to_terms[1 : axes + 1], to_terms[axes + 1 :]
        f_Z, cov_ZZ = surface.means_at(at_D + near_ZD), surface.covariance_at(at_D + near_ZD)
        self.gradient_D, self.gradient_cov_DD = to_gradient_DZ @ f_Z, to_gradient_DZ @ cov_ZZ @ to_gradient_DZ.T
        self.hessian_DD = np.empty((axes, axes))
        for (a, b), value in zip(pairs, to_squares @ f_Z, strict=True):
            self.hessian_DD[a, b] = self.hessian_DD[b, a] = value
        curvatures, directions = np.linalg.eigh(self.hessian_DD)
        flattest = directions[:, 0]
        to_curvature_Z = np.array([flattest[a] * flattest[b] * (1 + (a != b)) for a, b in pairs]) @ to_squares
        self.curvature = float(curvatures[0])
        self.curvature_error = float(np.sqrt(max(float(to_curvature_Z @ cov_ZZ @ to_curvature_Z), 0.0)))
