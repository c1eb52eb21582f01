"""A model of a family's surface: a Gaussian process over the lattice, under the two-way layout of points and seeds.

    y_ps = f(p) + b_s + e_ps,   e ~ N(0, sigma^2),   f ~ GP(0, g sigma^2 k)
    k(p, q) = (1 - v) exp(-sum_d (p_d - q_d)^2 / 2 l_d^2) + v [p = q]

So f is smooth but for a share v of its variance, by which each point is off by something of its own. Seeds' own effects
b have flat priors, as has log sigma; both are integrated in closed form. The length scales l, in steps of the lattice,
the ratio g of signal to noise and the share v are integrated over a grid, each value weighted by its marginal
likelihood. What is then known of f is a mixture of multivariate Student t, one component for each value that counts.

Without the process, that is with k of points that know nothing of each other, the same equations are those of paired
comparisons with pooled noise: `pairs`.

Shapes: P points, S seeds, N scores, D axes, H components.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LENGTHS = (1.0, 2.0, 4.0)
"""Length scales, in steps: from points that know little of each other to almost a parabola."""

TYPICAL_LENGTH, LENGTH_SPREAD = 2.5, 1.4
"""Of their prior, a log-normal one."""

RATIOS = tuple(2.0**k for k in range(4, 25))
"""Signal to noise, as ratios of variances, each as likely beforehand."""

OWN = (0.0, 0.01)
"""Shares of f's variance that points have each of their own, each as likely beforehand."""

NEGLIGIBLE = 1e-3
"""Weight, as a share, below which a component is left out."""

JITTER = 1e-9
"""Added to the diagonal of k, without which it has no root in floats."""

DRAWS = 4000
"""Draws from the posterior, the same ones whenever it is asked: a verdict is a function of scores alone."""

DOUBT = 1e-3
"""Probability, over all tests of one kind, with which a surface that fits is said not to."""

UNTIED = 1e-9
"""Precision, as a share of one score's, of points that share no seed with others: next to nothing is known of them."""


@dataclass(frozen=True)
class ScoreTable:
    """Scores of points over seeds, and what they say of differences between points once seeds' effects are taken out.

    Attributes:
        x_PD: positions in steps of the lattice.
        scored_PS: whether there is a score; of a point that is asked about, and has not been run, there is none.
        y_PS: scores, lower is better; 0 where there is none.
    """

    x_PD: Array
    scored_PS: Array
    y_PS: Array

    @cached_property
    def information(self) -> Array:
        """The information on f, in units of 1 / sigma^2."""
        n_PS = self.scored_PS
        return np.diag(n_PS.sum(1)) - (n_PS / self._members) @ n_PS.T

    @cached_property
    def weighted(self) -> Array:
        """The information times f as the scores have it."""
        return np.asarray(self.y_PS.sum(1) - self.scored_PS @ (self.y_PS.sum(0) / self._members))

    @cached_property
    def square(self) -> float:
        """The sum of squares within seeds."""
        return float((self.y_PS**2).sum() - (self.y_PS.sum(0) ** 2 / self._members).sum())

    @property
    def _members(self) -> Array:
        return np.asarray(np.maximum(self.scored_PS.sum(0), 1))

    @cached_property
    def dof(self) -> int:
        """Scores less seeds: degrees of freedom of differences within seeds."""
        return int(self.scored_PS.sum()) - int(self.scored_PS.any(0).sum())

    @cached_property
    def pure_dof(self) -> int:
        """Degrees of freedom that are left where every point has a value of its own: noise alone."""
        return self.dof - int(np.linalg.matrix_rank(self.information, tol=1e-6))

    def wider(self, x_ZD: Array) -> "ScoreTable":
        """Return it with further positions, of which there are no scores."""
        empty_ZS = np.zeros((len(x_ZD), self.y_PS.shape[1]))
        scored_PS, y_PS = np.vstack([self.scored_PS, empty_ZS]), np.vstack([self.y_PS, empty_ZS])
        return ScoreTable(np.vstack([self.x_PD, x_ZD]), scored_PS, y_PS)

    def seeded(self, rows: Sequence[int]) -> "ScoreTable":
        """Return it as it would be with one more seed of some points; what these would score is not known."""
        new_P = np.zeros(len(self.scored_PS))
        new_P[list(rows)] = 1.0
        return ScoreTable(
            self.x_PD, np.column_stack([self.scored_PS, new_P]), np.column_stack([self.y_PS, 0.0 * new_P])
        )


