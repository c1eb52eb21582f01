"""Measure a network at initialisation and in its first training steps.

Shapes: B batch, K outputs of one position.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import add

import torch
from torch import Tensor

from ettsweep.seeding import derive_seed
from ettsweep.strategies.factors import Group
from ettsweep.theory.expectations import HEAD
from ettsweep.theory.layers import kernel, logits, mean_contact_logit, measure_layers, observe, rms
from ettsweep.theory.probe import LayerCheck, Probe, load_checkable
from ettsweep.token_ids import PAD
from ettsweep.trainer.models.blocks import Network
from ettsweep.trainer.models.parameter_scales import scale_table
from ettsweep.trainer.models.registry import parameter_shapes
from ettsweep.trainer.recipe import TransformerRun
from ettsweep.trainer.specs import ModelSpec
from ettsweep.trainer.tasks.task import BatchShare, FixedBatchTask
from ettsweep.trainer.training.memory import available_bytes
from ettsweep.trainer.training.optimizer import build_optimizer, set_lr
from ettsweep.trainer.training.trainer import Trainer, initial_network

CPU = torch.device("cpu")


def free_bytes() -> int:
    """Return the memory that a check may take."""
    return available_bytes(CPU)


SAMPLE_SIGNS = ((1, 1, 1, 1), (1, -1, 1, -1), (1, 1, -1, -1), (1, -1, -1, 1))
"""Signs of the four samples in each backward pass: orthogonal columns cancel cross terms of two samples."""

DECAY_PER_STEP = 2.0**-4
"""lr wd of the step that measures decay: a power of two makes 1 - lr wd exact in fp32."""

STEP_EPS = 2.0**-20
"""eps of the step that measures it. It is no default, so an eps that does not reach the optimizer shows."""


Changes = Sequence[Mapping[str, float]]
"""For each training step, the rms change of each stage since initialisation."""

PerTensor = Mapping[Group, tuple[float, ...]]
"""For each group, one number per tensor, in the model's order."""


@dataclass(frozen=True)
class Measurement:
    """Everything measured on one network.

    Attributes:
        width: n.
        seed: seed of the initial values.
        kernels: for each stage, the kernel's mean over tokens, and over pairs of tokens from different samples.
        stds: rms of each tensor's initial values, without the [pad] row of a word embedding.
        mean_magnitudes: mean magnitude of the same values, relative to their rms.
        stated_stds: std of each group's initial values, as the strategy states it.
        factors: learning-rate factor that the optimizer applies to each tensor.
        gradients: for each tensor, the sum over its elements of (df_i/dtheta)^2, averaged over outputs i, tokens and
            samples.
        changes: rms change of each stage after each training step.
        function_changes: rms change of the outputs when only that group's trained values are used.
        layers: exact properties by location in the network; empty if not measured.
        decay: shrinkage of each tensor in a step with zero gradients, divided by lr wd; empty if not measured.
        contact: mean logit of the token that the decoder reads; None unless the head is tied.
    """

    width: int
    seed: int
    kernels: Mapping[str, tuple[float, float]]
    stds: PerTensor
    mean_magnitudes: PerTensor
    stated_stds: Mapping[Group, float]
    factors: PerTensor
    gradients: PerTensor
    changes: Changes
    function_changes: Mapping[Group, float]
    layers: Mapping[LayerCheck, Mapping[str, float]]
    decay: PerTensor
    contact: float | None = None


def measure(spec: TransformerRun, probe: Probe, steps: int, *, decay: bool, by_layer: bool) -> Measurement:
    """Initialise a network, train it for `steps` steps, and return the measurements.

    Args:
        spec: run whose network and optimizer are measured.
        probe: batch for training and measuring.
        steps: training steps at constant learning rate.
        decay: whether to measure the shrinkage of each tensor.
        by_layer: whether to measure the exact properties of each layer, and the optimizer's eps.
    """
    network = initial_network(spec, CPU)
    # Measured before `train`, which changes the parameters in place.
    layer_values = measure_layers(network, probe) if by_layer else {}
    gradients = squared_gradients(network, probe, spec.seed)
    initial_values = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    drawn_values = _drawn_values(initial_values, spec.model)
    initial, changes, factors = train_network(network, spec, probe, steps)
    return Measurement(
        width=spec.model.width,
        seed=spec.seed,
        # Outputs that some position reads have a contact term, so the head's kernel leaves them out.
        kernels={name: kernel(x if name != HEAD else x[..., probe.unread_K]) for name, x in initial.items()},
        stds=map_tensors(rms, drawn_values, spec.model),
        mean_magnitudes=map_tensors(_mean_magnitude, drawn_values, spec.model),
        stated_stds={
            Group(row["group"]): row["init_std"]
            for row in scale_table(spec.model, spec.strategy, spec.optimizer, lr=None)
        },
        factors=factors,
        gradients=gradients,
        changes=changes,
        function_changes=function_changes(network, probe, initial_values),
        # After everything else, since these overwrite the parameters.
        layers=layer_values | ({LayerCheck.OPTIMIZER_EPS: optimizer_eps(network, spec)} if by_layer else {}),
        decay=shrinkage(network, spec) if decay else {},
        contact=mean_contact_logit(initial[HEAD], probe),
    )


