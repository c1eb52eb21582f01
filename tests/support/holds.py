"""Programs that hold at the first checkpoint of an attempt, with their worker stopped: no run ends before a test is done.

A program goes on once its worker does; where that is to stop then, it waits until it is told.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ettsweep.run import Run

VARIABLE = "TEST_HOLDS"
"""Names a folder with a file for each attempt that is still to hold, whichever that is."""

ENDING = "ending"
"""File in that folder while a program whose worker goes on is to hold until it is told to stop, or the file is gone."""


def ask_for_holds(folder: Path, count: int) -> None:
    """Have so many more attempts hold."""
    folder.mkdir(exist_ok=True)
    for number in range(count):
        (folder / str(number)).touch()


def hold_at_checkpoints() -> None:
    """Have runs of this process hold at their first checkpoints, as long as some are to."""
    saving = Run.saving

    def holding(run: Run, step: int) -> Callable[..., None]:
        save = saving(run, step)

        def save_and_hold(write: Callable[[Path], Any]) -> None:
            states = Path(run._states)
            is_first = not (states.is_dir() and any(not path.name.startswith(".") for path in states.iterdir()))
            save(write)
            if is_first and _take_hold(Path(os.environ[VARIABLE])):
                _hold(run)

        return save_and_hold

    Run.saving = holding  # type: ignore[method-assign]


def _hold(run: Run) -> None:
    worker = parent(os.getppid())  # above the supervisor
    ended = select.poll()
    ended.register(os.pidfd_open(worker), select.POLLIN)
    os.kill(worker, signal.SIGSTOP)
    while not is_stopped(worker):
        time.sleep(0.001)
    mark_of(worker).touch()  # from here on a test may let it go on
    while is_stopped(worker):
        time.sleep(0.001)
    mark_of(worker).unlink()
    if ended.poll(100):  # it was killed, and this process is about to be
        time.sleep(600)
    while Path(os.environ[VARIABLE], ENDING).exists() and not run.is_told:
        time.sleep(0.001)


def mark_of(worker: int) -> Path:
    """Return the file that is there while a program knows that its worker is stopped."""
    return Path(f"{os.environ[VARIABLE]}.{worker}")


def _take_hold(folder: Path) -> bool:
    for path in folder.iterdir():
        if path.name != ENDING:
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                path.unlink()
                return True
    return False


def parent(pid: int) -> int:
    """Return the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def is_stopped(pid: int) -> bool:
    """Say whether a process is stopped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    except OSError:
        return False
