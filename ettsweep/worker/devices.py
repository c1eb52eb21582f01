"""The devices of a slot: preparing one for training, and starting a process group on several.

Each device has a process of its own. On this machine the leader starts the others; in a job SLURM starts all.
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

from ettsweep.errors import LaunchError, short_message
from ettsweep.files import Json
from ettsweep.launch.profile import AnyProfile
from ettsweep.launch.slots import Slot
from ettsweep.processes import background_thread, signals_blocked, unbind_threads
from ettsweep.seeding import derive_seed
from ettsweep.trainer.settings import TrainerSettings

if TYPE_CHECKING:
    import torch

    from ettsweep.trainer.training.distributed import FileStore, ProcessGroup
    from ettsweep.trainer.training.runtime_settings import RuntimeSettings

GRACE_S = 30.0
"""Seconds that a process has to exit by itself, or to notice that another has exited, before it is killed."""

LOOPBACK = "127.0.0.1"
"""Rendezvous address if all processes of a job are on one node."""

PORTS = range(10_000, 25_000)
"""Rendezvous ports of jobs: below Linux's ephemeral range, whose ports another process may hold for hours."""

START_POLL_S = 0.05
"""Seconds between checks for followers that are ready."""

OMP_SPIN_COUNT, OMP_BLOCK_MS = "10000", "1"
"""How long an OpenMP thread spins before it sleeps: iterations (some microseconds) for GNU, milliseconds for LLVM."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""mallopt parameters of glibc's malloc.h: bytes free at the top of the heap above which it returns them to the system,
and size above which a block is mapped, so that `free` returns it at once (at most 32 MiB)."""


def prepare_device(slot: Slot) -> "tuple[torch.device, Json]":
    """Import torch, pinned to the slot; return the device and the facts about it that a claim records.

    Raises:
        LaunchError: the slot is a GPU that torch does not see, or torch sees another one.
    """
    if slot.gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = slot.gpu  # must precede torch's first CUDA call
        # Inductor's worker processes would receive the signals that SLURM sends to the whole job, and die of them.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        if "PYTORCH_ALLOC_CONF" not in os.environ:
            os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # micro-batches differ in size
    limit_spinning()
    if names := unbind_threads():
        print(f"{', '.join(names)} ignored: all workers of a machine would compute on the same cores", file=sys.stderr)
    with signals_blocked(signal.SIGINT):  # torch's import swallows KeyboardInterrupt and would go on with half of numpy
        import torch

        from ettsweep.trainer.training.run import environment

    torch.set_num_threads(slot.threads)
    device = torch.device(slot.device)
    if slot.device == "cpu":
        keep_freed_memory()
    if slot.device == "cuda" and not torch.cuda.is_available():
        raise LaunchError(f"slot {slot.name}: torch sees no GPU; check CUDA_VISIBLE_DEVICES, or set `devices: cpu`")
    if slot.gpu is not None:
        check_gpu(slot.gpu)
    if slot.sharers > 1:
        torch.cuda.set_per_process_memory_fraction(1 / slot.sharers)
    return device, environment(device) | {"slot": slot.name}


def environment(device: str) -> Json:
    """Return versions and facts of this machine that may change last bits, for a device: cpu or cuda."""
    import torch

    from ettsweep.trainer.training.run import environment

    return environment(torch.device(device))


def check_gpu(gpu: str) -> None:
    """Check that the only GPU that torch sees is the one that this worker is for.

    A number means whatever CUDA takes it for. Of a MIG instance, drivers report its own UUID or that of its card; but
    its name says that it is one.

    Raises:
        LaunchError: it is another GPU, which may be another worker's.
    """
    import torch

    if gpu.isdigit():
        return
    seen = torch.cuda.get_device_properties(0)
    if f"{gpu[:4]}{seen.uuid}".startswith(gpu) or (gpu.startswith("MIG-") and " MIG " in seen.name):
        return
    raise LaunchError(
        f"this worker is for GPU {gpu}, but torch has {seen.name} (UUID {seen.uuid}): CUDA reads "
        f"CUDA_VISIBLE_DEVICES={gpu} differently, or the GPUs have changed; `nvidia-smi -L` lists them"
    )


