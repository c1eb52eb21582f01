"""By how much measured kernels differ from predicted ones: means over networks, at several widths.

N networks, P positions, X and Y any numbers of a network.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

COARSER = 3.0
"""Errors of what does not average itself out as the width grows: queries and keys, of few heads; outputs, of which there
are few."""


def relative(measured_NPP: Array, predicted_PP: Array) -> Array:
    """Return by what share each network's kernel is larger than predicted: on the diagonal, and off it; (N, 2).

    Each is a mean over pairs of positions, in units of their standard deviations; off the diagonal it is weighted with
    the predicted correlations, so that a wrong sign lowers it. What is predicted to vanish must do so: the first token of
    a text reads itself alone, whatever its query.
    """
    some_P = np.diag(predicted_PP) > 0
    assert not measured_NPP[:, ~some_P].any()
    assert not measured_NPP[:, :, ~some_P].any()
    measured_NPP, predicted_PP = measured_NPP[:, some_P][:, :, some_P], predicted_PP[some_P][:, some_P]
    deviation_P = np.sqrt(np.diag(predicted_PP))
    unit_PP = predicted_PP / np.outer(deviation_P, deviation_P)
    excess_NPP = measured_NPP / np.outer(deviation_P, deviation_P) - unit_PP
    off = np.triu_indices(len(unit_PP), 1)
    weights = unit_PP[off] / (unit_PP[off] ** 2).sum()
    return np.stack((np.einsum("npp->np", excess_NPP).mean(1), excess_NPP[:, *off] @ weights), 1)


def without(values_NX: Array, controls_NY: Array) -> Array:
    """Return values without what follows, linearly, from controls whose mean is known to be zero.

    Their mean stays what it is, up to the number of controls divided by N; its error falls.
    """
    slopes, *_ = np.linalg.lstsq(controls_NY, values_NX - values_NX.mean(0), rcond=1e-6)
    return values_NX - controls_NY @ slopes


@dataclass
class Means:
    """Means over networks and their standard errors, of X numbers at W widths."""

    width: list[int] = field(default_factory=list)
    mean: list[Array] = field(default_factory=list)
    error: list[Array] = field(default_factory=list)

    def add(self, width: int, values_NX: Array) -> None:
        """Take in what was measured at one width."""
        self.width.append(width)
        self.mean.append(values_NX.mean(0))
        self.error.append(values_NX.std(0, ddof=1) / math.sqrt(len(values_NX)))

    def limit(self) -> tuple[Array, Array]:
        """Return the limit of infinite width and its error, (X,) each, of a fit of limit + a / n."""
        design = np.stack((np.ones(len(self.width)), 1 / np.array(self.width)), 1)
        collected = []
        for mean, error in zip(np.stack(self.mean, 1), np.stack(self.error, 1), strict=True):
            scaled = design / error[:, None]
            covariance = np.linalg.inv(scaled.T @ scaled)
            collected.append(((covariance @ scaled.T @ (mean / error))[0], math.sqrt(covariance[0, 0])))
        limit, uncertainty = np.array(collected).T
        return limit, uncertainty

    def power(self) -> tuple[float, float]:
        """Return p and its error of a fit of a n^p to the means of the first number."""
        from scipy.optimize import curve_fit  # takes a second

        width = np.array(self.width) / self.width[0]
        mean, error = np.stack(self.mean)[:, 0], np.stack(self.error)[:, 0]
        (_, power), covariance = curve_fit(
            lambda n, a, p: a * n**p, width, mean, p0=(mean[0], -1.0), sigma=error, absolute_sigma=True
        )
        return float(power), math.sqrt(covariance[1, 1])


def assert_tends_to_zero(
    deviations: Mapping[str, Means], resolution: float, sampling: Mapping[str, float] | None = None
) -> None:
    """Assert that deviations vanish in the limit of infinite width within 3.5 standard errors.

    Args:
        deviations: by name.
        resolution: that the errors have at most, or `COARSER` times that.
        sampling: errors of the predictions, by name.
    """
    for name, means in deviations.items():
        limit, error = means.limit()
        next_order = 1 / min(means.width) ** 2  # what a fit of limit + a / n leaves out
        error = np.sqrt(error**2 + (sampling or {}).get(name, 0.0) ** 2 + next_order**2)
        assert (np.abs(limit) < 3.5 * error).all(), (name, limit, error)
        allowed = resolution * (COARSER if name.endswith((" q", " k", "head")) else 1)
        assert error.max() < allowed, (name, error)
