"""The Gaussian of attention's logits: expectations by sampling it, and the logits of real networks.

B samples, T querying tokens, S tokens that are read from, n width, H heads, C = n / H channels per head.
"""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from support.deviations import Array, Means, without
from support.ensembles import Inputs, Recorder, array, drawn, forward, kernel
from torch import Tensor
from torch.func import functional_call, jacrev, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from ettsweep.theory.attention import sample_attention
from ettsweep.trainer.models.blocks import Attention
from ettsweep.trainer.models.encdec_spec import EncDecSpec
from ettsweep.trainer.models.vit_spec import VitSpec
from ettsweep.trainer.specs import ModelSpec


def correlations(positions: int, seed: int = 0) -> Array:
    """Return a normalised kernel F of so many positions, of which all are correlated."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((positions, 6)) + 0.7 * rng.standard_normal(6)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    product: Array = x @ x.T
    return product


def repeated(query: Array, source: Array, variance: float, *, causal: bool) -> tuple[Array, Array]:
    """Return the weights and the slopes of two samples, (64, X) each: 64 independent estimates."""
    runs = [
        sample_attention(query, source, variance, 2, causal=causal, draws=512, rng=np.random.default_rng(seed))
        for seed in range(64)
    ]
    return np.stack([run.weights.ravel() for run in runs]), np.stack([run.slopes.ravel() for run in runs])


def assert_no_mean(values_NX: Array, error_X: Array | float = 0.0) -> None:
    """Assert that what N independent networks or runs show is zero on average, within the errors of their scatter.

    Args:
        values_NX: that should have no mean.
        error_X: of what has been subtracted from them.
    """
    error = np.hypot(values_NX.std(0, ddof=1) / math.sqrt(len(values_NX)), error_X)
    z = values_NX.mean(0)[error > 1e-9] / error[error > 1e-9]
    assert np.abs(z).max() < 4.5
    assert math.sqrt((z**2).mean()) < 2  # they are correlated: few are independent
    assert np.abs(values_NX.mean(0)[error <= 1e-9]).max(initial=0) < 1e-6


def test_attention_to_two_tokens_is_as_quadrature_has_it() -> None:
    """Of two tokens, attention is the logistic function of one Gaussian, the difference of their logits."""
    variance, query, source = 3.0, correlations(4), correlations(4, seed=1)
    weights, slopes = repeated(query, source, variance, causal=False)
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
    for runs, exact in ((weights, exact_weights.ravel()), (slopes, exact_slopes.ravel())):
        assert_no_mean(runs - exact)
        assert (runs.std(0) / 8 < 0.01 * np.abs(exact).max()).all()


@pytest.mark.usefixtures("statistics")
@pytest.mark.parametrize("causal", [False, True])
def test_attention_to_more_tokens_is_as_with_queries_and_keys_of_many_channels(causal: bool) -> None:
    T, C, heads, variance = 3, 256, 4000, 2.0
    query, source = correlations(2 * T), correlations(2 * T, seed=1)
    generator = torch.Generator().manual_seed(0)

    def channels(correlation: Array) -> Tensor:
        root = torch.tensor(np.linalg.cholesky(correlation + 1e-12 * np.eye(2 * T)), dtype=torch.float32)
        drawn = root @ torch.randn(heads, 2 * T, C, generator=generator)
        return drawn.reshape(heads, 2, T, C)

    logits = math.sqrt(variance / C) * channels(query) @ channels(source).mT
    if causal:
        logits = logits.masked_fill(torch.ones(T, T).triu(1).bool(), -math.inf)
    omega = torch.softmax(logits, -1).flatten(1)
    jacobian = vmap(jacrev(lambda x: torch.softmax(x, -1)))(logits.reshape(-1, T)).reshape(heads, 2, T, T, T)
    source_BSBS = torch.tensor(source, dtype=torch.float32).reshape(2, T, 2, T)
    slope = torch.einsum("natsj,asbu,nbvuk->natjbvk", jacobian, source_BSBS, jacobian).flatten(1)
    weights, slopes = repeated(query, source, variance, causal=causal)
    for runs, products in ((weights, omega[:, :, None] * omega[:, None]), (slopes, slope)):
        measured = array(products.flatten(1))
        assert_no_mean(runs - measured.mean(0), measured.std(0) / math.sqrt(heads))


def test_what_is_certain_has_no_scatter() -> None:
    sample_attention_result = sample_attention(
        np.eye(2), np.eye(2), 2.0, 2, causal=False, draws=4, rng=np.random.default_rng(0)
    )
    assert (sample_attention_result.weights == 1).all()
    assert not sample_attention_result.slopes.any()

    equal = sample_attention(
        correlations(4), np.ones((6, 6)), 2.0, 2, causal=False, draws=4, rng=np.random.default_rng(0)
    )
    assert equal.contract_weights(np.ones((6, 6))) == pytest.approx(np.ones((4, 4)), rel=1e-12)
    assert equal.slopes == pytest.approx(0, abs=1e-12)
    assert equal.weights == pytest.approx(1 / 9, rel=1e-12)

    causal = sample_attention(
        correlations(6), correlations(6), 2.0, 2, causal=True, draws=4, rng=np.random.default_rng(0)
    )
    assert (causal.weights[:, 0, 0, :, 0, 0] == 1).all()
    assert not causal.weights[:, 0, 1:].any()
    assert not causal.weights[:, 1, 2:].any()
    assert causal.contract_weights(np.ones((6, 6))) == pytest.approx(np.ones((6, 6)), rel=1e-12)


@pytest.mark.usefixtures("statistics")
def test_attention_tends_to_that_of_gaussian_logits_like_one_over_the_channels() -> None:
    """Of the package's module, on tokens whose kernel is exact; their logits are wide, so that their shape counts."""
    T, heads, variance, result = 4, 4, 4.0, Means()
    correlation = correlations(T)
    limit = sample_attention(
        correlation, correlation, variance, 1, causal=False, draws=2**16, rng=np.random.default_rng(0)
    )
    squares_TS = np.einsum("tsts->ts", limit.weights[0, :, :, 0])
    for channels, count in {4: 3000, 8: 3000, 16: 3000, 32: 2000}.items():
        width = channels * heads
        generator = torch.Generator().manual_seed(channels)
        basis, _ = torch.linalg.qr(torch.randn(width, T, generator=generator))
        tokens = math.sqrt(width) * torch.tensor(np.linalg.cholesky(correlation), dtype=torch.float32) @ basis.T
        qkv = torch.randn(count, 3 * width, width, generator=generator) * variance**0.25 / math.sqrt(width)
        omega, weights = attended(Attention(width, heads), qkv, tokens[None])
        excess = (weights**2 / squares_TS).mean((-1, -2)).reshape(-1, 1) - 1
        covariance = variance * np.einsum("tu,sv->tsuv", correlation, correlation).reshape(T**2, T**2)
        flat = omega.reshape(-1, T**2)
        products = (flat[:, :, None] * flat[:, None] - covariance)[:, *np.triu_indices(T**2)]
        result.add(channels, without(excess, products))
    power, error = result.power()
    assert abs(power + 1) < 3 * error < 0.25, (power, error)


