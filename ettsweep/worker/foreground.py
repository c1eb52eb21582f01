"""One run in the foreground: `ettsweep train`."""

import logging
import signal
import sys
from pathlib import Path

from ettsweep.errors import LaunchError
from ettsweep.launch.outlook import LiveOutlook
from ettsweep.launch.profiles import LocalProfile, Slot
from ettsweep.launch.slots import Lock, hold_slot, let_go
from ettsweep.provenance import provenance
from ettsweep.runs.folder import RunDir
from ettsweep.runs.state import Prospect, State
from ettsweep.spec import RunSpec
from ettsweep.worker.control import Control
from ettsweep.worker.device import execution, prepare_device
from ettsweep.worker.together import gathered
from ettsweep.worker.worker import claim, train


class Unlisted(LiveOutlook):
    """An outlook that asks who owns a run, and not which submissions list it."""

    def prospect(self, run_id: str) -> Prospect | None:
        """Look at no submission."""
        return None


def train_in_foreground(results: Path, spec: RunSpec, profile: LocalProfile, data: str | None = None) -> bool:
    """Train one run in this process, on the data that somebody has said where they are; say whether it is finished.

    A failed or cancelled run is tried again: whoever types the command wants it.

    Raises:
        LaunchError: another process trains it.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # the end of a process that loads images is an error, not the end
    run = RunDir.create(results, spec)
    outlook = Unlisted(results)
    if run.status(outlook).state in (State.FAILED, State.CANCELLED):
        run.retry()
    if run.status().state.finished:
        return True
    lock, slot = _any_slot(profile.resolve())
    try:
        device, info = prepare_device(slot)
        attempt = claim(run, info | {"heartbeat_s": profile.heartbeat_s}, outlook)
        if attempt is None:
            status = run.status(outlook)
            if status.state.finished:
                return True
            why = f" ({status.reason})" if status.reason else ""
            raise LaunchError(f"run {run.id} is {status.state}{why}: another process has it; `ettsweep watch` shows it")
        attempt.record_provenance(provenance())
        logger = logging.getLogger("ettsweep")
        logger.addHandler(logging.StreamHandler())
        logger.setLevel(logging.INFO)
        how = execution(profile, slot, data)
        with gathered(slot, device) as group:
            train(run, attempt, device, how, Control(), group, profile.heartbeat_s)
        return run.status().state.finished
    finally:
        let_go(lock)


def _any_slot(slots: list[Slot]) -> tuple[Lock, Slot]:
    """Hold the first free slot, or wait for the first."""
    for slot in slots:
        lock = hold_slot(slot, wait=False)
        if lock is not None:
            return lock, slot
    print("all slots are taken: waiting for one", file=sys.stderr)
    lock = hold_slot(slots[0])
    assert lock is not None
    return lock, slots[0]
