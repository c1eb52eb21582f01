"""Slots that tests hold, and the local workers that wait for them or have them."""

import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from support.commandline import alive, runs_in, wait_for
from support.holds import ENDING, VARIABLE, is_stopped, mark_of


@contextlib.contextmanager
def held(*slots: str) -> Iterator[None]:
    """Hold slots as a worker of another command would."""
    folder = Path(os.environ["ETTSWEEP_SLOTS"])
    folder.mkdir(mode=0o700, exist_ok=True)
    with contextlib.ExitStack() as stack:
        for slot in slots:
            file = stack.enter_context((folder / f"{slot}.lock").open("w"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def waiting(pids: list[int]) -> bool:
    """Say whether all of some processes, at least one, are blocked by a lock, as the kernel sees it."""
    blocked = [line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" in line]
    return bool(pids) and set(pids) <= {int(fields[5]) for fields in blocked}


def owner(attempt: Attempt) -> int:
    return int(attempt.claim()["process"]["pid"])


def stopped_at_checkpoint(results: Path, but: str = "") -> Attempt:
    """Wait for a run that holds at the first checkpoint of its first attempt, see the fixture `hold_runs`."""

    def look() -> list[Attempt]:
        attempts = [run.attempt(1) for run in runs_in(results) if run.id != but and run.attempt_numbers()]
        return [attempt for attempt in attempts if is_stopped(owner(attempt)) and mark_of(owner(attempt)).exists()]

    stopped: list[Attempt] = wait_for(look, "a run that holds")
    return stopped[0]


@contextlib.contextmanager
def holding_on() -> Iterator[None]:
    """Have programs whose stopped worker goes on hold until this is left, or they are told to stop."""
    ending = Path(os.environ[VARIABLE], ENDING)
    ending.touch()
    yield
    ending.unlink(missing_ok=True)


def end_stopped(pid: int, number: signal.Signals) -> None:
    """Send a signal to a stopped worker, which sees it once it goes on, and wait until it has ended."""
    with holding_on():
        os.kill(pid, number)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        wait_for(lambda: not alive(pid), "the worker to end")


def wait_for_results(results: Path, count: int) -> list[RunDir]:
    return list(
        wait_for(lambda: len(r := [run for run in runs_in(results) if run.result()]) == count and r, "the results")
    )
