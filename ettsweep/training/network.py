"""The network of a run on its device, whole or this process's part of it, without a whole copy anywhere on the way."""

import torch

from ettsweep.models.blocks import Network
from ettsweep.models.build import build_model
from ettsweep.models.initialisation import initialise
from ettsweep.spec import RunSpec
from ettsweep.training.distributed import ALONE, Group


def initial_network(spec: RunSpec, device: torch.device, group: Group = ALONE, *, sharded: bool = False) -> Network:
    """Return the network of a run with its initial values, which are the same however it is sharded.

    Args:
        spec: the run.
        device: where it lies.
        group: the processes that share it out, if it is sharded.
        sharded: hold a part of each parameter alone.
    """
    with torch.device("meta"):
        model = build_model(spec.model, spec.strategy)
    if sharded:
        group.shard(model, spec.precision)
    model.to_empty(device=device)
    initialise(model, spec.model, spec.strategy, spec.seed)
    return model
