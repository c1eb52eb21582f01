"""Expectations of softmax attention at initialisation, sampled from the Gaussian distribution of its logits.

Shapes: B samples, T query tokens, S key tokens; P = B T and R = B S positions, the token running fastest. D draws, X
and Y ranks of the two kernels' square roots.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

DRAWS_PER_CHUNK = 32
"""Draws per matrix product, few enough for the operands to fit into the cache."""


@dataclass(frozen=True)
class SampledAttention:
    """Second moments of the attention weights Omega of one head and of their derivative; heads are i.i.d.

    Attributes:
        weights: E[Omega_{t1 s1} Omega_{t2 s2}], (B, T, S, B, T, S).
        slopes: E[(dOmega / dlogits) F (dOmega / dlogits)^T], where F is the kernel of the key tokens, summed over; by
            logits (t1, s1) and (t2, s2), the same shape.
    """

    weights: Array
    slopes: Array

    def contract_weights(self, kernel_RR: Array) -> Array:
        """Return the sum over s1, s2 of E[Omega_{t1 s1} Omega_{t2 s2}] K_{s1 s2}, (P, P)."""
        return _contract(self.weights, kernel_RR)

    def contract_slopes(self, kernel_RR: Array) -> Array:
        """Return the sum over s1, s2 of slopes times K_{s1 s2}, (P, P): the effect of a change of the logits."""
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
    """Estimate the moments of attention by Monte Carlo; logits are Gaussian at leading order in 1/C.

    Logits have mean 0 and covariance variance * F_{t1 t2} F_{s1 s2} (eq:second-dot and the paper's appendix). They are
    drawn as L_query Z L_source^T, where Z is a matrix of standard normals and L L^T = F.

    Args:
        query_PP: normalised kernel F of the tokens that make queries.
        source_RR: normalised kernel F of the tokens that make keys and values.
        variance: C_Q C_K.
        samples: B.
        causal: whether tokens attend only to themselves and earlier ones.
        draws: D, number of Monte Carlo samples.
        rng: random generator.
    """
    query_BTX, source_BSY = (_root(kernel, samples) for kernel in (query_PP, source_RR))
    (B, T, X), (_, S, Y) = query_BTX.shape, source_BSY.shape
    # Offset 1 keeps the diagonal out of the mask: a token attends to itself as well.
    masked_TS = np.triu(np.ones((T, S), bool), 1) if causal else np.zeros((T, S), bool)
    size = B * T * S
    weights, slopes = np.zeros((size, size)), np.zeros((size, size))
    for start in range(0, draws, DRAWS_PER_CHUNK):
        D = min(DRAWS_PER_CHUNK, draws - start)
        normal_DXY = rng.standard_normal((D, X, Y))
        logits_DBTS = query_BTX @ (math.sqrt(variance) * normal_DXY)[:, None] @ source_BSY.transpose(0, 2, 1)
        # The same Z for all samples: they share the weights of queries and keys, so their logits are correlated.
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
    """Return L with L L^T = kernel, (B, tokens, rank).

    By eigenvalues, since equal tokens make the kernel singular and Cholesky fail.
    """
    values, vectors = np.linalg.eigh(kernel)
    # Rounding leaves zeros slightly off, also below 0, where sqrt is nan; eigh sorts in ascending order.
    is_positive = values > 1e-12 * values[-1]
    root: Array = vectors[:, is_positive] * np.sqrt(values[is_positive])
    return root.reshape(samples, -1, root.shape[1])


def _softmax(logits: Array) -> Array:
    # Subtracting the maximum avoids overflow.
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    result: Array = powers / powers.sum(-1, keepdims=True)
    return result


def _contract(moments: Array, kernel_RR: Array) -> Array:
    B, T, S = moments.shape[:3]
    kernel_BSBS = kernel_RR.reshape(B, S, B, S)
    result: Array = np.einsum("atsbuj,asbj->atbu", moments, kernel_BSBS, optimize=True)
    return result.reshape(B * T, B * T)
