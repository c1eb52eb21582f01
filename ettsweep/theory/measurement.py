"""The quantities that `check-scaling` measures on one network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ettsweep.strategies.factors import Group


class LayerCheck(StrEnum):
    """A property of a layer, or of all of them, that holds at every width, exactly but for rounding.

    The values are row names in tables and check.json.
    """

    MEAN = "mean after LayerNorm"
    """Rms over tokens of the mean over channels, relative to the rms of the channels."""
    VARIANCE = "variance after LayerNorm"
    """Relative to v / (v + eps), where v is the token's variance before LayerNorm."""
    LAYER_NORM_EPS = "eps of LayerNorm"
    """Relative to the model's, where variances before LayerNorm are so small that eps counts."""
    WEIGHT = "weight"
    """Coefficient of a branch, or of the block's input, in the block's output."""
    BLOCK_REMAINDER = "rest of a block"
    """Rms of what input and branches leave unexplained of a block's output, relative to the output."""
    LOGITS = "scale of logits"
    """Relative to q k / sqrt(C)."""
    ATTENTION_REMAINDER = "rest of attention"
    """Rms of what masked softmax leaves unexplained of attention's output, relative to the output."""
    ACTIVATION = "activation"
    """Rms difference between activations and the GELU of their preactivations, relative to the GELU."""
    CAUSALITY = "later token"
    """Change of earlier outputs when the last token changes, relative to the change of the last output."""
    PADDING = "padding"
    """Change of the outputs when [pad] is appended to the source, relative to the outputs."""
    PAD_ROW = "[pad] row"
    """Rms of the initial word embedding of [pad], relative to that of the other tokens."""
    LOSS = "loss"
    """What the forward pass returns, relative to the cross-entropy of the logits without [pad]."""
    OPTIMIZER_EPS = "eps of the optimizer"
    """Relative to the one that the optimizer's spec states."""
    GRADIENT = "gradient"
    """Whether a gradient reaches a tensor: 1 or 0."""


EXACT_VALUES = {
    LayerCheck.MEAN: (0.0, 1e-4),
    LayerCheck.VARIANCE: (1.0, 1e-4),
    LayerCheck.LAYER_NORM_EPS: (1.0, 1e-4),
    LayerCheck.WEIGHT: (1.0, 1e-4),
    LayerCheck.BLOCK_REMAINDER: (0.0, 1e-4),
    LayerCheck.LOGITS: (1.0, 1e-3),
    LayerCheck.ATTENTION_REMAINDER: (0.0, 1e-4),
    LayerCheck.ACTIVATION: (0.0, 1e-6),
    LayerCheck.CAUSALITY: (0.0, 1e-5),
    LayerCheck.PADDING: (0.0, 1e-5),
    LayerCheck.PAD_ROW: (0.0, 0.0),
    LayerCheck.LOSS: (1.0, 1e-5),
    LayerCheck.OPTIMIZER_EPS: (1.0, 1e-4),
    LayerCheck.GRADIENT: (1.0, 0.0),
}
"""Exact value and tolerance of each property. Rounding uses up a tenth of the tolerance at most.

The smallest faults that must show: a norm that keeps the mean leaves about 1/sqrt(n); the tanh GELU differs by 2e-4 at
the variance 2/5 of image models' preactivations, and by 3e-6 in text models of width 16.
"""

Changes = Sequence[Mapping[str, float]]
"""For each training step, the rms change of each stage since initialisation."""

PerTensor = Mapping[Group, tuple[float, ...]]
"""For each group, one number per tensor, in the model's order."""


@dataclass(frozen=True)
class Measurement:
    """Everything measured on one network.

    Attributes:
        width: n.
        seed: seed of the initial values.
        kernels: for each stage, the kernel's mean over tokens, and over pairs of tokens from different samples.
        stds: rms of each tensor's initial values, without the [pad] row of a word embedding.
        mean_magnitudes: mean magnitude of the same values, relative to their rms.
        stated_stds: std of each group's initial values, as the strategy states it.
        factors: learning-rate factor that the optimizer applies to each tensor.
        gradients: for each tensor, the sum over its elements of (df_i/dtheta)^2, averaged over outputs i, tokens and
            samples.
        changes: rms change of each stage after each training step.
        function_changes: rms change of the outputs when only that group's trained values are used.
        layers: exact properties by location in the network; empty if not measured.
        decay: shrinkage of each tensor in a step with zero gradients, divided by lr wd; empty if not measured.
        contact: mean logit of the token that the decoder reads; None unless the head is tied.
    """

    width: int
    seed: int
    kernels: Mapping[str, tuple[float, float]]
    stds: PerTensor
    mean_magnitudes: PerTensor
    stated_stds: Mapping[Group, float]
    factors: PerTensor
    gradients: PerTensor
    changes: Changes
    function_changes: Mapping[Group, float]
    layers: Mapping[LayerCheck, Mapping[str, float]]
    decay: PerTensor
    contact: float | None = None
