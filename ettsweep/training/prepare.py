"""The objects of a run at step 0, on the device."""

from collections.abc import Callable
from pkgutil import resolve_name

import torch

from ettsweep.models.blocks import Network
from ettsweep.models.build import build_model
from ettsweep.models.initialisation import initialise
from ettsweep.spec import RunSpec
from ettsweep.tasks.base import Loading, Share, Task
from ettsweep.tasks.data import said
from ettsweep.tasks.kinds import check_data, task_kind
from ettsweep.training.distributed import ALONE, Peers
from ettsweep.training.execution import Execution
from ettsweep.training.optimizer import build_optimizer
from ettsweep.training.precision import loss_scaler, set_matmul_precision
from ettsweep.training.trainer import Trainer


def prepare(
    spec: RunSpec,
    device: torch.device,
    execution: Execution = Execution(),  # noqa: B008 (frozen)
    group: Peers = ALONE,
    skipped: Callable[[str], None] = print,
) -> Trainer:
    """Build the objects of a run at step 0, on the device.

    Args:
        spec: the run.
        device: of this process.
        execution: how it trains.
        group: the processes that train the run together.
        skipped: told of samples that are left out, and why.
    """
    torch.manual_seed(spec.seed)
    set_matmul_precision(spec.precision)
    model = initial_network(spec, device, group, sharded=bool(execution.sharded))
    share = Share(spec.batch_size, group.rank, group.world, execution.micro_batch)
    data = said(spec.task.kind, execution.data)
    loading = Loading(execution.loader_workers, execution.corrupt_images, skipped, data)
    task = build_task(spec, device, share, loading)
    scaler = loss_scaler(spec.precision, device)
    return Trainer(spec, model, model, task, build_optimizer(model, spec), scaler, device, share, group)


def initial_network(spec: RunSpec, device: torch.device, group: Peers = ALONE, *, sharded: bool = False) -> Network:
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


def build_task(spec: RunSpec, device: torch.device, share: Share, loading: Loading) -> Task:
    """Return the task of a run, with its data on hand.

    Raises:
        DataMissingError: they are not there, or are not those that the run was made for.
    """
    check_data(spec.task, spec.model, loading.data)
    task: Task = resolve_name(task_kind(spec.task).load)(spec.task, spec.model, spec.seed, device, share, loading)
    return task
