"""One run on several devices: a process for each takes the same steps, and the first of them leads and writes."""

import contextlib
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import TCPStore as TCPStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from ettsweep.errors import EttsweepError
from ettsweep.training.execution import Execution

DEVICE_WAIT = timedelta(minutes=60)
"""How long a device waits for the others: the leader may be saving, or one may compile for the first time."""

COMMAND_WAIT = timedelta(days=365)
"""How long a process waits for what comes next: the leader may wait for a run that somebody else has."""

LOST = re.compile(r"connection \w+ by (remote )?peer|broken pipe|socket \w+|timed out", re.IGNORECASE)
"""What gloo says of a process that is gone."""


class LostPeerError(EttsweepError):
    """Another process of the run is gone, so that this one cannot go on."""


class Group:
    """The processes that train one run together; this one alone by default.

    Attributes:
        rank: of this process; 0 leads.
        world: number of processes.
    """

    def __init__(self, rank: int = 0, world: int = 1, control: "dist.ProcessGroup | None" = None) -> None:
        self.rank = rank
        self.world = world
        self._control = control

    @classmethod
    def join(cls, device: torch.device, store: TCPStore, rank: int, world: int) -> "Group":
        """Meet the others.

        Args:
            device: of this process. GPUs talk through NCCL, CPUs through gloo; what the processes agree on always
                goes through gloo, so that no device is waited for.
            store: where all meet.
            rank: of this process.
            world: number of processes.
        """
        if device.type == "cuda":
            torch.cuda.set_device(device.index or 0)  # workers see their own GPU alone
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=DEVICE_WAIT)
        control = dist.new_group(backend="gloo", timeout=COMMAND_WAIT)
        assert isinstance(control, dist.ProcessGroup)
        return cls(rank, world, control)

    def leave(self) -> None:
        """Part from the others."""
        if self.world > 1:
            dist.destroy_process_group()

    @property
    def leads(self) -> bool:
        """Whether this is the process that claims, decides and writes."""
        return self.rank == 0

    def agree(self, *values: int) -> tuple[int, ...]:
        """Return the largest of what all say, value by value; devices are not waited for.

        Raises:
            LostPeerError: a process is gone.
        """
        if self.world == 1:
            return values
        said = torch.tensor(values, dtype=torch.int64)
        with watching():
            dist.all_reduce(said, op=dist.ReduceOp.MAX, group=self._control)
        return tuple(said.tolist())

    def share(self, value: Any = None) -> Any:
        """Return what the leader says, a plain object.

        Raises:
            LostPeerError: a process is gone.
        """
        if self.world == 1:
            return value
        said = [value]
        with watching():
            dist.broadcast_object_list(said, src=0, group=self._control)
        return said[0]

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes, on its device."""
        if self.world > 1:
            with watching():
                dist.all_reduce(values)
        return values

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the module whose backward pass averages gradients over the processes; parameters stay the model's."""
        if self.world == 1:
            return model
        return DistributedDataParallel(model, gradient_as_bucket_view=True)

    def accumulating(self, model: nn.Module) -> contextlib.AbstractContextManager[object]:
        """Return a context in which a wrapped module keeps its gradients to itself."""
        return model.no_sync() if isinstance(model, DistributedDataParallel) else contextlib.nullcontext()


ALONE = Group()
"""This process, and no other."""


@contextlib.contextmanager
def watching() -> Iterator[None]:
    """Tell the end of another process from an error of this one.

    Raises:
        LostPeerError: a process of the group is gone.
    """
    try:
        yield
    except RuntimeError as error:
        found = LOST.search(str(error))
        if not found and not isinstance(error, dist.DistBackendError | dist.DistNetworkError):
            raise
        how = found.group() if found else str(error).splitlines()[0]
        raise LostPeerError(f"another process of this run is gone: {how}") from error


Order = tuple[Path, int, Execution]
"""What the leader has all do: train an attempt at the run in a folder, in this way."""


def lead(group: Group, run: Path, attempt: int, execution: Execution) -> None:
    """Tell the others what is trained next."""
    order: Order = run, attempt, execution
    group.share(order)


def dismiss(group: Group) -> None:
    """Tell the others that there is nothing more to do."""
    group.share(None)


def orders(group: Group) -> Iterator[Order]:
    """Yield what the leader says, until it dismisses this process."""
    while (order := group.share()) is not None:
        yield order
