"""Workers that stop themselves at the first checkpoint of an attempt: whatever a test does there, no run ends before."""

import contextlib
import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ettsweep.runs.attempt import Attempt

VARIABLE = "TEST_HOLDS"
"""Names a folder with a file for each attempt that is still to hold, whichever that is."""


def ask_for_holds(folder: Path, count: int) -> None:
    """Have so many more attempts hold."""
    folder.mkdir(exist_ok=True)
    for number in range(count):
        (folder / str(number)).touch()


def hold_at_checkpoints() -> None:
    """Have attempts of this process hold at their first checkpoints, as long as some are to."""
    for name in ("save_checkpoint", "save_state"):
        setattr(Attempt, name, _holding(getattr(Attempt, name)))


def _holding(save: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(save)
    def save_and_hold(attempt: Attempt, *arguments: Any, **options: Any) -> None:
        is_first = not attempt.has_checkpoint()
        save(attempt, *arguments, **options)
        if is_first and _take_hold(Path(os.environ[VARIABLE])):
            os.kill(os.getpid(), signal.SIGSTOP)

    return save_and_hold


def _take_hold(folder: Path) -> bool:
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            path.unlink()
            return True
    return False


def is_stopped(pid: int) -> bool:
    """Say whether a process is stopped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    except OSError:
        return False