@dataclass(frozen=True)
class GaussianProcess:
    """What k is, and how large f is, in each component of a fit.

    Attributes:
        ratio_H: g.
        length_HD: l, in steps.
        own_H: v.
    """

    ratio_H: Array
    length_HD: Array
    own_H: Array


@dataclass(frozen=True)
class Surface:
    """What is known of f at the points of a layout: a mixture of multivariate Student t, of `layout.dof` or fewer.

    Attributes:
        weight_H: of the components.
        mean_HP: of f, up to a constant.
        cov_HPP: of f, up to a constant, in units of `variance_H`.
        variance_H: sigma^2.
        dof: degrees of freedom of sigma.
        evidence: log marginal likelihood, up to a constant of the layout.
        process: by which points know of each other; None where they do not.
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
    def smooth(self) -> bool:
        return self.process is not None

    @property
    def mean(self) -> Array:
        """f, up to a constant."""
        return np.asarray(self.weight_H @ self.mean_HP)

    @property
    def noise(self) -> float:
        """sigma, the standard deviation of a score within its seed."""
        return float(np.sqrt(self.weight_H @ self.variance_H))

    @property
    def fitted_dof(self) -> float:
        """Degrees of freedom that f takes up."""
        dof_H = np.einsum("hpq,qp->h", self.cov_HPP, self.layout.information)
        return float(self.weight_H @ dof_H)

    def differences(self, of: int, others: Sequence[int]) -> tuple[Array, Array]:
        """Return f at a point less f at others, and the standard errors of that."""
        mean_HQ = self.mean_HP[:, [of]] - self.mean_HP[:, others]
        mean_Q = self.weight_H @ mean_HQ
        widened = self.dof / max(self.dof - 2, 1)
        var_HQ = widened * self.variance_H[:, None] * contrast(self.cov_HPP, of, others) + (mean_HQ - mean_Q) ** 2
        return mean_Q, np.sqrt(self.weight_H @ var_HQ)

    def draws(self, of: int, others: Sequence[int]) -> Array:
        """Return `DRAWS` joint draws of f at a point less f at others, a row each."""
        signs = -np.eye(self.mean_HP.shape[1])[list(others)]
        signs[:, of] += 1
        mean_HQ = self.mean_HP @ signs.T
        values_HQ, vectors_HQQ = np.linalg.eigh(self.variance_H[:, None, None] * (signs @ self.cov_HPP @ signs.T))
        # The symmetric root is one alone: eigenvectors, with signs and turns of their own on each machine, are not.
        root_HQQ = (vectors_HQQ * np.sqrt(np.maximum(values_HQ, 0))[:, None, :]) @ np.swapaxes(vectors_HQQ, 1, 2)
        ends = np.round(DRAWS * np.cumsum(self.weight_H)).astype(int)
        component = np.searchsorted(ends, np.arange(DRAWS), side="right")
        normal = np.einsum("dqr,dr->dq", root_HQQ[component], _normal(len(others)))
        return np.asarray(mean_HQ[component] + normal * _scale(self.dof)[:, None])

    # --- between the points ---

    def means_at(self, z_ZD: Array) -> Array:
        """Return the smooth part of f at any positions, up to the same constant, [Z]. The surface must be smooth."""
        _, weights_HPZ = self._told(z_ZD)
        return np.asarray(np.einsum("h,hp,hpz->z", self.weight_H, self.mean_HP, weights_HPZ, optimize=True))

    def covariance_at(self, z_ZD: Array) -> Array:
        """Return the covariance of the smooth part of f at any positions, up to the same constant, [Z, Z]."""
        assert self.process is not None
        k_HPZ, weights_HPZ = self._told(z_ZD)
        weights_HZP = np.swapaxes(weights_HPZ, 1, 2)
        conditional_HZZ = _smooth(z_ZD, z_ZD, self.process.length_HD, self.process.own_H) - weights_HZP @ k_HPZ
        cov_HZZ = self.process.ratio_H[:, None, None] * conditional_HZZ + weights_HZP @ self.cov_HPP @ weights_HPZ
        deviation_HZ = np.einsum("hp,hpz->hz", self.mean_HP, weights_HPZ) - self.means_at(z_ZD)
        widened_H = self.weight_H * self.variance_H * self.dof / max(self.dof - 2, 1)
        return np.asarray(np.tensordot(widened_H, cov_HZZ, 1) + (deviation_HZ.T * self.weight_H) @ deviation_HZ)

    def _told(self, z_ZD: Array) -> tuple[Array, Array]:
        """Return smooth k of points and any positions, and what f at the points tells of its smooth part there.

        That is k(p, q)^-1 times the former.
        """
        assert self.process is not None
        x_PD, length_HD, own_H = self.layout.x_PD, self.process.length_HD, self.process.own_H
        k_HPZ = _smooth(x_PD, z_ZD, length_HD, own_H)
        return k_HPZ, np.asarray(np.linalg.solve(_k(x_PD, length_HD, own_H), k_HPZ), dtype=np.float64)

    # --- does it fit? ---

    def misfits(self) -> Array:
        """Return how far the scores of each point lie from what the others let expect, in standard errors.

        That is the test of a shift of its mean, from the likeliest surface of which points have nothing of their own;
        positive where it is worse than expected.
        """
        own_H = self.process.own_H if self.process else np.zeros(len(self.weight_H))
        smoothest = np.flatnonzero(own_H == own_H.min())
        h = int(smoothest[np.argmax(self.weight_H[smoothest])])
        information = self.layout.information
        residual_P = self.layout.weighted - information @ self.mean_HP[h]
        variance_P = np.diag(information - information @ self.cov_HPP[h] @ information)
        is_testable = variance_P > 1e-9 * max(1.0, float(np.diag(information).max()))
        return np.where(
            is_testable, residual_P / np.sqrt(np.where(is_testable, variance_P * self.variance_H[h], 1.0)), 0.0
        )

    def growth(self) -> float:
        """Return how surely the noise grows with the score, in standard deviations of the statistic where it does not.

        That is Koenker's form of the Breusch-Pagan test, which heavy tails do not mislead.
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


