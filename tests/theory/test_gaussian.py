"""Gaussian integrals by quadrature against closed forms."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr

from ettsweep.theory.gaussian import GELU, RELU, pair_expectations

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


@pytest.mark.parametrize("correlation", CORRELATIONS)
@pytest.mark.parametrize(("first", "second"), [(0.01, 1.0), (4.0, 4.0)])
def test_relu_and_its_slope_are_arc_cosine_kernels(first: float, second: float, correlation: float) -> None:
    kernel = covariance(first, second, correlation)
    result, slopes = pair_expectations(RELU.sigma, kernel), pair_expectations(RELU.derivative, kernel)
    angle, size = math.acos(correlation), math.sqrt(first * second)
    both_on = (math.pi - angle) / (2 * math.pi)
    expected = size * (math.sin(angle) / (2 * math.pi) + both_on * correlation)
    assert result[0, 1] == result[1, 0] == pytest.approx(expected, abs=1e-12 * size)
    assert np.diag(result) == pytest.approx(np.array([first, second]) / 2, rel=1e-12)
    assert slopes[0, 1] == slopes[1, 0] == pytest.approx(both_on, abs=1e-8)  # rounding near a correlation of 1
    assert np.diag(slopes) == pytest.approx(0.5, abs=1e-8)


def test_the_closed_forms_are_the_integrals() -> None:
    def pdf(x: Any) -> Any:
        return np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)

    a, b, c = 0.4, 0.9, 0.35
    node, weight = np.polynomial.hermite_e.hermegauss(60)
    u = math.sqrt(a) * node[:, None]
    v = c / a * u + math.sqrt(b - c**2 / a) * node
    share = np.outer(weight, weight) / (2 * math.pi)
    assert (share * u * ndtr(u) * v * ndtr(v)).sum() == pytest.approx(gelu_gelu(a, b, c), rel=1e-9)
    slopes = (ndtr(u) + u * pdf(u)) * (ndtr(v) + v * pdf(v))
    assert (share * slopes).sum() == pytest.approx(slope_slope(a, b, c), rel=1e-9)


def test_derivatives_are_those_of_the_functions() -> None:
    x = np.linspace(-5, 5, 101) + 0.01
    for activation in (GELU, RELU):
        by_difference = (activation.sigma(x + 1e-6) - activation.sigma(x - 1e-6)) / 2e-6
        assert activation.derivative(x) == pytest.approx(by_difference, abs=1e-8)


def test_kernels_of_many_positions_are_integrated_pair_by_pair() -> None:
    """Positions that are equal, opposite, independent, and one without any variance."""
    vectors = np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 0.5], [0.3, 0.4], [0.0, 0.0]])
    kernel = vectors @ vectors.T
    by_pair = pair_expectations(GELU.sigma, kernel)
    for i in range(6):
        for j in range(6):
            expected = gelu_gelu(kernel[i, i], kernel[j, j], kernel[i, j])
            assert by_pair[i, j] == pytest.approx(expected, abs=1e-7)
