"""What a network is at its initial values and does in its first steps, measured on the parts that train.

B batch, K outputs of one position.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import add

import torch
from torch import Tensor

from ettsweep.runs.spec import ModelSpec, RunSpec
from ettsweep.seeding import derive_seed
from ettsweep.strategies.factors import Group
from ettsweep.theory.expectations import HEAD
from ettsweep.theory.forward_pass import contact, kernel, logits, observe, rms
from ettsweep.theory.layers import layers
from ettsweep.theory.measurement import Changes, Measurement
from ettsweep.theory.probe import Probe, checkable
from ettsweep.trainer.models.blocks import Network
from ettsweep.trainer.models.registry import parameter_shapes
from ettsweep.trainer.tasks.task import BatchShare, SameBatch
from ettsweep.trainer.training.optimizer import build_optimizer, set_lr
from ettsweep.trainer.training.trainer import Trainer, initial_network

CPU = torch.device("cpu")

SIGNS = ((1, 1, 1, 1), (1, -1, 1, -1), (1, 1, -1, -1), (1, -1, -1, 1))
"""Signs of the samples in each backward pass for squared gradients: sums over passes of products of two vanish."""

DECAY = 2.0**-4
"""lr wd of the step that shows the decay: a power of two, far from where fp32 rounds."""


def measure(spec: RunSpec, probe: Probe, steps: int, *, decay: bool, by_layer: bool) -> Measurement:
    """Return what a new network shows in so many steps, and its decay and what its layers show if that is asked for."""
    network = initial_network(spec, CPU)
    layer_values = layers(network, probe) if by_layer else {}
    gradients = squared_gradients(network, probe, spec.seed)
    before = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    start, changes, factors = train(network, spec, probe, steps)
    return Measurement(
        width=spec.model.width,
        seed=spec.seed,
        kernels={name: kernel(x if name != HEAD else x[..., probe.quiet_K]) for name, x in start.items()},
        stds=per_tensor(lambda x: x.square().mean().sqrt().item(), before, spec.model),
        factors=factors,
        gradients=gradients,
        changes=changes,
        function_changes=function_changes(network, probe, before),
        layers=layer_values,
        decay=shrinkage(network, spec) if decay else {},
        contact=contact(start[HEAD], probe),
    )


def activation_changes(spec: RunSpec, probe: Probe, steps: int) -> Changes:
    """Return the rms change of each stage after each step, of a new network in training."""
    return train(initial_network(spec, CPU), spec, probe, steps)[1]


# --- parameters -----------------------------------------------------------------------------------------------------


def by_group(tensors: Mapping[str, Tensor], model: ModelSpec) -> dict[Group, list[Tensor]]:
    """Return views of parameter-like tensors; groups that share one have equal parts along its first dimension."""
    tensors_by_group: dict[Group, list[Tensor]] = {}
    for parameter in parameter_shapes(model):
        slices = tensors[parameter.name].chunk(len(parameter.groups))
        for group, group_slice in zip(parameter.groups, slices, strict=True):
            tensors_by_group.setdefault(group, []).append(group_slice)
    return tensors_by_group


def per_tensor(
    values: Callable[[Tensor], float], tensors: Mapping[str, Tensor], model: ModelSpec
) -> dict[Group, tuple[float, ...]]:
    """Return a number of each tensor of each group."""
    return {group: tuple(map(values, group_tensors)) for group, group_tensors in by_group(tensors, model).items()}


def squared_gradients(network: Network, probe: Probe, seed: int) -> dict[Group, tuple[float, ...]]:
    """Return, of each tensor, the sum of (df_i/dtheta)^2 over its parameters; mean over outputs i, tokens and samples.

    The gradient of the outputs' sum with random signs has it as its mean square: cross terms cancel, those of two
    samples within these few passes.
    """
    names, parameters = zip(*network.named_parameters(), strict=True)
    total: dict[Group, tuple[float, ...]] = {}
    for signs_B in torch.tensor(SIGNS, dtype=torch.float32):
        outputs_BK = logits(network, probe)[..., probe.quiet_K].flatten(1)
        signed_sum = signs_B @ outputs_BK @ _random_signs(outputs_BK.shape[1], seed)
        gradients = torch.autograd.grad(signed_sum, parameters, allow_unused=True, materialize_grads=True)
        by_name = dict(zip(names, gradients, strict=True))
        squares = per_tensor(lambda x: x.square().sum().item(), by_name, probe.model)
        for group, values in squares.items():
            total[group] = tuple(map(add, total.get(group, [0.0 for _ in values]), values))
    count = len(SIGNS) * outputs_BK.numel()
    return {group: tuple(value / count for value in values) for group, values in total.items()}


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
    trainer = Trainer(spec, network, optimizer, CPU, BatchShare(spec.batch_size))
    trainer.task = task
    start, changes = observe(network, probe), list[dict[str, float]]()
    for step in range(1, steps + 1):
        trainer.train_step(spec.lr, task.batches(step))
        changes.append(_change(start, observe(network, probe), probe))
    return start, changes, _factors(network, optimizer, spec)


def _change(initial: Mapping[str, Tensor], current: Mapping[str, Tensor], probe: Probe) -> dict[str, float]:
    changes = {name: current[name] - initial[name] for name in initial}
    changes[HEAD] = changes[HEAD][..., probe.trained_K]
    return {name: rms(x) for name, x in changes.items()}


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
    trial_groups, trained_groups = (by_group(dict(model.named_parameters()), probe.model) for model in (trial, network))
    initial_groups, changes = by_group(before, probe.model), dict[Group, float]()
    initial_outputs = logits(trial, probe)[..., probe.trained_K]
    for group, trial_tensors in trial_groups.items():
        for trial_tensor, trained_tensor in zip(trial_tensors, trained_groups[group], strict=True):
            trial_tensor.copy_(trained_tensor)
        changes[group] = rms(logits(trial, probe)[..., probe.trained_K] - initial_outputs)
        for trial_tensor, initial_tensor in zip(trial_tensors, initial_groups[group], strict=True):
            trial_tensor.copy_(initial_tensor)
    return changes


@torch.no_grad()
def shrinkage(network: Network, spec: RunSpec) -> dict[Group, tuple[float, ...]]:
    """Return by how much a step with zero gradients shrinks each tensor, divided by lr wd; the network is used up."""
    parameters = dict(network.named_parameters())
    for parameter in parameters.values():
        parameter.fill_(1.0)
        parameter.grad = torch.zeros_like(parameter)
    optimizer = build_optimizer(network, spec.with_point(spec.lr, DECAY / spec.lr, spec.seed))
    set_lr(optimizer, spec.lr)
    optimizer.step()
    return per_tensor(lambda x: (1 - x).mean().item() / DECAY, parameters, spec.model)
