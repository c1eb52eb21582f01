"""Slots: a worker trains only while it holds the lock of its slot, which the kernel frees when it dies.

A lock file says who holds it, for those who wait; only the lock itself says that it is held.
"""

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ettsweep.errors import StorageError
from ettsweep.files import dumps, loads, storage_errors
from ettsweep.launch.profile import Slot
from ettsweep.processes import Process, process

SLOTS_ENV = "ETTSWEEP_SLOTS"
"""Environment variable that puts the slot locks elsewhere; sweeps with different ones share no slots."""


def slots_path() -> Path:
    """Return the folder of this user's slot locks on this host, which need not exist."""
    # Not TMPDIR or XDG_RUNTIME_DIR: a login, a cron job and a batch job of one user must meet at the same slots.
    return Path(os.environ.get(SLOTS_ENV) or f"/tmp/ettsweep-{os.getuid()}")


def slot_dir() -> Path:
    """Return the folder of this user's slot locks on this host, made if need be.

    Raises:
        StorageError: someone else owns it, or it cannot be made.
    """
    folder = slots_path()
    with storage_errors(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise StorageError(f"{folder}: belongs to another user; remove it, or set {SLOTS_ENV} to a folder of yours")
    return folder


# --- holding --------------------------------------------------------------------------------------------------------

Lock = list[int]
"""Descriptors of the lock files that a process holds."""


def hold_slot(slot: Slot, results: Path, *, wait: bool = True) -> Lock | None:
    """Hold the slot of this host and user, and those that train with it; return None if another process has one.

    It is held for runs of a results folder, and says so. With `wait`, wait until no other process has it.
    """
    descriptors: Lock = []
    slot_dir()
    for path in lock_paths(slot):
        descriptors.append(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        try:
            fcntl.flock(descriptors[-1], fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(descriptors.pop())
            let_go(descriptors)
            return None
        _say(descriptors[-1], dumps({"process": process().to_json(), "results": str(results.resolve())}))
    return descriptors


def let_go(lock: Lock) -> None:
    """Free what a process holds."""
    for descriptor in lock:
        _say(descriptor, "")
        os.close(descriptor)


def lock_paths(slot: Slot) -> list[Path]:
    """Return the lock files of a slot in one order, so that no two processes wait for each other."""
    return [slots_path() / f"{name}.lock" for name in sorted({member.name for member in (slot, *slot.others)})]


def _say(descriptor: int, text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk costs the words, not the slot
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)


# --- waiting --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeldSlot:
    """A lock that is held, and by whom.

    Attributes:
        process: None where it has not said who it is, or is gone and has left the lock to a child.
        results: the folder whose runs it trains.
    """

    name: str
    process: Process | None = None
    results: str = ""

    def __str__(self) -> str:
        by = f"process {self.process.pid} of {self.results}" if self.process else "another process"
        return f"slot {self.name}, held by {by}"


def held(paths: Iterable[Path]) -> list[HeldSlot]:
    """Return those of some locks that are held, with who holds each."""
    return [holder for path in paths if (holder := _holder(path))]


def _holder(path: Path) -> HeldSlot | None:
    """Return who holds a lock, or None where nobody does; the file alone could be of one that is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # whatever lies there
    except (OSError, ValueError):
        return None
    try:
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


def free_first(slots: Sequence[Slot]) -> list[Slot]:
    """Return the slots with those that nobody holds at this instant in front."""
    slot_dir()
    return sorted(slots, key=lambda slot: bool(held(lock_paths(slot))))
