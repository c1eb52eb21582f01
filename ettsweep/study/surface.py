"""A Gaussian process over the lattice, fitted to the scores of a study: the score as a function of lr and wd.

The model is a two-way layout of points p and seeds s, lower is better:

    y_ps = f(p) + b_s + e_ps,   e_.s ~ N(0, sigma^2 V),   f ~ GP(0, g sigma^2 k)
    k(p, q) = (1 - v) exp(-sum_d (p_d - q_d)^2 / 2 l_d^2) + v [p = q]

A share v of the variance of f is independent from point to point; the rest is smooth. V says how the scores of one seed
scatter (`seed_noise`). The seed effects b and log sigma have flat priors and are integrated out in closed form. The
length scales l (in lattice steps), the signal-to-noise ratio g, the share v and where runs of one lr share their
noise are integrated over a grid, weighted by marginal likelihood. So the posterior of f is a mixture of multivariate
Student t distributions, one component per grid value with a weight worth keeping. Its deviations are then widened by
`WIDTH`, and for a bound that is small beside the noise by `finer_width`.

With independent points (no smooth part) the same equations are paired comparisons with pooled noise: `fit_pairs`.

Shapes: P points, S seeds, N scores, D axes, H components, M models of the noise, K kernels, G ratios.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from ettsweep.study.point_scores import PointScores, Statistics
from ettsweep.study.seed_noise import Array, SeedNoise

WIDTH = 1.3
"""By how much the posterior of f is widened. Racing stops at a favourable moment, real surfaces are not quite what the
model has, and values beyond the grid have no weight: on the simulated sweeps of results/benchmarks/verdicts.md, bounds
hold as often as they say with this width, and less often without."""

HIDDEN_ROUGHNESS = 0.18
"""By how much of a run's noise a surface may be rough without any score that tells: see `finer_width`."""

LENGTH_SCALES = (1.0, 2.0, 4.0)
"""Length scales in lattice steps: from nearly independent neighbours to almost a parabola."""

TYPICAL_LENGTH_SCALE, LENGTH_SCALE_SPREAD = 2.5, 1.4
"""Median and width (in log) of their log-normal prior."""

SIGNAL_TO_NOISE = tuple(2.0**k for k in range(4, 27))
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

UNLIKELY_NOISE = 0.03
"""Models of the noise that are less likely than this, relative to the likeliest one, are dropped."""

COARSE_LENGTH_SCALE = 2.0
"""Length scale of the process by which models of the noise, and losses and their logs, are compared before a fit."""


@dataclass(frozen=True)
class GaussianProcess:
    """Hyperparameters of each component of a fit.

    Attributes:
        ratio_H: signal-to-noise ratio g.
        length_HD: length scales l, in lattice steps.
        own_share_H: independent share v of the variance.
        noise_H: index of the model of the noise.
    """

    ratio_H: Array
    length_HD: Array
    own_share_H: Array
    noise_H: NDArray[np.intp]

    def of_kernels(self, function: Callable[[Array, Array], Array]) -> Array:
        """Return a function of length scales and shares, [K, D] and [K], for each component, [H, ...].

        It is called once for all that differ: many components have one kernel.
        """
        kernels_HD = np.column_stack([self.length_HD, self.own_share_H])
        kernels_KD, index_H = np.unique(kernels_HD, axis=0, return_inverse=True)
        return np.asarray(function(kernels_KD[:, :-1], kernels_KD[:, -1])[index_H.ravel()])


