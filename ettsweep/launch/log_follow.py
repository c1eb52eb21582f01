"""Follow the log of a run while it is written, attempt after attempt, until the run is over."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ettsweep.console import as_on_screen
from ettsweep.files import open_regular
from ettsweep.launch.progress import POLL_REST_FACTOR, POLL_S, ProgressMonitor
from ettsweep.runs.attempt import NOTHING_LOGGED
from ettsweep.runs.folder import RunDir
from ettsweep.runs.state import State, Status

FINAL_LINES_S = 2.0
"""Most seconds to wait for the last log lines of an ended run: its owner may live on to train others."""


class LogFollower:
    """Reads new text of a run's log."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._number = 0
        self._offsets: dict[Path, int] = {}

    def read_new_lines(self) -> str:
        """Return the new complete lines, with a heading for each new attempt."""
        text = ""
        for number in [number for number in self._run.attempt_numbers() if number >= self._number]:
            if number > self._number:
                # A new attempt: the previous one has ended.
                text += self.read_ending() + f"== attempt {number}\n"
                self._number, self._offsets = number, {}
            for path, data in self._read_bytes():
                # Leave an incomplete line for the next read: it may end within a UTF-8 character.
                lines = data[: data.rfind(b"\n") + 1]
                self._offsets[path] = self._offsets.get(path, 0) + len(lines)
                text += as_on_screen(lines.decode(errors="replace"))
        return text

    def read_ending(self) -> str:
        """Return the unread rest of an ended attempt's log, and why the attempt failed if it did."""
        if not self._number:
            return ""
        text = as_on_screen("".join(data.decode(errors="replace") for _, data in self._read_bytes()))
        attempt = self._run.attempt(self._number)
        nothing = "" if any(self._offsets.values()) or text else NOTHING_LOGGED
        return nothing + text + attempt.log_footer()

    def _read_bytes(self) -> Iterator[tuple[Path, bytes]]:
        """Yield new text of the log and of the command's output."""
        attempt = self._run.attempt(self._number)
        for path in (attempt.log_path, attempt.output_path):
            with contextlib.suppress(OSError), os.fdopen(open_regular(path), "rb") as file:
                # By bytes, not characters: each read decodes afresh.
                file.seek(self._offsets.get(path, 0))
                yield path, file.read()


def follow_log(
    monitor: ProgressMonitor, run: RunDir, write: Callable[[str], None], notify: Callable[[str], None]
) -> Status:
    """Pass on a run's log until the run is finished, failed or stopped; return its status.

    Args:
        monitor: polls the run.
        run: folder of the run.
        write: receives new log text.
        notify: receives a line when the reason to wait changes.
    """
    follower, last_wait_message = LogFollower(run), ""
    while True:
        began_s = time.monotonic()
        status = monitor.poll().statuses[run.id]
        polled_s = time.monotonic() - began_s
        write(follower.read_new_lines())  # after the poll: if the run is over, its log is complete
        if status.state.over:
            _drain(run, follower, write)
            write(follower.read_ending())
            return status
        wait_message = "" if status.state is State.RUNNING else _describe_wait(run.id, status)
        if wait_message != last_wait_message:
            notify(wait_message)
            last_wait_message = wait_message
        time.sleep(max(POLL_S, POLL_REST_FACTOR * polled_s))


def _drain(run: RunDir, follower: LogFollower, write: Callable[[str], None]) -> None:
    """Pass on the last lines of an ended run, until its owner is dead or `FINAL_LINES_S` have passed."""
    attempt, deadline_s = run.latest_attempt(), time.monotonic() + FINAL_LINES_S
    while attempt and attempt.liveness() != "dead" and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
        write(follower.read_new_lines())
    write(follower.read_new_lines())


def _describe_wait(run_id: str, status: Status) -> str:
    """Return a line on why a run waits."""
    reason = f": {status.reason}" if status.reason else ""
    if status.state in (State.INTERRUPTED, State.MISSING):
        return f"run {run_id} is {status.state}{reason}; no worker has it: `ettsweep retry {run_id}` starts one"
    return f"run {run_id} is {status.state}{reason}; its log follows once it trains"
