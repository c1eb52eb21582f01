"""The runs that a worker may train: it claims them, shows that it is alive, and notes how each ended."""

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ettsweep.errors import CorruptError, InputError
from ettsweep.files import Json, last_json_line
from ettsweep.launch.profile import AnyProfile
from ettsweep.launch.slots import Slot
from ettsweep.ownership import check_run_folder
from ettsweep.processes import background_thread
from ettsweep.provenance import provenance
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.state import Liveness, State
from ettsweep.runs.stop import StopReason
from ettsweep.worker.signals import StopSource

if TYPE_CHECKING:
    from ettsweep.trainer.training.distributed import ProcessGroup

CLAIMABLE_STATES = (State.MISSING, State.INTERRUPTED)
"""States of runs that a worker may claim."""


def claimable(run: RunDir, liveness: Liveness) -> bool:
    """`True` if a run waits for a worker."""
    return run.status(liveness).state in CLAIMABLE_STATES


@dataclass
class WorkList:
    """The runs that a worker may train, in a slot, with a profile.

    Attributes:
        runs: the runs, shared with other workers.
        slot: devices and threads to train on.
        profile: the launch profile.
        data: locations of data, by kind.
        stop_source: signals and stop conditions.
        liveness: tells who is alive of the owners of runs.
        claim_facts: entries of each claim, beside those on devices.
        workers: number of workers that share the runs.
        group: processes that train each run together; None starts them if the slot has more devices.
        may_start: tells whether a run may be claimed now, or waits for the first one of its submission.
        on_claim: called with each run that was claimed.
        on_end: called with each attempt that has ended, and why it stopped early, if it did.
        code: provenance of this process.
    """

    runs: list[RunDir]
    slot: Slot
    profile: AnyProfile
    data: Mapping[str, str]
    stop_source: StopSource
    liveness: Liveness
    claim_facts: Json
    workers: int = 1
    group: "ProcessGroup | None" = None
    may_start: Callable[[RunDir], bool] = lambda run: True
    on_claim: Callable[[RunDir], None] = lambda run: None
    on_end: Callable[[Attempt, StopReason | None], None] = lambda attempt, stop: None
    code: Json = field(default_factory=provenance)

    def claim(self, run: RunDir, device_facts: Json) -> Attempt | None:
        """Claim a run; None if the worker or the run is to wait, the run does not, or another worker was faster.

        A run fails at once if somebody else may have changed its folder.
        """
        if self.stop_source.stop_reason or not self.may_start(run):
            return None
        attempt = claim_run(run, self.claim_facts | device_facts, self.liveness)
        if attempt is None:
            return None
        self.on_claim(run)
        try:
            check_run_folder(run.path)
        except InputError as error:
            attempt.record_failure("error", str(error))
            self.on_end(attempt, None)
            return None
        return attempt

    def data_of(self, run: RunDir) -> str | None:
        """Return the location of a run's data, as given at submission; None if it needs none."""
        try:
            return self.data.get(run.spec().info.data_kind)
        except CorruptError:
            return None  # training records the error in the run's own folder


class Runner(Protocol):
    """Trains runs of some trainables in a worker's process."""

    def train(self, work: WorkList) -> None:
        """Claim and train runs until a whole pass over the list claims none, or the worker is to stop.

        Raises:
            LostProcessError: another process that trains a run with this one is gone.
        """
        ...


def made_progress(attempt: Attempt) -> bool:
    """Return whether an attempt has brought its run further than all earlier ones."""
    if states := attempt.saved_steps():  # of runs whose number of steps may be unknown
        return states[0] > attempt.resumed_from()[1]
    run = RunDir(attempt.run)
    earlier = [run.attempt(number) for number in run.attempt_numbers() if number < attempt.number]
    if progress := attempt.progress():
        return progress > max(map(Attempt.progress, earlier), default=0.0)
    return _last_step(attempt) > max(map(_last_step, earlier), default=0)  # the number of steps is unknown


def _last_step(attempt: Attempt) -> int:
    step = (last_json_line(attempt.timings_path) or {}).get("step")
    return step if isinstance(step, int) else 0


def claim_run(run: RunDir, claim_info: Json, liveness: Liveness) -> Attempt | None:
    """Claim a run and return the new attempt; None if the run does not wait or another worker was faster."""
    numbers = run.attempt_numbers()  # before the state is read: a newer attempt in between then makes the claim fail
    if not claimable(run, liveness):
        return None
    return run.claim(claim_info, after=numbers[-1] if numbers else 0)


class Beating(Protocol):
    """What has a heart: an attempt, or a worker."""

    def write_heartbeat(self, count: int) -> None:
        """Write the heartbeat counter."""


def heartbeat(owned: Sequence[Beating], interval_s: float) -> AbstractContextManager[None]:
    """Write heartbeats of what this process owns from a thread while the body runs."""

    def beat(ended: threading.Event) -> None:
        count = 0
        while True:
            for item in tuple(owned):
                with contextlib.suppress(OSError):  # a full disk costs a beat, not the run
                    item.write_heartbeat(count)
            count += 1
            if ended.wait(interval_s):
                return

    return background_thread("heartbeat", beat)
