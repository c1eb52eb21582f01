"""What a network makes of a batch: its outputs, the residual stream after each part, and kernels of both.

B batch, T tokens, D width, K outputs of one position.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ettsweep.theory.expectations import HEAD
from ettsweep.theory.probe import Probe, checkable
from ettsweep.trainer.models.blocks import Network


def logits(network: Network, probe: Probe) -> Tensor:
    """Return what a network makes of a batch: (B, K) for images, (B, T, K) for text."""
    return checkable(probe.model).logits(network, probe.batch.inputs)


@torch.no_grad()
def observe(network: Network, probe: Probe) -> dict[str, Tensor]:
    """Return the residual stream after each part, (B, T, D), and the outputs, by stage in the order of the pass."""
    activations: dict[str, Tensor] = {}
    stacks = {name: module for name, module in network.named_children() if isinstance(module, nn.ModuleList)}
    with ExitStack() as hooks:
        for name, blocks in stacks.items():
            for hook in _watch(blocks, name, "stem" if len(stacks) == 1 else f"{name}.stem", activations):
                hooks.enter_context(hook)
        activations[HEAD] = logits(network, probe)
    return activations


def _watch(blocks: nn.ModuleList, stack: str, stem: str, activations: dict[str, Tensor]) -> Iterator[RemovableHandle]:
    """Hook into blocks, so that a forward pass leaves behind what it makes of the residual stream."""

    def enter(module: nn.Module, inputs: tuple[Tensor, ...], *, names: Sequence[str]) -> None:
        activations.update(dict.fromkeys(names, inputs[0]))  # what is not called adds nothing

    def add(module: nn.Module, inputs: object, update: Tensor, *, names: Sequence[str]) -> None:
        activations.update({name: activations[name] + update for name in names})

    def leave(module: nn.Module, inputs: object, output: Tensor, *, name: str) -> None:
        activations[name] = output

    yield blocks[0].register_forward_pre_hook(partial(enter, names=[stem]))
    for number, block in enumerate(blocks):
        branches = dict(block.named_children())
        stages = [f"{stack}.{number}.{branch}" for branch in branches]
        yield block.register_forward_pre_hook(partial(enter, names=stages))
        for i, module in enumerate(branches.values()):
            yield module.register_forward_hook(partial(add, names=stages[i:]))
        yield block.register_forward_hook(partial(leave, name=stages[-1]))  # what the next block is given


def kernel(x: Tensor) -> tuple[float, float]:
    """Return (1/D) sum_i z_i z_i of (B, T, D) or (B, D), mean over tokens, and over pairs from different samples."""
    x_BTD = x.double() if x.dim() == 3 else x.double()[:, None]
    B, T, D = x_BTD.shape
    sums_BD = x_BTD.sum(1)
    pairs = sums_BD.sum(0).square().sum() - sums_BD.square().sum()
    return x_BTD.square().mean().item(), pairs.item() / (D * B * (B - 1) * T**2)


def contact(outputs: Tensor, probe: Probe) -> float | None:
    """Return the mean logit of the token that a tied head's outputs are made from; None for another head."""
    if probe.read_BT is None:
        return None
    return outputs.gather(-1, probe.read_BT[..., None]).mean().item()


def rms(x: Tensor) -> float:
    return x.double().square().mean().sqrt().item()
