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

import torch

from ettsweep import run as run_module
from ettsweep.runs import folder
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.trainer.training import async_checkpoint, checkpoint
from ettsweep.trainer.training.run import train_run
from ettsweep.trainer.training.runtime_settings import RuntimeSettings
from support.here import Here

STEP_S = 0.002
"""Least time a step takes, so that a kill after a while meets a run that is under way."""


EVERY_STEPS = 4
"""Steps from one checkpoint to the next."""


class Stuck:
    """A process that tells where it is, and waits there for its end."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe

    def __call__(self) -> None:
        os.write(self.pipe, b".")
        time.sleep(60)
        os._exit(3)


def stick_in_checkpoint(stuck: Stuck, count: int) -> None:
    """Get stuck halfway through the `count`-th checkpoint."""
    save, left = torch.save, [count]

    def half(state: object, path: Path) -> None:
        save(state, path)
        left[0] -= 1
        if left[0] == 0:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
            stuck()

    checkpoint.torch.save = half


def stick_in_metrics(stuck: Stuck, count: int) -> None:
    """Get stuck halfway through the `count`-th piece of metrics."""
    write, left = run_module._write, [count]

    def half(descriptor: int, data: bytes) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.write(descriptor, data[: len(data) // 2])
            stuck()
        write(descriptor, data)

    run_module._write = half


def stick_in_result(stuck: Stuck, count: int) -> None:
    """Get stuck after the stitched metrics, before the result."""
    write = folder.write_atomic

    def half(path: Path, data: bytes | str | Callable[[Path], None], *, exclusive: bool = False) -> bool:
        if path.name == "result.json":
            stuck()
        return write(path, data, exclusive=exclusive)

    folder.write_atomic = half


STICK = {"checkpoint": stick_in_checkpoint, "metrics": stick_in_metrics, "result": stick_in_result}


def attempt_run(run: RunDir, pipe: int, mode: str, count: int) -> None:
    torch.set_num_threads(1)
    if mode in STICK:
        STICK[mode](Stuck(pipe), count)
    started = False

    def poll(attempt: Attempt) -> None:
        nonlocal started
        if not started and mode == "time":
            os.write(pipe, b".")
        started = True
        time.sleep(STEP_S)

    here = Here(run, poll=poll)
    with here.recording():
        train_run(here.given, torch.device("cpu"), RuntimeSettings(checkpoint_every_steps=EVERY_STEPS))


def train_and_kill(path: str, seed: int, beside: bool = False) -> list[dict[str, object]]:
    """Return how each attempt was killed ("": it was not), in which checkpoint or piece of metrics, and what it resumed.

    `beside` writes checkpoints beside training, as those of large models.
    """
    run, rng = RunDir(Path(path)), random.Random(seed)
    plan = ["time", "checkpoint", "metrics"] * 2
    rng.shuffle(plan)
    collected = []
    for settings in [*plan, "result", ""]:
        read, write = os.pipe()
        count = rng.randrange(1, 4)
        pid = os.fork()
        if pid == 0:
            os.close(read)
            async_checkpoint.LARGE_BYTES = 0 if beside else async_checkpoint.LARGE_BYTES
            attempt_run(run, write, settings, count)
            os._exit(0)
        os.close(write)
        reached = os.read(read, 1)  # nothing where it ended before
        if reached:
            if settings == "time":
                time.sleep(rng.uniform(0.0, 0.08))
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read)
        number = max(run.attempt_numbers())
        resumed = run.attempt(number).resumed_from()[1]
        collected.append({"how": settings if reached else "", "count": count, "resumed": resumed})
        if run.result_path.exists():
            break
    return collected
