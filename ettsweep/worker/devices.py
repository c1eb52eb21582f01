"""The devices of a slot: how one is prepared and a run trained on it, and how several train one run together.

Each has a process of its own: on this machine the leader starts the others, in a job SLURM does.
"""

import contextlib
import ctypes
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

from ettsweep.errors import LaunchError, first_line
from ettsweep.files import Json
from ettsweep.launch.profile import AnyProfile, Slot
from ettsweep.processes import beside, blocked
from ettsweep.seeding import derive_seed

if TYPE_CHECKING:
    import torch

    from ettsweep.trainer.training.distributed import FileStore, ProcessGroup
    from ettsweep.trainer.training.runtime_settings import RuntimeSettings

GRACE_S = 30.0
"""Seconds that a process has to end by itself, or to learn that another has ended, before it is killed."""

LOOPBACK = "127.0.0.1"
"""Where those meet who are on one node."""

PORTS = range(10_000, 25_000)
"""Of those who meet in a job: below those that the system gives to whoever asks for any, who may hold one for hours."""

START_POLL_S = 0.05
"""Seconds between looks for followers that start."""


SPINS, BLOCK_MS = "10000", "1"
"""How long a thread of OpenMP spins before it sleeps: turns, some microseconds in all, and milliseconds."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc: bytes of free memory from which on it gives them back, and of a block from which on the system
has it at once when it is freed (at most 32 MiB)."""


def prepare_device(slot: Slot) -> "tuple[torch.device, Json]":
    """Import torch, pinned to the slot; return the device and what a claim says of it.

    Raises:
        LaunchError: the slot is a GPU that torch does not see.
    """
    if slot.gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = slot.gpu  # before CUDA starts
        # Else processes of the compiler's would take the signals that SLURM sends to all of a job, and die of them.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        if "PYTORCH_ALLOC_CONF" not in os.environ:
            os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # micro-batches differ in size
    bound_spinning()
    with blocked(signal.SIGINT):  # amid it torch would lose Ctrl-C, and go on with half of numpy
        import torch

        from ettsweep.trainer.training.run import environment

    torch.set_num_threads(slot.threads)
    device = torch.device(slot.device)
    if slot.device == "cpu":
        keep_freed_memory()
    if slot.device == "cuda" and not torch.cuda.is_available():
        raise LaunchError(f"slot {slot.name}: torch sees no GPU; check CUDA_VISIBLE_DEVICES, or set `devices: cpu`")
    if slot.sharers > 1:
        torch.cuda.set_per_process_memory_fraction(1 / slot.sharers)
    return device, environment(device) | {"slot": slot.name}


def bound_spinning() -> None:
    """Have threads of OpenMP wait for each other asleep after a moment, unless somebody says how they should wait.

    They would spin for it, on cores that others compute on: small operators on two threads, beside work on both cores,
    were a hundred times slower so. It has to be said before torch is imported, to GNU's OpenMP, and to Intel's and
    LLVM's.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
        os.environ.setdefault("KMP_BLOCKTIME", BLOCK_MS)


def keep_freed_memory() -> None:
    """Keep what a step frees for the next, where the C library can be told to.

    A step of a stack would take most of its memory anew, page by page, which was a tenth of its time.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(M_MMAP_THRESHOLD, 32 * 2**20)
        mallopt(M_TRIM_THRESHOLD, 2**30)


def execution(profile: AnyProfile, slot: Slot, data: str | None = None, alike: int = 1) -> "RuntimeSettings":
    """Return how a run is trained in a slot, as one of so many alike: as its profile says, on the data there."""
    from ettsweep.trainer.training.runtime_settings import RuntimeSettings

    shared = {field.name for field in fields(RuntimeSettings)}
    chosen = {name: value for name, value in profile if name in shared and value != "auto"}
    if slot.device == "cuda":
        chosen.setdefault("loader_workers", slot.threads)
    chosen["most_threads"] = slot.threads
    peak_flops = None if profile.peak_tflops is None else 1e12 * profile.peak_tflops
    return RuntimeSettings(**chosen, sinks=profile.log, peak_flops=peak_flops, data=data, alike=alike)


# --- several that train together ------------------------------------------------------------------------------------


@contextlib.contextmanager
def gathered(slot: Slot, device: "torch.device") -> Iterator["ProcessGroup"]:
    """Start a process for each other device of a slot, which trains what this one says, and end them at the end.

    They meet in a file that nobody else can open.

    Raises:
        LaunchError: one of them has ended before it could train.
    """
    from ettsweep.trainer.training.distributed import ALONE, FileStore, ProcessGroup
    from ettsweep.trainer.training.runtime_settings import dismiss

    if not slot.others:
        yield ALONE
        return
    world = 1 + len(slot.others)
    with tempfile.TemporaryDirectory(prefix="ettsweep-") as folder, contextlib.ExitStack() as exit_stack:
        store_path = str(Path(folder) / "meeting")
        store = FileStore(store_path, world)
        followers = [
            exit_stack.enter_context(_started(other, store_path, k, world)) for k, other in enumerate(slot.others, 1)
        ]
        _await(followers, store)
        group = ProcessGroup.join(device, store, 0, world)
        try:
            with _watched(followers):
                yield group
                dismiss(group)
        except BaseException:
            for follower in followers:
                follower.kill()  # first: what has lost a process waits for the rest
            group.abandon()
            raise
        group.leave()
        for follower in followers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                follower.wait(GRACE_S)


