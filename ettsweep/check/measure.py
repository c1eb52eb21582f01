"""What a network is at its initial values and does in its first steps, measured on the parts that train.

B batch, T tokens, D width, K outputs of one position.
"""

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ettsweep.check.expectations import HEAD
from ettsweep.check.judgement import Changes, Measured
from ettsweep.check.probe import Probe, checkable
from ettsweep.models.architectures import parameter_shapes
from ettsweep.models.blocks import Network
from ettsweep.scaling.factors import Group
from ettsweep.seeding import derive_seed
from ettsweep.spec import ModelSpec, RunSpec
from ettsweep.tasks.base import SameBatch, Share
from ettsweep.training.optimizer import build_optimizer, set_lr
from ettsweep.training.trainer import Trainer, initial_network

CPU = torch.device("cpu")

SIGNS = ((1, 1, 1, 1), (1, -1, 1, -1), (1, 1, -1, -1), (1, -1, -1, 1))
"""Signs of the samples in each backward pass for squared gradients: sums over passes of products of two vanish."""

DECAY = 2.0**-4
"""lr wd of the step that shows the decay: a power of two, far from where fp32 rounds."""


def measure(spec: RunSpec, probe: Probe, steps: int, *, decay: bool) -> Measured:
    """Return what a new network shows in so many steps, and its decay if that is asked for."""
    network = initial_network(spec, CPU)
    gradients = squared_gradients(network, probe, spec.seed)
    before = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    start, changes, factors = train(network, spec, probe, steps)
    return Measured(
        width=spec.model.width,
        seed=spec.seed,
        kernels={name: kernel(x if name != HEAD else x[..., probe.quiet_K]) for name, x in start.items()},
        stds=stds(before, spec.model),
        factors=factors,
        gradients=gradients,
        changes=changes,
        function_changes=function_changes(network, probe, before),
        decay=shrinkage(network, spec) if decay else {},
        contact=contact(start[HEAD], probe),
    )


def activation_changes(spec: RunSpec, probe: Probe, steps: int) -> Changes:
    """Return the rms change of each stage after each step, of a new network in training."""
    return train(initial_network(spec, CPU), spec, probe, steps)[1]


# --- forward pass ---------------------------------------------------------------------------------------------------


def logits(network: Network, probe: Probe) -> Tensor:
    """Return what a network makes of a batch: (B, K) for images, (B, T, K) for text."""
    return checkable(probe.model).logits(network, probe.batch.inputs)


@torch.no_grad()
def observe(network: Network, probe: Probe) -> dict[str, Tensor]:
    """Return the residual stream after each part, (B, T, D), and the outputs, by stage in the order of the pass."""
    seen: dict[str, Tensor] = {}
    stacks = {name: module for name, module in network.named_children() if isinstance(module, nn.ModuleList)}
    with ExitStack() as hooks:
        for name, blocks in stacks.items():
            for hook in _watch(blocks, name, "stem" if len(stacks) == 1 else f"{name}.stem", seen):
                hooks.enter_context(hook)
        seen[HEAD] = logits(network, probe)
    return seen


def _watch(blocks: nn.ModuleList, stack: str, stem: str, seen: dict[str, Tensor]) -> Iterator[RemovableHandle]:
    """Hook into blocks, so that a forward pass leaves behind what it makes of the residual stream."""

    def enter(module: nn.Module, inputs: tuple[Tensor, ...], *, name: str) -> None:
        seen[name] = inputs[0]

    def add(module: nn.Module, inputs: object, update: Tensor, *, name: str, after: str) -> None:
        seen[name] = seen[after] + update

    def leave(module: nn.Module, inputs: object, output: Tensor, *, name: str) -> None:
        seen[name] = output

    stage = stem
    yield blocks[0].register_forward_pre_hook(partial(enter, name=stem))
    for number, block in enumerate(blocks):
        for part, module in block.named_children():
            after, stage = stage, f"{stack}.{number}.{part}"
            yield module.register_forward_hook(partial(add, name=stage, after=after))
        yield block.register_forward_hook(partial(leave, name=stage))  # what the next block is given


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


def _rms(x: Tensor) -> float:
    return x.double().square().mean().sqrt().item()


# --- parameters -----------------------------------------------------------------------------------------------------


def by_group(tensors: Mapping[str, Tensor], model: ModelSpec) -> dict[Group, list[Tensor]]:
    """Return views of parameter-like tensors; groups that share one have equal parts along its first dimension."""
    found: dict[Group, list[Tensor]] = {}
    for parameter in parameter_shapes(model):
        parts = tensors[parameter.name].chunk(len(parameter.groups))
        for group, part in zip(parameter.groups, parts, strict=True):
            found.setdefault(group, []).append(part)
    return found


def stds(tensors: Mapping[str, Tensor], model: ModelSpec) -> dict[Group, float]:
    """Return the root mean square of each group's values."""
    return {
        group: math.sqrt(sum(part.square().sum().item() for part in parts) / sum(part.numel() for part in parts))
        for group, parts in by_group(tensors, model).items()
    }


