"""A report that follows the runs: written anew as they finish, until none is to come; open pages show each edition."""

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ettsweep.errors import StorageError
from ettsweep.launch.monitor import LOOK_SHARE, POLL_S, Monitor, Snapshot, follow
from ettsweep.report.edition import conclude
from ettsweep.runs.folder import runs_dir, sweeps_dir
from ettsweep.runs.state import State, Status
from ettsweep.sweep.changes import followers
from ettsweep.sweep.ledger import Run

if TYPE_CHECKING:
    from rich.console import Console

Write = Callable[[str], Sequence[Run]]
"""Writes a report, as an edition of that name, and returns the runs that it is of."""

SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""What ends a process besides Ctrl-C."""


class Editions:
    """Reports of what there is, each followed by a rest of `LOOK_SHARE` times as long as it took."""

    def __init__(self, results: Path, write: Write, monitor: Monitor) -> None:
        self._results, self._write, self._monitor = results, write, monitor
        self._ended: set[tuple[str, State]] = set()
        self._publish()

    def look(self, snapshot: Snapshot) -> None:
        """Write the next one where a run has ended or was asked for, or a sweep has changed since the last."""
        if time.monotonic() < self._rests_until_s:
            return
        before, self._ended = self._ended, _ended(snapshot.statuses)  # what is retried may end once more
        if self._ended - before or self._listed() != self._folders:
            self._publish()

    def _publish(self) -> None:
        began_s = time.monotonic()
        self._folders = self._listed()  # before it is read: what comes meanwhile is for the next
        runs = self._write(uuid.uuid4().hex)
        self._ended |= _ended({run.id: run.status for run in runs})
        self._monitor.watch([run.spec for run in runs])
        now_s = time.monotonic()
        self._rests_until_s = now_s + LOOK_SHARE * (now_s - began_s)

    def _listed(self) -> list[str]:
        """Return what there is of runs, and of files of sweeps."""
        runs = runs_dir(self._results)
        names = sorted(os.listdir(runs)) if runs.is_dir() else []
        return [*names, *sorted(map(str, sweeps_dir(self._results).glob("*/[0-9]*.yaml")))]


def _ended(statuses: Mapping[str, Status]) -> set[tuple[str, State]]:
    """Return the runs to which nothing more happens, and how each has ended."""
    return {(run, status.state) for run, status in statuses.items() if status.state.over}


def follow_runs(results: Path, names: Callable[[], Iterable[str]], out: Path, write: Write, console: "Console") -> None:
    """Write a report now and as runs end, until none is queued or running and no command follows their sweeps.

    The last one is rewritten no more. Whatever else ends it, the one that is there becomes the last. `names` returns
    those of the sweeps as they are by then.
    """
    monitor = Monitor(results)
    try:
        with _unwound():
            editions = Editions(results, write, monitor)
            while not _settled(results, names, monitor, editions):
                follow(monitor, str(results), console, relaunch=False, heed=editions.look)
            write("")
    except BaseException:
        with contextlib.suppress(StorageError):  # what ended it is told
            conclude(out)
        raise


def _settled(results: Path, names: Callable[[], Iterable[str]], monitor: Monitor, editions: Editions) -> bool:
    """Wait as long as nothing trains but a command follows a sweep; return whether there is nothing to wait for."""
    while True:
        began_s = time.monotonic()
        snapshot = monitor.look()
        if not (snapshot.settled and any(followers(results, name) for name in names())):
            return snapshot.settled
        looked_s = time.monotonic() - began_s
        editions.look(snapshot)  # its next round may begin at any time
        time.sleep(max(POLL_S, LOOK_SHARE * looked_s))


@contextlib.contextmanager
def _unwound() -> Iterator[None]:
    """Have signals that would end the process at once leave what it is doing first, with the exit code they give."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    taken = [one for one in SIGNALS if signal.getsignal(one) is signal.SIG_DFL]  # nohup has one ignored
    for one in taken:
        signal.signal(one, leave)
    try:
        yield
    finally:
        for one in taken:
            signal.signal(one, signal.SIG_DFL)
