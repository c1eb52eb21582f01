"""The processes that train one run on several devices: on this machine the leader starts them, in a job SLURM does."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from ettsweep.errors import LaunchError
from ettsweep.launch.profiles import Slot

if TYPE_CHECKING:
    import torch

    from ettsweep.training.distributed import Group, TCPStore

HERE = "127.0.0.1"

GRACE_S = 30.0
"""Seconds that a follower has to end by itself, before it is killed."""

START_POLL_S = 0.05
"""Seconds between looks for followers that start."""


@contextlib.contextmanager
def gathered(slot: Slot, device: "torch.device") -> Iterator["Group"]:
    """Start a process for each other device of a slot, which trains what this one says, and end them at the end.

    Args:
        slot: of this process, with those of the others.
        device: of this process.

    Raises:
        LaunchError: one of them has ended before it could train.
    """
    from ettsweep.training.distributed import ALONE, Group, TCPStore, dismiss

    if not slot.others:
        yield ALONE
        return
    world = 1 + len(slot.others)
    store = TCPStore(HERE, 0, world, is_master=True, wait_for_workers=False)
    followers = [_start(other, store.port, rank, world) for rank, other in enumerate(slot.others, 1)]
    try:
        _await(followers, store)
        group = Group.join(device, store, 0, world)
        try:
            yield group
            dismiss(group)
        finally:
            group.leave()
        _wait_for(followers)
    finally:
        for follower in followers:
            follower.kill()
            follower.wait()


def _start(slot: Slot, port: int, rank: int, world: int) -> "subprocess.Popen[bytes]":
    told = {"slot": asdict(slot), "port": port, "rank": rank, "world": world}
    command = [sys.executable, "-u", "-P", "-m", "ettsweep.launch.worker", "--follow", json.dumps(told)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)


def _await(followers: "list[subprocess.Popen[bytes]]", store: "TCPStore") -> None:
    """Wait until all are ready to meet: those who meet would wait long for one that never comes."""
    for rank, follower in enumerate(followers, 1):
        while not store.check([_ready(rank)]):
            if (code := follower.poll()) is not None:
                raise LaunchError(f"another process of this worker ended with code {code} before it could train")
            time.sleep(START_POLL_S)


def _ready(rank: int) -> str:
    """Return the key under which a follower says that it is ready."""
    return f"ready-{rank}"


def _wait_for(followers: "list[subprocess.Popen[bytes]]") -> None:
    for follower in followers:
        with contextlib.suppress(subprocess.TimeoutExpired):
            follower.wait(GRACE_S)


def meet_in_job(device: "torch.device") -> "Group":
    """Meet the other processes of a SLURM job, at the address that submitit finds in its environment.

    Raises:
        LaunchError: the address cannot be used.
    """
    from submitit.helpers import TorchDistributedEnvironment
    from torch.distributed import DistNetworkError

    from ettsweep.training.distributed import DEVICE_WAIT, Group, TCPStore

    where = TorchDistributedEnvironment()
    try:
        store = TCPStore(
            where.master_addr, where.master_port, where.world_size, is_master=where.rank == 0, timeout=DEVICE_WAIT
        )
    except (DistNetworkError, RuntimeError) as error:
        address = f"{where.master_addr}:{where.master_port}"
        raise LaunchError(f"the processes of this job cannot meet at {address}: {str(error).splitlines()[0]}") from None
    return Group.join(device, store, where.rank, where.world_size)


def meet_leader(told: dict[str, object], device: "torch.device") -> "Group":
    """Meet the process that started this one."""
    from ettsweep.training.distributed import Group, TCPStore

    world, rank, port = (int(str(told[name])) for name in ("world", "rank", "port"))
    store = TCPStore(HERE, port, world, is_master=False)
    store.set(_ready(rank), "")
    return Group.join(device, store, rank, world)


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
