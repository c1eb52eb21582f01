"""Build a model's torch module from its spec, initialise it under a scaling strategy, and make example inputs."""

import math
from pkgutil import resolve_name
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ettsweep.runs.spec import StrategySpec
from ettsweep.seeding import derive_seed
from ettsweep.strategies.factors import Distribution, Group, init_distribution, init_std
from ettsweep.token_ids import PAD
from ettsweep.trainer.models.blocks import Network
from ettsweep.trainer.models.registry import architecture, dims, parameter_shapes
from ettsweep.trainer.specs import ModelSpec

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def build_model(spec: ModelSpec, strategy: StrategySpec) -> Network:
    """Return the module with uninitialised parameters, on torch's default device (which may be meta)."""
    network: Network = resolve_name(architecture(spec).build)(spec, strategy)
    return network


def example_inputs(spec: ModelSpec, batch: int, device: torch.device) -> tuple[Tensor, ...]:
    """Return random inputs for a batch of samples: noise, or tokens without [pad].

    The values are always the same. Torch's global generators are not used.
    """
    generator = torch.Generator(device).manual_seed(0)
    inputs: tuple[Tensor, ...] = resolve_name(architecture(spec).example_inputs)(spec, batch, generator, device)
    return inputs


# --- initial values ---------------------------------------------------------------------------------------------------


@torch.no_grad()
def initialise(module: nn.Module, model: ModelSpec, strategy: StrategySpec, seed: int) -> None:
    """Initialise every parameter in place.

    Each parameter has its own generator and is drawn in full, in fp32 on the CPU. So values do not depend on the order
    of parameters, or on the module's device, dtype or sharding.
    """
    tensors = dict(module.named_parameters())
    for parameter in parameter_shapes(model):
        tensor = tensors.pop(parameter.name)
        # Specs describe parameters without torch; this keeps the two descriptions from drifting apart.
        assert tuple(tensor.shape) == parameter.shape, parameter.name
        generator = torch.Generator("cpu").manual_seed(derive_seed(seed, "init", parameter.name))
        values = torch.empty(parameter.shape, dtype=torch.float32, device="cpu")
        for group_values, group in zip(values.chunk(len(parameter.groups)), parameter.groups, strict=True):
            std = init_std(group, dims(model), strategy.s)
            _draw(group_values, init_distribution(group, dims(model).domain), std, generator)
            if group is Group.WE:
                group_values[PAD] = 0  # [pad] embeds to nothing
        copy_full_values(values, tensor)
    assert not tensors, f"parameters without a group: {', '.join(tensors)}"


def _draw(values: Tensor, distribution: Distribution, std: float, generator: torch.Generator) -> None:
    if std == 0:
        values.zero_()
    elif distribution == "normal":
        values.normal_(0, std, generator=generator)
    else:
        bound = math.sqrt(3) * std  # the variance of a uniform distribution on [-a, a] is a^2 / 3
        values.uniform_(-bound, bound, generator=generator)


@torch.no_grad()
def copy_full_values(values: Tensor, tensor: "Tensor | DTensor") -> None:
    """Copy a full tensor of values into a tensor, or this rank's shard of them if it is sharded."""
    if not hasattr(tensor, "to_local"):
        tensor.copy_(values)
        return
    from torch.distributed.tensor import DTensor  # takes half a second

    assert isinstance(tensor, DTensor)
    mesh, (placement,) = tensor.device_mesh, tensor.placements
    assert placement.is_shard(0), placement  # fully_shard splits along dimension 0 as torch.chunk does
    shards, rank = values.chunk(mesh.size()), mesh.get_local_rank()
    tensor.to_local().copy_(shards[rank] if rank < len(shards) else values[:0])  # chunk may return fewer
