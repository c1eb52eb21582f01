"""What can be measured of a network, by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ettsweep.strategies.factors import Group


class Layer(StrEnum):
    """What a layer is asked, where neither powers of the width nor noise but rounding are in the answer."""

    MEAN = "mean after LayerNorm"
    """Root mean square over tokens, relative to their channels'."""
    VARIANCE = "variance after LayerNorm"
    """Relative to v / (v + eps), where v is that of the token before it."""
    WEIGHT = "weight"
    """With which a branch, or what a block is given, is added to the block's output."""
    REST = "rest of a block"
    """What these do not make of its output, as a part of it."""
    LOGITS = "scale of logits"
    """Relative to q k / sqrt(C)."""
    ATTENTION = "rest of attention"
    """What softmax and mask do not make of attention, as a part of it."""
    ACTIVATION = "activation"
    """The rms difference of activations and the GELU of what they are made of, relative to the GELU."""
    LATER = "later token"
    """The change of the outputs before a token that is changed, relative to its own."""
    PADDING = "padding"
    """The change of the outputs by [pad] after the source, relative to them."""
    GRADIENT = "gradient"
    """Whether a gradient reaches a tensor: 1 or 0."""


EXACT = {
    Layer.MEAN: (0.0, 1e-4),
    Layer.VARIANCE: (1.0, 1e-4),
    Layer.WEIGHT: (1.0, 1e-4),
    Layer.REST: (0.0, 1e-4),
    Layer.LOGITS: (1.0, 1e-3),
    Layer.ATTENTION: (0.0, 1e-4),
    Layer.ACTIVATION: (0.0, 1e-6),
    Layer.LATER: (0.0, 1e-5),
    Layer.PADDING: (0.0, 1e-5),
    Layer.GRADIENT: (1.0, 0.0),
}
"""What each should be, and by how much it may differ; rounding makes a tenth of that at most.

Without its mean taken off, a token has 1/sqrt(n) or so left. GELU by tanh differs by 2e-4 where its arguments have the
variance 2/5 of image models, and by 3e-6 in text models of width 16.
"""

Changes = Sequence[Mapping[str, float]]
"""Of each step, the rms change of each stage since before training."""

PerTensor = Mapping[Group, tuple[float, ...]]
"""Of each group, a number for each of its tensors, in the model's order."""


@dataclass(frozen=True)
class Measurement:
    """What one network of some width showed.

    Attributes:
        width: n.
        seed: of its initial values.
        kernels: of each stage, the mean over tokens, and that over pairs of tokens of different samples.
        stds: of each group's tensors, the root mean square of its initial values.
        factors: of each group's tensors, what the optimizer multiplies its learning rate by.
        gradients: of each group's tensors, the sum over its numbers of (df_i/dtheta)^2; mean over outputs i and
            samples.
        changes: of its stages in training.
        function_changes: the rms change of the outputs that each group's steps make by themselves.
        layers: what is asked of layers, by place; empty if not measured.
        decay: of each group's tensors, the shrinkage in a step with zero gradients, divided by lr wd; empty if not
            measured.
        contact: mean logit of the token that the decoder reads, of language models.
    """

    width: int
    seed: int
    kernels: Mapping[str, tuple[float, float]]
    stds: PerTensor
    factors: PerTensor
    gradients: PerTensor
    changes: Changes
    function_changes: Mapping[Group, float]
    layers: Mapping[Layer, Mapping[str, float]]
    decay: PerTensor
    contact: float | None = None
