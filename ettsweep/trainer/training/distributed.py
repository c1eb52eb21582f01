"""One run on several devices: one process per device, all take the same steps, and rank 0 leads and writes."""

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
from torch.nn.parallel import DistributedDataParallel

from ettsweep.errors import LOST, LostProcessError
from ettsweep.files import Json, dumps
from ettsweep.trainer.models.blocks import Network
from ettsweep.trainer.specs import Precision
from ettsweep.trainer.training.precision import DTYPES

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

T = TypeVar("T")

STEP_TIMEOUT = timedelta(minutes=30)
"""Timeout of collectives within a run: the leader may be saving, or a process may be compiling."""

LOST_PEER = re.compile(
    r"connection \w+ by (remote )?peer|closed by peer|broken pipe|timed out|unreachable|no route", re.I
)
"""Texts of gloo's errors if another process is gone; torch has no exception type of its own for them."""


@dataclass(frozen=True, eq=False)
class ProcessGroup:
    """The processes that train one run together; by default only this process.

    Collectives raise LostProcessError if another process is gone.

    Attributes:
        rank: rank of this process; 0 leads.
        world_size: number of processes.
        shard_group: torch group over which a model is sharded; None for all processes of the run.
        host_group: gloo group for small collectives between the hosts; None for a single process.
    """

    rank: int = 0
    world_size: int = 1
    shard_group: "dist.ProcessGroup | None" = None
    host_group: "dist.ProcessGroup | None" = None

    @classmethod
    def join(cls, device: torch.device) -> "ProcessGroup":
        """Join the other processes of a run by torchrun's variables; return once all have joined.

        GPUs average gradients through NCCL, CPUs through gloo. Decisions go through gloo between the hosts, which waits
        for no device and notices at once if a process exits.
        """
        backend, gpu = "gloo", None
        if device.type == "cuda":
            backend, gpu = "nccl", torch.device("cuda", 0)  # CUDA_VISIBLE_DEVICES shows a process its own GPU only
            torch.cuda.set_device(gpu)
        dist.init_process_group(backend, timeout=STEP_TIMEOUT, device_id=gpu)
        hosts = dist.new_group(backend="gloo", timeout=STEP_TIMEOUT)
        assert isinstance(hosts, dist.ProcessGroup)
        return cls(dist.get_rank(), dist.get_world_size(), None, hosts)

    def leave(self) -> None:
        """Destroy the process group; all processes call this at the end."""
        if self.world_size > 1:
            dist.destroy_process_group()

    @property
    def is_leader(self) -> bool:
        """`True` in the process that decides and writes."""
        return self.rank == 0

    def all_max(self, *values: int) -> tuple[int, ...]:
        """Return the elementwise maximum over all processes; negate values for the minimum."""
        return tuple(self._all_reduce(values, torch.int64, dist.ReduceOp.MAX))

    def all_sum(self, values: Sequence[float]) -> list[float]:
        """Return the elementwise sum over all processes, in float64."""
        return self._all_reduce(values, torch.float64, dist.ReduceOp.SUM)

    def _all_reduce(self, values: Sequence[T], dtype: torch.dtype, op: dist.ReduceOp.RedOpType) -> list[T]:
        if self.world_size == 1:
            return list(values)
        reduced = torch.tensor(values, dtype=dtype)  # on the host: no device is synchronised
        with detect_lost_process():
            dist.all_reduce(reduced, op=op, group=self.host_group)
        return list(reduced.tolist())

    def distribute(self, values: Tensor | None, tensor: "Tensor | DTensor") -> None:
        """Copy the leader's values into a tensor of every process; each gets its shard if the tensor is sharded.

        Args:
            values: full values in the leader, None in the other processes.
            tensor: filled in place.
        """
        if self.world_size == 1:
            assert values is not None
            tensor.copy_(values)
        elif hasattr(tensor, "to_local"):
            from torch.distributed.tensor import DTensor, distribute_tensor

            assert isinstance(tensor, DTensor)
            device = tensor.to_local().device
            full = torch.empty(tensor.shape, dtype=tensor.dtype, device=device) if values is None else values.to(device)
            with detect_lost_process():
                tensor.copy_(distribute_tensor(full, tensor.device_mesh, tensor.placements))
        else:
            if values is not None:
                tensor.copy_(values)
            with detect_lost_process():
                dist.broadcast(tensor, src=0)

    def in_lockstep(self, mine: Iterable[T]) -> Iterator[T | None]:
        """Yield this process's items, then None until every process has run out: collectives need equal counts."""
        items = iter(mine)
        while True:
            item = next(items, None)
            if self.all_max(item is not None) == (0,):
                return
            yield item

    def broadcast(self, value: Json | None = None) -> Json | None:
        """Return the leader's value in all processes: plain data, or None.

        It is sent as JSON, since unpickling could run any code.
        """
        if self.world_size == 1:
            return value
        text = dumps({"said": value}).encode() if self.is_leader else b""
        with detect_lost_process():
            size = torch.tensor([len(text)])  # first the length, for the others' buffers
            dist.broadcast(size, src=0, group=self.host_group)
            payload = torch.zeros(int(size), dtype=torch.uint8)
            if self.is_leader:
                payload = torch.frombuffer(bytearray(text), dtype=torch.uint8)
            dist.broadcast(payload, src=0, group=self.host_group)
        received: Json | None = json.loads(payload.numpy().tobytes())["said"]
        return received

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return a module whose backward pass averages gradients over the processes; it shares the model's parameters.

        A sharded model does so itself, and is returned unchanged.
        """
        if self.world_size == 1 or is_sharded(model):
            return model
        return DistributedDataParallel(model, gradient_as_bucket_view=True)

    def shard(self, model: Network, precision: Precision) -> None:
        """Shard a model with FSDP2: each process holds a part of every parameter, gradient and optimizer state.

        The model must still be on the meta device. The parameters of a residual block are gathered while it computes,
        those outside the blocks for a whole pass. Blocks gather in the dtype that autocast would cast to; parameters
        outside the blocks, some of which autocast leaves alone, in fp32.
        """
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

        everyone = self.shard_group or dist.group.WORLD
        assert everyone is not None
        device_type = "cuda" if dist.get_backend() == "nccl" else "cpu"
        # torch caches communication plans by mesh equality. A trial's mesh has a unique name: none is reused.
        name = (f"trial {everyone.group_name}",) if self.shard_group else None
        mesh = DeviceMesh.from_group(everyone, device_type, mesh_dim_names=name)
        mixed_precision = MixedPrecisionPolicy(DTYPES.get(precision), torch.float32, cast_forward_inputs=False)
        for block in model.residual_blocks():
            fully_shard(block, mesh=mesh, mp_policy=mixed_precision)
        fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False))
        for module in model.modules():
            if isinstance(module, FSDPModule):
                # gloo silently returns the sum if FSDP requests a mean (torch 2.8).
                module.set_force_sum_reduction_for_comms(True)

    @contextlib.contextmanager
    def fake_group(self) -> Iterator["ProcessGroup"]:
        """Yield a group with torch's fake backend, to measure a sharded model's memory without the other processes.

        Collectives return at once, with meaningless values. If the processes have joined a group, all must call this;
        otherwise a single process suffices.
        """
        from torch.testing._internal.distributed.fake_pg import FakeStore  # importing it registers the backend

        if dist.is_initialized():
            with detect_lost_process():  # creating a group is a collective itself
                everyone = dist.new_group(backend="fake")
        else:
            dist.init_process_group("fake", store=FakeStore(), rank=self.rank, world_size=self.world_size)
            everyone = dist.distributed_c10d._get_default_group()
        assert isinstance(everyone, dist.ProcessGroup)
        try:
            yield replace(self, shard_group=everyone)
        finally:
            dist.destroy_process_group(everyone)

    def no_sync(self, model: nn.Module) -> contextlib.AbstractContextManager[object]:
        """Return a context in which DDP accumulates gradients without averaging; no effect on other modules."""
        return model.no_sync() if isinstance(model, DistributedDataParallel) else contextlib.nullcontext()


SINGLE_PROCESS = ProcessGroup()
"""The group of a run on one device."""


def is_sharded(model: nn.Module) -> bool:
    """`True` if the model is sharded over several processes."""
    return hasattr(model, "unshard")  # not isinstance: importing FSDPModule takes half a second


def parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters by name; the shards that the optimizer holds if the model is sharded."""
    reshard(model)
    return dict(model.named_parameters())