def contrast(cov_HPP: Array, of: int, others: Sequence[int]) -> Array:
    """Return the variance of f at a point less f at each of others, [H, Q]."""
    variance_HP = np.diagonal(cov_HPP, axis1=1, axis2=2)
    return np.asarray(np.maximum(variance_HP[:, [of]] + variance_HP[:, others] - 2 * cov_HPP[:, of, others], 0.0))


def student_quantile(probability: float, dof: float) -> float:
    """Return a quantile of Student's t, by Fisher's expansion about the normal one: to 2% from 8 degrees on."""
    z = NormalDist().inv_cdf(probability)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / dof + second / dof**2 + third / dof**3


# --- fits -----------------------------------------------------------------------------------------------------------


def fit(layout: ScoreTable) -> Surface:
    """Fit the process to the scores of a layout with at least one degree of freedom."""
    root_HPP, prior_H, length_HD, own_H = _kernels(layout.x_PD.tobytes(), layout.x_PD.shape)
    information, dof = layout.information, layout.dof
    values_HP, vectors = np.linalg.eigh(np.swapaxes(root_HPP, 1, 2) @ information @ root_HPP)
    basis_HPP = root_HPP @ vectors
    projected_HP = np.einsum("hpi,p->hi", basis_HPP, layout.weighted)
    ratio = np.array(RATIOS)
    shrinkage_HGP = 1 / (1 + ratio[:, None] * np.maximum(values_HP, 0.0)[:, None, :])
    square_HG = layout.square - (ratio[:, None] * projected_HP[:, None, :] ** 2 * shrinkage_HGP).sum(2)
    square_HG = np.maximum(square_HG, 1e-12 * layout.square + 1e-300)
    log_HG = -0.5 * dof * np.log(square_HG) + 0.5 * np.log(shrinkage_HGP).sum(2) + prior_H[:, None]
    weight_HG = np.exp(log_HG - log_HG.max())
    log_marginal_likelihood = float(log_HG.max() + np.log(weight_HG.mean()))
    is_kept_HG = weight_HG >= NEGLIGIBLE * weight_HG.max()
    smoothest_HG = np.where(own_H[:, None] == own_H.min(), log_HG, -np.inf)
    is_kept_HG[np.unravel_index(np.argmax(smoothest_HG), smoothest_HG.shape)] = (
        True  # that it may be told where it does not fit
    )
    h, g = np.nonzero(is_kept_HG)
    basis, shrinkage = basis_HPP[h], ratio[g, None] * shrinkage_HGP[h, g]
    cov = (basis * shrinkage[:, None, :]) @ np.swapaxes(basis, 1, 2)
    weight = weight_HG[h, g] / weight_HG[h, g].sum()
    variance = square_HG[h, g] / dof
    process = GaussianProcess(ratio[g], length_HD[h], own_H[h])
    return Surface(layout, weight, cov @ layout.weighted, cov, variance, dof, log_marginal_likelihood, process)