@dataclass(frozen=True)
class Surface:
    """The posterior of f at the points of a layout: a mixture of multivariate Student t distributions.

    Only differences between points are identified, so all values are up to a common constant.

    Attributes:
        weight_H: weights of the components; they sum to 1.
        mean_HP: posterior means of f.
        cov_HPP: posterior covariances of f, in units of `variance_H`, before they are widened.
        variance_H: estimates of sigma^2.
        dof: degrees of freedom of sigma.
        noises: models of the noise that were weighed.
        information_MPP, weighted_MP: statistics of the layout under each of them, as of `Statistics`.
        process: hyperparameters of the Gaussian process; None for paired comparisons.
    """

    layout: PointScores
    weight_H: Array
    mean_HP: Array
    cov_HPP: Array
    variance_H: Array
    dof: int
    noises: Sequence[SeedNoise]
    information_MPP: Array
    weighted_MP: Array
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
        """Estimate of the standard deviation of a score within its seed, at the origin of the positions."""
        return float(np.sqrt(self.noise_covariance(np.zeros((1, self.layout.x_PD.shape[1])))[0, 0]))

    def noise_covariance(self, x_PD: Array) -> Array:
        """Return the covariance between scores of one seed, [P, P], as the components have it on average."""
        variance_M = np.bincount(self._noise_index, self.weight_H * self.variance_H, len(self.noises))
        cov_MPP = np.stack([noise.covariance(x_PD) for noise in self.noises])
        return np.asarray(np.tensordot(variance_M, cov_MPP, 1), dtype=np.float64)

    @property
    def _noise_index(self) -> NDArray[np.intp]:
        return self.process.noise_H if self.process else np.zeros(1, dtype=int)

    @property
    def scale(self) -> Array:
        """Units of `cov_HPP` in which the posterior of f is stated: the noise's variances, widened."""
        return np.asarray(WIDTH**2 * self.variance_H)

    @property
    def fitted_dof(self) -> float:
        """Effective number of parameters of f."""
        dof_H = np.einsum("hpq,hqp->h", self.cov_HPP, self.information_MPP[self._noise_index])
        return float(self.weight_H @ dof_H)

    def seen_from(self, x_D: Array) -> "Surface":
        """Return the surface with positions counted from x_D, where sigma is that of the noise there."""
        growth_M = np.array([noise.variance_growth(x_D) for noise in self.noises])
        growth_H = growth_M[self._noise_index]
        return replace(
            self,
            layout=replace(self.layout, x_PD=self.layout.x_PD - x_D),
            cov_HPP=self.cov_HPP / growth_H[:, None, None],
            variance_H=self.variance_H * growth_H,
            information_MPP=self.information_MPP * growth_M[:, None, None],
            weighted_MP=self.weighted_MP * growth_M[:, None],
            noises=[noise.seen_from(x_D) for noise in self.noises],
            process=self.process and replace(self.process, ratio_H=self.process.ratio_H / growth_H),
        )

    def with_positions(self, x_ZD: Array) -> "Surface":
        """Return the surface with further positions that have no scores; it must be smooth."""
        assert self.process is not None
        k_HPZ, weights_HPZ = self._kernel_weights(x_ZD)
        weights_HZP = np.swapaxes(weights_HPZ, 1, 2)
        prior_HZZ = self.process.of_kernels(lambda length_KD, own_K: _kernel(x_ZD, length_KD, own_K))
        conditional_HZZ = prior_HZZ - weights_HZP @ k_HPZ
        across_HPZ = self.cov_HPP @ weights_HPZ
        further_HZZ = self.process.ratio_H[:, None, None] * conditional_HZZ + weights_HZP @ across_HPZ
        cov = np.concatenate(
            [
                np.concatenate([self.cov_HPP, across_HPZ], 2),
                np.concatenate([np.swapaxes(across_HPZ, 1, 2), further_HZZ], 2),
            ],
            1,
        )
        mean = np.concatenate([self.mean_HP, np.einsum("hp,hpz->hz", self.mean_HP, weights_HPZ)], 1)
        further = len(x_ZD)
        information = np.pad(self.information_MPP, ((0, 0), (0, further), (0, further)))
        weighted = np.pad(self.weighted_MP, ((0, 0), (0, further)))
        layout = self.layout.with_positions(x_ZD)
        return replace(
            self, layout=layout, mean_HP=mean, cov_HPP=cov, information_MPP=information, weighted_MP=weighted
        )

    def differences(self, index: int, others: Sequence[int]) -> tuple[Array, Array]:
        """Return f at a point minus f at others, [Q], and the standard errors, [Q]."""
        mean_HQ = self.mean_HP[:, [index]] - self.mean_HP[:, others]
        mean_Q = self.weight_H @ mean_HQ
        # Variance of Student t is dof / (dof - 2) times its scale; components that disagree add to it.
        widened = self.dof / max(self.dof - 2, 1)
        var_HQ = (
            widened * self.scale[:, None] * contrast_variance(self.cov_HPP, index, others) + (mean_HQ - mean_Q) ** 2
        )
        return mean_Q, np.sqrt(self.weight_H @ var_HQ)

    def contrast(self, weight_P: Array) -> tuple[float, float]:
        """Return a weighted sum of f over the points, with weights that sum to 0, and its standard error."""
        mean_H = self.mean_HP @ weight_P
        mean = float(self.weight_H @ mean_H)
        scale_H = np.einsum("p,hpq,q->h", weight_P, self.cov_HPP, weight_P)
        # As in `differences`.
        widened = self.dof / max(self.dof - 2, 1)
        variance = self.weight_H @ (widened * self.scale * np.maximum(scale_H, 0.0) + (mean_H - mean) ** 2)
        return mean, float(np.sqrt(variance))

    def draws(self, index: int, others: Sequence[int]) -> tuple[Array, Array]:
        """Return joint draws of f at a point minus f at others: means of their components, deviations, [DRAWS, Q]."""
        signs = -np.eye(self.mean_HP.shape[1])[list(others)]
        signs[:, index] += 1
        mean_HQ = self.mean_HP @ signs.T
        values_HQ, vectors_HQQ = np.linalg.eigh(self.scale[:, None, None] * (signs @ self.cov_HPP @ signs.T))
        # The symmetric root is unique; eigenvectors are not: LAPACK's choice of signs differs between machines.
        root_HQQ = (vectors_HQQ * np.sqrt(np.maximum(values_HQ, 0))[:, None, :]) @ np.swapaxes(vectors_HQQ, 1, 2)
        # Draws are split between components in proportion to their weights, without randomness.
        ends = np.round(DRAWS * np.cumsum(self.weight_H)).astype(int)
        component = np.searchsorted(ends, np.arange(DRAWS), side="right")
        normal = np.einsum("dqr,dr->dq", root_HQQ[component], _normal_draws(len(others)))
        return np.asarray(mean_HQ[component]), np.asarray(normal * _student_scale(self.dof)[:, None])

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
        prior_HZZ = self.process.of_kernels(lambda length_KD, own_K: _smooth_kernel(z_ZD, z_ZD, length_KD, own_K))
        conditional_HZZ = prior_HZZ - weights_HZP @ k_HPZ
        cov_HZZ = self.process.ratio_H[:, None, None] * conditional_HZZ + weights_HZP @ self.cov_HPP @ weights_HPZ
        deviation_HZ = np.einsum("hp,hpz->hz", self.mean_HP, weights_HPZ) - self.means_at(z_ZD)
        # As in `differences`: Student t is wider than its scale, and components disagree.
        widened_H = self.weight_H * self.scale * self.dof / max(self.dof - 2, 1)
        return np.asarray(np.tensordot(widened_H, cov_HZZ, 1) + (deviation_HZ.T * self.weight_H) @ deviation_HZ)

    def _kernel_weights(self, z_ZD: Array) -> tuple[Array, Array]:
        """Return the smooth kernel between points and any positions, [H, P, Z], and k^-1 times it, [H, P, Z].

        The latter are the weights by which f at the points predicts the smooth part elsewhere (kriging).
        """
        assert self.process is not None
        x_PD = self.layout.x_PD

        def solve(length_KD: Array, own_K: Array) -> Array:
            k_KPZ = _smooth_kernel(x_PD, z_ZD, length_KD, own_K)
            return np.stack([k_KPZ, np.linalg.solve(_kernel(x_PD, length_KD, own_K), k_KPZ)], 1)

        both_HPZ = self.process.of_kernels(solve)
        return both_HPZ[:, 0], both_HPZ[:, 1]

    # --- tests of the fit ---

    def misfits(self) -> Array:
        """Return how far each point is from what the other points predict, in standard errors, [P].

        This is a score test for a shift of the point's mean, under the likeliest component with the least independent
        share, which could absorb the shift. Positive is worse than expected; 0 if a point cannot be tested.
        """
        if self.process is None:
            return np.zeros(self.mean_HP.shape[1])
        own_H = self.process.own_share_H
        smoothest = np.flatnonzero(own_H == own_H.min())
        h = int(smoothest[np.argmax(self.weight_H[smoothest])])
        prior_PP = self.process.ratio_H[h] * _kernel(self.layout.x_PD, self.process.length_HD[[h]], own_H[[h]])[0]
        # With the information A = B B^T, the residual A (y - f) is B r, and its covariance B (I + B^T K B)^-1 B^T.
        # A - A cov A would be the same, but for nearly noiseless scores little is left of it beside rounding.
        information = self.information_MPP[self._noise_index[h]]
        value_R, vector_PR = np.linalg.eigh(information)
        is_positive_R = value_R > 1e-9 * max(1.0, float(value_R.max()))
        root_R, vector_PR = np.sqrt(value_R[is_positive_R]), vector_PR[:, is_positive_R]
        root_PR = vector_PR * root_R
        inverse_RR = np.linalg.inv(np.eye(len(root_R)) + root_PR.T @ prior_PP @ root_PR)
        residual_P = root_PR @ inverse_RR @ (self.weighted_MP[self._noise_index[h]] @ vector_PR / root_R)
        variance_P = np.einsum("pr,rs,ps->p", root_PR, inverse_RR, root_PR)
        # A point without a seed that others share has no information, and a variance of 0 up to rounding.
        is_testable = np.diag(information) > 1e-9 * max(1.0, float(np.diag(information).max()))
        return np.where(
            is_testable, residual_P / np.sqrt(np.where(is_testable, variance_P * self.variance_H[h], 1.0)), 0.0
        )


