"""The noise of runs: how the scores of one seed scatter around the surface, besides the effect it has on all of them.

    cov(e_ps, e_qs) = sigma^2 a_p a_q ((1 - r_p) [p = q] + r_p [p and q have one lr])
    log a_p^2 = sum_d c_d p_d,   or a_p = 4 at one lr and 1 elsewhere
    r_p = 1 / (1 + exp(1.1 (lr_p - t))), at most 0.9,   or 0 everywhere

So runs of one seed that differ in lr share none of their noise. Those that differ in wd alone stay alike where lr is
low, and part around some lr t: from there on training is chaotic, and the smallest difference grows. Noise may also
grow along both axes. That is what seeds do on recorded lattices: results/benchmarks/noise.md. Or it is larger at one
lr, as at the last one before training is unstable.

Shapes: P points, D axes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

PARTING_RATE = 1.1
"""How fast runs of one lr part as it grows: the odds r / (1 - r) fall by a factor of e^1.1 per lattice step. That is
likeliest on the recorded lattices."""

MAX_SHARE = 0.9
"""Largest share of its noise that a run shares with others of its lr: at 1 its covariance had no inverse."""

PARTING_PRIOR = 0.75
"""Prior probability that runs of one lr share noise anywhere."""

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
        parting_lr: t, where runs of one lr share half of their noise, in lattice steps; None if none share any.
        growth_D: c, by how much the log variance grows per lattice step.
        unstable_lr: the lr with larger noise, in lattice steps; None if there is none.
        prior: probability of the model before there are scores.
    """

    parting_lr: float | None
    growth_D: tuple[float, ...]
    unstable_lr: float | None = None
    prior: float = 1.0

    def covariance(self, x_PD: Array) -> Array:
        """Return the covariance between positions, [P, P], in units of sigma^2."""
        scale_P, share_P = self._scale(x_PD), self._share(x_PD)
        shared_PP = np.where(x_PD[:, None, 0] == x_PD[None, :, 0], share_P, 0.0)
        return np.asarray((np.diag(1 - share_P) + shared_PP) * np.outer(scale_P, scale_P))

    def _share(self, x_PD: Array) -> Array:
        if self.parting_lr is None:
            return np.zeros(len(x_PD))
        return np.minimum(1 / (1 + np.exp(PARTING_RATE * (x_PD[:, 0] - self.parting_lr))), MAX_SHARE)

    def _scale(self, x_PD: Array) -> Array:
        is_unstable = x_PD[:, 0] == (np.inf if self.unstable_lr is None else self.unstable_lr)
        return np.asarray(np.where(is_unstable, UNSTABLE_NOISE, 1.0) * np.exp(0.5 * x_PD @ np.array(self.growth_D)))

    def variance_growth(self, x_D: Array) -> float:
        """Return by how much growth makes the variance larger at x_D than at the origin."""
        return float(np.exp(x_D @ np.array(self.growth_D)))

    def seen_from(self, x_D: Array) -> "SeedNoise":
        """Return the noise with positions counted from x_D."""
        parting_lr, unstable_lr = (
            None if lr is None else float(lr - x_D[0]) for lr in (self.parting_lr, self.unstable_lr)
        )
        return replace(self, parting_lr=parting_lr, unstable_lr=unstable_lr)


def candidates(growth_D: Array, lrs: Sequence[float], repeated_lrs: Sequence[float]) -> list[SeedNoise]:
    """Return the noises that a fit weighs against each other.

    Args:
        growth_D: how noise grows.
        lrs: those of the scores, ascending, in lattice steps.
        repeated_lrs: those whose noise may be larger: that can be told from that elsewhere.
    """
    growth, level = tuple(growth_D.tolist()), (0.0,) * len(growth_D)
    has_two_axes = len(growth) == 2  # along a single one no two points have one lr
    partings = [lrs[0] - 0.5, *(lr + 0.5 for lr in lrs), lrs[-1] + 2.0] if has_two_axes else []
    stable = 1 - UNSTABLE_PRIOR if repeated_lrs else 1.0
    models = [SeedNoise(None, growth, None, stable * (1 - PARTING_PRIOR if partings else 1.0))]
    models += [SeedNoise(t, growth, None, stable * PARTING_PRIOR / len(partings)) for t in partings]
    for lr in repeated_lrs:
        # Where training is unstable, runs are parting.
        some = [None, lr - 0.5] if has_two_axes else [None]
        models += [SeedNoise(t, level, lr, UNSTABLE_PRIOR / len(repeated_lrs) / len(some)) for t in some]
    return models


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
