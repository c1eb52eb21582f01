"""The processes that train one run on several devices: on this machine the leader starts them, in a job SLURM does."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ettsweep.errors import LaunchError, first_line
from ettsweep.launch.profiles import Slot
from ettsweep.processes import beside

if TYPE_CHECKING:
    import torch

    from ettsweep.training.distributed import FileStore, Peers

GRACE_S = 30.0
"""Seconds that a process has to end by itself, or to learn that another has ended, before it is killed."""

START_POLL_S = 0.05
"""Seconds between looks for followers that start."""


@contextlib.contextmanager
def gathered(slot: Slot, device: "torch.device") -> Iterator["Peers"]:
    """Start a process for each other device of a slot, which trains what this one says, and end them at the end.

    They meet in a file that nobody else can open.

    Args:
        slot: of this process, with those of the others.
        device: of this process.

    Raises:
        LaunchError: one of them has ended before it could train.
    """
    from ettsweep.training.distributed import ALONE, FileStore, Peers
    from ettsweep.training.execution import dismiss

    if not slot.others:
        yield ALONE
        return
    world = 1 + len(slot.others)
    with tempfile.TemporaryDirectory(prefix="ettsweep-") as folder, contextlib.ExitStack() as started:
        meeting = str(Path(folder) / "meeting")
        store = FileStore(meeting, world)
        followers = [
            started.enter_context(_started(other, meeting, k, world)) for k, other in enumerate(slot.others, 1)
        ]
        _await(followers, store)
        group = Peers.join(device, store, 0, world)
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
    follower = _start(slot, meeting, rank, world)
    try:
        yield follower
    finally:
        follower.kill()
        follower.wait()


def _start(slot: Slot, meeting: str, rank: int, world: int) -> "subprocess.Popen[bytes]":
    told = {"slot": asdict(slot), "meeting": meeting, "rank": rank, "world": world}
    command = [sys.executable, "-u", "-P", "-m", "ettsweep.worker", "--follow", json.dumps(told)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)


def _await(followers: "list[subprocess.Popen[bytes]]", store: "FileStore") -> None:
    """Wait until all are ready to meet: those who meet would wait long for one that never comes."""
    for rank, follower in enumerate(followers, 1):
        while not store.check([_ready(rank)]):
            if (code := follower.poll()) is not None:
                raise LaunchError(f"another process of this worker ended with code {code} before it could train")
            time.sleep(START_POLL_S)


def _ready(rank: int) -> str:
    """Return the key under which a follower says that it is ready."""
    return f"ready-{rank}"


def meet_in_job(device: "torch.device") -> "Peers":
    """Meet the other processes of a SLURM job, at the address that submitit finds in its environment.

    Raises:
        LaunchError: the address cannot be used.
    """
    from submitit.helpers import TorchDistributedEnvironment
    from torch.distributed import DistNetworkError

    from ettsweep.training.distributed import DEVICE_WAIT, Peers, TCPStore

    where = TorchDistributedEnvironment()
    try:
        store = TCPStore(
            where.master_addr, where.master_port, where.world_size, is_master=where.rank == 0, timeout=DEVICE_WAIT
        )
    except (DistNetworkError, RuntimeError) as error:
        address = f"{where.master_addr}:{where.master_port}"
        raise LaunchError(f"the processes of this job cannot meet at {address}: {first_line(error)}") from None
    return Peers.join(device, store, where.rank, where.world_size)


def meet_leader(told: dict[str, object], device: "torch.device") -> "Peers":
    """Meet the process that started this one, and end with it."""
    from ettsweep.training.distributed import FileStore, Peers

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    world, rank = int(str(told["world"])), int(str(told["rank"]))
    store = FileStore(str(told["meeting"]), world)
    store.set(_ready(rank), "")
    return Peers.join(device, store, rank, world)


PR_SET_PDEATHSIG = 1
"""Linux: have the kernel send a signal when the parent dies. A GPU may keep the process from noticing by itself."""


def parse_told(text: str) -> tuple[Slot, dict[str, object]]:
    """Read what a leader says to a process that it starts: its slot, and how to meet.

    Raises:
        LaunchError: no leader said this.
    """
    try:
        told = json.loads(text)
        return Slot.from_json(told["slot"]), told
    except (ValueError, KeyError, TypeError):
        raise LaunchError("--follow is for workers: they are started by `ettsweep grid`") from None
