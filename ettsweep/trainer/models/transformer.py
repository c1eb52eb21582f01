"""What all Transformers share, without torch: parameters, products and activations of a block.

T tokens, D width, M mlp_ratio.
"""

import math
from dataclasses import dataclass

from ettsweep.runs.spec import ModelSpec
from ettsweep.strategies.factors import Group


@dataclass(frozen=True)
class Parameter:
    """One tensor of a model; several groups are stacked in equal parts along its first dimension."""

    name: str
    groups: tuple[Group, ...]
    shape: tuple[int, ...]

    @property
    def part_shape(self) -> tuple[int, ...]:
        """Shape of each group's part."""
        return (self.shape[0] // len(self.groups), *self.shape[1:])

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def block_parameters(prefix: str, model: ModelSpec, *, cross: bool = False) -> tuple[Parameter, ...]:
    """Return the parameters of a block, in which a decoder's attends to the source as well."""
    n, m = model.width, model.mlp_ratio
    crossing = (
        Parameter(f"{prefix}.cross.q", (Group.Q,), (n, n)),
        Parameter(f"{prefix}.cross.kv", (Group.K, Group.V), (2 * n, n)),
        Parameter(f"{prefix}.cross.u", (Group.U,), (n, n)),
    )
    return (
        Parameter(f"{prefix}.attention.qkv", (Group.Q, Group.K, Group.V), (3 * n, n)),
        Parameter(f"{prefix}.attention.u", (Group.U,), (n, n)),
        *(crossing if cross else ()),
        Parameter(f"{prefix}.mlp.w", (Group.W,), (m * n, n)),
        Parameter(f"{prefix}.mlp.x", (Group.X,), (n, m * n)),
    )


def attention_flops(model: ModelSpec, tokens: int) -> int:
    """Return 6 T D^2 (q, k, v) + 2 T^2 D (scores) + 2 T^2 D (values) + 2 T D^2 (u)."""
    return (6 + 2) * tokens * model.width**2 + (2 + 2) * tokens**2 * model.width


def mlp_flops(model: ModelSpec, tokens: int) -> int:
    """Return 4 M T D^2."""
    return 4 * model.mlp_ratio * tokens * model.width**2


ATTENTION_VECTORS = 6
"""What attention keeps for its gradient, in vectors of D numbers for each token: input and output of its normalisation,
q, k, v and what it gives."""


def mlp_vectors(model: ModelSpec) -> int:
    """Return what an MLP keeps: input and output of its normalisation, and those of the GELU, M vectors each."""
    return 2 + 2 * model.mlp_ratio
