"""One run on several devices: a process for each takes the same steps, and the first of them leads and writes."""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import FileStore as FileStore  # type: ignore[attr-defined]
from torch.distributed import TCPStore as TCPStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from ettsweep.errors import LostProcessError
from ettsweep.files import Json, dumps
from ettsweep.runs.spec import Precision
from ettsweep.trainer.models.blocks import Network
from ettsweep.trainer.training.precision import DTYPES

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

T = TypeVar("T")

DEVICE_WAIT = timedelta(minutes=30)
"""How long a process waits for the others in a step: the leader may be saving, or one may compile."""

COMMAND_WAIT = timedelta(days=365)
"""How long a process waits for what comes next: the leader may wait for a run that somebody else has."""

LOST = re.compile(r"connection \w+ by (remote )?peer|closed by peer|broken pipe|timed out|unreachable|no route", re.I)
"""What gloo says of a process that is gone."""


@dataclass(frozen=True, eq=False)
class ProcessGroup:
    """The processes that train one run together; this one alone by default.

    Where they meet, LostPeerError says that one is gone.

    Attributes:
        rank: of this process; 0 leads.
        world: number of processes.
        everyone: what a sharded model is shared out over; None for all that train together.
        hosts: what they agree through between the hosts; None for this one alone.
        orders: what the leader speaks through.
    """

    rank: int = 0
    world: int = 1
    everyone: "dist.ProcessGroup | None" = None
    hosts: "dist.ProcessGroup | None" = None
    orders: "dist.ProcessGroup | None" = None

    @classmethod
    def join(cls, device: torch.device, store: FileStore | TCPStore, rank: int, world: int) -> "ProcessGroup":
        """Meet the others.

        GPUs average gradients through NCCL, CPUs through gloo. What the processes agree on goes through gloo, between
        the hosts: it waits for no device, and learns at once of a process that ends.
        """
        backend, gpu = "gloo", None
        if device.type == "cuda":
            backend, gpu = "nccl", torch.device("cuda", 0)  # workers see their own GPU alone
            torch.cuda.set_device(gpu)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=DEVICE_WAIT, device_id=gpu)
        timeouts = DEVICE_WAIT, COMMAND_WAIT
        hosts, commands = (dist.new_group(backend="gloo", timeout=timeout) for timeout in timeouts)
        assert isinstance(hosts, dist.ProcessGroup)
        assert isinstance(commands, dist.ProcessGroup)
        return cls(rank, world, None, hosts, commands)

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
        """Return the largest of what all say, value by value."""
        return tuple(self._reduced(values, torch.int64, dist.ReduceOp.MAX))

    def total(self, values: Sequence[float]) -> list[float]:
        """Return the sums over all processes, value by value, in float64."""
        return self._reduced(values, torch.float64, dist.ReduceOp.SUM)

    def _reduced(self, values: Sequence[T], dtype: torch.dtype, op: dist.ReduceOp.RedOpType) -> list[T]:
        if self.world == 1:
            return list(values)
        reduced = torch.tensor(values, dtype=dtype)
        with watching():
            dist.all_reduce(reduced, op=op, group=self.hosts)
        return list(reduced.tolist())

    def hand_out(self, values: Tensor | None, tensor: "Tensor | DTensor") -> None:
        """Fill a tensor of all processes with the leader's values; of a sharded one each gets its part."""
        if self.world == 1:
            assert values is not None
            tensor.copy_(values)
        elif hasattr(tensor, "to_local"):
            from torch.distributed.tensor import DTensor, distribute_tensor

            assert isinstance(tensor, DTensor)
            device = tensor.to_local().device
            full = torch.empty(tensor.shape, dtype=tensor.dtype, device=device) if values is None else values.to(device)
            with watching():
                tensor.copy_(distribute_tensor(full, tensor.device_mesh, tensor.placements))
        else:
            if values is not None:
                tensor.copy_(values)
            with watching():
                dist.broadcast(tensor, src=0)

    def abreast(self, mine: Iterable[T]) -> Iterator[T | None]:
        """Yield this process's items, and then None for as long as another has some left."""
        items = iter(mine)
        while True:
            item = next(items, None)
            if self.agree(item is not None) == (0,):
                return
            yield item

    def from_leader(self, value: Json | None = None) -> Json | None:
        """Return what the leader says: plain data, or None. It goes as JSON, since a pickle could be anybody's code."""
        if self.world == 1:
            return value
        text = dumps({"said": value}).encode() if self.leads else b""
        with watching():
            size = torch.tensor([len(text)])
            dist.broadcast(size, src=0, group=self.orders)
            payload = torch.zeros(int(size), dtype=torch.uint8)
            if self.leads:
                payload = torch.frombuffer(bytearray(text), dtype=torch.uint8)
            dist.broadcast(payload, src=0, group=self.orders)
        received: Json | None = json.loads(payload.numpy().tobytes())["said"]
        return received

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the module whose backward pass averages gradients over the processes; parameters stay the model's."""
        if self.world == 1 or is_sharded(model):
            return model
        return DistributedDataParallel(model, gradient_as_bucket_view=True)

    def shard(self, model: Network, precision: Precision) -> None:
        """Have each process hold a part of every parameter, of its gradient, and of what an optimizer keeps for it.

        The model has no values yet, and lies on the meta device. A block's parameters are put together while it
        computes, those outside the blocks for a whole pass. Parameters travel as what autocast would make of them;
        outside the blocks, where it leaves some as they are, in fp32.
        """
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

        everyone = self.everyone or dist.group.WORLD
        assert everyone is not None
        device_type = "cuda" if dist.get_backend() == "nccl" else "cpu"
        # torch keeps plans of what is sent, for all meshes that are equal: of trials none is.
        name = (f"trial {everyone.group_name}",) if self.everyone else None
        mesh = DeviceMesh.from_group(everyone, device_type, mesh_dim_names=name)
        mixed_precision = MixedPrecisionPolicy(DTYPES.get(precision), torch.float32, cast_forward_inputs=False)
        for block in model.residual_blocks():
            fully_shard(block, mesh=mesh, mp_policy=mixed_precision)
        fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False))
        for module in model.modules():
            if isinstance(module, FSDPModule):
                # Asked for a mean, gloo gives the sum without a word (torch 2.8).
                module.set_force_sum_reduction_for_comms(True)

    @contextlib.contextmanager
    def without_the_others(self) -> Iterator["ProcessGroup"]:
        """Yield a group in which a sharded model takes as much memory as among the others, and waits for none of them.

        What it would get from them is not there: it is for steps that only measure. All processes come here; one that
        has never met the others is enough.
        """
        from torch.testing._internal.distributed.fake_pg import FakeStore  # importing it registers the backend

        if dist.is_initialized():
            with watching():  # they meet to make it
                everyone = dist.new_group(backend="fake")
        else:
            dist.init_process_group("fake", store=FakeStore(), rank=self.rank, world_size=self.world)
            everyone = dist.distributed_c10d._get_default_group()
        assert isinstance(everyone, dist.ProcessGroup)
        try:
            yield replace(self, everyone=everyone)
        finally:
            dist.destroy_process_group(everyone)

    def accumulating(self, model: nn.Module) -> contextlib.AbstractContextManager[object]:
        """Return a context in which a wrapped module keeps its gradients to itself."""
        return model.no_sync() if isinstance(model, DistributedDataParallel) else contextlib.nullcontext()


