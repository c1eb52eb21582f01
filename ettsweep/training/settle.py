"""What an execution leaves open, settled for a run and its devices."""

from dataclasses import replace
from functools import partial

import torch

from ettsweep.errors import InputError
from ettsweep.files import Json
from ettsweep.models.cost import train_flops_per_sample
from ettsweep.models.shapes import parameter_count
from ettsweep.spec import ModelSpec, RunSpec
from ettsweep.training.distributed import Peers
from ettsweep.training.execution import Execution
from ettsweep.training.memory import fitting_micro_batch

LARGE_PARAMETERS = 1e9
"""Parameters above which a run on several devices is sharded, and activations are computed again: 16 bytes for each of
them are a fifth of a large GPU."""

COMPILE_FLOPS = 1e16
"""Work of a run above which compiling its model pays: some minutes of a GPU at a tenth of its peak."""


def settled(spec: RunSpec, device: torch.device, execution: Execution, group: Peers, before: Json) -> Execution:
    """Return the execution with all that was left open: how it is sharded and compiled, and cut into micro-batches."""
    if spec.batch_size < group.world:
        raise InputError(f"{group.world} devices cannot share a batch of {spec.batch_size}")
    if execution.compile is None:
        pays = device.type == "cuda" and train_flops(spec) > COMPILE_FLOPS
        execution = replace(execution, compile=pays)
    execution = sized(spec.model, execution, group)
    local = -(-spec.batch_size // group.world)  # the largest part: all are cut alike
    asked = execution.micro_batch or before.get("micro_batch")
    fits = partial(fitting_micro_batch, spec, local, device, execution, group.world)
    size = min(asked, local) if isinstance(asked, int) else fits()
    return replace(execution, micro_batch=-group.agree(-size)[0])  # the least of all


def sized(model: ModelSpec, execution: Execution, group: Peers) -> Execution:
    """Return the execution with what the size of the model decides; bits depend on it, so no machine counts."""
    large = parameter_count(model) > LARGE_PARAMETERS
    sharded, recompute = (
        large if asked is None else asked for asked in (execution.sharded, execution.activation_checkpointing)
    )
    return replace(execution, sharded=sharded and group.world > 1, activation_checkpointing=recompute)


def train_flops(spec: RunSpec) -> float:
    """Return the FLOPs of a whole run."""
    return float(train_flops_per_sample(spec.model)) * spec.batch_size * spec.schedule.last_step


def execution_facts(execution: Execution, group: Peers) -> Json:
    """Return what of an execution can change the last bits of a run."""
    return {
        "processes": group.world,
        "micro_batch": execution.micro_batch,
        "compile": execution.compile,
        "activation_checkpointing": execution.activation_checkpointing,
        "sharded": bool(execution.sharded),
    }