def limit_spinning() -> None:
    """Let OpenMP threads sleep soon while they wait for each other, unless OMP_WAIT_POLICY is set.

    Spinning threads block cores that other processes compute on: small operators on two threads were a hundred times
    slower beside work on both cores. Call it before torch is imported, which reads these variables.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", OMP_SPIN_COUNT)  # GNU's OpenMP
        os.environ.setdefault("KMP_BLOCKTIME", OMP_BLOCK_MS)  # Intel's and LLVM's


def keep_freed_memory() -> None:
    """Let malloc keep the memory that a step frees for the next step; no effect without glibc.

    Otherwise each step of a stack maps most of its memory anew, page by page, which took a tenth of its time.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(M_MMAP_THRESHOLD, 32 * 2**20)
        mallopt(M_TRIM_THRESHOLD, 2**30)


def slot_settings(profile: AnyProfile, slot: Slot, data: str | None = None, alike: int = 1) -> "RuntimeSettings":
    """Return the runtime settings of a run in a slot: those of the profile, with `auto` left open as None.

    Args:
        profile: launch profile.
        slot: gives device and threads.
        data: path of the task's data; None if they come with a package.
        alike: number of runs of this recipe that the worker trains.
    """
    from ettsweep.trainer.training.runtime_settings import RuntimeSettings

    shared = {field.name for field in fields(RuntimeSettings)}
    settings = profile.settings(TrainerSettings)
    chosen = {name: value for name, value in (*profile, *settings) if name in shared and value != "auto"}
    if slot.device == "cuda":
        chosen.setdefault("loader_workers", slot.threads)
    # An explicit number of threads stands, but `auto` never exceeds the slot.
    chosen["most_threads"] = slot.threads
    peak_flops = None if settings.peak_tflops is None else 1e12 * settings.peak_tflops
    return RuntimeSettings(**chosen, sinks=settings.log, peak_flops=peak_flops, data=data, alike=alike)


# --- process groups -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def slot_group(slot: Slot, device: "torch.device") -> Iterator["ProcessGroup"]:
    """Start a follower process for each other device of a slot; yield the group, and end the followers on exit.

    The processes rendezvous in a file in a private temporary folder, so no other user can join.

    Raises:
        LaunchError: a follower ended before it could train.
    """
    from ettsweep.trainer.training.distributed import SINGLE_PROCESS, FileStore, ProcessGroup
    from ettsweep.trainer.training.runtime_settings import dismiss_followers

    if not slot.others:
        yield SINGLE_PROCESS
        return
    world = 1 + len(slot.others)
    with tempfile.TemporaryDirectory(prefix="ettsweep-") as folder, contextlib.ExitStack() as exit_stack:
        store_path = str(Path(folder) / "meeting")
        store = FileStore(store_path, world)
        followers = [
            exit_stack.enter_context(_start_follower(other, store_path, k, world))
            for k, other in enumerate(slot.others, 1)
        ]
        _wait_until_ready(followers, store)
        group = ProcessGroup.join(device, store, 0, world)
        try:
            with _exit_if_follower_dies(followers):
                yield group
                dismiss_followers(group)
        except BaseException:
            for follower in followers:
                follower.kill()  # before the abort, which may wait for processes that are still alive
            group.abort()
            raise
        group.leave()
        for follower in followers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                follower.wait(GRACE_S)


def _exit_if_follower_dies(followers: "list[subprocess.Popen[bytes]]") -> contextlib.AbstractContextManager[None]:
    """Exit this process some time after a follower has died: a GPU may wait for it in a collective for ever."""

    def watch(over: threading.Event) -> None:
        while not over.wait(1.0):
            if any(follower.poll() for follower in followers) and not over.wait(GRACE_S):
                print("another process of this worker died while this one was waiting for it; exiting", flush=True)
                os._exit(1)

    return background_thread("followers", watch)


