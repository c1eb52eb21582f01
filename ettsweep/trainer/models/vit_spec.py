"""Spec, parameters and cost of a Vision Transformer, without importing torch.

Symbols: T tokens (patches), P = n_patch numbers of a patch, D width, L depth, K classes.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ettsweep.schema import Positive, PositiveFloat
from ettsweep.strategies.factors import Dims, Group
from ettsweep.trainer.models.transformer import (
    ATTENTION_VECTORS,
    Parameter,
    attention_flops,
    block_parameters,
    mlp_flops,
    mlp_vectors,
)
from ettsweep.trainer.specs import ModelSpec, indivisible_problems


class VitSpec(ModelSpec):
    """Pre-norm Vision Transformer: no class token, mean pooling, no biases except the head's."""

    kind: Literal["vit"] = "vit"
    patch_size: Positive
    image_size: Positive
    channels: Positive = 3
    classes: Annotated[int, Field(ge=2)]
    ln_eps: PositiveFloat = 1e-6

    @model_validator(mode="after")
    def _divisible(self) -> Self:
        problems = [
            *indivisible_problems("width", self.width, "heads", self.heads),
            *indivisible_problems("image_size", self.image_size, "patch_size", self.patch_size),
        ]
        if problems:
            raise ValueError("; ".join(problems))
        return self


def n_patch(model: VitSpec) -> int:
    """Return the size of a flattened patch."""
    return model.patch_size**2 * model.channels


def patches(model: VitSpec) -> int:
    """Return T, the number of patches of an image."""
    return (model.image_size // model.patch_size) ** 2


def dims(model: VitSpec) -> Dims:
    """Return the dimensions that scaling strategies depend on."""
    return Dims("vision", model.width, n_patch=n_patch(model), n_out=model.classes, mlp_ratio=model.mlp_ratio)


def parameters(model: VitSpec) -> tuple[Parameter, ...]:
    """Return all parameters in the order of the torch module's `named_parameters()`."""
    n = model.width
    return (
        Parameter("patch", (Group.PATCH,), (n, n_patch(model))),
        Parameter("pe", (Group.PE,), (patches(model), n)),
        Parameter("head", (Group.HEAD,), (model.classes, n)),
        Parameter("head_bias", (Group.HEAD_BIAS,), (model.classes,)),
        *(p for i in range(model.depth) for p in block_parameters(f"blocks.{i}", model)),
    )


def forward_flops(model: VitSpec) -> int:
    """Return the FLOPs of the patch embedding (2 T P D), L blocks, and the head (2 D K)."""
    tokens = patches(model)
    blocks = model.depth * (attention_flops(model, tokens) + mlp_flops(model, tokens))
    return 2 * tokens * n_patch(model) * model.width + blocks + 2 * model.width * model.classes


def activation_bytes(model: VitSpec, recompute: bool) -> int:
    """Return the bytes that one sample's activations take in the blocks; those of stem and head are negligible."""
    vector = 4 * model.width * patches(model)
    # fp32, so 4 bytes a number.
    block = vector * (ATTENTION_VECTORS + mlp_vectors(model))
    return block + model.depth * vector if recompute else model.depth * block
