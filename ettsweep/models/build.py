"""From a model's spec to its torch module, and to what it is called with."""

from pkgutil import resolve_name

import torch
from torch import Tensor

from ettsweep.models.architectures import architecture
from ettsweep.models.blocks import Network
from ettsweep.spec import ModelSpec, StrategySpec


def build_model(spec: ModelSpec, strategy: StrategySpec) -> Network:
    """Return the module with uninitialised parameters, on torch's default device (meta works).

    Args:
        spec: the model.
        strategy: what rescales the output of an encoder-decoder.
    """
    network: Network = resolve_name(architecture(spec).build)(spec, strategy)
    return network


def example_inputs(spec: ModelSpec, batch: int, device: torch.device) -> tuple[Tensor, ...]:
    """Return what a model is called with for so many samples: noise, or random tokens and no [pad].

    Always the same values; torch's own generators are left alone.
    """
    generator = torch.Generator(device).manual_seed(0)
    inputs: tuple[Tensor, ...] = resolve_name(architecture(spec).example_inputs)(spec, batch, generator, device)
    return inputs


def speed_up(model: Network, *, compile_blocks: bool, recompute: bool) -> None:
    """Change how a model computes, and its numbers by rounding at most.

    Args:
        model: the network, where it says which are its blocks.
        compile_blocks: compile the blocks, once for all that are alike. What dropout draws then changes.
        recompute: keep the blocks' inputs alone for the backward pass, and compute the rest again.
    """
    model.recompute = recompute
    if not compile_blocks:
        return
    import torch._dynamo  # seconds

    # Blocks are compiled one by one, so that gradients travel while earlier blocks compute: no need to cut them more.
    torch._dynamo.config.optimize_ddp = False
    for block in model.residual_blocks():
        block.compile()