@contextlib.contextmanager
def _start_follower(slot: Slot, meeting: str, rank: int, world: int) -> "Iterator[subprocess.Popen[bytes]]":
    meeting_json = {"slot": asdict(slot), "meeting": meeting, "rank": rank, "world": world}
    command = [sys.executable, "-u", "-P", "-m", "ettsweep.worker", "--follow", json.dumps(meeting_json)]
    follower = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        yield follower
    finally:
        follower.kill()
        follower.wait()


def _wait_until_ready(followers: "list[subprocess.Popen[bytes]]", store: "FileStore") -> None:
    """Wait until all followers are ready: the rendezvous itself would wait long for one that has died."""
    for rank, follower in enumerate(followers, 1):
        while not store.check([f"ready-{rank}"]):
            if (code := follower.poll()) is not None:
                raise LaunchError(f"another process of this worker ended with code {code} before it could train")
            time.sleep(START_POLL_S)


def join_job_group(device: "torch.device", name: str) -> "ProcessGroup":
    """Join the process group of a SLURM job, with the node that submitit finds in the environment as leader.

    The leader listens on one address only, loopback if all processes are on one node: by default torch listens on all
    interfaces, without a password. The port is MASTER_PORT if set, else one of `PORTS`, derived from the job id and
    from the `name` of the submission, since jobs of two clusters on one machine may have the same id.

    Raises:
        LaunchError: the leader's address and port cannot be used.
    """
    from submitit.helpers import TorchDistributedEnvironment
    from torch.distributed import DistNetworkError

    from ettsweep.trainer.training.distributed import STEP_TIMEOUT, ProcessGroup, TCPStore

    env = TorchDistributedEnvironment()
    leads, port = env.rank == 0, env.master_port
    if "MASTER_PORT" not in os.environ:
        port = PORTS[derive_seed(0, "port", name, os.environ["SLURM_JOB_ID"]) % len(PORTS)]
    host = LOOPBACK if env.local_world_size == env.world_size else leader_host(env.master_addr)
    try:
        host = _local_address(host) if leads else host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family).detach() if leads else None
        store = TCPStore(host, port, env.world_size, is_master=leads, timeout=STEP_TIMEOUT, master_listen_fd=listener)
    except (DistNetworkError, RuntimeError, OSError) as error:
        raise LaunchError(
            f"the processes of this job cannot connect to their leader at {host}:{port}: {short_message(error)}; "
            "MASTER_PORT selects another port"
        ) from None
    return ProcessGroup.join(device, store, env.rank, env.world_size)


def leader_host(name: str) -> str:
    """Return the address of a job's first node: that of srun, which runs there, else the node's name.

    A name may resolve to another interface on each node, and to loopback (such as 127.0.1.1) on the node itself.
    """
    address = os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "")
    with contextlib.suppress(ValueError):
        if not ipaddress.ip_address(address).is_loopback:
            return address
    return name


def _local_address(name: str) -> str:
    """Return this node's address by name, IPv4 if it has one."""
    addresses = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return str(min(addresses, key=lambda address: address[0] != socket.AF_INET)[4][0])


def join_leader_group(meeting_json: str) -> "tuple[torch.device, ProcessGroup]":
    """Join the process that started this one; return this process's device and the group.

    The kernel kills this process when the leader dies.

    Raises:
        LaunchError: `meeting_json` is not from a leader, or the slot's device is missing.
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
        raise LaunchError("--follow is internal to workers, which are started by `ettsweep grid`") from None
    device, _ = prepare_device(slot)
    from ettsweep.trainer.training.distributed import FileStore, ProcessGroup

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    store = FileStore(meeting, world)
    store.set(f"ready-{rank}", "")
    return device, ProcessGroup.join(device, store, rank, world)


PR_SET_PDEATHSIG = 1
"""prctl option of Linux: signal this process when its parent dies. Blocked in a GPU call, it would not notice."""
