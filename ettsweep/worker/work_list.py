"""The runs that a worker may train: claim them, write heartbeats, record their ends."""

import contextlib
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from ettsweep.errors import CorruptError, InputError, StorageError
from ettsweep.files import Json
from ettsweep.launch.profile import AnyProfile
from ettsweep.launch.slots import Slot
from ettsweep.ownership import check_run_folder
from ettsweep.processes import background_thread
from ettsweep.provenance import provenance
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import BUILT_IN
from ettsweep.runs.state import Liveness, State, StopReason
from ettsweep.worker.signals import StopSource

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
        liveness: of the owners of runs.
        claim_facts: further entries of each claim.
        workers: number of workers that share the runs.
        may_start: whether a run may start now, or waits for the first one of its submission.
        on_claim: called with each claimed run.
        on_end: called with each ended attempt, and why it stopped early.
        code: provenance of this process.
        device_facts: of the slot, for claims.
    """

    runs: list[RunDir]
    slot: Slot
    profile: AnyProfile
    data: Mapping[str, str]
    stop_source: StopSource
    liveness: Liveness
    claim_facts: Json
    workers: int = 1
    may_start: Callable[[RunDir], bool] = lambda run: True
    on_claim: Callable[[RunDir], None] = lambda run: None
    on_end: Callable[[Attempt, StopReason | None], None] = lambda attempt, stop: None
    code: Json = field(default_factory=provenance)
    device_facts: Json = field(default_factory=dict)

    def claim(self, run: RunDir) -> Attempt | None:
        """Claim a run; None if it must wait, does not wait for a worker, or another worker was faster.

        A run fails if somebody else may have changed its folder.
        """
        if self.stop_source.stop_reason or not self.may_start(run):
            return None
        attempt = claim_run(run, self.claim_facts | self.device_facts, self.liveness)
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

    def claim_companions(self, first: RunDir, others: Sequence[RunDir]) -> list[tuple[RunDir, Attempt]]:
        """Claim further runs of a claimed run's recipe to train at once, as many as the launch profile allows.

        Other seeds need other batches: join them only if the data are in memory, not in files.
        """
        most = self.ensemble
        if most == 1 or self.profile.devices_per_run > 1:
            return []
        recipe = self._recipe(first)
        waiting = (run for run in others if self._recipe(run) == recipe and claimable(run, self.liveness))
        enough = list(islice(waiting, most * self.workers)) if recipe is not None else []
        # Leave other workers their share of waiting runs.
        size = min(most, math.ceil((1 + len(enough)) / self.workers))
        claimed = list[tuple[RunDir, Attempt]]()
        with contextlib.suppress(StorageError):  # the next single claim reports it
            for run in enough:
                if 1 + len(claimed) < size and (attempt := self.claim(run)):
                    claimed.append((run, attempt))
        return claimed

    @property
    def ensemble(self) -> int:
        """Most runs that a program trains at once."""
        return self.profile.trainer.ensemble

    def _recipe(self, run: RunDir) -> tuple[object, ...] | None:
        try:
            spec = run.spec()
        except CorruptError:
            return None  # training records the error in the run's own folder
        if spec.trainable != BUILT_IN:
            return None
        return (spec.info.key, spec.seed if spec.info.data_kind else 0)

    def alike(self, run: RunDir) -> int:
        """Return how many runs of a run's recipe this worker trains, to judge whether compilation pays."""
        if self.slot.device == "cpu":  # which compile only on demand
            return 1
        key, count = run.spec().info.key, 0
        for other in self.runs:
            with contextlib.suppress(CorruptError):
                count += other.spec().info.key == key
        return math.ceil(count / self.workers)


def made_progress(attempt: Attempt) -> bool:
    """Return whether an attempt got further than all earlier ones."""
    if states := attempt.saved_steps():
        return states[0] > attempt.resumed_from()[1]
    run = RunDir(attempt.run)
    earlier = [run.attempt(number) for number in run.attempt_numbers() if number < attempt.number]
    return attempt.last_step() > max(map(Attempt.last_step, earlier), default=-1)


def claim_run(run: RunDir, claim_info: Json, liveness: Liveness) -> Attempt | None:
    """Claim a run and return the new attempt; None if the run does not wait or another worker was faster."""
    numbers = run.attempt_numbers()  # before reading the state: a newer attempt in between makes the claim fail
    if not claimable(run, liveness):
        return None
    return run.claim(claim_info, after=numbers[-1] if numbers else 0)


class Beating(Protocol):
    """An attempt or a worker."""

    def write_heartbeat(self, count: int) -> None:
        """Write the heartbeat counter."""


def heartbeat(owned: Sequence[Beating], interval_s: float) -> AbstractContextManager[None]:
    """Write this process's heartbeats from a thread while the body runs."""

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
