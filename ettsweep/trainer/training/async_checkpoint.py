"""Writes checkpoints: those of small models at once, those of large ones from a copy on the host, beside training."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch
from torch import Tensor

from ettsweep.files import Json
from ettsweep.runs.attempt import Attempt
from ettsweep.trainer.training.checkpoint import head, layout, tensors, write
from ettsweep.trainer.training.distributed import full_tensor, is_sharded
from ettsweep.trainer.training.trainer import Trainer

LARGE_BYTES = 2**28
"""Bytes of a run's state from which it is copied: a disk takes a good part of a second for them."""


class AsyncCheckpointWriter:
    """Writes the checkpoints of the runs of a process, at most one of them beside training.

    The copy lies in pinned memory where a device copies into it, and is made again only for a run of another shape.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._last: Future[None] | None = None
        self._copies: dict[str, Tensor] = {}

    def save(self, attempt: Attempt, trainer: Trainer, history: Sequence[Json]) -> Callable[[], None]:
        """Save a run's state as it is now; return what waits until it is on disk, and raises what went wrong.

        All processes of the run come here: the leader gathers what is sharded, and writes.

        Raises:
            StorageError: it cannot be written; the earlier one is untouched.
            LostProcessError: a process is gone.
        """
        leads, sharded, device = trainer.group.leads, is_sharded(trainer.model), trainer.device
        state = tensors(trainer.model, trainer.optimizer) if leads or sharded else {}
        if not leads:
            for tensor in state.values():
                full_tensor(tensor)  # of which the leader keeps what it gathers
            return lambda: None
        header = head(attempt, trainer, history)
        large = sum(tensor.numel() * tensor.element_size() for tensor in state.values()) >= LARGE_BYTES
        if not large or not self._room(state, device):
            write(
                attempt,
                header,
                {name: full_tensor(tensor).cpu() for name, tensor in state.items()} if sharded else state,
            )
            return lambda: None
        for name, tensor in state.items():
            self._copies[name].copy_(full_tensor(tensor), non_blocking=True)
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        self._last = self._thread.submit(write, attempt, header, self._copies)
        return self._last.result

    def close(self) -> None:
        """Give back the memory of the copy, once it is on disk."""
        self._thread.shutdown()
        self._copies = {}

    def _room(self, state: Mapping[str, Tensor], device: torch.device) -> bool:
        """Have memory for a copy, once the one before is on disk; return False where the host has none."""
        if self._last is not None:
            wait([self._last])
        if layout(self._copies) != layout(state):
            self._copies = {}
            try:
                self._copies = {
                    name: torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=device.type == "cuda")
                    for name, tensor in state.items()
                }
            except (RuntimeError, MemoryError):
                return False
        return True
