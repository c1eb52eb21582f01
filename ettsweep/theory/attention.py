"""Expectations of softmax attention at initialisation, by sampling the Gaussian of its logits.

B samples, T querying tokens, S tokens that are read from; P = B T and R = B S positions, the token running fastest.
D draws, X and Y numbers that stand for the tokens' channels.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

CHUNK = 32
"""Draws at a time, so that what is summed over them fits into a cache."""


@dataclass(frozen=True)
class SampledAttention:
    """Second moments of one head's attention Omega, and of its derivative; all heads are alike, and independent.

    Attributes:
        weights: E[Omega_{t1 s1} Omega_{t2 s2}], (B, T, S, B, T, S).
        slopes: E[(dOmega / dlogits) F (dOmega / dlogits)^T], summed over the tokens whose values are read, where F is
            the kernel of those; by the logits (t1, s1) and (t2, s2), of the same shape.
    """

    weights: Array
    slopes: Array

    def read(self, kernel_RR: Array) -> Array:
        """Return the sum over s1, s2 of E[Omega_{t1 s1} Omega_{t2 s2}] K_{s1 s2}, (P, P)."""
        return _contract(self.weights, kernel_RR)

    def turn(self, kernel_RR: Array) -> Array:
        """Return the sum over s1, s2 of the slopes times K_{s1 s2}, (P, P): what a change of logits (t, s) makes."""
        return _contract(self.slopes, kernel_RR)


def sample_attention(
    query_PP: Array,
    source_RR: Array,
    variance: float,
    samples: int,
    *,
    causal: bool,
    draws: int,
    rng: np.random.Generator,
) -> SampledAttention:
    """Return the moments of attention, whose logits are Gaussian at leading order in 1/C.

    Logits have mean 0 and covariance variance * F_{t1 t2} F_{s1 s2} (eq:second-dot and the paper's appendix), which is
    that of a Gaussian matrix between square roots of both kernels.

    Args:
        query_PP: normalised kernel F of the tokens that queries are made of.
        source_RR: that of the tokens that keys and values are made of.
        variance: C_Q C_K.
        samples: B.
        causal: whether a token reads from itself and those before it alone.
        draws: D.
        rng: what draws.
    """
    query_BTX, source_BSY = (_root(kernel, samples) for kernel in (query_PP, source_RR))
    (B, T, X), (_, S, Y) = query_BTX.shape, source_BSY.shape
    masked_TS = np.triu(np.ones((T, S), bool), 1) if causal else np.zeros((T, S), bool)
    size = B * T * S
    weights, slopes = np.zeros((size, size)), np.zeros((size, size))
    for start in range(0, draws, CHUNK):
        D = min(CHUNK, draws - start)
        normal_DXY = rng.standard_normal((D, X, Y))
        logits_DBTS = query_BTX @ (math.sqrt(variance) * normal_DXY)[:, None] @ source_BSY.transpose(0, 2, 1)
        omega_DBTS = _softmax(np.where(masked_TS, -np.inf, logits_DBTS))
        flat = omega_DBTS.reshape(D, size)
        weights += flat.T @ flat
        # dOmega_{t s} / dlogits_{t j} = Omega_{t s} (delta_{s j} - Omega_{t j}), and F = root root^T.
        centred_DBTSY = source_BSY[:, None] - (omega_DBTS @ source_BSY)[:, :, :, None]
        slope = (omega_DBTS[..., None] * centred_DBTSY).reshape(D, size, Y).transpose(0, 2, 1).reshape(D * Y, size)
        slopes += slope.T @ slope
    shape = (B, T, S, B, T, S)
    return SampledAttention(weights.reshape(shape) / draws, slopes.reshape(shape) / draws)


def _root(kernel: Array, samples: int) -> Array:
    """Return L with L L^T = kernel, (B, tokens, rank); kernels of equal tokens have no Cholesky factor."""
    values, vectors = np.linalg.eigh(kernel)
    is_positive = values > 1e-12 * values[-1]
    root: Array = vectors[:, is_positive] * np.sqrt(values[is_positive])
    return root.reshape(samples, -1, root.shape[1])


def _softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    result: Array = powers / powers.sum(-1, keepdims=True)
    return result


def _contract(moments: Array, kernel_RR: Array) -> Array:
    B, T, S = moments.shape[:3]
    kernel_BSBS = kernel_RR.reshape(B, S, B, S)
    result: Array = np.einsum("atsbuj,asbj->atbu", moments, kernel_BSBS, optimize=True)
    return result.reshape(B * T, B * T)
