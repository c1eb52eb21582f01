"""A Gaussian process over the lattice, fitted to the scores of a study: the score as a function of lr and wd.

The model is a two-way layout of points p and seeds s, lower is better:

    y_ps = f(p) + b_s + e_ps,   f ~ GP(0, g sigma^2 k),   k(p, q) = exp(-sum_d (p_d - q_d)^2 / 2 l_d^2)

The noise e is normal with variance sigma^2 and independent between seeds; runs of one seed and one lr share r of it.
The seed effects b and log sigma have flat priors and are integrated out in closed form. The length scales l (in lattice
steps), the signal-to-noise ratio g and r are summed over a grid, weighted by marginal likelihood. The posterior of f is
summarised by the mean and the covariance of this mixture, and its errors are multiplied by `WIDTH`.

Shapes: P points, S seeds, D axes, Z any positions, M shares r, K kernels, G ratios g, H components of the mixture.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

Position = tuple[float, ...]
"""Lattice steps from a candidate along each free axis."""

WIDTH = 1.3
"""Factor on all errors. Racing stops at a favourable moment, real surfaces differ from the model, and values beyond the
grid have no weight. With this factor, bounds hold as often as stated (results/benchmarks/verdicts.md)."""

LENGTH_SCALES = (1.0, 2.0, 4.0)
"""Length scales in lattice steps: from nearly independent neighbours to almost a parabola."""

TYPICAL_LENGTH_SCALE, LENGTH_SCALE_SPREAD = 2.5, 1.4
"""Median and width (in log) of their log-normal prior."""

SIGNAL_TO_NOISE = tuple(4.0**k for k in range(2, 14))
"""Ratios of signal variance to noise variance, with a uniform prior over this grid."""

SHARED_NOISE = (0.0, 0.3, 0.6)
"""Shares of the noise that runs of one seed and one lr have in common, with a uniform prior: runs that differ in wd
alone stay similar on recorded lattices (results/benchmarks/noise.md)."""

NEGLIGIBLE_WEIGHT = 1e-3
"""Components with less than this share of the largest weight are dropped."""

JITTER = 1e-9
"""Added to the diagonal of k, or its Cholesky factor may not exist in floats."""

RANK_TOLERANCE = 1e-6
"""Singular values below this are 0: of information matrices, whose entries are of order 1."""


@dataclass(frozen=True)
class PointScores:
    """A table of scores by point and seed.

    Attributes:
        x_PD: positions in lattice steps, lr first.
        scored_PS: 1 where a point has a score with a seed, else 0; a row of zeros is a point to predict.
        y_PS: scores, lower is better; 0 where there is none.
    """

    x_PD: Array
    scored_PS: Array
    y_PS: Array

    @cached_property
    def dof(self) -> int:
        """Degrees of freedom of differences within seeds: scores less seeds."""
        return int(self.scored_PS.sum()) - int(self.scored_PS.any(0).sum())

    @cached_property
    def pure_dof(self) -> int:
        """Degrees of freedom left for the noise when each point has a free value: repeats only."""
        n_S = np.maximum(self.scored_PS.sum(0), 1)
        information_PP = np.diag(self.scored_PS.sum(1)) - (self.scored_PS / n_S) @ self.scored_PS.T
        return self.dof - int(np.linalg.matrix_rank(information_PP, tol=RANK_TOLERANCE))

    def with_positions(self, x_ZD: Array) -> "PointScores":
        """Return the table with further positions that have no scores."""
        empty_ZS = np.zeros((len(x_ZD), self.y_PS.shape[1]))
        scored_PS, y_PS = np.vstack([self.scored_PS, empty_ZS]), np.vstack([self.y_PS, empty_ZS])
        return PointScores(np.vstack([self.x_PD, x_ZD]), scored_PS, y_PS)

    def with_seed(self, rows: list[int]) -> "PointScores":
        """Return the table with one more seed of some points, with dummy scores but right degrees of freedom."""
        new_P1 = np.zeros((len(self.scored_PS), 1))
        new_P1[rows] = 1.0
        return PointScores(self.x_PD, np.hstack([self.scored_PS, new_P1]), np.hstack([self.y_PS, 0 * new_P1]))

    def statistics(self) -> tuple[Array, Array, Array, Array]:
        """Return the information on f under each share of common noise, the effects of seeds projected out.

        Returns:
            Information matrices of f in units of 1 / sigma^2, [M, P, P]; information times scores, [M, P]; sums of
            squares around the seeds' effects, [M]; log determinants of the scores' covariance, [M].
        """
        is_one_lr = self.x_PD[:, None, 0] == self.x_PD[None, :, 0]
        # If no two points have one lr, all shares are the same model.
        share_M = np.array(SHARED_NOISE if is_one_lr.sum() > len(is_one_lr) else SHARED_NOISE[:1])[:, None, None]
        noise_MPP = share_M * is_one_lr + (1 - share_M) * np.eye(len(is_one_lr))
        models, points = len(share_M), len(is_one_lr)
        information, weighted = np.zeros((models, points, points)), np.zeros((models, points))
        square, log_det = np.zeros(models), np.zeros(models)
        for rows, columns in self._seeds_by_points():
            inverse = np.linalg.inv(noise_MPP[:, rows[:, None], rows])
            ones = inverse.sum(2)
            total = ones.sum(1)
            # A flat prior of the seed's effect takes the direction of ones out of the information.
            projected = inverse - ones[:, :, None] * ones[:, None, :] / total[:, None, None]
            y = self.y_PS[np.ix_(rows, columns)]
            weighted_y = projected @ y
            information[:, rows[:, None], rows] += len(columns) * projected
            weighted[:, rows] += weighted_y.sum(2)
            square += (y * weighted_y).sum((1, 2))
            log_det += len(columns) * (np.log(total) - np.linalg.slogdet(inverse)[1])
        return information, weighted, np.maximum(square, 0.0), log_det  # rounding may leave less than 0

    def _seeds_by_points(self) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Yield sets of points, with the columns of the seeds that have scores at just these."""
        columns: dict[tuple[int, ...], list[int]] = {}
        for s in range(self.scored_PS.shape[1]):
            columns.setdefault(tuple(np.flatnonzero(self.scored_PS[:, s]).tolist()), []).append(s)
        return ((np.array(points), np.array(seeds)) for points, seeds in columns.items() if points)


