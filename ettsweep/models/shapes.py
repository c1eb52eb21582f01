"""Name, group and shape of every parameter, without torch. Tests hold them against the torch models."""

import math
from dataclasses import dataclass

from ettsweep.scaling.factors import Dims, Group
from ettsweep.spec import EncDecSpec, ModelSpec, VitSpec


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
    if isinstance(model, EncDecSpec):
        return _encdec(model)
    n, tokens = model.width, (model.image_size // model.patch_size) ** 2
    return (
        Parameter("patch", (Group.PATCH,), (n, n_patch(model))),
        Parameter("pe", (Group.PE,), (tokens, n)),
        Parameter("head", (Group.HEAD,), (model.classes, n)),
        Parameter("head_bias", (Group.HEAD_BIAS,), (model.classes,)),
        *(p for i in range(model.depth) for p in _block(f"blocks.{i}", n, model.mlp_ratio)),
    )


def _encdec(model: EncDecSpec) -> tuple[Parameter, ...]:
    n, depth = model.width, model.depth
    return (
        Parameter("we", (Group.WE,), (model.vocabulary, n)),
        Parameter("encoder_pe", (Group.PE,), (model.tokens, n)),
        Parameter("decoder_pe", (Group.PE,), (model.tokens, n)),
        *(p for i in range(depth) for p in _block(f"encoder.{i}", n, model.mlp_ratio)),
        *(p for i in range(depth) for p in _block(f"decoder.{i}", n, model.mlp_ratio, cross=True)),
    )


def _block(prefix: str, n: int, mlp_ratio: int, *, cross: bool = False) -> tuple[Parameter, ...]:
    crossing = (
        Parameter(f"{prefix}.cross.q", (Group.Q,), (n, n)),
        Parameter(f"{prefix}.cross.kv", (Group.K, Group.V), (2 * n, n)),
        Parameter(f"{prefix}.cross.u", (Group.U,), (n, n)),
    )
    return (
        Parameter(f"{prefix}.attention.qkv", (Group.Q, Group.K, Group.V), (3 * n, n)),
        Parameter(f"{prefix}.attention.u", (Group.U,), (n, n)),
        *(crossing if cross else ()),
        Parameter(f"{prefix}.mlp.w", (Group.W,), (mlp_ratio * n, n)),
        Parameter(f"{prefix}.mlp.x", (Group.X,), (n, mlp_ratio * n)),
    )


def parameter_count(model: ModelSpec) -> int:
    """Return the number of trainable numbers in the model."""
    return sum(parameter.size for parameter in parameter_shapes(model))


def dims(model: ModelSpec) -> Dims:
    """Return what the scaling strategies depend on."""
    if isinstance(model, EncDecSpec):
        return Dims("language", model.width, n_patch=None, n_out=model.vocabulary, mlp_ratio=model.mlp_ratio)
    return Dims(
        "vision",
        width=model.width,
        n_patch=n_patch(model),
        n_out=model.classes,
        mlp_ratio=model.mlp_ratio,
    )


def n_patch(model: VitSpec) -> int:
    """Return the numbers of a patch."""
    return model.patch_size**2 * model.channels
