"""Parameters and cost of a Transformer block, without importing torch.

Symbols: T tokens, D width, M mlp_ratio.
"""

import math
from dataclasses import dataclass

from ettsweep.strategies.factors import Group
from ettsweep.trainer.specs import ModelSpec


@dataclass(frozen=True)
class Parameter:
    """A parameter tensor; if it fuses several groups (qkv), they have equal slices of its first dimension.

    A group's slice may fuse `matrices` of the network in turn, as that of SwiGLU's w does with the gate.
    """

    name: str
    groups: tuple[Group, ...]
    shape: tuple[int, ...]
    matrices: int = 1

    @property
    def group_shape(self) -> tuple[int, ...]:
        """Shape of each group's slice."""
        return (self.shape[0] // len(self.groups), *self.shape[1:])

    @property
    def matrix_shape(self) -> tuple[int, ...]:
        """Shape of each matrix."""
        return (self.group_shape[0] // self.matrices, *self.shape[1:])

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def block_parameters(prefix: str, model: ModelSpec, *, cross: bool = False) -> tuple[Parameter, ...]:
    """Return the parameters of a block, with cross-attention if `cross`."""
    n = model.width
    crossing = (
        Parameter(f"{prefix}.cross.q", (Group.Q,), (n, n)),
        Parameter(f"{prefix}.cross.kv", (Group.K, Group.V), (2 * n, n)),
        Parameter(f"{prefix}.cross.u", (Group.U,), (n, n)),
    )
    return (
        *attention_parameters(f"{prefix}.attention", model),
        *(crossing if cross else ()),
        *mlp_parameters(f"{prefix}.mlp", model),
    )


def attention_parameters(prefix: str, model: ModelSpec) -> tuple[Parameter, ...]:
    """Return the parameters of self-attention."""
    n = model.width
    return (
        Parameter(f"{prefix}.qkv", (Group.Q, Group.K, Group.V), (3 * n, n)),
        Parameter(f"{prefix}.u", (Group.U,), (n, n)),
    )


def mlp_parameters(prefix: str, model: ModelSpec, *, gated: bool = False) -> tuple[Parameter, ...]:
    """Return the parameters of an MLP; `gated` for those of SwiGLU, whose gate is part of the input layer."""
    n, hidden = model.width, model.mlp_ratio * model.width
    inputs = 2 if gated else 1
    return (
        Parameter(f"{prefix}.w", (Group.W,), (inputs * hidden, n), inputs),
        Parameter(f"{prefix}.x", (Group.X,), (n, hidden)),
    )


def attention_flops(model: ModelSpec, tokens: int) -> int:
    """Return the FLOPs of attention: 6 T D^2 (q, k, v) + 2 T^2 D (logits) + 2 T^2 D (values) + 2 T D^2 (u)."""
    return (6 + 2) * tokens * model.width**2 + (2 + 2) * tokens**2 * model.width


def mlp_flops(model: ModelSpec, tokens: int) -> int:
    """Return the FLOPs of an MLP: 2 M T D^2 for each of its two layers."""
    return 4 * model.mlp_ratio * tokens * model.width**2


ATTENTION_VECTORS = 6
"""Activations that attention keeps for its backward pass, in vectors of D numbers per token: input and output of its
LayerNorm, q, k, v, and the heads' output."""


def mlp_vectors(model: ModelSpec) -> int:
    """Return the vectors per token that an MLP keeps: input and output of LayerNorm, and of GELU (M vectors each)."""
    return 2 + 2 * model.mlp_ratio
