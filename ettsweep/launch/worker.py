"""The worker: one submitit job that trains a list of runs, one after the other, while it holds its slot."""

import logging
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ettsweep.errors import LaunchError
from ettsweep.files import Json, dumps, write_atomic
from ettsweep.launch.profiles import LocalProfile, Slot
from ettsweep.launch.slots import hold_slot
from ettsweep.processes import process
from ettsweep.rundir import Attempt, RunDir, State, runs_dir
from ettsweep.spec import RunSpec

if TYPE_CHECKING:
    import torch

    from ettsweep.training.loop import Stop

POLL_S = 0.5
"""Seconds between looks for a cancellation or a newer attempt."""


def run_worker(submission: str, slot_name: str) -> None:
    """Train what the submission lists and no other worker has; the entry point of a submitit job."""
    from ettsweep.launch.submit import read_submission

    folder = Path(submission)
    content = read_submission(folder)
    slot = next(Slot(**data) for data in content["slots"] if data["name"] == slot_name)
    runs = [RunDir(runs_dir(folder.parent.parent) / run_id) for run_id in content["runs"]]

    def say(leaving: bool) -> None:
        write_atomic(folder / f"worker-{slot.name}.json", dumps({"process": process().to_json(), "leaving": leaving}))

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
        signal.signal(number, _leave)
    say(leaving=False)
    lock = hold_slot(slot)  # waits in the kernel, without torch, while another worker has the slot
    assert lock is not None
    try:
        while True:
            told_to_stop = any(claimable(run) for run in runs) and train_all(runs, slot, content["profile"])
            # From here on the list counts as nobody's, so the last look comes after saying so.
            say(leaving=True)
            if told_to_stop or not any(claimable(run) for run in runs):
                return
            say(leaving=False)
    finally:
        os.close(lock)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


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


def train_all(runs: list[RunDir], slot: Slot, profile: Json) -> bool:
    """Train all runs that can be claimed, pass after pass, until none is left: a dead worker's runs come round.

    Returns:
        Whether a signal told the worker to stop.
    """
    device, info = prepare_device(slot)

    import torch

    from ettsweep.training.loop import CheckpointPolicy
    from ettsweep.training.run import train_run

    policy = CheckpointPolicy(profile["checkpoint_every_s"], profile["checkpoint_every_steps"])

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
    return control.terminated


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
