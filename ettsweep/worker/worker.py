"""The worker: trains a list of runs, one after the other, in a slot of this machine or as a task of SLURM's array."""

import contextlib
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ettsweep.console import print_note
from ettsweep.errors import CorruptError, LaunchError, LostProcessError, StorageError
from ettsweep.files import Json, dumps, write_atomic
from ettsweep.launch import slurm
from ettsweep.launch.liveness import SchedulerLiveness
from ettsweep.launch.profile import PROFILES, AnyProfile, LocalProfile, Slot
from ettsweep.launch.slots import Lock, held, hold_slot, let_go, lock_paths
from ettsweep.launch.slurm_cache import BEATS
from ettsweep.launch.submissions import Submission
from ettsweep.processes import beside, process
from ettsweep.provenance import provenance
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import Liveness, LocalLiveness, State, Status
from ettsweep.schema import validate
from ettsweep.worker.devices import execution, gathered, prepare_device
from ettsweep.worker.packing import WAITING, PackPlaces, RemainingRuns, claimable, enough, pack_size
from ettsweep.worker.signals import POLL_S, StopSource
from ettsweep.worker.slurm_job import JobLiveness, SlurmJob

if TYPE_CHECKING:
    import torch

    from ettsweep.trainer.ensemble.pack import Pack
    from ettsweep.trainer.training.coroutine import RunCoroutine, Stop
    from ettsweep.trainer.training.distributed import ProcessGroup
    from ettsweep.trainer.training.runtime_settings import RuntimeSettings


IDLE_LIVES = 6
"""Lives of a job in a row without a single step after which SLURM is not asked for one more."""


ALONE_OF_ITS_KIND = "trains alone: no other run that waits is of its recipe and, where data are loaded, of its seed"
"""What the log of a run says that would have had others in its pack."""


def say(
    submission: Submission,
    worker: str,
    job: SlurmJob | None = None,
    *,
    leaving: bool,
    saved: bool = False,
    idle_lives: int = 0,
    waits: Sequence[Path] = (),
    claimed: bool = False,
) -> None:
    """Say of this worker whether it has taken its last look at its list, and whether it has nothing to lose any more.

    `idle_lives` are those of its job in a row that had no time for a step; `waits` are the locks that it waits for;
    `claimed` is whether it has claimed a run: one that dies before does so for reasons that the next would meet too.
    """
    status: Json = {"process": process().to_json(), "leaving": leaving, "claimed": claimed}
    if waits:
        status["waits"] = list(map(str, waits))
    if job:
        status |= {"restart": job.restart, "saved": saved, "idle_lives": idle_lives}
    write_atomic(submission.words_path(worker), dumps(status))


