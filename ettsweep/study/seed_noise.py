"""The noise of runs: how the scores of one seed scatter around the surface, besides the effect it has on all of them.

    cov(e_ps, e_qs) = sigma^2 a_p a_q ([p = q] + r [p and q have one lr])
    log a_p^2 = sum_d c_d p_d,   or a_p = 4 at one lr and 1 elsewhere

So runs of one seed that differ in wd alone may share much of their noise, runs that differ in lr share none, and noise
may grow along both axes. That is what seeds do on recorded lattices: results/benchmarks/noise.md. Or it is larger at
one lr, as at the last one before training is unstable.

Shapes: P points, D axes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SHARED = (0.0, 0.5, 2.0, 8.0)
"""Values of r: the variance that the runs of one seed at one lr share, in units of the variance that they do not."""

GROWTH_SPREAD = 0.4
"""Standard deviation of the normal prior of c, per lattice step."""

MAX_GROWTH = 1.0
"""Largest size of c, per lattice step: a factor of e in variance."""


UNSTABLE_NOISE = 4.0
"""By how much noise may be larger at one lr."""

UNSTABLE_PRIOR = 0.1
"""Prior probability that it is."""


@dataclass(frozen=True)
class SeedNoise:
    """The covariance of the scores of one seed, once the seed's common effect is taken out.

    Attributes:
        shared: r, the variance that runs of one lr share.
        growth_D: c, by how much the log variance grows per lattice step.
        unstable_lr: the lr with larger noise, in lattice steps; None if there is none.
        prior: probability of the model before there are scores.
    """

    shared: float
    growth_D: tuple[float, ...]
    unstable_lr: float | None = None
    prior: float = 1.0

    def covariance(self, x_PD: Array) -> Array:
        """Return the covariance between positions, [P, P], in units of sigma^2."""
        scale_P = self._scale(x_PD)
        # The first of two free axes is lr. Along a single one no two points share an lr.
        has_one_lr = x_PD[:, None, 0] == x_PD[None, :, 0] if x_PD.shape[1] == 2 else np.eye(len(x_PD))
        return np.asarray((np.eye(len(x_PD)) + self.shared * has_one_lr) * np.outer(scale_P, scale_P))

    def _scale(self, x_PD: Array) -> Array:
        is_unstable = x_PD[:, 0] == (np.inf if self.unstable_lr is None else self.unstable_lr)
        return np.asarray(np.where(is_unstable, UNSTABLE_NOISE, 1.0) * np.exp(0.5 * x_PD @ np.array(self.growth_D)))

    def variance_growth(self, x_D: Array) -> float:
        """Return by how much growth makes the variance larger at x_D than at the origin."""
        return float(np.exp(x_D @ np.array(self.growth_D)))

    def seen_from(self, x_D: Array) -> "SeedNoise":
        """Return the noise with positions counted from x_D."""
        return self if self.unstable_lr is None else replace(self, unstable_lr=float(self.unstable_lr - x_D[0]))


def candidates(growth_D: Array, lrs: Sequence[float]) -> list[SeedNoise]:
    """Return the noises that a fit weighs against each other.

    Args:
        growth_D: how noise grows.
        lrs: where it may be larger, in lattice steps.
    """
    growth = tuple(growth_D.tolist())
    # Along a single axis, noise that is shared by one lr is a run's own.
    shared = SHARED if len(growth) == 2 else SHARED[:1]
    stable = (1 - UNSTABLE_PRIOR if lrs else 1.0) / len(shared)
    unstable = UNSTABLE_PRIOR / len(shared) / max(1, len(lrs))
    level = (0.0,) * len(growth)
    return [
        *(SeedNoise(r, growth, None, stable) for r in shared),
        *(SeedNoise(r, level, lr, unstable) for lr in lrs for r in shared),
    ]


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