def point_scores(f: Mapping[Position, Mapping[int, float]]) -> PointScores:
    """Return scores by position and seed as a table, rows in the order of the positions, columns in that of seeds."""
    columns = {seed: s for s, seed in enumerate(sorted({seed for seeds in f.values() for seed in seeds}))}
    y_PS, scored_PS = np.zeros((2, len(f), len(columns)))
    for p, seeds in enumerate(f.values()):
        for seed, y in seeds.items():
            y_PS[p, columns[seed]], scored_PS[p, columns[seed]] = y, 1.0
    return PointScores(np.array([*f], dtype=float), scored_PS, y_PS)


@dataclass(frozen=True)
class Surface:
    """The posterior of f: Student's t around `mean_P`, with the squared scale `cov_PP` and `scores.dof`.

    Only differences between points are identified, so all values are up to a common constant.

    Attributes:
        mean_P, cov_PP: posterior of f at the points.
        noise_sd: standard deviation of a score within its seed.
        fitted_dof: effective number of parameters of f.
        weight_H, mean_HP, cov_HPP: components, covariances in units of sigma^2; the weights sum to 1.
        variance_H, ratio_H, length_HD: sigma^2, g and l of each.
    """

    scores: PointScores
    mean_P: Array
    cov_PP: Array
    noise_sd: float
    fitted_dof: float
    weight_H: Array
    mean_HP: Array
    cov_HPP: Array
    variance_H: Array
    ratio_H: Array
    length_HD: Array

    @property
    def dof(self) -> int:
        return self.scores.dof

    @property
    def error_of_scale(self) -> float:
        """The standard deviation of Student's t of unit scale; with fewer than 3 degrees of freedom, that of 3."""
        dof = max(self.dof, 3)
        return math.sqrt(dof / (dof - 2))

    def contrast(self, weight_P: Array) -> tuple[float, float]:
        """Return a weighted sum of f over the points, with weights that sum to 0, and its standard error."""
        variance = max(float(weight_P @ self.cov_PP @ weight_P), 0.0)
        return float(self.mean_P @ weight_P), math.sqrt(variance) * self.error_of_scale

    def means_at(self, z_ZD: Array) -> Array:
        """Return the posterior mean of f at any positions, [Z]."""
        return np.asarray(self.weight_H @ self._component_means(z_ZD))

    def covariance_at(self, z_ZD: Array) -> Array:
        """Return the posterior covariance of f at any positions, [Z, Z], in squared scales of Student's t."""
        within_ZZ = np.zeros((len(z_ZD), len(z_ZD)))
        for h, length_D, across_PZ, weights_PZ in self._kriging(z_ZD):
            scale_H = self.weight_H[h] * self.variance_H[h]
            conditional_ZZ = _kernel(z_ZD, z_ZD, length_D) - weights_PZ.T @ across_PZ
            within_ZZ += (scale_H @ self.ratio_H[h]) * conditional_ZZ
            within_ZZ += weights_PZ.T @ np.tensordot(scale_H, self.cov_HPP[h], 1) @ weights_PZ
        return _moments(self.weight_H, self._component_means(z_ZD), within_ZZ)[1]

    def _component_means(self, z_ZD: Array) -> Array:
        mean_HZ = np.zeros((len(self.weight_H), len(z_ZD)))
        for h, _, _, weights_PZ in self._kriging(z_ZD):
            mean_HZ[h] = self.mean_HP[h] @ weights_PZ
        return mean_HZ

    def _kriging(self, z_ZD: Array) -> Iterator[tuple[NDArray[np.bool_], Array, Array, Array]]:
        """Yield, of each kernel: its components, l, k between points and positions, and k^-1 times that.

        The latter are the weights by which f at the points predicts f at the positions, [P, Z].
        """
        x_PD = self.scores.x_PD
        for length_D in np.unique(self.length_HD, axis=0):
            across_PZ = _kernel(x_PD, z_ZD, length_D)
            own_PP = _kernel(x_PD, x_PD, length_D) + JITTER * np.eye(len(x_PD))
            yield (
                (self.length_HD == length_D).all(1),
                length_D,
                across_PZ,
                np.asarray(np.linalg.solve(own_PP, across_PZ)),
            )


