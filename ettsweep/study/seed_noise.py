"""The noise of runs: how the scores of one seed scatter around the surface, besides the effect it has on all of them.

    cov(e_ps, e_qs) = sigma^2 a_p a_q ([p = q] + r [p and q have one lr]),   log a_p^2 = sum_d c_d p_d

So runs of one seed that differ in wd alone may share much of their noise, runs that differ in lr share none, and noise
may grow along both axes. That is what seeds do on recorded lattices: results/benchmarks/noise.md.

Shapes: P points, D axes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SHARED = (0.0, 0.5, 2.0, 8.0)
"""Values of r: the variance that the runs of one seed at one lr share, in units of the variance that they do not."""

GROWTH_SPREAD = 0.4
"""Standard deviation of the normal prior of c, per lattice step."""

MAX_GROWTH = 1.0
"""Largest size of c, per lattice step: a factor of e in variance."""


@dataclass(frozen=True)
class SeedNoise:
    """The covariance of the scores of one seed, once the seed's common effect is taken out.

    Attributes:
        shared: r, the variance that runs of one lr share.
        growth_D: c, by how much the log variance grows per lattice step.
    """

    shared: float
    growth_D: tuple[float, ...]

    def covariance(self, x_PD: Array) -> Array:
        """Return the covariance between positions, [P, P], in units of sigma^2."""
        scale_P = np.exp(0.5 * x_PD @ np.array(self.growth_D))
        # The first of two free axes is lr. Along a single one no two points share an lr.
        has_one_lr = x_PD[:, None, 0] == x_PD[None, :, 0] if x_PD.shape[1] == 2 else np.eye(len(x_PD))
        return np.asarray((np.eye(len(x_PD)) + self.shared * has_one_lr) * np.outer(scale_P, scale_P))


def candidates(growth_D: Array) -> list[SeedNoise]:
    """Return the noises that a fit weighs against each other, given how noise grows."""
    growth = tuple(growth_D.tolist())
    # Along a single axis, noise that is shared by one lr is a run's own.
    return [SeedNoise(shared, growth) for shared in (SHARED if len(growth) == 2 else SHARED[:1])]


def estimate_growth(x_ND: Array, squares_N: Array, dof_N: Array) -> Array:
    """Estimate c from residuals, [D]: one step of Fisher scoring from 0, with its prior.

    Args:
        x_ND: position of each score.
        squares_N: squared residuals, in units of sigma^2.
        dof_N: what the squares are expected to be without growth: the degrees of freedom of each residual.
    """
    centred_ND = x_ND - (dof_N @ x_ND) / dof_N.sum()
    # A squared standard normal has a variance of 2, and d log variance / dc = x.
    information_DD = (centred_ND * dof_N[:, None]).T @ centred_ND / 2
    slope_D = centred_ND.T @ (squares_N - dof_N) / 2
    prior_DD = np.eye(x_ND.shape[1]) / GROWTH_SPREAD**2
    return np.clip(np.linalg.solve(information_DD + prior_DD, slope_D), -MAX_GROWTH, MAX_GROWTH)
