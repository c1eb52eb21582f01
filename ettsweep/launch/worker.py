"""The worker: one submitit job that trains a list of runs, one after the other, while it holds its slot."""

import fcntl
import logging
import os
import signal
import stat
import sys
import time
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ettsweep.errors import LaunchError, StorageError
from ettsweep.files import Json, dumps, storage_errors, write_atomic
from ettsweep.launch.profiles import LocalProfile, Slot
from ettsweep.processes import process
from ettsweep.rundir import Attempt, RunDir, State, runs_dir
from ettsweep.spec import RunSpec

if TYPE_CHECKING:
    import torch

    from ettsweep.training.loop import CheckpointPolicy, Stop

SLOTS_ENV = "ETTSWEEP_SLOTS"
"""Environment variable that puts the slot locks elsewhere; sweeps with different ones share no slots."""

POLL_S = 0.5
"""Seconds between looks for a cancellation or a newer attempt."""


def run_worker(submission: str, slot_name: str) -> None:
    """Train what the submission lists and no other worker has; the entry point of a submitit job."""
    from ettsweep.launch.submit import read_submission

    folder = Path(submission)
    content = read_submission(folder)
    slot = next(Slot(**data) for data in content["slots"] if data["name"] == slot_name)
    write_atomic(folder / f"worker-{slot.name}.json", dumps(process().to_json()))
    runs = [RunDir(runs_dir(folder.parent.parent) / run_id) for run_id in content["runs"]]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
        signal.signal(number, _leave)
    lock = hold_slot(slot)  # waits in the kernel, without torch, while another worker has the slot
    assert lock is not None
    try:
        if any(claimable(run) for run in runs):
            from ettsweep.training.loop import CheckpointPolicy

            profile = content["profile"]
            policy = CheckpointPolicy(profile["checkpoint_every_s"], profile["checkpoint_every_steps"])
            train_all(runs, slot, policy)
    finally:
        os.close(lock)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


# --- slots ----------------------------------------------------------------------------------------------------------


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


def hold_slot(slot: Slot, wait: bool = True) -> int | None:
    """Hold the slot of this host and user; the kernel frees it when the process dies.

    Returns:
        The descriptor that holds it, or None if `wait` is false and another process has it.
    """
    descriptor = os.open(slot_dir() / f"{slot.name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


# --- runs -----------------------------------------------------------------------------------------------------------


def claimable(run: RunDir) -> bool:
    """Say whether a run waits for someone to train it."""
    return run.status().state in (State.MISSING, State.INTERRUPTED)


def claim(run: RunDir, info: Json) -> Attempt | None:
    """Claim a run if it waits and nobody was faster."""
    numbers = run.numbers()
    if not claimable(run):
        return None
    return run.claim(info, after=numbers[-1] if numbers else 0)


class Control:
    """What a run in training asks at each step: was the worker told to stop, or the run cancelled or taken over?"""

    def __init__(self) -> None:
        self.terminated = False
        self._looked_s = 0.0
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.terminated = True

    def poll(self, attempt: Attempt) -> "Stop | None":
        """Return the reason to stop, if there is one."""
        from ettsweep.training.loop import Stop

        if self.terminated:
            return Stop.TERMINATED
        now_s = time.monotonic()
        if now_s - self._looked_s < POLL_S:
            return None
        self._looked_s = now_s
        if attempt.superseded():
            return Stop.SUPERSEDED
        return Stop.CANCELLED if attempt.run.cancel_path.exists() else None


def train_all(runs: list[RunDir], slot: Slot, policy: "CheckpointPolicy") -> None:
    """Train all runs that can be claimed, pass after pass, until none is left: a dead worker's runs come round."""
    device, info = prepare_device(slot)

    import torch

    from ettsweep.training.run import train_run

    control = Control()
    claimed = True
    while claimed and not control.terminated:
        claimed = False
        for run in runs:
            attempt = None if control.terminated else claim(run, info)
            if attempt is not None:
                claimed = True
                train_run(run, attempt, device, policy, partial(control.poll, attempt))
                if slot.gpu is not None:
                    torch.cuda.synchronize()  # raises if the run has broken the device: then this process is over


def prepare_device(slot: Slot) -> "tuple[torch.device, Json]":
    """Import torch, pinned to the slot; return the device and what a claim says of it.

    Raises:
        LaunchError: the slot is a GPU that torch does not see.
    """
    if slot.gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = slot.gpu  # before CUDA starts
    import torch

    from ettsweep.training.run import environment

    torch.set_num_threads(slot.threads)
    device = torch.device(slot.device)
    if slot.device == "cuda" and not torch.cuda.is_available():
        raise LaunchError(f"slot {slot.name}: torch sees no GPU; check CUDA_VISIBLE_DEVICES, or set `devices: cpu`")
    return device, environment(device) | {"slot": slot.name}


def train_in_foreground(results: Path, spec: RunSpec, profile: LocalProfile) -> bool:
    """Train one run in this process, and say whether it is finished.

    A failed or cancelled run is tried again: whoever types the command wants it.

    Raises:
        LaunchError: another process trains it.
    """
    run = RunDir.create(results, spec)
    if run.status().state in (State.FAILED, State.CANCELLED):
        run.retry()
    if run.status().state.finished:
        return True
    lock, slot = _any_slot(profile.resolve())
    try:
        device, info = prepare_device(slot)

        from ettsweep.training.loop import CheckpointPolicy
        from ettsweep.training.run import train_run

        attempt = claim(run, info)
        if attempt is None:
            status = run.status()
            if status.state.finished:
                return True
            raise LaunchError(f"run {run.id} is {status.state}: another process has it; `ettsweep watch` shows it")
        logger = logging.getLogger("ettsweep")
        logger.addHandler(logging.StreamHandler())
        logger.setLevel(logging.INFO)
        policy = CheckpointPolicy(profile.checkpoint_every_s, profile.checkpoint_every_steps)
        train_run(run, attempt, device, policy, partial(Control().poll, attempt))
        return run.status().state.finished
    finally:
        os.close(lock)


def _any_slot(slots: list[Slot]) -> tuple[int, Slot]:
    """Hold the first free slot, or wait for the first."""
    for slot in slots:
        descriptor = hold_slot(slot, wait=False)
        if descriptor is not None:
            return descriptor, slot
    print("all slots are taken: waiting for one", file=sys.stderr)
    descriptor = hold_slot(slots[0])
    assert descriptor is not None
    return descriptor, slots[0]