def reshard(model: nn.Module) -> None:
    """Free the full parameters that a forward pass without backward pass leaves in a sharded model."""
    if is_sharded(model):
        model.reshard()  # type: ignore[operator]


def full_tensor(tensor: "Tensor | DTensor") -> Tensor:
    """Return the full values of a tensor; all processes must call this, since a sharded tensor is gathered."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def set_full(tensor: "Tensor | DTensor", values: Tensor) -> None:
    """Set a tensor to full values that all processes have; each keeps its shard if the tensor is sharded."""
    if not hasattr(tensor, "full_tensor"):
        if values.data_ptr() != tensor.data_ptr():
            tensor.copy_(values)
        return
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(tensor, DTensor)
    # None: nothing is sent, since each process has the values.
    tensor.copy_(distribute_tensor(values, tensor.device_mesh, tensor.placements, src_data_rank=None))


@contextlib.contextmanager
def detect_lost_process() -> Iterator[None]:
    """Convert errors of collectives that mean a lost process; other errors pass.

    Raises:
        LostProcessError: another process of the group is gone.
    """
    try:
        yield
    except RuntimeError as error:
        if (lost := lost_process(error)) is None:
            raise
        raise lost from error


def lost_process(error: BaseException) -> LostProcessError | None:
    """Return the LostProcessError for a torch error; None if no other process was lost."""
    text = str(error)
    match = LOST_PEER.search(text)
    lost = match or isinstance(error, dist.DistBackendError | dist.DistNetworkError)
    # Out of memory in NCCL is a DistBackendError too, but no process is lost by it.
    if not lost or not isinstance(error, RuntimeError) or "out of memory" in text:
        return None
    detail = match.group() if match else text.splitlines()[0]
    return LostProcessError(f"{LOST}: {detail}")
