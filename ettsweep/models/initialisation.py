"""Initial values of a model's parameters under a scaling strategy."""

import math

import torch
from torch import Tensor, nn

from ettsweep.models.shapes import dims, parameter_shapes
from ettsweep.scaling.factors import Distribution, init_distribution, init_std
from ettsweep.seeding import derive_seed
from ettsweep.spec import ModelSpec, StrategySpec


@torch.no_grad()
def initialise(module: nn.Module, model: ModelSpec, strategy: StrategySpec, seed: int) -> None:
    """Fill every parameter in place.

    Each has its own generator and is drawn in fp32 on the CPU: values depend neither on the order of
    parameters nor on the module's device and dtype.
    """
    tensors = dict(module.named_parameters())
    for parameter in parameter_shapes(model):
        generator = torch.Generator("cpu").manual_seed(derive_seed(seed, "init", parameter.name))
        for part, group in zip(tensors.pop(parameter.name).chunk(len(parameter.groups)), parameter.groups, strict=True):
            assert tuple(part.shape) == parameter.part_shape, parameter.name
            std = init_std(group, dims(model), strategy.s)
            part.copy_(_draw(parameter.part_shape, init_distribution(group), std, generator))
    assert not tensors, f"parameters without a group: {', '.join(tensors)}"


def _draw(shape: tuple[int, ...], distribution: Distribution, std: float, generator: torch.Generator) -> Tensor:
    values = torch.empty(shape, dtype=torch.float32, device="cpu")
    if std == 0:
        return values.zero_()
    if distribution == "normal":
        return values.normal_(0, std, generator=generator)
    bound = math.sqrt(3) * std  # the variance of a uniform distribution on [-a, a] is a^2 / 3
    return values.uniform_(-bound, bound, generator=generator)