@dataclass
class Worker:
    """One process that trains the runs of a list that nobody else has, until none is left or it is told to stop."""

    submission: Submission
    slot: Slot
    runs: list[RunDir]
    stop_source: StopSource
    job: SlurmJob | None = None
    group: "ProcessGroup | None" = None

    def __post_init__(self) -> None:
        self._liveness: Liveness = JobLiveness(self.job, self.submission) if self.job else LocalLiveness()
        self._claimed = False
        # One more, until a run makes a step in this one.
        self._idle_lives = 1 + int(self.submission.said_by(self.slot.name).get("idle_lives") or 0)

    def _say(self, *, leaving: bool, saved: bool = False) -> None:
        say(
            self.submission,
            self.slot.name,
            self.job,
            leaving=leaving,
            saved=saved,
            idle_lives=self._idle_lives,
            claimed=self._claimed,
        )

    def work_is_left(self) -> bool:
        """Say whether a run of the list waits for someone to train it."""
        return any(claimable(run, self._liveness) for run in self.runs)

    def serve(self) -> None:
        """Train, pass after pass: a dead worker's runs come round."""
        self._say(leaving=False)
        while True:
            if self.work_is_left():
                self._train_all()
            if self.stop_source.told and self.job and self.work_is_left():
                return  # what becomes of the list is SLURM's to say
            self._wait_for_the_unknown()
            # From here on the list counts as nobody's, so the last look comes after saying so.
            self._say(leaving=True)
            if self.stop_source.told or not self.work_is_left():
                return
            self._say(leaving=False)

    def _wait_for_the_unknown(self) -> None:
        """Wait, in a job, until it is known of all owners whether they live: their hearts beat or stand still."""
        until_s = time.monotonic() + 2 * BEATS * float(self.submission.profile["heartbeat_s"])
        while self.job and not self.stop_source.told and time.monotonic() < until_s:
            states = [run.status(self._liveness).state for run in self.runs]
            if State.UNKNOWN not in states or any(s in WAITING for s in states):
                return
            time.sleep(POLL_S)

    def _train_all(self) -> None:
        device, claim_info = prepare_device(self.slot)
        claim_info |= {"job": self.job.to_json() if self.job else None, "submission": self.submission.path.name}
        claim_info["heartbeat_s"] = self.submission.profile["heartbeat_s"]
        code = provenance()

        group_context = contextlib.nullcontext(self.group) if self.group is not None else gathered(self.slot, device)
        try:
            with group_context as group:
                self._train_with(group, device, claim_info, code)
        except LostProcessError as error:
            if self.job:
                print(error, file=sys.stderr, flush=True)
                os._exit(1)  # SLURM ends the rest of the job; the next command has its runs go on
            print(f"{error}; the others are started anew", file=sys.stderr, flush=True)

    def _train_with(self, group: "ProcessGroup", device: "torch.device", claim_info: Json, code: Json) -> None:
        """Train what is to be trained, with the other processes of a group."""
        import torch

        from ettsweep.trainer.ensemble.pack import Pack
        from ettsweep.trainer.training.memory import give_back

        path = str(self.submission.path / "submission.json")
        profile = validate(PROFILES[self.submission.kind], self.submission.profile, path)
        claimed = True
        while claimed:
            claimed, remaining = False, RemainingRuns(self.runs, self._liveness)
            for run in self.runs:
                first = None if self.stop_source.told else claim(run, claim_info, self._liveness)
                if first is None:
                    continue
                claimed = True
                if not self._claimed:
                    self._claimed = True
                    with contextlib.suppress(StorageError):  # a full disk costs the words, not the run
                        self._say(leaving=False)
                torch.set_num_threads(self.slot.threads)  # the run before may have had less
                queue = self._places(run, remaining, profile, device)
                attempts = [first, *self._take(queue, claim_info, queue.size - 1)]
                refill = partial(self._refill, queue, claim_info)
                settings = execution(profile, self.slot, self._data_of(run), self._alike(run, remaining))
                has_no_companions = (
                    len(attempts) == 1 < queue.size and not self.stop_source.told and not queue.waiting(1)
                )
                remark = ALONE_OF_ITS_KIND if has_no_companions else queue.remark
                pack_requested = profile.pack != "auto" or profile.pack_mode == "fast"
                size = len(attempts)
                pack = Pack(device, size, profile.pack_mode, remark, stack=queue.stack, asked=pack_requested)
                stops = train(attempts, pack, settings, self.stop_source, group, profile.heartbeat_s, code, refill)
                for attempt, stop in zip(attempts, stops, strict=True):
                    self.stop_source.heed(stop)
                    if stop is None or attempt.progress() > progress_before(attempt):
                        self._idle_lives = 0
                if self.stop_source.told == "SUPERSEDED":
                    return
                if device.type == "cuda":
                    torch.cuda.synchronize()  # raises if the run has broken the device: then this process is over
                give_back(device)  # the next run is measured by what is free

    def _places(
        self, first: RunDir, remaining: RemainingRuns, profile: AnyProfile, device: "torch.device"
    ) -> PackPlaces:
        """Return the places of a pack that begins with a claimed run."""
        try:
            spec = first.spec()
        except CorruptError:
            return PackPlaces()  # training says so in the run's own folder
        if profile.pack == 1 or len(self.runs) <= self._workers:
            return PackPlaces()  # without a look at the list
        left = remaining.left(self._workers * enough(profile, spec))
        return PackPlaces(pack_size(profile, spec, device, left, self._workers), remaining.companions(spec))

    def _take(self, queue: PackPlaces, claim_info: Json, free: int) -> list[Attempt]:
        """Claim runs for some places, of those that nobody else has."""
        attempts = list[Attempt]()
        with contextlib.suppress(StorageError):  # whoever claims a run alone says so
            while len(attempts) < free and not self.stop_source.told and (run := queue.next()):
                if attempt := claim(run, claim_info, self._liveness):
                    attempts.append(attempt)
        return attempts

    def _refill(self, queue: PackPlaces, claim_info: Json, free: int) -> list[Attempt]:
        """Claim runs for places that have become free in a pack, of what is left no more than this worker's part."""
        waiting = queue.waiting(free * self._workers)
        return self._take(queue, claim_info, min(free, math.ceil(waiting / self._workers)))

    @property
    def _workers(self) -> int:
        """How many workers share the list."""
        return len(self.submission.slots) or self.submission.workers_per_job

    def _alike(self, run: RunDir, remaining: RemainingRuns) -> int:
        """Return how many runs of one recipe this worker trains; on a CPU nobody asks."""
        if self.slot.device == "cpu":
            return 1
        try:
            return math.ceil(remaining.alike(run.spec()) / self._workers)
        except CorruptError:
            return 1  # training says so in the run's own folder

    def _data_of(self, run: RunDir) -> str | None:
        """Return where the data of a run were said to be."""
        try:
            return self.submission.data.get(run.spec().task.kind)
        except CorruptError:
            return None  # training says so in the run's own folder

    def go_on_in_the_next_job(self) -> int:
        """Have SLURM start this job again if its time is up or it is preempted; return the exit code.

        Between the warning and the end of a preemption SLURM does not requeue a job that exits by itself, so it must
        ask for that. What a person cancels stays cancelled.
        """
        assert self.job is not None
        reason = self.stop_source.told
        # SLURM signals whole steps: scontrol would die of what has ended its parent, and inherits this.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if reason == "SUPERSEDED":
            return 1
        if self._idle_lives >= IDLE_LIVES:
            print(f"{reason}: {IDLE_LIVES} jobs in a row had no time for a step; raise time_min", flush=True)
            return 1
        preempted = None if reason == "SIGUSR2" else slurm.preempted(self.job.id)
        if preempted is False:
            print(f"{reason}: saved; SLURM has not preempted this job, so it is not started again", flush=True)
            return 1
        self._wait_for_the_others()
        certain = preempted or reason == "SIGUSR2"
        if certain and slurm.requeue(self.job.id):
            print(f"{reason}: saved; SLURM starts this job again", flush=True)
            return 0
        # In a container there may be no scontrol, or SLURM is silent at the moment: the batch script asks once more.
        self.submission.leave_to_script(self.job.index, self.job.restart, certain=bool(certain))
        print(f"{reason}: saved; the batch script asks SLURM to start this job again", flush=True)
        return 1

    def _wait_for_the_others(self) -> None:
        """Wait until all workers of this job have saved: to start it again ends those that have not."""
        assert self.job is not None
        self._say(leaving=False, saved=True)
        until_s = time.monotonic() + self.submission.profile["warn_s"] / 2
        while time.monotonic() < until_s and not self.submission.all_saved(self.job.index, self.job.restart):
            time.sleep(POLL_S)


