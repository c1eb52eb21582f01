"""Checkpoint writer: small states are written at once, large ones from a host copy while training continues."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch
from torch import Tensor

from ettsweep.run import Run
from ettsweep.trainer.training.checkpoint import build_header, layout, named_tensors, write
from ettsweep.trainer.training.distributed import full_tensor, is_sharded
from ettsweep.trainer.training.trainer import Trainer

LARGE_BYTES = 2**28
"""Bytes of state from which a checkpoint is written in the background: they take a disk much of a second."""


class AsyncCheckpointWriter:
    """Writes the checkpoints of all runs of a process, at most one at a time in the background.

    The host copy is in pinned memory for GPUs, and is reallocated only for a state of another layout.
    """

    def __init__(self) -> None:
        # One thread: a second write would need a second copy of the state.
        self._executor = ThreadPoolExecutor(1, "checkpoint")
        self._pending_write: Future[None] | None = None
        self._copies: dict[str, Tensor] = {}

    def save(self, run: Run, trainer: Trainer) -> Callable[[], None]:
        """Save a run's current state; return a function that waits until it is on disk, and raises its error.

        All processes of the run must call this: the leader gathers sharded tensors, and writes.

        Raises:
            OSError: the checkpoint cannot be written; the earlier one is untouched.
            LostProcessError: another process of the run is gone.
        """
        leads, sharded, device = trainer.group.is_leader, is_sharded(trainer.model), trainer.device
        state = named_tensors(trainer.model, trainer.optimizer) if leads or sharded else {}
        if not leads:
            for tensor in state.values():
                full_tensor(tensor)  # a collective: the leader keeps the result
            return lambda: None
        header, save = build_header(run, trainer), run.saving(trainer.step)
        large = sum(tensor.numel() * tensor.element_size() for tensor in state.values()) >= LARGE_BYTES
        if not large or not self._allocate_copies(state, device):
            full = {name: full_tensor(tensor).cpu() for name, tensor in state.items()} if sharded else state
            write(save, header, full)
            return lambda: None
        for name, tensor in state.items():
            self._copies[name].copy_(full_tensor(tensor), non_blocking=True)
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # the next step overwrites the parameters in place
        self._pending_write = self._executor.submit(write, save, header, self._copies)
        return self._pending_write.result

    def close(self) -> None:
        """Wait for the pending write and free the host copy."""
        self._executor.shutdown()
        self._copies = {}

    def _allocate_copies(self, state: Mapping[str, Tensor], device: torch.device) -> bool:
        """Allocate the host copy once the pending write is done; return `False` if the host has no memory for it."""
        if self._pending_write is not None:
            wait([self._pending_write])  # does not raise: an error belongs to the run that waits for its own checkpoint
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