def pairs(layout: ScoreTable) -> Surface:
    """Return what paired comparisons say: every point has a value of its own, the noise is pooled over all of them.

    At least one degree of freedom must be left for the noise.
    """
    information = layout.information
    cov = np.asarray(np.linalg.inv(information + UNTIED * np.eye(len(information))), dtype=np.float64)
    mean = cov @ layout.weighted
    square = max(layout.square - float(layout.weighted @ mean), 1e-12 * layout.square + 1e-300)
    variance = np.array([square / layout.pure_dof])
    return Surface(layout, np.ones(1), mean[None], cov[None], variance, layout.pure_dof, -np.inf)


@lru_cache(maxsize=64)
def _kernels(x: bytes, shape: tuple[int, int]) -> tuple[Array, Array, Array, Array]:
    """Return a square root of k for each combination of length scales and own shares, the log of their prior, these."""
    x_PD = np.frombuffer(x).reshape(shape)
    grid = np.stack(np.meshgrid(*[LENGTHS] * shape[1], OWN, indexing="ij"), -1).reshape(-1, shape[1] + 1)
    length_HD, own_H = grid[:, :-1], grid[:, -1]
    prior_H = -0.5 * (np.log(length_HD / TYPICAL_LENGTH) ** 2).sum(1) / LENGTH_SPREAD**2
    root_HPP = np.linalg.cholesky(_k(x_PD, length_HD, own_H))
    return np.asarray(root_HPP, dtype=np.float64), prior_H, length_HD, own_H


def _k(x_PD: Array, length_HD: Array, own_H: Array) -> Array:
    """Return k between positions that differ, [H, P, P]."""
    own_HPP = (own_H[:, None, None] + JITTER) * np.eye(len(x_PD))
    return np.asarray(_smooth(x_PD, x_PD, length_HD, own_H) + own_HPP)


def _smooth(p_PD: Array, q_QD: Array, length_HD: Array, own_H: Array) -> Array:
    """Return the smooth part of k between positions, [H, P, Q]."""
    squared_PQD = (p_PD[:, None] - q_QD[None]) ** 2
    return np.asarray(
        (1 - own_H)[:, None, None] * np.exp(-0.5 * np.einsum("pqd,hd->hpq", squared_PQD, length_HD**-2.0))
    )


@lru_cache
def _normal(columns: int) -> Array:
    """Return standard normal draws."""
    return np.random.default_rng(0).standard_normal((DRAWS, columns))


@lru_cache
def _scale(dof: int) -> Array:
    """Return what makes normal draws those of Student's t."""
    return np.asarray(np.sqrt(dof / np.random.default_rng(1).chisquare(dof, DRAWS)))
