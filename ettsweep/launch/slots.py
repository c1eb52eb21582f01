"""Slots: a worker trains only while it holds the lock of its slot, which the kernel frees when it dies."""

import fcntl
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from ettsweep.errors import StorageError
from ettsweep.files import storage_errors
from ettsweep.launch.profiles import Slot

SLOTS_ENV = "ETTSWEEP_SLOTS"
"""Environment variable that puts the slot locks elsewhere; sweeps with different ones share no slots."""


def slot_dir() -> Path:
    """Return the folder of this user's slot locks on this host, made if need be.

    Raises:
        StorageError: someone else owns it, or it cannot be made.
    """
    # Not TMPDIR or XDG_RUNTIME_DIR: a login, a cron job and a batch job of one user must meet at the same slots.
    folder = Path(os.environ.get(SLOTS_ENV) or f"/tmp/ettsweep-{os.getuid()}")
    with storage_errors(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
    info = folder.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        raise StorageError(f"{folder}: belongs to another user; remove it, or set {SLOTS_ENV} to a folder of yours")
    return folder


Lock = list[int]
"""Descriptors of the lock files that a process holds."""


def hold_slot(slot: Slot, wait: bool = True) -> Lock | None:
    """Hold the slot of this host and user, and those that train with it; return None if another process has one.

    With `wait`, wait until it has not.
    """
    held: Lock = []
    for name in sorted(one.name for one in (slot, *slot.others)):  # in one order, so that no two wait for each other
        held.append(os.open(slot_dir() / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600))
        try:
            fcntl.flock(held[-1], fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            let_go(held)
            return None
    return held


def let_go(lock: Lock) -> None:
    """Free what a process holds."""
    for descriptor in lock:
        os.close(descriptor)


def free_first(slots: Sequence[Slot]) -> list[Slot]:
    """Return the slots with those that nobody holds at this instant in front."""

    def busy(slot: Slot) -> bool:
        lock = hold_slot(slot, wait=False)
        if lock is not None:
            let_go(lock)
        return lock is None

    return sorted(slots, key=busy)