def contrast_variance(cov_HPP: Array, index: int, others: Sequence[int]) -> Array:
    """Return the variance of f at a point minus f at each of others, [H, Q]."""
    variance_HP = np.diagonal(cov_HPP, axis1=1, axis2=2)
    return np.asarray(np.maximum(variance_HP[:, [index]] + variance_HP[:, others] - 2 * cov_HPP[:, index, others], 0.0))


def finer_width(bound: float, noise_sd: float) -> float:
    """Return by how much deviations are widened further for a bound, both in units of f.

    A bound that is small beside the noise rests on the surface being smooth far below what single scores show; on
    recorded lattices it is not quite. Like `WIDTH`, this is what it takes for bounds to hold.
    """
    return math.hypot(1.0, HIDDEN_ROUGHNESS * noise_sd / bound) if noise_sd else 1.0


def student_quantile(probability: float, dof: float) -> float:
    """Return a quantile of Student's t by Fisher's expansion around the normal: within 2% from 8 degrees of freedom."""
    z = NormalDist().inv_cdf(probability)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / dof + second / dof**2 + third / dof**3


# --- fits -----------------------------------------------------------------------------------------------------------


def fit(layout: PointScores, log_likelihood_M: Array | None = None) -> Surface:
    """Fit the Gaussian process to a layout with at least one degree of freedom.

    Models of the noise that are unlikely by `log_likelihoods`, which may be given to save time, are left out.

    With k = R R^T and the eigenvalues of R^T A R, for the information matrix A, the posterior is diagonal for every
    ratio g at once: one eigendecomposition per length scale and share serves the whole grid.
    """
    root_KPP, prior_K, length_KD, own_K = _kernel_grid(layout.x_PD.tobytes(), layout.x_PD.shape)
    models, statistics = layout.noises
    ratio = np.array(SIGNAL_TO_NOISE)
    if len(models) > 1:
        log_M = log_likelihoods(layout) if log_likelihood_M is None else log_likelihood_M
        likely = np.flatnonzero(log_M >= log_M.max() + np.log(UNLIKELY_NOISE))
        models, statistics = [models[m] for m in likely], statistics.only(likely)
    prior_MK = _log_priors(models)[:, None] + prior_K
    grid = _Components(layout.dof, statistics, root_KPP, prior_MK, ratio)
    # Relative to the largest one: exp of the logs themselves may underflow everywhere.
    weight_MKG = np.exp(grid.log_MKG - grid.log_MKG.max())
    is_kept_MKG = weight_MKG >= NEGLIGIBLE_WEIGHT * weight_MKG.max()
    smoothest_MKG = np.where(own_K[:, None] == own_K.min(), grid.log_MKG, -np.inf)
    # `misfits` tests the likeliest component with the least independent share, however unlikely it is.
    is_kept_MKG[np.unravel_index(np.argmax(smoothest_MKG), smoothest_MKG.shape)] = True
    m, k, g = np.nonzero(is_kept_MKG)
    basis, shrinkage = grid.basis_MKPP[m, k], ratio[g, None] * grid.shrinkage_MKGP[m, k, g]
    cov = (basis * shrinkage[:, None, :]) @ np.swapaxes(basis, 1, 2)
    weight = weight_MKG[m, k, g] / weight_MKG[m, k, g].sum()
    return Surface(
        layout=layout,
        weight_H=weight,
        mean_HP=np.einsum("hpq,hq->hp", cov, statistics.weighted_MP[m]),
        cov_HPP=cov,
        variance_H=grid.square_MKG[m, k, g] / layout.dof,
        dof=layout.dof,
        noises=models,
        information_MPP=statistics.information_MPP,
        weighted_MP=statistics.weighted_MP,
        process=GaussianProcess(ratio[g], length_KD[k], own_K[k], m),
    )


