"""Name, group and shape of every parameter, without torch. Tests hold them against the torch models."""

from ettsweep.models.architectures import architecture
from ettsweep.models.transformer import Parameter
from ettsweep.scaling.factors import Dims
from ettsweep.spec import ModelSpec


def parameter_shapes(model: ModelSpec) -> tuple[Parameter, ...]:
    """Return all parameters, in the order of the torch model's `named_parameters()`."""
    return architecture(model).parameters(model)


def parameter_count(model: ModelSpec) -> int:
    """Return the number of trainable numbers in the model."""
    return sum(parameter.size for parameter in parameter_shapes(model))


def dims(model: ModelSpec) -> Dims:
    """Return what the scaling strategies depend on."""
    return architecture(model).dims(model)
