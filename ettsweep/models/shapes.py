"""Name, group and shape of every parameter, without torch. Tests hold them against the torch models."""

import math
from dataclasses import dataclass

from ettsweep.scaling.factors import Dims
from ettsweep.scaling.groups import Group
from ettsweep.spec import ModelSpec


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


def parameter_shapes(model: ModelSpec) -> tuple[Parameter, ...]:
    """Return all parameters, in the order of the torch model's `named_parameters()`."""
    n, tokens = model.width, (model.image_size // model.patch_size) ** 2
    return (
        Parameter("patch", (Group.PATCH,), (n, dims(model).n_patch)),
        Parameter("pe", (Group.PE,), (tokens, n)),
        Parameter("head", (Group.HEAD,), (model.classes, n)),
        Parameter("head_bias", (Group.HEAD_BIAS,), (model.classes,)),
        *(p for i in range(model.depth) for p in _block(f"blocks.{i}", n, model.mlp_ratio)),
    )


def _block(prefix: str, n: int, mlp_ratio: int) -> tuple[Parameter, ...]:
    return (
        Parameter(f"{prefix}.attention.qkv", (Group.Q, Group.K, Group.V), (3 * n, n)),
        Parameter(f"{prefix}.attention.u", (Group.U,), (n, n)),
        Parameter(f"{prefix}.mlp.w", (Group.W,), (mlp_ratio * n, n)),
        Parameter(f"{prefix}.mlp.x", (Group.X,), (n, mlp_ratio * n)),
    )


def parameter_count(model: ModelSpec) -> int:
    """Return the number of trainable numbers in the model."""
    return sum(parameter.size for parameter in parameter_shapes(model))


def dims(model: ModelSpec) -> Dims:
    """Return the sizes that the scaling strategies depend on."""
    return Dims(
        width=model.width,
        n_patch=model.patch_size**2 * model.channels,
        n_out=model.classes,
        mlp_ratio=model.mlp_ratio,
    )