def progress_before(attempt: Attempt) -> float:
    """Return the share of steps that a run had done in any attempt before this one."""
    run = RunDir(attempt.run)
    earlier = (run.attempt(number) for number in run.numbers() if number < attempt.number)
    return max(map(Attempt.progress, earlier), default=0.0)


def claim(run: RunDir, claim_info: Json, liveness: Liveness) -> Attempt | None:
    """Claim a run if it waits and nobody was faster."""
    numbers = run.numbers()
    if not claimable(run, liveness):
        return None
    return run.claim(claim_info, after=numbers[-1] if numbers else 0)


def train(
    attempts: list[Attempt],
    pack: "Pack",
    settings: "RuntimeSettings",
    stop_source: StopSource,
    group: "ProcessGroup",
    heartbeat_s: float,
    code: Json,
    more: Callable[[int], list[Attempt]] = lambda free: [],
) -> "list[Stop | None]":
    """Train what this process has claimed: several runs as a pack, or one with the others of a group.

    `code` is the provenance of this process; `more` claims runs for places that become free, which are added to
    `attempts`. Returns why each run was stopped, or None.
    """
    from ettsweep.trainer.training.coroutine import Stop
    from ettsweep.trainer.training.run import ClaimedRun, training
    from ettsweep.trainer.training.runtime_settings import broadcast_job

    alive = list(attempts)

    def train_attempt(attempt: Attempt) -> "RunCoroutine":
        run = RunDir(attempt.run)
        try:
            attempt.record_provenance(code)
            broadcast_job(group, run.path, attempt.number, settings)
            stop = yield from training(
                ClaimedRun(run, attempt, pack.device, settings, stop_source.watch(attempt, pack), group), pack
            )
            if stop is Stop.SUPERSEDED and attempt.requeued():
                stop_source.told = "SUPERSEDED"  # this copy of the job has been given up, with all of its list
            return stop
        finally:
            alive.remove(attempt)

    def refill(free: int) -> "list[RunCoroutine]":
        claimed = more(free)
        attempts.extend(claimed)
        alive.extend(claimed)
        return list(map(train_attempt, claimed))

    with beating(alive, heartbeat_s):
        return pack.train(map(train_attempt, tuple(attempts)), refill)