def activation_changes(spec: TransformerRun, probe: Probe, steps: int) -> Changes:
    """Initialise and train a network; return the rms change of each stage after each step."""
    return train_network(initial_network(spec, CPU), spec, probe, steps)[1]


# --- parameters -----------------------------------------------------------------------------------------------------


def split_by_group(tensors: Mapping[str, Tensor], model: ModelSpec) -> dict[Group, list[Tensor]]:
    """Return each group's tensors as views; a fused tensor (qkv) is split along its first dimension."""
    tensors_by_group: dict[Group, list[Tensor]] = {}
    for parameter in parameter_shapes(model):
        slices = tensors[parameter.name].chunk(len(parameter.groups))
        for group, group_slice in zip(parameter.groups, slices, strict=True):
            tensors_by_group.setdefault(group, []).append(group_slice)
    return tensors_by_group


def map_tensors(
    values: Callable[[Tensor], float], tensors: Mapping[str, Tensor], model: ModelSpec
) -> dict[Group, tuple[float, ...]]:
    """Apply a function to each group's tensors."""
    return {group: tuple(map(values, group_tensors)) for group, group_tensors in split_by_group(tensors, model).items()}


def _drawn_values(initial_values: Mapping[str, Tensor], model: ModelSpec) -> dict[str, Tensor]:
    """Return the initial values that are drawn at random: all but the [pad] row of a word embedding."""
    embeddings = {parameter.name for parameter in parameter_shapes(model) if parameter.groups == (Group.WE,)}
    return {
        name: torch.cat((values[:PAD], values[PAD + 1 :])) if name in embeddings else values
        for name, values in initial_values.items()
    }


def _mean_magnitude(values: Tensor) -> float:
    """Return the mean magnitude of values relative to their rms; nan if all are 0."""
    x = values.double()
    return (x.abs().mean() / x.square().mean().sqrt()).item()


def squared_gradients(network: Network, probe: Probe, seed: int) -> dict[Group, tuple[float, ...]]:
    """Return each tensor's sum of (df_i/dtheta)^2 over its elements, averaged over outputs i, tokens and samples.

    Hutchinson's estimator: the squared gradient of a randomly signed sum of outputs has this as its mean. Cross terms
    between outputs cancel on average, cross terms between samples exactly (`SAMPLE_SIGNS`).
    """
    names, parameters = zip(*network.named_parameters(), strict=True)
    total: dict[Group, tuple[float, ...]] = {}
    # The signs of outputs are the same in each pass (same seed), or cross terms of samples would not cancel.
    for signs_B in torch.tensor(SAMPLE_SIGNS, dtype=torch.float32):
        outputs_BK = logits(network, probe)[..., probe.unread_K].flatten(1)
        signed_sum = signs_B @ outputs_BK @ _random_signs(outputs_BK.shape[1], seed)
        # A parameter that no output depends on gets zeros, which the check of gradients then reports.
        gradients = torch.autograd.grad(signed_sum, parameters, allow_unused=True, materialize_grads=True)
        by_name = dict(zip(names, gradients, strict=True))
        squares = map_tensors(lambda x: x.square().sum().item(), by_name, probe.model)
        for group, values in squares.items():
            total[group] = tuple(map(add, total.get(group, [0.0 for _ in values]), values))
    count = len(SAMPLE_SIGNS) * outputs_BK.numel()
    return {group: tuple(value / count for value in values) for group, values in total.items()}


