"""A report that follows the runs: written anew as they finish, until none is to come; open pages show each edition."""

import os
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ettsweep.launch.monitor import LOOK_SHARE, POLL_S, Monitor, Snapshot, follow
from ettsweep.report.edition import conclude
from ettsweep.runs.folder import runs_dir, sweeps_dir
from ettsweep.sweep.changes import followers
from ettsweep.sweep.ledger import Run

if TYPE_CHECKING:
    from rich.console import Console

Write = Callable[[str], Sequence[Run]]
"""Writes a report, as an edition of that name, and returns the runs that it is of."""


class Editions:
    """Reports of what there is, each followed by a rest of `LOOK_SHARE` times as long as it took."""

    def __init__(self, results: Path, write: Write, monitor: Monitor) -> None:
        self._results, self._write, self._monitor = results, write, monitor
        self._publish()

    def look(self, snapshot: Snapshot) -> None:
        """Write the next one where a run has finished or was asked for, or a sweep has changed since the last."""
        if time.monotonic() < self._rests_until_s:
            return
        finished = {run for run, status in snapshot.statuses.items() if status.state.finished}
        if finished != self._finished or self._listed() != self._folders:
            self._publish()

    def _publish(self) -> None:
        began_s = time.monotonic()
        self._folders = self._listed()  # before it is read: what comes meanwhile is for the next
        runs = self._write(uuid.uuid4().hex)
        self._finished = {run.id for run in runs if run.state.finished}
        self._monitor.watch([run.spec for run in runs])
        now_s = time.monotonic()
        self._rests_until_s = now_s + LOOK_SHARE * (now_s - began_s)

    def _listed(self) -> list[str]:
        """Return what there is of runs, and of files of sweeps."""
        runs = runs_dir(self._results)
        names = sorted(os.listdir(runs)) if runs.is_dir() else []
        return [*names, *sorted(map(str, sweeps_dir(self._results).glob("*/[0-9]*.yaml")))]


def follow_runs(results: Path, names: Collection[str], out: Path, write: Write, console: "Console") -> None:
    """Write a report now and as runs finish, until none is queued or running and no command follows their sweeps.

    The last one is rewritten no more. Where a person ends it, the one that is there becomes the last.
    """
    monitor = Monitor(results)
    try:
        editions = Editions(results, write, monitor)
        while True:
            follow(monitor, str(results), console, relaunch=False, heed=editions.look)
            while (snapshot := monitor.look()).settled and any(followers(results, name) for name in names):
                editions.look(snapshot)  # its next round may begin at any time
                time.sleep(POLL_S)
            if snapshot.settled:
                break
        write("")
    except KeyboardInterrupt:
        conclude(out)
        raise
