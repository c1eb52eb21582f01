"""Processes, named so that another one is never mistaken for them."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from ettsweep.files import Json

Life = Literal["alive", "dead", "unknown"]


@dataclass(frozen=True)
class Process:
    """A process, named so that no other one, before or after a reboot, is mistaken for it."""

    host: str
    boot_id: str
    pid: int
    start_time: str
    namespace: str = ""

    @classmethod
    def from_json(cls, data: object) -> "Process | None":
        """Return the process that a file names, or None where it names none."""
        if not isinstance(data, dict):
            return None
        try:
            names = str(data["host"]), str(data["boot_id"])
            return cls(*names, int(data["pid"]), str(data["start_time"]), str(data.get("namespace", "")))
        except (KeyError, TypeError, ValueError, OverflowError):
            return None

    def to_json(self) -> Json:
        """Return it as plain data."""
        return asdict(self)

    def liveness(self) -> Life:
        """Say whether it lives; unknown from another machine or container, whose processes cannot be seen."""
        if self.boot_id == boot_id():
            if self.namespace and self.namespace != pid_namespace():
                return "unknown"
            return "alive" if start_time(self.pid) == self.start_time else "dead"
        return "dead" if self.host == socket.gethostname() else "unknown"


@cache
def boot_id() -> str:
    """Return what changes at each boot of this machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{socket.gethostname()}-{uuid.getnode():x}"


@cache
def pid_namespace() -> str:
    """Return the namespace that process numbers of this process belong to; empty where there are none."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def start_time(pid: int) -> str | None:
    """Return when process `pid` of this machine started, in the kernel's own unit; None if it is gone."""
    if Path("/proc/self/stat").exists():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else fields[19]
    ps = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return ps.stdout.strip() or None


def process(pid: int | None = None) -> Process:
    """Return the identity of a process of this machine, this one by default."""
    pid = os.getpid() if pid is None else pid
    return Process(socket.gethostname(), boot_id(), pid, start_time(pid) or "gone", pid_namespace())


GIB = 2**30
"""Bytes."""


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int:
    """Return the memory of this machine, or as much of it as the container of this process may use."""
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # ValueError: there is no limit, which is called max
        most = min(most, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return most


@contextlib.contextmanager
def blocked(*signals: signal.Signals) -> Iterator[None]:
    """Hold signals back; processes that are started meanwhile do not see them before they ask for them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def beside(name: str, work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run `work` in a thread of that name while the body runs; the event that it is given says when that is over."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
