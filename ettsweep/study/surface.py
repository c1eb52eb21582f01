"""A Gaussian process over the lattice, fitted to the scores of a study: the score as a function of lr and wd.

The model is a two-way layout of points p and seeds s, lower is better:

    y_ps = f(p) + b_s + e_ps,   e ~ N(0, sigma^2),   f ~ GP(0, g sigma^2 k)
    k(p, q) = (1 - v) exp(-sum_d (p_d - q_d)^2 / 2 l_d^2) + v [p = q]

A share v of the variance of f is independent from point to point; the rest is smooth. The seed effects b and log sigma
have flat priors and are integrated out in closed form. The length scales l (in lattice steps), the signal-to-noise
ratio g and the share v are integrated over a grid, weighted by marginal likelihood. So the posterior of f is a mixture
of multivariate Student t distributions, one component per grid value with a weight worth keeping.

With independent points (no smooth part) the same equations are paired comparisons with pooled noise: `fit_pairs`.

Shapes: P points, S seeds, N scores, D axes, H components.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LENGTH_SCALES = (1.0, 2.0, 4.0)
"""Length scales in lattice steps: from nearly independent neighbours to almost a parabola."""

TYPICAL_LENGTH_SCALE, LENGTH_SCALE_SPREAD = 2.5, 1.4
"""Median and width (in log) of their log-normal prior."""

SIGNAL_TO_NOISE = tuple(2.0**k for k in range(4, 25))
"""Ratios of signal variance to noise variance, with a uniform prior over this grid."""

OWN_SHARES = (0.0, 0.01)
"""Shares of the variance of f that are independent from point to point, with a uniform prior."""

NEGLIGIBLE_WEIGHT = 1e-3
"""Components with less than this share of the largest weight are dropped."""

JITTER = 1e-9
"""Added to the diagonal of k, whose Cholesky factor may not exist in floats otherwise."""

DRAWS = 4000
"""Posterior draws, always from the same random numbers: equal scores must give equal verdicts."""

FALSE_ALARM_RATE = 1e-3
"""Probability that a test rejects a surface that does fit, over all points together."""

UNLINKED_PRECISION = 1e-9
"""Prior precision, as a share of one score's, that keeps the information matrix invertible: points that share no seed
with others have no information of their own."""


@dataclass(frozen=True)
class ScoreTable:
    """A table of scores by point and seed, with the sufficient statistics once seed effects are projected out.

    Attributes:
        x_PD: positions in lattice steps.
        scored_PS: 1 where a point has a score with a seed, else 0; a row of zeros is a point to predict.
        y_PS: scores, lower is better; 0 where there is none.
    """

    x_PD: Array
    scored_PS: Array
    y_PS: Array

    @cached_property
    def information(self) -> Array:
        """The information matrix of f, [P, P], in units of 1 / sigma^2."""
        n_PS = self.scored_PS
        return np.diag(n_PS.sum(1)) - (n_PS / self._scores_per_seed) @ n_PS.T

    @cached_property
    def weighted_scores(self) -> Array:
        """The information matrix times the scores, [P]: each score less the mean of its seed, summed over seeds."""
        return np.asarray(self.y_PS.sum(1) - self.scored_PS @ (self.y_PS.sum(0) / self._scores_per_seed))

    @cached_property
    def sum_of_squares(self) -> float:
        """The sum of squares of scores around the mean of their seed."""
        return float((self.y_PS**2).sum() - (self.y_PS.sum(0) ** 2 / self._scores_per_seed).sum())

    @property
    def _scores_per_seed(self) -> Array:
        return np.asarray(np.maximum(self.scored_PS.sum(0), 1))  # at least 1: empty columns must not divide by 0

    @cached_property
    def dof(self) -> int:
        """Degrees of freedom of differences within seeds: scores less seeds."""
        return int(self.scored_PS.sum()) - int(self.scored_PS.any(0).sum())

    @cached_property
    def pure_dof(self) -> int:
        """Degrees of freedom left for the noise when each point has a free value: repeats only."""
        return self.dof - int(np.linalg.matrix_rank(self.information, tol=1e-6))

    def with_positions(self, x_ZD: Array) -> "ScoreTable":
        """Return the table with further positions that have no scores."""
        empty_ZS = np.zeros((len(x_ZD), self.y_PS.shape[1]))
        scored_PS, y_PS = np.vstack([self.scored_PS, empty_ZS]), np.vstack([self.y_PS, empty_ZS])
        return ScoreTable(np.vstack([self.x_PD, x_ZD]), scored_PS, y_PS)

    def with_seed(self, rows: Sequence[int]) -> "ScoreTable":
        """Return the table with one more seed of some points: right in its degrees of freedom, with dummy scores."""
        new_P = np.zeros(len(self.scored_PS))
        new_P[list(rows)] = 1.0
        return ScoreTable(
            self.x_PD, np.column_stack([self.scored_PS, new_P]), np.column_stack([self.y_PS, 0.0 * new_P])
        )


@dataclass(frozen=True)
class GaussianProcess:
    """Hyperparameters of each component of a fit.

    Attributes:
        ratio_H: signal-to-noise ratio g.
        length_HD: length scales l, in lattice steps.
        own_share_H: independent share v of the variance.
    """

    ratio_H: Array
    length_HD: Array
    own_share_H: Array


@dataclass(frozen=True)
class Surface:
    """The posterior of f at the points of a layout: a mixture of multivariate Student t distributions.

    Only differences between points are identified, so all values are up to a common constant.

    Attributes:
        weight_H: weights of the components; they sum to 1.
        mean_HP: posterior means of f.
        cov_HPP: posterior covariances of f, in units of `variance_H`.
        variance_H: estimates of sigma^2.
        dof: degrees of freedom of sigma.
        log_marginal_likelihood: up to a constant of the layout; -inf for paired comparisons.
        process: hyperparameters of the Gaussian process; None for paired comparisons.
    """

    layout: ScoreTable
    weight_H: Array
    mean_HP: Array
    cov_HPP: Array
    variance_H: Array
    dof: int
    log_marginal_likelihood: float
    process: GaussianProcess | None = None

    @property
    def is_smooth(self) -> bool:
        return self.process is not None

    @property
    def mean(self) -> Array:
        """Posterior mean of f, [P]."""
        return np.asarray(self.weight_H @ self.mean_HP)

    @property
    def noise_sd(self) -> float:
        """Estimate of sigma, the standard deviation of a score within its seed."""
        return float(np.sqrt(self.weight_H @ self.variance_H))

    @property
    def fitted_dof(self) -> float:
        """Effective number of parameters of f."""
        dof_H = np.einsum("hpq,qp->h", self.cov_HPP, self.layout.information)
        return float(self.weight_H @ dof_H)

    def differences(self, index: int, others: Sequence[int]) -> tuple[Array, Array]:
        """Return f at a point minus f at others, [Q], and the standard errors, [Q]."""
        mean_HQ = self.mean_HP[:, [index]] - self.mean_HP[:, others]
        mean_Q = self.weight_H @ mean_HQ
        # Variance of Student t is dof / (dof - 2) times its scale; components that disagree add to it.
        widened = self.dof / max(self.dof - 2, 1)
        var_HQ = (
            widened * self.variance_H[:, None] * contrast_variance(self.cov_HPP, index, others)
            + (mean_HQ - mean_Q) ** 2
        )
        return mean_Q, np.sqrt(self.weight_H @ var_HQ)

    def contrast(self, weight_P: Array) -> tuple[float, float]:
        """Return a weighted sum of f over the points, with weights that sum to 0, and its standard error."""
        mean_H = self.mean_HP @ weight_P
        mean = float(self.weight_H @ mean_H)
        scale_H = np.einsum("p,hpq,q->h", weight_P, self.cov_HPP, weight_P)
        # As in `differences`.
        widened = self.dof / max(self.dof - 2, 1)
        variance = self.weight_H @ (widened * self.variance_H * np.maximum(scale_H, 0.0) + (mean_H - mean) ** 2)
        return mean, float(np.sqrt(variance))

    def draws(self, index: int, others: Sequence[int]) -> Array:
        """Return joint draws of f at a point minus f at others, [DRAWS, Q]."""
        signs = -np.eye(self.mean_HP.shape[1])[list(others)]
        signs[:, index] += 1
        mean_HQ = self.mean_HP @ signs.T
        values_HQ, vectors_HQQ = np.linalg.eigh(self.variance_H[:, None, None] * (signs @ self.cov_HPP @ signs.T))
        # The symmetric root is unique; eigenvectors are not: LAPACK's choice of signs differs between machines.
        root_HQQ = (vectors_HQQ * np.sqrt(np.maximum(values_HQ, 0))[:, None, :]) @ np.swapaxes(vectors_HQQ, 1, 2)
        # Draws are split between components in proportion to their weights, without randomness.
        ends = np.round(DRAWS * np.cumsum(self.weight_H)).astype(int)
        component = np.searchsorted(ends, np.arange(DRAWS), side="right")
        normal = np.einsum("dqr,dr->dq", root_HQQ[component], _normal_draws(len(others)))
        return np.asarray(mean_HQ[component] + normal * _student_scale(self.dof)[:, None])

    # --- between the points ---

    def means_at(self, z_ZD: Array) -> Array:
        """Return the posterior mean of the smooth part of f at any positions, [Z]; needs a smooth surface."""
        _, weights_HPZ = self._kernel_weights(z_ZD)
        return np.asarray(np.einsum("h,hp,hpz->z", self.weight_H, self.mean_HP, weights_HPZ, optimize=True))

    def covariance_at(self, z_ZD: Array) -> Array:
        """Return the posterior covariance of the smooth part of f at any positions, [Z, Z]; needs a smooth surface."""
        assert self.process is not None
        k_HPZ, weights_HPZ = self._kernel_weights(z_ZD)
        weights_HZP = np.swapaxes(weights_HPZ, 1, 2)
        conditional_HZZ = (
            _smooth_kernel(z_ZD, z_ZD, self.process.length_HD, self.process.own_share_H) - weights_HZP @ k_HPZ
        )
        cov_HZZ = self.process.ratio_H[:, None, None] * conditional_HZZ + weights_HZP @ self.cov_HPP @ weights_HPZ
        deviation_HZ = np.einsum("hp,hpz->hz", self.mean_HP, weights_HPZ) - self.means_at(z_ZD)
        # As in `differences`: Student t is wider than its scale, and components disagree.
        widened_H = self.weight_H * self.variance_H * self.dof / max(self.dof - 2, 1)
        return np.asarray(np.tensordot(widened_H, cov_HZZ, 1) + (deviation_HZ.T * self.weight_H) @ deviation_HZ)

    def _kernel_weights(self, z_ZD: Array) -> tuple[Array, Array]:
        """Return the smooth kernel between points and any positions, [H, P, Z], and k^-1 times it, [H, P, Z].

        The latter are the weights by which f at the points predicts the smooth part elsewhere (kriging).
        """
        assert self.process is not None
        x_PD, length_HD, own_H = self.layout.x_PD, self.process.length_HD, self.process.own_share_H
        k_HPZ = _smooth_kernel(x_PD, z_ZD, length_HD, own_H)
        return k_HPZ, np.asarray(np.linalg.solve(_kernel(x_PD, length_HD, own_H), k_HPZ), dtype=np.float64)

    # --- tests of the fit ---

    def misfits(self) -> Array:
        """Return how far each point is from what the other points predict, in standard errors, [P].

        This is a score test for a shift of the point's mean, under the likeliest component with the least independent
        share, which could absorb the shift. Positive is worse than expected; 0 if a point cannot be tested.
        """
        own_H = self.process.own_share_H if self.process else np.zeros(len(self.weight_H))
        smoothest = np.flatnonzero(own_H == own_H.min())
        h = int(smoothest[np.argmax(self.weight_H[smoothest])])
        information = self.layout.information
        residual_P = self.layout.weighted_scores - information @ self.mean_HP[h]
        variance_P = np.diag(information - information @ self.cov_HPP[h] @ information)
        # A point without a residual of its own has variance 0, up to rounding.
        is_testable = variance_P > 1e-9 * max(1.0, float(np.diag(information).max()))
        return np.where(
            is_testable, residual_P / np.sqrt(np.where(is_testable, variance_P * self.variance_H[h], 1.0)), 0.0
        )

    def noise_growth(self) -> float:
        """Return the z-score of the test that noise grows with the score; positive if it does.

        Koenker's studentised form of the Breusch-Pagan test, which is robust to heavy tails.
        """
        n_PS = self.layout.scored_PS
        f_P = self.mean
        residual_PS = n_PS * (self.layout.y_PS - f_P[:, None])
        residual_PS = n_PS * (residual_PS - residual_PS.sum(0) / np.maximum(n_PS.sum(0), 1))
        is_scored = n_PS > 0
        squares, level = residual_PS[is_scored] ** 2, np.broadcast_to(f_P[:, None], n_PS.shape)[is_scored]
        if np.ptp(level) <= 0 or np.ptp(squares) <= 0:
            return 0.0
        return float(np.corrcoef(squares, level)[0, 1] * np.sqrt(len(squares)))


def contrast_variance(cov_HPP: Array, index: int, others: Sequence[int]) -> Array:
    """Return the variance of f at a point minus f at each of others, [H, Q]."""
    variance_HP = np.diagonal(cov_HPP, axis1=1, axis2=2)
    return np.asarray(np.maximum(variance_HP[:, [index]] + variance_HP[:, others] - 2 * cov_HPP[:, index, others], 0.0))


def student_quantile(probability: float, dof: float) -> float:
    """Return a quantile of Student's t by Fisher's expansion around the normal: within 2% from 8 degrees of freedom."""
    z = NormalDist().inv_cdf(probability)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / dof + second / dof**2 + third / dof**3


# --- fits -----------------------------------------------------------------------------------------------------------


def fit(layout: ScoreTable) -> Surface:
    """Fit the Gaussian process to a layout with at least one degree of freedom.

    With k = R R^T and the eigenvalues of R^T A R, for the information matrix A, the posterior is diagonal for every
    ratio g at once: one eigendecomposition per length scale and share serves the whole grid.
    """
    root_HPP, prior_H, length_HD, own_H = _kernel_grid(layout.x_PD.tobytes(), layout.x_PD.shape)
    information, dof = layout.information, layout.dof
    values_HP, vectors = np.linalg.eigh(np.swapaxes(root_HPP, 1, 2) @ information @ root_HPP)
    basis_HPP = root_HPP @ vectors
    projected_HP = np.einsum("hpi,p->hi", basis_HPP, layout.weighted_scores)
    ratio = np.array(SIGNAL_TO_NOISE)
    shrinkage_HGP = 1 / (1 + ratio[:, None] * np.maximum(values_HP, 0.0)[:, None, :])
    square_HG = layout.sum_of_squares - (ratio[:, None] * projected_HP[:, None, :] ** 2 * shrinkage_HGP).sum(2)
    square_HG = np.maximum(square_HG, 1e-12 * layout.sum_of_squares + 1e-300)  # rounding may leave a residual below 0
    log_HG = -0.5 * dof * np.log(square_HG) + 0.5 * np.log(shrinkage_HGP).sum(2) + prior_H[:, None]
    # Relative to the largest one: exp of the logs themselves may underflow everywhere.
    weight_HG = np.exp(log_HG - log_HG.max())
    log_marginal_likelihood = float(log_HG.max() + np.log(weight_HG.mean()))
    is_kept_HG = weight_HG >= NEGLIGIBLE_WEIGHT * weight_HG.max()
    smoothest_HG = np.where(own_H[:, None] == own_H.min(), log_HG, -np.inf)
    # `misfits` tests the likeliest component with the least independent share, however unlikely it is.
    is_kept_HG[np.unravel_index(np.argmax(smoothest_HG), smoothest_HG.shape)] = True
    h, g = np.nonzero(is_kept_HG)
    basis, shrinkage = basis_HPP[h], ratio[g, None] * shrinkage_HGP[h, g]
    cov = (basis * shrinkage[:, None, :]) @ np.swapaxes(basis, 1, 2)
    weight = weight_HG[h, g] / weight_HG[h, g].sum()
    variance = square_HG[h, g] / dof
    process = GaussianProcess(ratio[g], length_HD[h], own_H[h])
    return Surface(layout, weight, cov @ layout.weighted_scores, cov, variance, dof, log_marginal_likelihood, process)


def fit_pairs(layout: ScoreTable) -> Surface:
    """Fit a free value for each point, without a smooth part: paired comparisons with pooled noise.

    The layout must have repeats: `pure_dof` of at least 1.
    """
    information = layout.information
    cov = np.asarray(np.linalg.inv(information + UNLINKED_PRECISION * np.eye(len(information))), dtype=np.float64)
    mean = cov @ layout.weighted_scores
    # As in `fit`, rounding may leave a residual below 0.
    square = max(layout.sum_of_squares - float(layout.weighted_scores @ mean), 1e-12 * layout.sum_of_squares + 1e-300)
    variance = np.array([square / layout.pure_dof])
    return Surface(layout, np.ones(1), mean[None], cov[None], variance, layout.pure_dof, -np.inf)


@lru_cache(maxsize=64)
def _kernel_grid(x: bytes, shape: tuple[int, int]) -> tuple[Array, Array, Array, Array]:
    """Return Cholesky factors of k, [H, P, P], log priors, [H], length scales, [H, D], and shares, [H], of the grid.

    Positions come as bytes, which can be cached: a climb fits the same positions many times.
    """
    x_PD = np.frombuffer(x).reshape(shape)
    grid = np.stack(np.meshgrid(*[LENGTH_SCALES] * shape[1], OWN_SHARES, indexing="ij"), -1).reshape(-1, shape[1] + 1)
    length_HD, own_H = grid[:, :-1], grid[:, -1]
    prior_H = -0.5 * (np.log(length_HD / TYPICAL_LENGTH_SCALE) ** 2).sum(1) / LENGTH_SCALE_SPREAD**2
    root_HPP = np.linalg.cholesky(_kernel(x_PD, length_HD, own_H))
    return np.asarray(root_HPP, dtype=np.float64), prior_H, length_HD, own_H


def _kernel(x_PD: Array, length_HD: Array, own_H: Array) -> Array:
    """Return the kernel matrix of distinct positions, [H, P, P]."""
    own_HPP = (own_H[:, None, None] + JITTER) * np.eye(len(x_PD))
    return np.asarray(_smooth_kernel(x_PD, x_PD, length_HD, own_H) + own_HPP)


def _smooth_kernel(p_PD: Array, q_QD: Array, length_HD: Array, own_H: Array) -> Array:
    """Return the smooth part of the kernel between two sets of positions, [H, P, Q]."""
    squared_PQD = (p_PD[:, None] - q_QD[None]) ** 2
    return np.asarray(
        (1 - own_H)[:, None, None] * np.exp(-0.5 * np.einsum("pqd,hd->hpq", squared_PQD, length_HD**-2.0))
    )


@lru_cache
def _normal_draws(columns: int) -> Array:
    """Return standard normal draws, [DRAWS, columns], the same at each call."""
    return np.random.default_rng(0).standard_normal((DRAWS, columns))


@lru_cache
def _student_scale(dof: int) -> Array:
    """Return factors, [DRAWS], that turn normal draws into draws of Student's t."""
    # Another seed than that of the normal draws: the two must be independent.
    return np.asarray(np.sqrt(dof / np.random.default_rng(1).chisquare(dof, DRAWS)))