def log_likelihoods(layout: PointScores) -> Array:
    """Return the log marginal likelihood of each model of the noise, [M], up to a constant of where the scores are.

    To be fast, it is that of the likeliest process of one length scale.
    """
    root_KPP, prior_K, length_KD, own_K = _kernel_grid(layout.x_PD.tobytes(), layout.x_PD.shape)
    is_coarse_K = (length_KD == COARSE_LENGTH_SCALE).all(1) & (own_K == own_K.min())
    ratio = np.array(SIGNAL_TO_NOISE[::2])
    models, statistics = layout.noises
    prior_MK = _log_priors(models)[:, None] + prior_K[is_coarse_K]
    return np.asarray(_Components(layout.dof, statistics, root_KPP[is_coarse_K], prior_MK, ratio).log_MKG.max((1, 2)))


def _log_priors(models: Sequence[SeedNoise]) -> Array:
    return np.log([model.prior for model in models])


class _Components:
    """The posterior and the marginal likelihood at each value of a grid: models of the noise, kernels, ratios.

    Attributes:
        basis_MKPP: positions in the basis in which the posterior is diagonal.
        shrinkage_MKGP: share of the prior's variance that is left along each axis of it.
        square_MKG: sum of squares of what the process does not explain.
        log_MKG: log of prior and marginal likelihood.
    """

    def __init__(self, dof: int, statistics: Statistics, root_KPP: Array, prior_MK: Array, ratio_G: Array) -> None:
        information_MKPP = statistics.information_MPP[:, None]
        values_MKP, vectors = np.linalg.eigh(np.swapaxes(root_KPP, 1, 2) @ information_MKPP @ root_KPP)
        self.basis_MKPP = root_KPP @ vectors
        projected_MKP = np.einsum("mkpi,mp->mki", self.basis_MKPP, statistics.weighted_MP)
        self.shrinkage_MKGP = 1 / (1 + ratio_G[:, None] * np.maximum(values_MKP, 0.0)[:, :, None, :])
        explained = (ratio_G[:, None] * projected_MKP[:, :, None, :] ** 2 * self.shrinkage_MKGP).sum(3)
        square = statistics.square_M[:, None, None]
        # Rounding may leave a residual below 0.
        self.square_MKG = np.maximum(square - explained, 1e-12 * square + 1e-300)
        self.log_MKG = -0.5 * dof * np.log(self.square_MKG) + 0.5 * np.log(self.shrinkage_MKGP).sum(3)
        self.log_MKG += prior_MK[:, :, None] - 0.5 * statistics.log_det_M[:, None, None]


def fit_pairs(layout: PointScores) -> Surface:
    """Fit a free value for each point, without a smooth part: paired comparisons with pooled noise.

    The layout must have repeats: `pure_dof` of at least 1.
    """
    models = [SeedNoise(None, (0.0,) * layout.x_PD.shape[1])]
    statistics = layout.independent
    information, weighted = statistics.information_MPP[0], statistics.weighted_MP[0]
    cov = np.asarray(np.linalg.inv(information + UNLINKED_PRECISION * np.eye(len(information))), dtype=np.float64)
    mean, square = cov @ weighted, float(statistics.square_M[0])
    # As in `fit`, rounding may leave a residual below 0.
    square = max(square - float(weighted @ mean), 1e-12 * square + 1e-300)
    variance, tables = np.array([square / layout.pure_dof]), (statistics.information_MPP, statistics.weighted_MP)
    return Surface(layout, np.ones(1), mean[None], cov[None], variance, layout.pure_dof, models, *tables)


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
