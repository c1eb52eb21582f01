"""Scores by point and seed, with their sufficient statistics once what a seed adds to all points is projected out.

Shapes: P points, S seeds, N scores, D axes, Z further points, M models of the noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ettsweep.study.seed_noise import Array, SeedNoise, candidates, estimate_growth

MEASURED_DOF = 4
"""Degrees of freedom of repeats from which on they measure the noise, and how it grows."""

RANK_TOLERANCE = 1e-6
"""Singular values below this are 0: of information matrices, whose entries are of order 1."""


@dataclass(frozen=True)
class Statistics:
    """What the scores of a table say of f under models of their noise: all that a fit needs to know.

    Attributes:
        information_MPP: information matrices of f, in units of 1 / sigma^2.
        weighted_MP: information times scores, summed over seeds.
        square_M: sum of squares of the scores around the effect of their seed, in units of sigma^2.
        log_det_M: log determinants of the scores' covariance, the seeds' effects projected out.
    """

    information_MPP: Array
    weighted_MP: Array
    square_M: Array
    log_det_M: Array

    def only(self, models: NDArray[np.intp]) -> "Statistics":
        """Return those of some of the models."""
        return Statistics(
            self.information_MPP[models], self.weighted_MP[models], self.square_M[models], self.log_det_M[models]
        )


@dataclass(frozen=True)
class PointScores:
    """A table of scores by point and seed.

    Attributes:
        x_PD: positions in lattice steps.
        scored_PS: 1 where a point has a score with a seed, else 0; a row of zeros is a point to predict.
        y_PS: scores, lower is better; 0 where there is none.
    """

    x_PD: Array
    scored_PS: Array
    y_PS: Array

    @cached_property
    def noises(self) -> tuple[list[SeedNoise], Statistics]:
        """The models of the noise that a fit weighs, and the sufficient statistics under each."""
        lrs = sorted(set(self.x_PD[self.scored_PS.any(1), 0].tolist()))
        models = candidates(self.growth, lrs, self._lrs_with_repeats)
        return models, self.statistics(np.stack([model.covariance(self.x_PD) for model in models]))

    def statistics(self, cov_MPP: Array) -> Statistics:
        """Return the sufficient statistics under models of the noise, given their covariances between points."""
        models, points = cov_MPP.shape[:2]
        information, weighted = np.zeros((models, points, points)), np.zeros((models, points))
        square, log_det = np.zeros(models), np.zeros(models)
        for at, columns in self._seeds_by_points.items():
            rows = np.array(at)
            inverse = np.linalg.inv(cov_MPP[:, rows[:, None], rows])
            ones = inverse.sum(2)
            total = ones.sum(1)
            # The effect of a seed has a flat prior: it takes the direction of ones out of the information.
            projected = inverse - ones[:, :, None] * ones[:, None, :] / total[:, None, None]
            y = self.y_PS[np.ix_(rows, columns)]
            weighted_y = projected @ y
            information[:, rows[:, None], rows] += len(columns) * projected
            weighted[:, rows] += weighted_y.sum(2)
            square += (y * weighted_y).sum((1, 2))
            log_det += len(columns) * (np.log(total) - np.linalg.slogdet(inverse)[1])
        return Statistics(information, weighted, np.maximum(square, 0.0), log_det)  # rounding may leave less than 0

    @cached_property
    def _lrs_with_repeats(self) -> list[float]:
        """The lr, in lattice steps, whose noise can be told from that elsewhere; along a single axis, its values."""
        if self.pure_dof < MEASURED_DOF:
            return []
        return sorted(set(self.x_PD[self.scored_PS.sum(1) > 1, 0].tolist()))

    @cached_property
    def _seeds_by_points(self) -> dict[tuple[int, ...], NDArray[np.intp]]:
        """Columns of the seeds that have scores at the same points: they share one information matrix."""
        columns: dict[tuple[int, ...], list[int]] = {}
        for s in range(self.scored_PS.shape[1]):
            columns.setdefault(tuple(np.flatnonzero(self.scored_PS[:, s]).tolist()), []).append(s)
        return {points: np.array(seeds) for points, seeds in columns.items() if points}

    @cached_property
    def independent(self) -> Statistics:
        """The statistics under noise of one size that runs do not share."""
        return self.statistics(np.eye(len(self.x_PD))[None])

    @property
    def information(self) -> Array:
        """The information matrix of f under noise of one size that runs do not share, [P, P]."""
        return np.asarray(self.independent.information_MPP[0])

    @cached_property
    def growth(self) -> Array:
        """By how much the log variance of the noise grows per step, from repeats; 0 where these are few."""
        if self.pure_dof < MEASURED_DOF:
            return np.zeros(self.x_PD.shape[1])
        statistics = self.independent
        cov = np.linalg.pinv(statistics.information_MPP[0], rcond=RANK_TOLERANCE, hermitian=True)
        f_P = cov @ statistics.weighted_MP[0]
        points, seeds = np.nonzero(self.scored_PS)
        share_PS = self.scored_PS / np.maximum(self.scored_PS.sum(0), 1)  # at least 1: empty columns
        residual_PS = self.y_PS - f_P[:, None]
        residual_N = (residual_PS - (share_PS * residual_PS).sum(0))[points, seeds]
        # Each residual is its score less the mean of its seed, less what the fitted f of both makes of them.
        contrast_NP = -share_PS[:, seeds].T
        contrast_NP[np.arange(len(points)), points] += 1
        dof_N = 1 - share_PS[points, seeds] - ((contrast_NP @ cov) * contrast_NP).sum(1)
        sigma2 = max(float((residual_N**2).sum()) / self.pure_dof, 1e-300)
        return estimate_growth(self.x_PD[points], residual_N**2 / sigma2, np.maximum(dof_N, 0.0))

    @cached_property
    def dof(self) -> int:
        """Degrees of freedom of differences within seeds: scores less seeds."""
        return int(self.scored_PS.sum()) - int(self.scored_PS.any(0).sum())

    @cached_property
    def pure_dof(self) -> int:
        """Degrees of freedom left for the noise when each point has a free value: repeats only."""
        return self.dof - int(np.linalg.matrix_rank(self.information, tol=RANK_TOLERANCE))

    def with_positions(self, x_ZD: Array) -> "PointScores":
        """Return the table with further positions that have no scores."""
        empty_ZS = np.zeros((len(x_ZD), self.y_PS.shape[1]))
        scored_PS, y_PS = np.vstack([self.scored_PS, empty_ZS]), np.vstack([self.y_PS, empty_ZS])
        return PointScores(np.vstack([self.x_PD, x_ZD]), scored_PS, y_PS)

    def with_seed(self, rows: Sequence[int]) -> "PointScores":
        """Return the table with one more seed of some points: right in its degrees of freedom, with dummy scores."""
        new_P = np.zeros(len(self.scored_PS))
        new_P[list(rows)] = 1.0
        return PointScores(
            self.x_PD, np.column_stack([self.scored_PS, new_P]), np.column_stack([self.y_PS, 0.0 * new_P])
        )