def _random_signs(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(derive_seed(seed, "signs"))
    return 2.0 * torch.randint(2, (count,), generator=generator) - 1


# --- training -------------------------------------------------------------------------------------------------------


def train_network(
    network: Network, spec: TransformerRun, probe: Probe, steps: int
) -> tuple[dict[str, Tensor], Changes, dict[Group, tuple[float, ...]]]:
    """Train a network in place at a constant learning rate.

    Returns:
        Activations before the first step (as from `observe`), the rms change of each stage after each step, and the
        learning-rate factors of each group's tensors.
    """
    optimizer, task = build_optimizer(network, spec), FixedBatchTask(probe.batch, load_checkable(probe.model).loss)
    trainer = Trainer(spec, network, optimizer, CPU, BatchShare(spec.batch_size))
    trainer.task = task
    initial, changes = observe(network, probe), list[dict[str, float]]()
    for step in range(1, steps + 1):
        trainer.train_step(spec.lr, task.batches(step))
        changes.append(_rms_changes(initial, observe(network, probe), probe))
    return initial, changes, _lr_factors(network, optimizer, spec)


def _rms_changes(initial: Mapping[str, Tensor], current: Mapping[str, Tensor], probe: Probe) -> dict[str, float]:
    changes = {name: current[name] - initial[name] for name in initial}
    changes[HEAD] = changes[HEAD][..., probe.trained_K]
    return {name: rms(x) for name, x in changes.items()}


def _lr_factors(
    network: Network, optimizer: torch.optim.Optimizer, spec: TransformerRun
) -> dict[Group, tuple[float, ...]]:
    """Return the learning-rate factors of the optimizer's last step."""
    # Read off the optimizer, not computed from the strategy: a lost factor must show.
    by_parameter = {p: group["lr"] / spec.lr for group in optimizer.param_groups for p in group["params"]}
    parameters, factors = dict(network.named_parameters()), dict[Group, tuple[float, ...]]()
    for shape in parameter_shapes(spec.model):
        for group in shape.groups:
            factors[group] = (*factors.get(group, ()), by_parameter[parameters[shape.name]])
    return factors


@torch.no_grad()
def function_changes(network: Network, probe: Probe, initial_values: Mapping[str, Tensor]) -> dict[Group, float]:
    """Return the rms change of the trained outputs if only one group is trained, for each group.

    The other groups keep their initial values. Computed in fp64: some changes are too small for fp32.
    """
    # Token ids stay integers, since they index the embedding.
    inputs = tuple(x.double() if x.is_floating_point() else x for x in probe.batch.inputs)
    probe = replace(probe, batch=probe.batch._replace(inputs=inputs))
    trial = copy.deepcopy(network).double()  # a copy: the network keeps its trained values
    trial.load_state_dict(initial_values)
    trial_groups = split_by_group(dict(trial.named_parameters()), probe.model)
    trained_groups = split_by_group(dict(network.named_parameters()), probe.model)
    initial_groups, changes = split_by_group(initial_values, probe.model), dict[Group, float]()
    initial_outputs = logits(trial, probe)[..., probe.trained_K]
    for group, trial_tensors in trial_groups.items():
        for trial_tensor, trained_tensor in zip(trial_tensors, trained_groups[group], strict=True):
            trial_tensor.copy_(trained_tensor)
        changes[group] = rms(logits(trial, probe)[..., probe.trained_K] - initial_outputs)
        # Restore: the next group changes alone.
        for trial_tensor, initial_tensor in zip(trial_tensors, initial_groups[group], strict=True):
            trial_tensor.copy_(initial_tensor)
    return changes


@torch.no_grad()
def shrinkage(network: Network, spec: TransformerRun) -> dict[Group, tuple[float, ...]]:
    """Return the relative shrinkage of each tensor in a step with zero gradients, divided by lr wd.

    Overwrites the network's parameters.
    """
    parameters = dict(network.named_parameters())
    for parameter in parameters.values():
        parameter.fill_(1.0)  # then 1 - value is the shrinkage
        parameter.grad = torch.zeros_like(parameter)  # None would have the optimizer skip the parameter, decay too
    optimizer = build_optimizer(network, spec.with_point(spec.lr, DECAY_PER_STEP / spec.lr, spec.seed))
    set_lr(optimizer, spec.lr)
    optimizer.step()
    return map_tensors(lambda x: (1 - x).mean().item() / DECAY_PER_STEP, parameters, spec.model)


@torch.no_grad()
def optimizer_eps(network: Network, spec: TransformerRun) -> dict[str, float]:
    """Return the eps of the optimizer at each parameter, relative to the given one; empty if it has none.

    Overwrites the network's parameters.
    """
    if "eps" not in type(spec.optimizer).model_fields:
        return {}
    parameters = dict(network.named_parameters())
    for parameter in parameters.values():
        parameter.zero_()  # then the new value is the step
        parameter.grad = torch.full_like(parameter, STEP_EPS)
    stated = spec.optimizer.model_copy(update={"eps": STEP_EPS})
    optimizer = build_optimizer(network, spec.model_copy(update={"optimizer": stated}))
    set_lr(optimizer, spec.lr)
    optimizer.step()
    lrs = {parameter: group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
    # The first step is lr g / (|g| + eps) by eq:AdamW4, so for g = STEP_EPS the ratio of both eps is lr / step - 1.
    with_eps = {name: p for name, p in parameters.items() if "exp_avg" in optimizer.state[p]}  # not Muon's matrices
    return {name: (lrs[p] / -p.double().mean()).item() - 1 for name, p in with_eps.items()}