ALONE = ProcessGroup()
"""This process, and no other."""


def is_sharded(model: nn.Module) -> bool:
    """Say whether each process holds a part of a model alone."""
    return hasattr(model, "unshard")  # FSDPModule's; it takes half a second to load


def parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters by name, of a sharded model those that the optimizer has."""
    reshard(model)
    return dict(model.named_parameters())


def reshard(model: nn.Module) -> None:
    """Let go of whole parameters that a forward pass without a backward pass has left in a sharded model."""
    if is_sharded(model):
        model.reshard()  # type: ignore[operator]


def full_tensor(tensor: "Tensor | DTensor") -> Tensor:
    """Return a tensor, put together if it is sharded: all processes come here."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


@contextlib.contextmanager
def watching() -> Iterator[None]:
    """Tell the end of another process from an error of this one.

    Raises:
        LostPeerError: a process of the group is gone.
    """
    try:
        yield
    except RuntimeError as error:
        if (lost := lost_process(error)) is None:
            raise
        raise lost from error


def lost_process(error: BaseException) -> LostProcessError | None:
    """Return what an error says of another process that is gone, if that is what it says."""
    text = str(error)
    match = LOST.search(text)
    lost = match or isinstance(error, dist.DistBackendError | dist.DistNetworkError)
    if not lost or not isinstance(error, RuntimeError) or "out of memory" in text:
        return None
    detail = match.group() if match else text.splitlines()[0]
    return LostProcessError(f"another process of this run is gone: {detail}")