def attended(module: Attention, qkv: Tensor, tokens: Tensor) -> tuple[Array, Array]:
    """Return the logits and the weights of a module with so many initial values, (N, B, H, T, T)."""

    def one(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with Recorder() as recorder:
            functional_call(module, {"qkv": values}, (tokens,))
        return recorder.queries[0], recorder.keys[0], recorder.weights[0]

    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        queries, keys, weights = vmap(one, chunk_size=100)(qkv)
    return array(queries @ keys.mT) / math.sqrt(queries.shape[-1]), array(weights)


# --- logits of real networks ------------------------------------------------------------------------------


PIXEL = 32
"""Numbers of a patch, which is one pixel."""


def vit(width: int, tokens: int) -> VitSpec:
    sizes = {"patch_size": 1, "image_size": math.isqrt(tokens), "channels": PIXEL, "classes": 2}
    return VitSpec(width=width, depth=1, heads=4, **sizes)


def encdec(width: int) -> EncDecSpec:
    sizes = {"depth": 1, "heads": 4, "vocabulary": 60, "tokens": 16}
    return EncDecSpec(width=width, dropout=0.0, attention_dropout=0.0, **sizes)


def noise(tokens: int) -> tuple[Tensor]:
    side = math.isqrt(tokens)
    return (torch.randn(2, PIXEL, side, side, generator=torch.Generator().manual_seed(0)),)


@dataclass(frozen=True)
class Logits:
    """Logits of one attention in many networks, and what they are made of.

    Attributes:
        omega: in units of the square root of C_Q C_K, (N, B, H, T, S).
        query, source: normalised tokens that queries and keys are made of, (N, B, T, n) and (N, B, S, n).
    """

    omega: Array
    query: Tensor
    source: Tensor

    def covariance(self) -> Array:
        """Return what it is over Q and K, for each network's own tokens, (N, B, T, S, B, T, S); eq:second-dot."""
        (N, B, T, _), S = self.query.shape, self.source.shape[2]
        query, source = kernel(self.query).reshape(N, B, T, B, T), kernel(self.source).reshape(N, B, S, B, S)
        return np.einsum("natbu,nasbv->natsbuv", query, source)

    def unit(self) -> Array:
        """Return the logits in units of their own standard deviations."""
        query, source = ((array(tokens) ** 2).mean(-1) for tokens in (self.query, self.source))
        return self.omega / np.sqrt(query[:, :, None, :, None] * source[:, :, None, None])


# Which attention, in the order of their calls, and the stages whose streams, normalised, it reads.
ATTENTIONS = {
    "vision": (0, "stem", "stem"),
    "encoder": (0, "encoder.stem", "encoder.stem"),
    "decoder": (1, "decoder.stem", "decoder.stem"),
    "cross": (2, "decoder.0.attention", "encoder.0.mlp"),
}


def logits(spec: ModelSpec, inputs: Inputs, count: int, choice: str) -> Logits:
    """Return the logits of so many new networks."""
    index, query, source = ATTENTIONS[choice]
    forward_result = forward(drawn(spec, 0.0, count, first_seed=1000 * spec.width), inputs)
    q, k = forward_result.queries[index], forward_result.keys[index]
    omega = q @ k.mT / math.sqrt(q.shape[-1])
    hidden = torch.ones(omega.shape[-2:]).triu(1).bool() if choice == "decoder" else torch.tensor(False)
    torch.testing.assert_close(forward_result.weights[index], torch.softmax(omega.masked_fill(hidden, -math.inf), -1))
    deviation = 0.5 if choice == "vision" else 0.02**2 * spec.width
    return Logits(array(omega) / deviation, forward_result.normalised[query], forward_result.normalised[source])


@pytest.mark.usefixtures("statistics")
@pytest.mark.parametrize("choice", ATTENTIONS)
def test_logits_have_the_covariance_of_two_kernels_and_heads_are_independent(choice: str) -> None:
    if choice == "vision":
        logits_result = logits(vit(32, tokens=4), noise(4), 1500, choice)
    else:
        values = torch.tensor([[5, 6, 5, 7], [6, 8, 9, 9]]), torch.tensor([[7, 6, 7], [9, 5, 10]])
        logits_result = logits(encdec(32), values, 1200, choice)
    N, B, H, T, S = logits_result.omega.shape
    flat_NHX = logits_result.omega.transpose(0, 2, 1, 3, 4).reshape(N, H, -1)
    covariance_NXX = logits_result.covariance().reshape(N, B * T * S, -1)
    upper = np.triu_indices(B * T * S)
    assert_no_mean(flat_NHX.mean(1))
    of_one_head = np.einsum("nhx,nhy->nxy", flat_NHX, flat_NHX) / H
    assert_no_mean((of_one_head - covariance_NXX)[:, *upper])
    # As one number: the share of the covariance that is there.
    share = (of_one_head * covariance_NXX).sum((1, 2)) / (covariance_NXX**2).sum((1, 2))
    error = share.std() / math.sqrt(N)
    assert abs(share.mean() - 1) < 3 * error < 0.04

    subset, others = flat_NHX[:, :2], flat_NHX[:, 2:]
    assert_no_mean((subset[:, :, :, None] * others[:, :, None]).mean(1)[:, *upper])
    squares_NHX = flat_NHX**2 - np.einsum("nxx->nx", covariance_NXX)[:, None]
    assert_no_mean((squares_NHX[:, :2] * squares_NHX[:, 2:]).mean(1))


@pytest.mark.usefixtures("statistics")
def test_excess_kurtosis_of_normal_weights_is_6_over_the_channels() -> None:
    """And the squares of two logits of one query, with keys of correlation rho, have 2 (1 + 2 rho^2) / C in common."""
    values = (
        4 + torch.randperm(52, generator=torch.Generator().manual_seed(0))[:32].reshape(2, 16),
        torch.tensor([[4], [5]]),
    )
    fourth, shared = Means(), Means()
    for width in (16, 32, 64, 128):
        logits_result = logits(encdec(width), values, 400, "encoder")
        unit = logits_result.unit()
        fourth.add(width // 4, (unit**4).mean((1, 2, 3, 4))[:, None] - 3)
        correlation = np.einsum("nasau->nasu", kernel(logits_result.source).reshape(400, 2, 16, 2, 16))
        size = np.sqrt(np.einsum("nass->nas", correlation))
        expected = 1 + 2 * (correlation / (size[..., None] * size[..., None, :])) ** 2
        squares = np.einsum("nahts,nahtu->nasu", unit**2, unit**2) / (4 * 16)
        off = ~np.eye(16, dtype=bool)
        shared.add(width // 4, ((squares / expected)[..., off]).mean((1, 2))[:, None] - 1)
    for result, at_one_channel in ((fourth, 6), (shared, 2)):
        for channels, mean, error in zip(result.width, result.mean, result.error, strict=True):
            assert abs(mean[0] - at_one_channel / channels) < 3.5 * error[0], channels
        power, error = result.power()
        assert abs(power + 1) < 3 * error < 0.2, (power, error)


@pytest.mark.usefixtures("statistics")
def test_excess_kurtosis_of_uniform_weights_is_smaller_by_one_over_n() -> None:
    """A sum of s_i times uniform weights has a kurtosis of 3 - (6/5) sum s_i^4 / (sum s_i^2)^2."""
    excess = Means()
    for width in (16, 32, 64, 128):
        logits_result = logits(vit(width, tokens=16), noise(16), 400, "vision")
        query = array(logits_result.query)
        kurtosis = 3 - 1.2 * (query**4).sum(-1) / (query**2).sum(-1) ** 2
        expected = (np.einsum("nat,nas->nats", kurtosis, kurtosis) - 3) * 4 / width
        measured = (logits_result.unit() ** 4).mean(2) - 3
        mean_result = np.stack((measured, measured - expected, expected), 1).mean((-1, -2, -3))
        excess.add(width // 4, mean_result)
    for channels, mean, error in zip(excess.width, excess.mean, excess.error, strict=True):
        assert abs(mean[1]) < 3.5 * error[1], channels
    assert excess.mean[0][0] < 6 / 4 - 3 * excess.error[0][0]  # of normal weights
    power, error = excess.power()
    assert abs(power + 1) < 3 * error < 0.3, (power, error)
