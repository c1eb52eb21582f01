"""What the planner must know of a Vision Transformer, without torch.

T tokens (patches), P = n_patch numbers of a patch, D width, L depth, K classes.
"""

from ettsweep.models.transformer import (
    ATTENTION_VECTORS,
    Parameter,
    attention_flops,
    block_parameters,
    mlp_flops,
    mlp_vectors,
    vector_bytes,
)
from ettsweep.scaling.factors import Dims, Group
from ettsweep.spec import VitSpec


def n_patch(model: VitSpec) -> int:
    """Return the numbers of a patch."""
    return model.patch_size**2 * model.channels


def patches(model: VitSpec) -> int:
    """Return T, the patches of an image."""
    return (model.image_size // model.patch_size) ** 2


def dims(model: VitSpec) -> Dims:
    """Return what the scaling strategies depend on."""
    return Dims("vision", model.width, n_patch=n_patch(model), n_out=model.classes, mlp_ratio=model.mlp_ratio)


def parameters(model: VitSpec) -> tuple[Parameter, ...]:
    """Return all parameters in the torch model's order."""
    n = model.width
    return (
        Parameter("patch", (Group.PATCH,), (n, n_patch(model))),
        Parameter("pe", (Group.PE,), (patches(model), n)),
        Parameter("head", (Group.HEAD,), (model.classes, n)),
        Parameter("head_bias", (Group.HEAD_BIAS,), (model.classes,)),
        *(p for i in range(model.depth) for p in block_parameters(f"blocks.{i}", model)),
    )


def forward_flops(model: VitSpec) -> int:
    """Return 2 T P D of the patch embedding, L blocks, and 2 D K of the head."""
    tokens = patches(model)
    blocks = model.depth * (attention_flops(model, tokens) + mlp_flops(model, tokens))
    return 2 * tokens * n_patch(model) * model.width + blocks + 2 * model.width * model.classes


def activation_bytes(model: VitSpec, recompute: bool) -> int:
    """Return what the blocks keep of one sample."""
    vector = vector_bytes(model, patches(model))
    block = vector * (ATTENTION_VECTORS + mlp_vectors(model))
    return block + model.depth * vector if recompute else model.depth * block