def squared_gradients(network: Network, probe: Probe, seed: int) -> dict[Group, float]:
    """Return, of each group, the sum of (df_i/dtheta)^2 over its parameters; mean over outputs i, tokens and samples.

    The gradient of the outputs' sum with random signs has it as its mean square: cross terms cancel, those of two
    samples within these few passes.
    """
    names, parameters = zip(*network.named_parameters(), strict=True)
    total: dict[Group, float] = {}
    for signs_B in torch.tensor(SIGNS, dtype=torch.float32):
        outputs_BK = logits(network, probe)[..., probe.quiet_K].flatten(1)
        signed = signs_B @ outputs_BK @ _random_signs(outputs_BK.shape[1], seed)
        gradients = dict(zip(names, torch.autograd.grad(signed, parameters), strict=True))
        for group, parts in by_group(gradients, probe.model).items():
            squares = sum(part.square().sum().item() for part in parts)
            total[group] = total.get(group, 0.0) + squares / (len(SIGNS) * outputs_BK.numel())
    return total


def _random_signs(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(derive_seed(seed, "signs"))
    return 2.0 * torch.randint(2, (count,), generator=generator) - 1


# --- training -------------------------------------------------------------------------------------------------------


def train(
    network: Network, spec: RunSpec, probe: Probe, steps: int
) -> tuple[dict[str, Tensor], Changes, dict[Group, tuple[float, ...]]]:
    """Train a network at a constant learning rate.

    Returns:
        What `observe` gave before the first step, the rms change of each stage after each step, and the learning-rate
        factors of each group's tensors.
    """
    optimizer, task = build_optimizer(network, spec), SameBatch(probe.batch, checkable(probe.model).loss)
    trainer = Trainer(spec, network, task, optimizer, CPU, Share(spec.batch_size))
    start, changes = observe(network, probe), list[dict[str, float]]()
    for step in range(1, steps + 1):
        trainer.train_step(spec.lr, task.batches(step))
        changes.append(_change(start, observe(network, probe), probe))
    return start, changes, _factors(network, optimizer, spec)


def _change(start: Mapping[str, Tensor], now: Mapping[str, Tensor], probe: Probe) -> dict[str, float]:
    moved = {name: now[name] - start[name] for name in start}
    moved[HEAD] = moved[HEAD][..., probe.trained_K]
    return {name: _rms(x) for name, x in moved.items()}


def _factors(network: Network, optimizer: torch.optim.Optimizer, spec: RunSpec) -> dict[Group, tuple[float, ...]]:
    """Return what the optimizer multiplied the learning rate by in its last step, for each tensor of each group."""
    by_parameter = {p: group["lr"] / spec.lr for group in optimizer.param_groups for p in group["params"]}
    parameters, factors = dict(network.named_parameters()), dict[Group, tuple[float, ...]]()
    for shape in parameter_shapes(spec.model):
        for group in shape.groups:
            factors[group] = (*factors.get(group, ()), by_parameter[parameters[shape.name]])
    return factors


@torch.no_grad()
def function_changes(network: Network, probe: Probe, before: Mapping[str, Tensor]) -> dict[Group, float]:
    """Return the rms change of the trained outputs that each group's change makes where all else is as `before`.

    In fp64: at first, some groups change so little that fp32 would not show it.
    """
    inputs = tuple(x.double() if x.is_floating_point() else x for x in probe.batch.inputs)
    probe = replace(probe, batch=probe.batch._replace(inputs=inputs))
    trial = copy.deepcopy(network).double()
    trial.load_state_dict(before)
    values, now = (by_group(dict(model.named_parameters()), probe.model) for model in (trial, network))
    old, changes = by_group(before, probe.model), dict[Group, float]()
    start = logits(trial, probe)[..., probe.trained_K]
    for group, parts in values.items():
        for part, new in zip(parts, now[group], strict=True):
            part.copy_(new)
        changes[group] = _rms(logits(trial, probe)[..., probe.trained_K] - start)
        for part, kept in zip(parts, old[group], strict=True):
            part.copy_(kept)
    return changes


@torch.no_grad()
def shrinkage(network: Network, spec: RunSpec) -> dict[Group, float]:
    """Return by how much a step with zero gradients shrinks each group, divided by lr wd; the network is used up.

    Of several tensors, the one that is the farthest from 1 speaks for the group.
    """
    parameters = dict(network.named_parameters())
    for parameter in parameters.values():
        parameter.fill_(1.0)
        parameter.grad = torch.zeros_like(parameter)
    optimizer = build_optimizer(network, spec.at(spec.lr, DECAY / spec.lr, spec.seed))
    set_lr(optimizer, spec.lr)
    optimizer.step()
    ratios = {
        group: [(1 - part).mean().item() / DECAY for part in parts]
        for group, parts in by_group(parameters, spec.model).items()
    }
    return {group: max(values, key=lambda ratio: abs(ratio - 1)) for group, values in ratios.items()}
