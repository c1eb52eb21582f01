"""From a model's spec to its torch module."""

from torch import nn

from ettsweep.models.vit import Vit
from ettsweep.spec import ModelSpec

KINDS = {"vit": Vit}


def build_model(spec: ModelSpec) -> nn.Module:
    """Return the module with uninitialised parameters, on torch's default device (meta works)."""
    return KINDS[spec.kind](spec)
