"""Gaussian integrals by quadrature against closed forms."""

import math

import numpy as np
import pytest

from ettsweep.theory.gaussian import GELU, pair_expectations

CORRELATIONS = [-1.0, -1 + 1e-9, -0.3, 0.0, 0.5, 1 - 1e-6, 1 - 1e-12, 1.0]
VARIANCES = [(0.1, 0.1, 1e-9), (0.01, 1.0, 1e-6), (4.0, 4.0, 1e-5)]
"""Of both positions, and the error that quadrature of GELU may make; the wider, the less it looks like a polynomial."""


def covariance(first: float, second: float, correlation: float) -> np.ndarray:
    c = correlation * math.sqrt(first * second)
    return np.array([[first, c], [c, second]])


def gelu_gelu(a: float, b: float, c: float) -> float:
    """<u Phi(u) v Phi(v)>, where u and v have variances a and b and covariance c: by parts (Stein), twice."""
    density = 1 / (2 * math.pi * math.sqrt((1 + a) * (1 + b) - c**2))  # <phi(u) phi(v)>
    return c * phi_phi(a, b, c) + density * (a * b - c**2 + c**2 / (1 + a) + c**2 / (1 + b))


def phi_phi(a: float, b: float, c: float) -> float:
    """<Phi(u) Phi(v)>: the share of a quadrant."""
    return 1 / 4 + math.asin(c / math.sqrt((1 + a) * (1 + b))) / (2 * math.pi)


def slope_slope(a: float, b: float, c: float) -> float:
    """<gelu'(u) gelu'(v)>, where gelu'(u) = Phi(u) + u phi(u)."""
    determinant = (1 + a) * (1 + b) - c**2
    density = 1 / (2 * math.pi * math.sqrt(determinant))
    return phi_phi(a, b, c) + density * (c / (1 + a) + c / (1 + b) + c / determinant)


@pytest.mark.parametrize("correlation", CORRELATIONS)
@pytest.mark.parametrize(("first", "second", "error"), VARIANCES)
def test_gelu_and_its_slope_are_their_closed_forms(
    first: float, second: float, error: float, correlation: float
) -> None:
    kernel = covariance(first, second, correlation)
    result, slopes = pair_expectations(GELU.sigma, kernel), pair_expectations(GELU.derivative, kernel)
    for i in (0, 1):
        for j in (0, 1):
            variances = (kernel[i, i], kernel[j, j], kernel[i, j])
            size = math.sqrt(result[i, i] * result[j, j])
            assert result[i, j] == pytest.approx(gelu_gelu(*variances), abs=error * size)
            assert slopes[i, j] == pytest.approx(slope_slope(*variances), abs=error)


def test_kernels_of_many_positions_are_integrated_pair_by_pair() -> None:
    """Positions that are equal, opposite, independent, and one without any variance."""
    vectors = np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 0.5], [0.3, 0.4], [0.0, 0.0]])
    kernel = vectors @ vectors.T
    by_pair = pair_expectations(GELU.sigma, kernel)
    for i in range(6):
        for j in range(6):
            expected = gelu_gelu(kernel[i, i], kernel[j, j], kernel[i, j])
            assert by_pair[i, j] == pytest.approx(expected, abs=1e-7)
