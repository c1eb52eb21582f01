"""Recursion for the residual stream at initialisation, block by block: its kernel, and its tangent kernel by group.

Shapes: a kernel is an array over pairs of positions, (P, P). A position is a token of a sample: P = B T, tokens run
fastest.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ettsweep.strategies.factors import Group
from ettsweep.theory.attention import sample_attention
from ettsweep.theory.gaussian import GELU, pair_expectations

Array = NDArray[np.float64]

ATTENTION = (Group.Q, Group.K, Group.V, Group.U)
BRANCHES = {"attention": ATTENTION, "cross": ATTENTION, "mlp": (Group.W, Group.X)}
"""Parameter groups of each residual branch, by the last component of its stage's name."""


@dataclass(frozen=True)
class ResidualStream:
    """The residual stream's kernel, and the contribution of each group to its tangent kernel, (P, P) each."""

    kernel: Array
    tangent: Mapping[Group, Array]

    def normalised(self, eps: float) -> "ResidualStream":
        """Apply LayerNorm: F from G (eq:LN-kernel); gradients get the same scale (eq:LN-mnemonic)."""
        scale_P = 1 / np.sqrt(np.diag(self.kernel) + eps)
        scale_PP = np.outer(scale_P, scale_P)
        return ResidualStream(
            scale_PP * self.kernel, {group: scale_PP * kernel for group, kernel in self.tangent.items()}
        )

    def pooled(self, samples: int) -> "ResidualStream":
        """Average over the tokens of each sample, to (B, B); eq:mean-pool."""
        return ResidualStream(
            _pool(self.kernel, samples), {g: _pool(kernel, samples) for g, kernel in self.tangent.items()}
        )

    def add_branch(self, kernel: Array, *tangents: Mapping[Group, Array]) -> "ResidualStream":
        """Add a residual branch's kernel and tangent kernels; on average, skip and branch have no cross terms."""
        total = dict(self.tangent)
        for tangent in tangents:
            for group, added in tangent.items():
                total[group] = total.get(group, 0.0) + added
        return ResidualStream(self.kernel + kernel, total)


@dataclass(frozen=True)
class Recursion:
    """The maps of residual blocks on a stream.

    Attributes:
        variances: C_G by group.
        ln_eps: eps of LayerNorms.
        samples: B.
        draws: samples of each attention's logits.
        rng: generator of these samples.
    """

    variances: Mapping[Group, float]
    ln_eps: float
    samples: int
    # Both are set for each pass (`kernels._average_passes`).
    draws: int = 0
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    def run_blocks(
        self, stream: ResidualStream, name: str, depth: int, *, causal: bool, source: ResidualStream | None = None
    ) -> Iterator[tuple[str, ResidualStream]]:
        """Yield (stage name, stream) after each branch of `depth` blocks; with a source, they have cross-attention.

        `causal` tells whether tokens attend only to themselves and earlier ones of their own text.
        """
        for block in range(depth):
            stream = self._attend(stream, causal=causal)
            yield f"{name}.{block}.attention", stream
            if source is not None:
                stream = self._attend(stream, source)
                yield f"{name}.{block}.cross", stream
            stream = self._mlp(stream)
            yield f"{name}.{block}.mlp", stream

    def _attend(
        self, stream: ResidualStream, source: ResidualStream | None = None, *, causal: bool = False
    ) -> ResidualStream:
        """Add attention on `source`, or on the stream itself.

        eq:MHSA-stats-101, eq:Uback .. eq:Qback, eq:promised-MHSA-1 and -2.
        """
        c, query = self.variances, stream.normalised(self.ln_eps)
        source_stream = source or query
        variance = c[Group.Q] * c[Group.K]
        attention = sample_attention(
            query.kernel, source_stream.kernel, variance, self.samples, causal=causal, draws=self.draws, rng=self.rng
        )
        values, slopes = (
            attention.contract_weights(source_stream.kernel),
            attention.contract_slopes(source_stream.kernel),
        )
        weighted_slopes = query.kernel * slopes
        outer = c[Group.U] * c[Group.V]
        inner = outer * c[Group.Q] * c[Group.K]
        # Gradients by the branch's own weights: the kernel of the branch without that weight's variance.
        added = {
            Group.U: c[Group.V] * values,
            Group.V: c[Group.U] * values,
            Group.K: outer * c[Group.Q] * weighted_slopes,
            Group.Q: outer * c[Group.K] * weighted_slopes,
        }
        # Gradients by earlier weights pass through the branch: by queries, and by keys and values of the source.
        through_queries = {group: inner * slopes * tangent for group, tangent in query.tangent.items()}
        through_source = {
            group: outer * attention.contract_weights(tangent)
            + inner * query.kernel * attention.contract_slopes(tangent)
            for group, tangent in source_stream.tangent.items()
        }
        return stream.add_branch(outer * values, added, through_queries, through_source)

    def _mlp(self, stream: ResidualStream) -> ResidualStream:
        """Add an MLP: eq:GP, eq:promised-MLP."""
        c, hidden = self.variances, stream.normalised(self.ln_eps)
        preactivations = c[Group.W] * hidden.kernel
        activations = pair_expectations(GELU.sigma, preactivations)
        slopes = c[Group.X] * pair_expectations(GELU.derivative, preactivations)
        added = {Group.X: activations, Group.W: slopes * hidden.kernel}
        through_mlp = {group: c[Group.W] * slopes * tangent for group, tangent in hidden.tangent.items()}
        return stream.add_branch(c[Group.X] * activations, added, through_mlp)


def _pool(kernel_PP: Array, samples: int) -> Array:
    tokens = len(kernel_PP) // samples
    pooled: Array = kernel_PP.reshape(samples, tokens, samples, tokens).mean((1, 3))
    return pooled
