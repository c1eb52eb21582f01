"""Unique identities of processes, and the cores and memory of this machine."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from ettsweep import cgroups
from ettsweep.console import format_count
from ettsweep.files import Json

Life = Literal["alive", "dead", "unknown"]


@dataclass(frozen=True)
class Process:
    """The identity of a process: a pid alone is reused, after a reboot or by chance."""

    host: str
    boot_id: str
    pid: int
    start_time: str
    namespace: str = ""

    @classmethod
    def from_json(cls, data: object) -> "Process | None":
        """Return the process that a JSON object describes, or None if it describes none."""
        if not isinstance(data, dict):
            return None
        try:
            names = str(data["host"]), str(data["boot_id"])
            return cls(*names, int(data["pid"]), str(data["start_time"]), str(data.get("namespace", "")))
        except (KeyError, TypeError, ValueError, OverflowError):
            return None

    def to_json(self) -> Json:
        """Return the identity as a JSON object."""
        return asdict(self)

    def liveness(self) -> Life:
        """Return whether the process lives; `unknown` if it cannot be seen from here.

        That is so on another machine, in another container, and before the last boot. Several machines, such as cloned
        images or containers called localhost, may share a name, so another boot may mean another machine.
        """
        if self.boot_id != boot_id() or (self.namespace and self.namespace != pid_namespace()):
            return "unknown"
        started = start_time(self.pid)
        if started is None and _is_hidden(self.pid):
            return "unknown"
        return "alive" if started == self.start_time else "dead"

    @property
    def has_name_of_this_host(self) -> bool:
        """`True` if its machine has this one's name, and may be this one."""
        return self.host == socket.gethostname()

    @property
    def is_of_another_boot(self) -> bool:
        """`True` if its machine has this one's name, but another boot: an earlier one, or another machine."""
        return self.has_name_of_this_host and self.boot_id != boot_id()


@cache
def boot_id() -> str:
    """Return an id that changes at each boot of this machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        import uuid

        return f"{socket.gethostname()}-{uuid.getnode():x}"


@cache
def pid_namespace() -> str:
    """Return the pid namespace of this process; empty if the system has none."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def start_time(pid: int) -> str | None:
    """Return when a process of this machine started: clock ticks since boot, on macOS seconds; None if it is gone."""
    if Path("/proc/self/stat").exists():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rsplit(")", 1)[1].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else fields[19]
    import psutil

    try:
        return str(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def _is_hidden(pid: int) -> bool:
    """`True` if a process exists and only its entry in /proc is hidden, as by `hidepid`."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        pass
    return False


def process_identity(pid: int | None = None) -> Process:
    """Return the identity of a process of this machine, by default of the current one."""
    pid = os.getpid() if pid is None else pid
    return Process(socket.gethostname(), boot_id(), pid, start_time(pid) or "gone", pid_namespace())


GIB = 2**30  # bytes


@dataclass(frozen=True)
class CoreCount:
    """The cores that this process may use.

    Attributes:
        machine: cores of this machine.
        affinity: those that the process may run on.
        quota: CPU time of its control groups in cores, such as 2.5; infinite without a quota.
    """

    machine: int
    affinity: int
    quota: float

    @property
    def usable(self) -> int:
        """Number of threads that can compute in parallel: a fraction of a core counts only alone."""
        return max(1, int(min(self.affinity, self.quota)))

    def __str__(self) -> str:
        count = format_count(self.usable, "core")
        if self.quota < self.affinity:
            return f"{count}: cgroup quota {round(self.quota, 2)} of {self.machine}"
        return f"{count}: affinity {self.affinity} of {self.machine}" if self.affinity < self.machine else count


def count_cores(root: Path = cgroups.ROOT) -> CoreCount:
    """Count the cores of this process; `root` is the folder that holds `proc` and `sys`."""
    machine = os.cpu_count() or 1
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else machine
    return CoreCount(machine, affinity, cgroups.cpu_quota(root))


def cores() -> int:
    """Return the number of cores that this process may use."""
    return count_cores().usable


def machine_bytes() -> int:
    """Return the memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory_bytes(root: Path = cgroups.ROOT) -> int:
    """Return the memory of this machine, or the limit of this container or job."""
    return int(min(machine_bytes(), cgroups.memory_limit(root)))


BINDING_VARIABLES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_HW_SUBSET")
"""Variables by which GNU's, LLVM's and Intel's OpenMP bind threads to cores."""


def unbind_threads() -> list[str]:
    """Remove variables that would bind the threads of this process to cores; return their names.

    When torch is imported, OpenMP binds the main thread of each process to the first core, so all workers of a machine,
    and the processes that load their data, would share it. Even a single worker may share it with another command's.
    An affinity mask, such as that of a job, stays.
    """
    return [name for name in BINDING_VARIABLES if os.environ.pop(name, None) is not None]


@contextlib.contextmanager
def signals_blocked(*signals: signal.Signals) -> Iterator[None]:
    """Block signals in the body, and in processes started there."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def background_thread(name: str, work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run `work` in a named thread during the body, and set its event at the end."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
