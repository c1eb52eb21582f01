import math

import numpy as np
import pytest

from ettsweep.theory.exponents import (
    Exponent,
    ExponentTest,
    fit_power,
    judge_power,
    relative_variances,
    worst_verdict,
)

WIDTHS = (32, 64, 128, 256)
CHANNELS = (8, 16, 32, 64)


def power(values: list[list[float]]) -> Exponent:
    fitted = fit_power(WIDTHS, values, CHANNELS)
    assert fitted is not None
    return fitted


def test_an_exact_power_is_found() -> None:
    assert power([[3 * n**-1.5] * 2 for n in WIDTHS]).value == pytest.approx(-1.5, abs=1e-12)


def test_the_error_without_scatter_is_that_of_the_allowance() -> None:
    # Weights C^2 at log n = 0, 1, 2, 3 (times log 2): the variance of a weighted slope, by hand.
    weights, steps = [c**2 for c in CHANNELS], range(4)
    mean = sum(w * x for w, x in zip(weights, steps, strict=True)) / sum(weights)
    spread = sum(w * (x - mean) ** 2 for w, x in zip(weights, steps, strict=True))
    assert power([[1.0, 1.0]] * 4).error == pytest.approx(1 / math.sqrt(spread) / math.log(2))


def test_scatter_over_seeds_adds_to_the_error_and_more_seeds_take_from_it() -> None:
    calm, few = power([[1.0, 1.0]] * 4).error, power([[0.8, 1.2]] * 4).error
    assert calm < power([[0.8, 1.2] * 8] * 4).error < few / 2


def test_seeds_that_agree_by_chance_are_not_believed() -> None:
    # Relative variances 0.08 (of 0.8 and 1.2), 0 and 0.02 (of 1.8 and 2.2): half their own, half the mean of 1/30.
    variances = relative_variances([np.array([0.8, 1.2]), np.array([1.0, 1.0]), np.array([1.8, 2.2])])
    assert variances == pytest.approx([0.04 + 1 / 60, 1 / 60, 0.01 + 1 / 60])
    assert list(relative_variances([np.array([0.0, 0.0]), np.array([1.0])])) == [0, 0]


@pytest.mark.parametrize("invalid", [0.0, -1.0, math.nan, math.inf])
def test_what_vanishes_or_is_not_finite_has_no_power(invalid: float) -> None:
    assert fit_power(WIDTHS, [[1.0, 1.0], [1.0, invalid], [1.0, 1.0], [1.0, 1.0]], CHANNELS) is None


def test_errors_are_those_of_simulated_measurements() -> None:
    # n^0.5 with a correction of up to 1/C and a scatter of a tenth, with three seeds: nearly all within two errors.
    rng = np.random.default_rng(0)
    pulls = []
    for _ in range(400):
        correction = rng.uniform(-1, 1)
        values = [
            [math.sqrt(n) * (1 + correction / c) * rng.normal(1, 0.1) for _ in range(3)]
            for n, c in zip(WIDTHS, CHANNELS, strict=True)
        ]
        fitted = power(values)
        pulls.append((fitted.value - 0.5) / fitted.error)
        assert judge_power(fitted, 0.5) is not ExponentTest.OFF
    assert np.mean(np.abs(pulls) < 2) > 0.93
    assert 0.6 < np.std(pulls) < 1.3


@pytest.mark.parametrize(
    ("value", "error", "verdict"),
    [
        (0.2, 0.05, "ok"),
        (-0.2, 0.12, "ok"),
        (0.2, 0.13, "unclear"),  # half a power would not be told from nothing
        (0.3, 0.05, "off"),
        (0.3, 0.12, "unclear"),  # beyond, by less than three errors
        (-0.5, 0.12, "off"),
        (-1.5, 0.4, "off"),
    ],
)
def test_a_verdict_needs_a_miss_and_its_error(value: float, error: float, verdict: str) -> None:
    assert judge_power(Exponent(1 + value, error), 1.0) == verdict


def test_the_worst_of_parts_speaks_for_all() -> None:
    assert judge_power(None, 0.0) is ExponentTest.OFF, "no power"
    assert worst_verdict([ExponentTest.UNCLEAR, ExponentTest.OK]) is ExponentTest.UNCLEAR
    assert worst_verdict([ExponentTest.UNCLEAR, ExponentTest.OFF, ExponentTest.OK]) is ExponentTest.OFF
