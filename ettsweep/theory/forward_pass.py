"""Observe a forward pass: outputs, the residual stream after each branch, and the kernels of both.

Shapes: B batch, T tokens, D width, K outputs of one position.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ettsweep.theory.expectations import HEAD
from ettsweep.theory.probe import Probe, load_checkable
from ettsweep.trainer.models.blocks import Network


def logits(network: Network, probe: Probe) -> Tensor:
    """Return the network's outputs for the probe batch: (B, K) for images, (B, T, K) for text."""
    return load_checkable(probe.model).logits(network, probe.batch.inputs)


@torch.no_grad()
def observe(network: Network, probe: Probe) -> dict[str, Tensor]:
    """Run a forward pass; return the residual stream after each branch, (B, T, D), and the outputs, by stage."""
    activations: dict[str, Tensor] = {}
    # A model with one stack of blocks names its stem "stem", one with several "encoder.stem" and so on.
    stacks = {name: module for name, module in network.named_children() if isinstance(module, nn.ModuleList)}
    with ExitStack() as hooks:
        for name, blocks in stacks.items():
            for hook in _hook_blocks(blocks, name, "stem" if len(stacks) == 1 else f"{name}.stem", activations):
                # The handles are context managers: hooks go again, also if the forward pass fails.
                hooks.enter_context(hook)
        activations[HEAD] = logits(network, probe)
    return activations


def _hook_blocks(
    blocks: nn.ModuleList, stack: str, stem: str, activations: dict[str, Tensor]
) -> Iterator[RemovableHandle]:
    """Register hooks that record the residual stream at the stem and after each branch of each block.

    Blocks are numbered as they are called, so that layers which share one are as many.
    """
    calls: list[list[str]] = []  # stages of each block that was called

    def enter(block: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        stages = [f"{stack}.{len(calls)}.{branch}" for branch, _ in block.named_children()]
        names = stages if calls else [stem, *stages]
        activations.update(dict.fromkeys(names, inputs[0]))  # a branch that is never called adds nothing
        calls.append(stages)

    # Stages after a branch accumulate its update, so that each has the stream up to its own branch.
    def add(module: nn.Module, inputs: object, update: Tensor, *, branch: int) -> None:
        activations.update({name: activations[name] + update for name in calls[-1][branch:]})

    def leave(block: nn.Module, inputs: object, output: Tensor) -> None:
        activations[calls[-1][-1]] = output

    for block in dict.fromkeys(blocks):
        yield block.register_forward_pre_hook(enter)
        for branch, module in enumerate(block.children()):
            yield module.register_forward_hook(partial(add, branch=branch))
        # The block's own output overrides the computed sum, so that a fault in the residual connection shows.
        yield block.register_forward_hook(leave)


def kernel(x: Tensor) -> tuple[float, float]:
    """Return (1/D) sum_i z_i z_i averaged over tokens, and over pairs of tokens from different samples.

    `x` is (B, T, D) or (B, D).
    """
    x_BTD = x.double() if x.dim() == 3 else x.double()[:, None]
    B, T, D = x_BTD.shape
    sums_BD = x_BTD.sum(1)
    # Pairs of different samples: all pairs less those within a sample.
    pairs = sums_BD.sum(0).square().sum() - sums_BD.square().sum()
    return x_BTD.square().mean().item(), pairs.item() / (D * B * (B - 1) * T**2)


def mean_contact_logit(outputs: Tensor, probe: Probe) -> float | None:
    """Return the mean logit of the token that the decoder reads at each position; None unless the head is tied."""
    if probe.read_BT is None:
        return None
    return outputs.gather(-1, probe.read_BT[..., None]).mean().item()


def rms(x: Tensor) -> float:
    return x.double().square().mean().sqrt().item()