def beating(attempts: Sequence[Attempt], interval_s: float) -> AbstractContextManager[None]:
    """Show from a thread of its own, while runs train, that this process lives."""

    def beat(ended: threading.Event) -> None:
        count = 0
        while True:
            for attempt in tuple(attempts):
                with contextlib.suppress(OSError):  # a full disk costs a beat, not the run
                    attempt.beat(count)
            count += 1
            if ended.wait(interval_s):
                return

    return beside("heartbeat", beat)


# --- one run in the foreground: `ettsweep train` ----------------------------------------------------------------------


class OwnerLiveness(SchedulerLiveness):
    """An outlook that asks who owns a run, and not which submissions list it."""

    def job_status(self, run_id: str) -> Status | None:
        """Look at no submission."""
        return None


def train_in_foreground(results: Path, spec: RunSpec, profile: LocalProfile, data: str | None = None) -> bool:
    """Train one run in this process, on the data that somebody has said where they are; say whether it is finished.

    A failed, cancelled or pruned run is tried again: whoever types the command wants it.

    Raises:
        LaunchError: another process trains it.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # the end of a process that loads images is an error, not the end
    run = RunDir.create(results, spec)
    liveness = OwnerLiveness(results)
    if run.status(liveness).state in (State.FAILED, State.CANCELLED, State.PRUNED):
        run.retry()
    if run.status().state.finished:
        return True
    lock, slot = _any_slot(profile.resolve(), results)
    try:
        device, claim_info = prepare_device(slot)
        stop_source = (
            StopSource()
        )  # Ctrl-C waits for the next step from here on: who has claimed a run says how it ended
        attempt = claim(run, claim_info | {"heartbeat_s": profile.heartbeat_s}, liveness)
        if attempt is None:
            status = run.status(liveness)
            if status.state.finished:
                return True
            reason = f" ({status.reason})" if status.reason else ""
            raise LaunchError(
                f"run {run.id} is {status.state}{reason}: another process has it; `ettsweep watch` shows it"
            )
        from ettsweep.trainer.ensemble.pack import Pack

        logger = logging.getLogger("ettsweep")
        logger.addHandler(logging.StreamHandler())
        logger.setLevel(logging.INFO)
        settings, code = execution(profile, slot, data), provenance()
        with gathered(slot, device) as group:
            train([attempt], Pack(device), settings, stop_source, group, profile.heartbeat_s, code)
        return run.status().state.finished
    finally:
        let_go(lock)


def _any_slot(slots: list[Slot], results: Path) -> tuple[Lock, Slot]:
    """Hold the first free slot, or wait for the first."""
    for slot in slots:
        lock = hold_slot(slot, results, wait=False)
        if lock is not None:
            return lock, slot
    holder_text = "".join(f" for {holder}" for holder in held(lock_paths(slots[0]))[:1])
    print_note(f"all slots are taken: waiting{holder_text}")
    lock = hold_slot(slots[0], results)
    assert lock is not None
    return lock, slots[0]
