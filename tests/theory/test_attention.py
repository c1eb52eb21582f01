"""The Gaussian of attention's logits: expectations by sampling it, against quadrature."""

import math

import numpy as np
import pytest
from support.deviations import Array

from ettsweep.theory.attention import SampledAttention, sample_attention


def correlations(positions: int, seed: int = 0) -> Array:
    """Return a normalised kernel F of so many positions, of which all are correlated."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((positions, 6)) + 0.7 * rng.standard_normal(6)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    product: Array = x @ x.T
    return product


def test_attention_to_two_tokens_is_as_quadrature_has_it() -> None:
    """Of two tokens, attention is the logistic function of one Gaussian, the difference of their logits."""
    variance, query, source = 3.0, correlations(4), correlations(4, seed=1)
    runs = [
        sample_attention(query, source, variance, 2, causal=False, draws=512, rng=np.random.default_rng(seed))
        for seed in range(64)
    ]
    node, weight = np.polynomial.hermite_e.hermegauss(60)
    share = np.outer(weight, weight) / (2 * math.pi)
    sign = np.array([1.0, -1.0])
    exact_weights, exact_slopes = np.empty((2, 2, 2, 2, 2, 2)), np.empty((2, 2, 2, 2, 2, 2))
    for b_1, t_1, b_2, t_2 in np.ndindex(2, 2, 2, 2):
        read_from = source.reshape(2, 2, 2, 2)[b_1, :, b_2]
        difference = sign @ read_from @ sign
        values = [sign @ source.reshape(2, 2, 2, 2)[b, :, b] @ sign for b in (b_1, b_2)]
        covariance = variance * difference * query[2 * b_1 + t_1, 2 * b_2 + t_2]
        first = math.sqrt(variance * values[0]) * node[:, None]
        remaining = variance * values[1] - covariance**2 / (variance * values[0])
        second = covariance / (variance * values[0]) * first + math.sqrt(max(remaining, 0.0)) * node
        omega = [1 / (1 + np.exp(-np.multiply.outer(sign, logit))) for logit in (first, second)]
        exact_weights[b_1, t_1, :, b_2, t_2] = np.einsum("sab,uab,ab->su", *np.broadcast_arrays(*omega), share)
        turn = (share * omega[0].prod(0) * omega[1].prod(0)).sum() * difference
        exact_slopes[b_1, t_1, :, b_2, t_2] = turn * np.outer(sign, sign)
    for exact, estimates in (
        (exact_weights, np.stack([run.weights for run in runs])),
        (exact_slopes, np.stack([run.slopes for run in runs])),
    ):
        error = estimates.std(0, ddof=1) / math.sqrt(len(runs))
        assert (error < 0.01 * np.abs(exact).max()).all()
        assert (np.abs(estimates.mean(0) - exact) < 4.5 * error + 1e-9).all()


def test_what_is_certain_has_no_scatter() -> None:
    def sampled(query: Array, source: Array, causal: bool = False) -> SampledAttention:
        return sample_attention(query, source, 2.0, 2, causal=causal, draws=4, rng=np.random.default_rng(0))

    of_one = sampled(np.eye(2), np.eye(2))
    assert (of_one.weights == 1).all()
    assert not of_one.slopes.any()
    equal = sampled(correlations(4), np.ones((6, 6)))
    assert equal.slopes == pytest.approx(0, abs=1e-12)
    assert equal.weights == pytest.approx(1 / 9, rel=1e-12)
    causal = sampled(correlations(6), correlations(6), causal=True)
    assert (causal.weights[:, 0, 0, :, 0, 0] == 1).all()
    assert not causal.weights[:, 1, 2:].any()
    assert causal.contract_weights(np.ones((6, 6))) == pytest.approx(np.ones((6, 6)), rel=1e-12)
