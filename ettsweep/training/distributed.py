"""One run on several devices: a process for each takes the same steps, and the first of them leads and writes."""

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import FileStore as FileStore  # type: ignore[attr-defined]
from torch.distributed import TCPStore as TCPStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from ettsweep.errors import EttsweepError
from ettsweep.files import Json, dumps
from ettsweep.training.execution import Execution

DEVICE_WAIT = timedelta(minutes=30)
"""How long a process waits for the others in a step: the leader may be saving, or one may compile."""

COMMAND_WAIT = timedelta(days=365)
"""How long a process waits for what comes next: the leader may wait for a run that somebody else has."""

LOST = re.compile(r"connection \w+ by (remote )?peer|closed by peer|broken pipe|timed out|unreachable|no route", re.I)
"""What gloo says of a process that is gone."""


class LostPeerError(EttsweepError):
    """Another process of the run is gone, so that this one cannot go on."""


class Group:
    """The processes that train one run together; this one alone by default.

    Attributes:
        rank: of this process; 0 leads.
        world: number of processes.
    """

    def __init__(
        self,
        rank: int = 0,
        world: int = 1,
        steps: "dist.ProcessGroup | None" = None,
        orders: "dist.ProcessGroup | None" = None,
    ) -> None:
        self.rank = rank
        self.world = world
        self._steps = steps
        self._orders = orders

    @classmethod
    def join(cls, device: torch.device, store: FileStore | TCPStore, rank: int, world: int) -> "Group":
        """Meet the others.

        Args:
            device: of this process. GPUs average gradients through NCCL, CPUs through gloo; what the processes agree on
                goes through gloo, between the hosts: it waits for no device, and learns at once of a process that ends.
            store: where all meet.
            rank: of this process.
            world: number of processes.
        """
        backend, gpu = "gloo", None
        if device.type == "cuda":
            backend, gpu = "nccl", torch.device("cuda", 0)  # workers see their own GPU alone
            torch.cuda.set_device(gpu)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=DEVICE_WAIT, device_id=gpu)
        steps, orders = (dist.new_group(backend="gloo", timeout=wait) for wait in (DEVICE_WAIT, COMMAND_WAIT))
        assert isinstance(steps, dist.ProcessGroup)
        assert isinstance(orders, dist.ProcessGroup)
        return cls(rank, world, steps, orders)

    def leave(self) -> None:
        """Part from the others."""
        if self.world > 1:
            dist.destroy_process_group()

    def abandon(self) -> None:
        """Part from others of whom one is gone: NCCL would wait for it."""
        if self.world > 1 and dist.get_backend() == "nccl":
            dist.distributed_c10d._abort_process_group()
        else:
            self.leave()

    @property
    def leads(self) -> bool:
        """Whether this is the process that claims, decides and writes."""
        return self.rank == 0

    def agree(self, *values: int) -> tuple[int, ...]:
        """Return the largest of what all say, value by value.

        Raises:
            LostPeerError: a process is gone.
        """
        if self.world == 1:
            return values
        said = torch.tensor(values, dtype=torch.int64)
        with watching():
            dist.all_reduce(said, op=dist.ReduceOp.MAX, group=self._steps)
        return tuple(said.tolist())

    def total(self, values: Sequence[float]) -> list[float]:
        """Return the sums over all processes, value by value, in float64.

        Raises:
            LostPeerError: a process is gone.
        """
        if self.world == 1:
            return list(values)
        said = torch.tensor(values, dtype=torch.float64)
        with watching():
            dist.all_reduce(said, group=self._steps)
        return list(said.tolist())

    def share(self, value: Json | None = None) -> Json | None:
        """Return what the leader says: plain data, or None. It goes as JSON, since a pickle could be anybody's code.

        Raises:
            LostPeerError: a process is gone.
        """
        if self.world == 1:
            return value
        text = dumps({"said": value}).encode() if self.leads else b""
        with watching():
            size = torch.tensor([len(text)])
            dist.broadcast(size, src=0, group=self._orders)
            said = torch.zeros(int(size), dtype=torch.uint8)
            if self.leads:
                said = torch.frombuffer(bytearray(text), dtype=torch.uint8)
            dist.broadcast(said, src=0, group=self._orders)
        told: Json | None = json.loads(bytes(said.tolist()))["said"]
        return told

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
        text = str(error)
        found = LOST.search(text)
        lost = found or isinstance(error, dist.DistBackendError | dist.DistNetworkError)
        if not lost or "out of memory" in text:
            raise
        how = found.group() if found else text.splitlines()[0]
        raise LostPeerError(f"another process of this run is gone: {how}") from error


class Order(NamedTuple):
    """What the leader has all do: train an attempt at the run in a folder, in this way."""

    run: Path
    attempt: int
    execution: Execution


def lead(group: Group, run: Path, attempt: int, execution: Execution) -> None:
    """Tell the others what is trained next."""
    group.share({"run": str(run), "attempt": attempt, "execution": asdict(execution)})


def dismiss(group: Group) -> None:
    """Tell the others that there is nothing more to do."""
    group.share(None)


def orders(group: Group) -> Iterator[Order]:
    """Yield what the leader says, until it dismisses this process."""
    while (told := group.share()) is not None:
        how = told["execution"]
        yield Order(Path(told["run"]), told["attempt"], Execution(**how | {"sinks": tuple(how["sinks"])}))
