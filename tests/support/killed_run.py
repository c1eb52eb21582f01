"""Train one run through a series of kills, see forks.py.

Each attempt is a process of its own. All but the last are killed: after a while, or in the midst of writing a
checkpoint, a line of metrics or the result.
"""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ettsweep import run as run_module
from ettsweep.runs import folder
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.trainer.training import checkpoint
from ettsweep.trainer.training.runtime_settings import RuntimeSettings
from support.here import at_call, train_once

STEP_S = 0.002
"""Least time a step takes, so that a kill after a while meets a run that is under way."""

EVERY_STEPS = 4
"""Steps from one checkpoint to the next."""


def stick(mode: str, count: int, stuck: Callable[[], None]) -> None:
    """Have this process stuck halfway through its `count`-th checkpoint or piece of metrics, or right before its result."""
    save, write_atomic = torch.save, folder.write_atomic

    def half_a_checkpoint(state: object, path: Path) -> None:
        save(state, path)
        os.truncate(path, path.stat().st_size // 2)
        stuck()

    def half_a_piece(descriptor: int, data: bytes) -> None:
        os.write(descriptor, data[: len(data) // 2])
        stuck()

    def write(path: Path, *content: Any, **how: bool) -> bool:
        if path.name == "result.json":
            stuck()
        return write_atomic(path, *content, **how)

    if mode == "checkpoint":
        at_call(checkpoint.torch, "save", count, half_a_checkpoint)
    if mode == "metrics":
        at_call(run_module, "_write", count, half_a_piece)
    if mode == "result":
        folder.write_atomic = write


def attempt_run(run: RunDir, pipe: int, mode: str, count: int) -> None:
    """Train the next attempt; tell when it is under way, or stuck, and wait there for the end."""

    def stuck() -> None:
        os.write(pipe, b".")
        time.sleep(60)
        os._exit(3)

    def poll(attempt: Attempt) -> None:
        if mode == "time":
            os.write(pipe, b".")
        time.sleep(STEP_S)

    torch.set_num_threads(1)
    stick(mode, count, stuck)
    train_once(run, RuntimeSettings(checkpoint_every_steps=EVERY_STEPS), poll)


def train_and_kill(path: str) -> list[dict[str, object]]:
    """Return how each attempt was killed ("": it was not), in which checkpoint or piece of metrics, and what it resumed."""
    run, rng, collected = RunDir(Path(path)), random.Random(0), []
    plan = ["time", "checkpoint", "metrics"] * 2
    rng.shuffle(plan)
    for mode in [*plan, "result", ""]:
        read, write = os.pipe()
        count = rng.randrange(1, 4)
        pid = os.fork()
        if pid == 0:
            os.close(read)
            attempt_run(run, write, mode, count)
            os._exit(0)
        os.close(write)
        reached = os.read(read, 1)  # nothing where it ended before
        if reached:
            if mode == "time":
                time.sleep(rng.uniform(0.0, 0.08))
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read)
        resumed = run.attempt(max(run.attempt_numbers())).resumed_from()[1]
        collected.append({"how": mode if reached else "", "count": count, "resumed": resumed})
        if run.result_path.exists():
            break
    return collected