def fit(scores: PointScores) -> Surface:
    """Fit the Gaussian process to scores with at least one degree of freedom.

    With k = R R^T and the eigenvalues of R^T A R, for the information matrix A, the posterior is diagonal for every
    ratio g at once: one eigendecomposition per share and kernel serves the whole grid.
    """
    root_KPP, prior_K, length_KD = _kernels(scores.x_PD.tobytes(), scores.x_PD.shape)
    information_MPP, weighted_MP, square_M, log_det_M = scores.statistics()
    ratio_G = np.array(SIGNAL_TO_NOISE)
    values_MKP, vectors = np.linalg.eigh(np.swapaxes(root_KPP, 1, 2) @ information_MPP[:, None] @ root_KPP)
    basis_MKPP = root_KPP @ vectors
    projected_MKP = np.einsum("mkpi,mp->mki", basis_MKPP, weighted_MP)
    shrinkage_MKGP = 1 / (1 + ratio_G[:, None] * np.maximum(values_MKP, 0.0)[:, :, None, :])
    explained_MKG = (ratio_G[:, None] * projected_MKP[:, :, None, :] ** 2 * shrinkage_MKGP).sum(3)
    # Rounding may leave a residual below 0.
    total_M = square_M[:, None, None]
    square_MKG = np.maximum(total_M - explained_MKG, 1e-12 * total_M + 1e-300)
    log_MKG = 0.5 * (np.log(shrinkage_MKGP).sum(3) - scores.dof * np.log(square_MKG) - log_det_M[:, None, None])
    log_MKG += prior_K[:, None]
    weight_MKG = np.exp(log_MKG - log_MKG.max())
    m, k, g = np.nonzero(weight_MKG >= NEGLIGIBLE_WEIGHT)
    shrinkage_HP = ratio_G[g, None] * shrinkage_MKGP[m, k, g]
    cov_HPP = (basis_MKPP[m, k] * shrinkage_HP[:, None, :]) @ np.swapaxes(basis_MKPP[m, k], 1, 2)
    mean_HP = np.einsum("hpq,hq->hp", cov_HPP, weighted_MP[m])
    weight_H, variance_H = weight_MKG[m, k, g] / weight_MKG[m, k, g].sum(), square_MKG[m, k, g] / scores.dof
    mean_P, cov_PP = _moments(weight_H, mean_HP, np.tensordot(weight_H * variance_H, cov_HPP, 1))
    noise_sd = float(np.sqrt(weight_H @ variance_H))
    fitted_dof = float(weight_H @ np.einsum("hpq,hqp->h", cov_HPP, information_MPP[m]))
    components = weight_H, mean_HP, cov_HPP, variance_H, ratio_G[g], length_KD[k]
    return Surface(scores, mean_P, cov_PP, noise_sd, fitted_dof, *components)


def _moments(weight_H: Array, mean_HP: Array, within_PP: Array) -> tuple[Array, Array]:
    """Return mean and widened covariance of a mixture, given the covariance within its components."""
    mean_P = weight_H @ mean_HP
    deviation_HP = mean_HP - mean_P
    return np.asarray(mean_P), np.asarray(WIDTH**2 * (within_PP + (deviation_HP.T * weight_H) @ deviation_HP))


@lru_cache(maxsize=256)
def _kernels(x: bytes, shape: tuple[int, int]) -> tuple[Array, Array, Array]:
    """Return Cholesky factors of k, [K, P, P], log priors, [K], and length scales, [K, D].

    Positions come as bytes, for the cache: a climb fits the same positions many times.
    """
    x_PD = np.frombuffer(x).reshape(shape)
    length_KD = np.array(list(product(LENGTH_SCALES, repeat=shape[1])))
    prior_K = -0.5 * (np.log(length_KD / TYPICAL_LENGTH_SCALE) ** 2).sum(1) / LENGTH_SCALE_SPREAD**2
    kernel_KPP = np.stack([_kernel(x_PD, x_PD, length_D) for length_D in length_KD])
    root_KPP = np.linalg.cholesky(kernel_KPP + JITTER * np.eye(shape[0]))
    return np.asarray(root_KPP), np.asarray(prior_K), length_KD


def _kernel(p_PD: Array, q_QD: Array, length_D: Array) -> Array:
    """Return the kernel between two sets of positions, [P, Q]."""
    return np.asarray(np.exp(-0.5 * (((p_PD[:, None] - q_QD) / length_D) ** 2).sum(2)))
