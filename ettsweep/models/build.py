"""From a model's spec to its torch module."""

from ettsweep.models.vit import Vit
from ettsweep.spec import ModelSpec

KINDS = {"vit": Vit}


def build_model(spec: ModelSpec) -> Vit:
    """Return the module with uninitialised parameters, on torch's default device (meta works)."""
    return KINDS[spec.kind](spec)


def speed_up(model: Vit, *, compile_blocks: bool, recompute: bool) -> None:
    """Change how a model computes, and its numbers by rounding at most.

    Args:
        model: the network, with its blocks in `blocks`.
        compile_blocks: compile the block, once for all of them, since they are alike.
        recompute: keep the blocks' inputs alone for the backward pass, and compute the rest again.
    """
    model.recompute = recompute
    if not compile_blocks:
        return
    import torch._dynamo  # seconds

    # Blocks are compiled one by one, so that gradients travel while earlier blocks compute: no need to cut them more.
    torch._dynamo.config.optimize_ddp = False
    for block in model.blocks:
        block.compile()
