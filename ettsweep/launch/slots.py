"""Slots: a worker trains only while it holds the lock of its slot, which the kernel releases when the worker dies.

A lock file names its holder for waiting processes, but only the lock shows that it is held. Slots alternate between
submissions: the next waiting process holds a second lock, its turn. The worker in the slot sees that after a run,
releases the slot once it has trained for a while, and waits itself.
"""

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ettsweep.errors import StorageError
from ettsweep.files import SLOTS_ENV, dumps, loads, lock_dir, naming_option, storage_errors
from ettsweep.processes import Process, process_identity


@dataclass(frozen=True)
class Slot:
    """A share of a machine for one worker: a GPU, a fraction of one, or some CPU threads.

    Attributes:
        name: unique on its host, such as gpu-<uuid> or cpu-0; also the name of its lock file.
        gpu: UUID or index, as for CUDA_VISIBLE_DEVICES; None on the CPU.
        threads: CPU threads of the worker.
        sharers: number of workers that share the GPU.
        others: the further slots of a run that trains on several devices.
    """

    name: str
    device: Literal["cpu", "cuda"]
    gpu: str | None
    threads: int
    sharers: int = 1
    others: "tuple[Slot, ...]" = ()

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Slot":
        """Build a slot from the dict of `dataclasses.asdict`."""
        return cls(**data | {"others": tuple(cls.from_json(other) for other in data.get("others", ()))})


def make_lock_dir() -> Path:
    """Return the folder of this user's slot locks on this host; create it if needed.

    Raises:
        StorageError: another user owns it, or it cannot be created.
    """
    folder = lock_dir()
    with naming_option(SLOTS_ENV, folder), storage_errors(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    # /tmp is open to all: another user could plant a folder or a link under this name.
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise StorageError(f"{folder}: belongs to another user; set {SLOTS_ENV} to a folder of yours")
    return folder


# --- holding --------------------------------------------------------------------------------------------------------

Lock = list[int]
"""File descriptors of the lock files that a process holds."""


def lock_slot(slot: Slot, results: Path, *, wait: bool = True) -> Lock | None:
    """Lock a slot and the slots that train with it; return None if another process holds one of them.

    Args:
        slot: the slot.
        results: results folder to record in the lock files, for waiting processes.
        wait: wait until all are free.

    Raises:
        StorageError: another user owns the folder of locks, or it cannot be created.
    """
    descriptors: Lock = []
    make_lock_dir()
    for path in lock_paths(slot):
        turn = _lock_file(_turn_path(path), wait=wait)
        lock = None if turn is None else _lock_file(path, wait=wait)
        if turn is not None:
            os.close(turn)
        if lock is None:
            unlock(descriptors)
            return None
        descriptors.append(lock)
        _write_holder(lock, dumps({"process": process_identity().to_json(), "results": str(results.resolve())}))
    return descriptors


def _lock_file(path: Path, *, wait: bool) -> int | None:
    """Lock a file; return its descriptor, or None if another process has it locked."""
    # Open it each time: an flock lives as long as its open file.
    with naming_option(SLOTS_ENV, path), storage_errors(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def is_waited_for(slot: Slot) -> bool:
    """`True` if another process waits for a slot."""
    return bool(held_slots(map(_turn_path, lock_paths(slot))))


def unlock(lock: Lock) -> None:
    """Release a lock."""
    for descriptor in lock:
        _write_holder(descriptor, "")
        os.close(descriptor)


def lock_paths(slot: Slot) -> list[Path]:
    """Return the lock files of a slot in a fixed order, which prevents deadlocks."""
    return [lock_dir() / f"{name}.lock" for name in sorted({member.name for member in (slot, *slot.others)})]


def _turn_path(path: Path) -> Path:
    """Return the lock file that the next process holds while it waits for a lock."""
    return path.with_suffix(".next")


def _write_holder(descriptor: int, text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk loses the holder's name, not the slot
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)


# --- waiting --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeldSlot:
    """A slot that is locked, and its holder.

    Attributes:
        name: of the slot.
        process: the holder; None if it has not recorded itself, or has left the lock to a child process.
        results: results folder whose runs it trains.
    """

    name: str
    process: Process | None = None
    results: str = ""

    def __str__(self) -> str:
        by = f"process {self.process.pid} of {self.results}" if self.process else "another process"
        return f"slot {self.name}, held by {by}"


def held_slots(paths: Iterable[Path]) -> list[HeldSlot]:
    """Return those of the locks that are held, with their holders."""
    return [holder for path in paths if (holder := _read_holder(path))]


def _read_holder(path: Path) -> HeldSlot | None:
    """Return the holder of a lock, or None if it is free; a dead process may have left its file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO would block
    except (OSError, ValueError):
        return None
    try:
        # A shared lock: observers must not look like holders.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        with contextlib.suppress(ValueError, AttributeError):
            content = loads(os.pread(descriptor, 4096, 0))
            owner = Process.from_json(content.get("process"))
            if owner and owner.liveness() != "dead":
                return HeldSlot(path.stem, owner, str(content.get("results")))
        return HeldSlot(path.stem)
    finally:
        os.close(descriptor)
    return None


def sort_free_first(slots: Sequence[Slot]) -> list[Slot]:
    """Return the slots, free ones first."""
    make_lock_dir()
    return sorted(slots, key=lambda slot: bool(held_slots(lock_paths(slot))))