def _watched(followers: "list[subprocess.Popen[bytes]]") -> contextlib.AbstractContextManager[None]:
    """End this process where another has ended and this one does not notice: a GPU may wait for it for ever."""

    def watch(over: threading.Event) -> None:
        while not over.wait(1.0):
            if any(follower.poll() for follower in followers) and not over.wait(GRACE_S):
                print("another process of this worker is gone, and this one waits for it in vain", flush=True)
                os._exit(1)

    return beside("followers", watch)


@contextlib.contextmanager
def _started(slot: Slot, meeting: str, rank: int, world: int) -> "Iterator[subprocess.Popen[bytes]]":
    meeting_json = {"slot": asdict(slot), "meeting": meeting, "rank": rank, "world": world}
    command = [sys.executable, "-u", "-P", "-m", "ettsweep.worker", "--follow", json.dumps(meeting_json)]
    follower = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        yield follower
    finally:
        follower.kill()
        follower.wait()


def _await(followers: "list[subprocess.Popen[bytes]]", store: "FileStore") -> None:
    """Wait until all are ready to meet: those who meet would wait long for one that never comes."""
    for rank, follower in enumerate(followers, 1):
        while not store.check([f"ready-{rank}"]):
            if (code := follower.poll()) is not None:
                raise LaunchError(f"another process of this worker ended with code {code} before it could train")
            time.sleep(START_POLL_S)


def meet_in_job(device: "torch.device", name: str) -> "ProcessGroup":
    """Meet the other processes of a SLURM job, at the node that submitit finds in its environment.

    The leader listens there alone, and at loopback where all are on one node: torch would on all interfaces, and asks
    nobody for a password. The port is MASTER_PORT where that is set, else one of `PORTS` that the job alone has: its
    number, and the `name` of its submission, since jobs of two clusters on one machine may have the same number.

    Raises:
        LaunchError: the address cannot be used.
    """
    from submitit.helpers import TorchDistributedEnvironment
    from torch.distributed import DistNetworkError

    from ettsweep.trainer.training.distributed import DEVICE_WAIT, ProcessGroup, TCPStore

    env = TorchDistributedEnvironment()
    leads, port = env.rank == 0, env.master_port
    if "MASTER_PORT" not in os.environ:
        port = PORTS[derive_seed(0, "port", name, os.environ["SLURM_JOB_ID"]) % len(PORTS)]
    host = LOOPBACK if env.local_world_size == env.world_size else _reached_at(env.master_addr)
    try:
        host = _address_here(host) if leads else host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family).detach() if leads else None
        store = TCPStore(host, port, env.world_size, is_master=leads, timeout=DEVICE_WAIT, master_listen_fd=listener)
    except (DistNetworkError, RuntimeError, OSError) as error:
        raise LaunchError(f"the processes of this job cannot meet at {host}:{port}: {first_line(error)}") from None
    return ProcessGroup.join(device, store, env.rank, env.world_size)


def _reached_at(name: str) -> str:
    """Return where a job's first node is reached by the others: where srun, which runs there, is; else its name.

    A name may stand for another interface on each node, or for loopback on its own, such as 127.0.1.1.
    """
    address = os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "")
    with contextlib.suppress(ValueError):
        if not ipaddress.ip_address(address).is_loopback:
            return address
    return name


def _address_here(name: str) -> str:
    """Return the address at which other nodes reach this one by its name, IPv4 where there is one."""
    addresses = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return str(min(addresses, key=lambda address: address[0] != socket.AF_INET)[4][0])


def meet_leader(meeting_json: str) -> "tuple[torch.device, ProcessGroup]":
    """Meet the process that started this one, and end with it; return the device that it is to train on.

    Raises:
        LaunchError: no leader said what was told, or the device is not there.
    """
    try:
        message = json.loads(meeting_json)
        slot, meeting, rank, world = (
            Slot.from_json(message["slot"]),
            message["meeting"],
            message["rank"],
            message["world"],
        )
    except (ValueError, KeyError, TypeError):
        raise LaunchError("--follow is for workers: they are started by `ettsweep grid`") from None
    device, _ = prepare_device(slot)
    from ettsweep.trainer.training.distributed import FileStore, ProcessGroup

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    store = FileStore(meeting, world)
    store.set(f"ready-{rank}", "")
    return device, ProcessGroup.join(device, store, rank, world)


PR_SET_PDEATHSIG = 1
"""Linux: have the kernel send a signal when the parent dies. A GPU may keep the process from noticing by itself."""
