"""Writes checkpoints: those of small models at once, those of large ones from a copy on the host, beside training."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace

import torch
from torch import Tensor

from ettsweep.files import Json
from ettsweep.runs.attempt import Attempt
from ettsweep.training.checkpoint import Snapshot, snapshot
from ettsweep.training.parts import Layout, layout
from ettsweep.training.trainer import Trainer

LARGE_BYTES = 2**28
"""Bytes of a run's state from which it is copied: a disk takes a good part of a second for them."""


class Saver:
    """Writes the checkpoints of the runs of a process, at most one of them beside training.

    The copy lies in pinned memory where a device copies into it, and is made again only for a run of another shape.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._last: Future[None] | None = None
        self._copies: dict[str, Tensor] = {}
        self._layout: Layout = {}

    def save(self, attempt: Attempt, trainer: Trainer, history: Sequence[Json]) -> Callable[[], None]:
        """Save a run's state as it is now; return what waits until it is on disk, and raises what went wrong.

        All processes of the run come here.

        Raises:
            StorageError: it cannot be written; the earlier one is untouched.
            LostPeerError: a process is gone.
        """
        taken = snapshot(attempt, trainer, history)
        copied = taken.nbytes >= LARGE_BYTES and self._copied(taken, trainer.device)
        if taken.sharded and any(trainer.group.agree(not copied)):
            copied = False  # one has no memory for it, and they write together
        if not copied:
            taken.write()
            return lambda: None
        # What else the processes agree on goes on meanwhile.
        group = replace(trainer.group, hosts=trainer.group.savers)
        self._last = self._thread.submit(replace(taken, state=self._copies, group=group).write)
        return self._last.result

    def close(self) -> None:
        """Give back the memory of the copy, once it is on disk."""
        self._thread.shutdown()
        self._copies, self._layout = {}, {}

    def _copied(self, taken: Snapshot, device: torch.device) -> bool:
        """Copy a state, once the one before is on disk; return False where the host has no memory for that."""
        from torch.distributed._state_dict_utils import _copy_state_dict, _create_cpu_state_dict

        if self._last is not None:
            wait([self._last])
        if self._layout != (shapes := layout(taken.state)):
            self._copies, self._layout = {}, {}
            try:
                self._copies = _create_cpu_state_dict(taken.state, pin_memory=device.type == "cuda")
            except (RuntimeError, MemoryError):
                return False
            self._layout = shapes
        _copy_state_dict(taken.state, self._copies, non_blocking=True)
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        return True
