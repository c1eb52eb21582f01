"""The worker: trains a list of runs, alone or in packs, in a slot of this machine or as a task of a SLURM array."""

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
from typing import TYPE_CHECKING, Protocol

from ettsweep.console import print_note
from ettsweep.errors import CorruptError, LaunchError, LostProcessError, OwnershipError, StorageError
from ettsweep.files import Json, dumps, write_atomic
from ettsweep.launch import slurm
from ettsweep.launch.liveness import SchedulerLiveness, watch_hearts
from ettsweep.launch.profile import PROFILES, AnyProfile, LocalProfile, Slot
from ettsweep.launch.slots import Lock, held_slots, lock_paths, lock_slot, unlock
from ettsweep.launch.slurm_cache import MISSED_BEATS
from ettsweep.launch.submissions import Submission
from ettsweep.processes import background_thread, process_identity
from ettsweep.provenance import provenance
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import Liveness, LocalLiveness, State, Status
from ettsweep.schema import validate
from ettsweep.worker.devices import prepare_device, slot_group, slot_settings
from ettsweep.worker.packing import (
    CLAIMABLE_STATES,
    PackQueue,
    RemainingRuns,
    claimable,
    pack_size,
    runs_for_largest_pack,
)
from ettsweep.worker.signals import POLL_S, StopSource
from ettsweep.worker.slurm_job import JobLiveness, SlurmJob

if TYPE_CHECKING:
    import torch

    from ettsweep.trainer.ensemble.pack import Pack
    from ettsweep.trainer.training.coroutine import RunCoroutine, StopReason
    from ettsweep.trainer.training.distributed import ProcessGroup
    from ettsweep.trainer.training.runtime_settings import RuntimeSettings


MAX_IDLE_LIVES = 6
"""Starts of a job in a row without a single training step after which the job is not requeued any more."""

NO_COMPANIONS = "trains alone: no waiting run has the same recipe (and, if data are loaded, the same seed)"
"""Log line of a run whose pack has free places but no run to fill them."""


def write_worker_report(
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
    """Write the report of a worker, which other processes and later starts of the job read.

    Args:
        submission: the worker's submission.
        worker: name of its slot.
        job: its SLURM job, if any.
        leaving: whether it claims no more runs, so that others may take over its list.
        saved: whether its checkpoints are on disk, so that the job may be ended.
        idle_lives: starts of the job in a row without a training step.
        waits: paths of the locks that it waits for.
        claimed: whether it has claimed a run. If not, and it dies, a replacement would fail for the same reason.
    """
    status: Json = {"process": process_identity().to_json(), "leaving": leaving, "claimed": claimed}
    if waits:
        status["waits"] = list(map(str, waits))
    if job:
        status |= {"restart": job.restart, "saved": saved, "idle_lives": idle_lives}
    write_atomic(submission.report_path(worker), dumps(status))


@dataclass
class Worker:
    """A process that trains the unclaimed runs of a list until none is left or it has to stop.

    Attributes:
        submission: what it was started for.
        slot: devices and threads to train on.
        runs: the list, shared with other workers.
        stop_source: signals and stop conditions.
        job: the SLURM job it belongs to; None on this machine.
        group: processes that train each run together; None starts them if the slot has more devices.
    """

    submission: Submission
    slot: Slot
    runs: list[RunDir]
    stop_source: StopSource
    job: SlurmJob | None = None
    group: "ProcessGroup | None" = None

    def __post_init__(self) -> None:
        self._liveness: Liveness = JobLiveness(self.job, self.submission) if self.job else LocalLiveness()
        self._claimed = False
        # Counts this start as idle until a run has made a step.
        self._idle_lives = 1 + int(self.submission.worker_report(self.slot.name).get("idle_lives") or 0)

    def _write_report(self, *, leaving: bool, saved: bool = False) -> None:
        write_worker_report(
            self.submission,
            self.slot.name,
            self.job,
            leaving=leaving,
            saved=saved,
            idle_lives=self._idle_lives,
            claimed=self._claimed,
        )

    def has_work(self) -> bool:
        """`True` if a run of the list waits for a worker."""
        return any(claimable(run, self._liveness) for run in self.runs)

    def serve(self) -> None:
        """Train until no run is left or a signal arrives; repeat the list, since runs of dead workers become free."""
        self._write_report(leaving=False)
        while True:
            if self.has_work():
                self._train_all()
            if self.stop_source.stop_reason and self.job and self.has_work():
                return  # the list stays this job's: it goes on once SLURM has requeued it
            self._wait_for_unknown_owners()
            # Announce leaving before the last check. In the other order, a run that becomes free in between, while this
            # worker still counts as present, would be left to nobody.
            self._write_report(leaving=True)
            if self.stop_source.stop_reason or not self.has_work():
                return
            self._write_report(leaving=False)

    def _wait_for_unknown_owners(self) -> None:
        """Wait, in a job, until heartbeats tell of every owner whether it is alive or dead."""
        # Twice the time for a verdict: a heartbeat must be seen to stand still for that many intervals.
        until_s = time.monotonic() + 2 * MISSED_BEATS * float(self.submission.profile["heartbeat_s"])
        while self.job and not self.stop_source.stop_reason and time.monotonic() < until_s:
            states = [run.status(self._liveness).state for run in self.runs]
            if State.UNKNOWN not in states or any(s in CLAIMABLE_STATES for s in states):
                return
            time.sleep(POLL_S)

    def _train_all(self) -> None:
        device, claim_info = prepare_device(self.slot)
        claim_info |= {"job": self.job.to_json() if self.job else None, "submission": self.submission.path.name}
        claim_info["heartbeat_s"] = self.submission.profile["heartbeat_s"]
        code = provenance()

        group_context = contextlib.nullcontext(self.group) if self.group is not None else slot_group(self.slot, device)
        try:
            with group_context as group:
                self._train_in_group(group, device, claim_info, code)
        except LostProcessError as error:
            if self.job:
                print(error, file=sys.stderr, flush=True)
                os._exit(1)  # SLURM then kills the rest of the job; the next command resumes its runs
            print(f"{error}; the processes of this slot are restarted", file=sys.stderr, flush=True)

    def _train_in_group(self, group: "ProcessGroup", device: "torch.device", claim_info: Json, code: Json) -> None:
        """Claim and train runs, in packs where possible, until a whole pass over the list claims none."""
        import torch

        from ettsweep.trainer.ensemble.pack import Pack
        from ettsweep.trainer.training.memory import release_memory

        path = str(self.submission.path / "submission.json")
        profile = validate(PROFILES[self.submission.kind], self.submission.profile, path)
        claimed = True
        while claimed:
            claimed, remaining = False, RemainingRuns(self.runs, self._liveness)
            for run in self.runs:
                first = None if self.stop_source.stop_reason else claim_run(run, claim_info, self._liveness)
                if first is None:
                    continue
                claimed = True
                if not self._claimed:
                    self._claimed = True
                    with contextlib.suppress(StorageError):  # a full disk costs the report, not the run
                        self._write_report(leaving=False)
                torch.set_num_threads(self.slot.threads)  # the previous run may have used fewer
                queue = self._pack_queue(run, remaining, profile, device)
                attempts = [first, *self._claim_up_to(queue, claim_info, queue.size - 1)]
                refill = partial(self._refill, queue, claim_info)
                settings = slot_settings(
                    profile, self.slot, self._data_path(run), self._same_recipe_runs(run, remaining)
                )
                has_no_companions = (
                    len(attempts) == 1 < queue.size and not self.stop_source.stop_reason and not queue.count_waiting(1)
                )
                remark = NO_COMPANIONS if has_no_companions else queue.remark
                pack_requested = profile.pack != "auto" or profile.pack_mode == "fast"
                size = len(attempts)
                pack = Pack(
                    device, size, profile.pack_mode, remark, stack_size=queue.stack_size, pack_requested=pack_requested
                )
                stops = train_attempts(
                    attempts, pack, settings, self.stop_source, group, profile.heartbeat_s, code, refill
                )
                for attempt, stop in zip(attempts, stops, strict=True):
                    self.stop_source.record_stop(stop)
                    if stop is None or attempt.progress() > progress_before(attempt):
                        self._idle_lives = 0
                if self.stop_source.stop_reason == "SUPERSEDED":
                    return
                if device.type == "cuda":
                    torch.cuda.synchronize()  # raises if the run has broken the device: then this process must end
                release_memory(device)  # the next run sizes its micro-batches by the free memory

    def _pack_queue(
        self, first: RunDir, remaining: RemainingRuns, profile: AnyProfile, device: "torch.device"
    ) -> PackQueue:
        """Return the size of a pack that starts with a claimed run, and the runs that may join."""
        try:
            spec = first.spec()
        except CorruptError:
            return PackQueue()  # training records the error in the run's own folder
        if profile.pack == 1 or len(self.runs) <= self._workers:
            return PackQueue()  # saves reading the states of the list
        left = remaining.count_left(self._workers * runs_for_largest_pack(profile, spec))
        return PackQueue(pack_size(profile, spec, device, left, self._workers), remaining.companions(spec))

    def _claim_up_to(self, queue: PackQueue, claim_info: Json, free: int) -> list[Attempt]:
        """Claim up to `free` runs of the queue, skipping those that other workers claim first."""
        attempts = list[Attempt]()
        with contextlib.suppress(StorageError):  # the next claim outside a pack reports it
            while len(attempts) < free and not self.stop_source.stop_reason and (run := queue.next()):
                if attempt := claim_run(run, claim_info, self._liveness):
                    attempts.append(attempt)
        return attempts

    def _refill(self, queue: PackQueue, claim_info: Json, free: int) -> list[Attempt]:
        """Claim runs for the free places of a pack, at most this worker's share of the waiting ones."""
        waiting = queue.count_waiting(free * self._workers)
        return self._claim_up_to(queue, claim_info, min(free, math.ceil(waiting / self._workers)))

    @property
    def _workers(self) -> int:
        """Number of workers that share the list."""
        return len(self.submission.slots) or self.submission.workers_per_job

    def _same_recipe_runs(self, run: RunDir, remaining: RemainingRuns) -> int:
        """Return how many runs of this recipe the worker trains, over which compiling its model pays off."""
        if self.slot.device == "cpu":
            return 1  # `auto` compiles nothing on a CPU, so do not read the list
        try:
            return math.ceil(remaining.count_same_recipe(run.spec()) / self._workers)
        except CorruptError:
            return 1  # training records the error in the run's own folder

    def _data_path(self, run: RunDir) -> str | None:
        """Return the path of a run's data, as given at submission; None if they come with a package."""
        try:
            return self.submission.data.get(run.spec().task.kind)
        except CorruptError:
            return None  # training records the error in the run's own folder

    def requeue_job(self) -> int:
        """Requeue this job if its time is up or it was preempted; return the exit code.

        A preempted job that exits by itself before SLURM kills it is not requeued by SLURM, so the worker requests it.
        A job that a user has cancelled stays cancelled.
        """
        assert self.job is not None
        reason = self.stop_source.stop_reason
        # SLURM signals all processes of a step: the scontrol child would die of a second SIGTERM, but inherits this.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if reason == "SUPERSEDED":
            return 1
        if self._idle_lives >= MAX_IDLE_LIVES:
            print(
                f"{reason}: this job was started {MAX_IDLE_LIVES} times in a row without time for a single step; "
                "raise time_min in the launch profile",
                flush=True,
            )
            return 1
        preempted = None if reason == "SIGUSR2" else slurm.is_being_preempted(self.job.id)
        if preempted is False:
            print(f"{reason}: checkpoint saved; SLURM did not preempt this job, so it is not requeued", flush=True)
            return 1
        self._wait_for_other_workers()
        # SIGUSR2 means that SLURM ends the job for its time limit or a preemption, so a requeue is right.
        certain = preempted or reason == "SIGUSR2"
        if certain and slurm.requeue(self.job.id):
            print(f"{reason}: checkpoint saved; SLURM requeues this job", flush=True)
            return 0
        # In a container there may be no scontrol, or SLURM does not answer now: the batch script retries outside.
        self.submission.request_requeue(self.job.index, self.job.restart, certain=bool(certain))
        print(f"{reason}: checkpoint saved; the batch script asks SLURM to requeue this job", flush=True)
        return 1

    def _wait_for_other_workers(self) -> None:
        """Wait until all workers of this job have saved, since a requeue kills those that have not."""
        assert self.job is not None
        self._write_report(leaving=False, saved=True)
        until_s = time.monotonic() + self.submission.profile["warn_s"] / 2
        while time.monotonic() < until_s and not self.submission.all_saved(self.job.index, self.job.restart):
            time.sleep(POLL_S)


def progress_before(attempt: Attempt) -> float:
    """Return the largest share of steps that a run had completed in any earlier attempt."""
    run = RunDir(attempt.run)
    earlier = (run.attempt(number) for number in run.attempt_numbers() if number < attempt.number)
    return max(map(Attempt.progress, earlier), default=0.0)


def claim_run(run: RunDir, claim_info: Json, liveness: Liveness) -> Attempt | None:
    """Claim a run and return the new attempt; None if the run does not wait or another worker was faster."""
    numbers = run.attempt_numbers()  # before the state is read: a newer attempt in between then makes the claim fail
    if not claimable(run, liveness):
        return None
    return run.claim(claim_info, after=numbers[-1] if numbers else 0)


def train_attempts(
    attempts: list[Attempt],
    pack: "Pack",
    settings: "RuntimeSettings",
    stop_source: StopSource,
    group: "ProcessGroup",
    heartbeat_s: float,
    code: Json,
    refill: Callable[[int], list[Attempt]] = lambda free: [],
) -> "list[StopReason | None]":
    """Train claimed runs: several as a pack, or one together with the other processes of a group.

    Args:
        attempts: the claimed attempts; those that `refill` claims are appended.
        pack: trains them in this process.
        settings: runtime settings of all.
        stop_source: signals and stop conditions.
        group: processes that train one run together.
        heartbeat_s: seconds between heartbeats.
        code: provenance of this process.
        refill: called with the number of free places; claims runs for them.

    Returns:
        Why each run was stopped early, or None.
    """
    from ettsweep.trainer.training.coroutine import StopReason
    from ettsweep.trainer.training.run import ClaimedRun, training_coroutine
    from ettsweep.trainer.training.runtime_settings import broadcast_job

    alive = list(attempts)

    def train_attempt(attempt: Attempt) -> "RunCoroutine":
        run = RunDir(attempt.run)
        try:
            attempt.record_provenance(code)
            broadcast_job(group, run.path, attempt.number, settings)
            stop = yield from training_coroutine(
                ClaimedRun(run, attempt, pack.device, settings, stop_source.make_poll(attempt, pack), group), pack
            )
            if stop is StopReason.SUPERSEDED and attempt.was_requeued():
                stop_source.stop_reason = "SUPERSEDED"  # SLURM has requeued the job, with all of its list
            return stop
        finally:
            alive.remove(attempt)

    def refill_pack(free: int) -> "list[RunCoroutine]":
        claimed = refill(free)
        attempts.extend(claimed)
        alive.extend(claimed)
        return list(map(train_attempt, claimed))

    with heartbeat(alive, heartbeat_s):
        return pack.train(map(train_attempt, tuple(attempts)), refill_pack)


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
                with contextlib.suppress(OSError, OwnershipError):  # a full disk costs a beat, not the run
                    item.write_heartbeat(count)
            count += 1
            if ended.wait(interval_s):
                return

    return background_thread("heartbeat", beat)


# --- one run in the foreground: `ettsweep train` ----------------------------------------------------------------------


class OwnerLiveness(SchedulerLiveness):
    """Liveness that asks SLURM about the owner of a run, but ignores submissions that only list it."""

    def job_status(self, run_id: str) -> Status | None:
        """Return None: no submission counts."""
        return None


def train_in_foreground(results: Path, spec: RunSpec, profile: LocalProfile, data: str | None = None) -> State:
    """Train one run in this process; return its state.

    A failed, cancelled or pruned run is retried, since the user has requested it explicitly.

    Args:
        results: results folder.
        spec: the run.
        profile: gives slots and runtime settings; waits for a slot if all are taken.
        data: path of the task's data; None if they come with a package.

    Raises:
        LaunchError: another process trains the run.
    """
    signal.signal(
        signal.SIGPIPE, signal.SIG_IGN
    )  # a dead loader process then raises BrokenPipeError instead of killing this one
    run = RunDir.create(results, spec)
    liveness = OwnerLiveness(results, watch_hearts(results, [run.id], print_note, of_this_name=True))
    if run.status(liveness).state in (State.FAILED, State.CANCELLED, State.PRUNED):
        run.retry()
    if (state := run.status().state).finished:
        return state
    lock, slot = _hold_any_slot(profile.resolve_slots(), results)
    try:
        device, claim_info = prepare_device(slot)
        # Before the claim: from here on Ctrl-C takes effect after a step, and the attempt records how it ended.
        stop_source = StopSource()
        attempt = claim_run(run, claim_info | {"heartbeat_s": profile.heartbeat_s}, liveness)
        if attempt is None:
            status = run.status(liveness)
            if status.state.finished:
                return status.state
            reason = f" ({status.reason})" if status.reason else ""
            raise LaunchError(
                f"run {run.id} is {status.state}{reason}: another process trains it; `ettsweep watch` shows it"
            )
        from ettsweep.trainer.ensemble.pack import Pack

        logger = logging.getLogger("ettsweep")
        logger.addHandler(logging.StreamHandler())
        logger.setLevel(logging.INFO)
        settings, code = slot_settings(profile, slot, data), provenance()
        with slot_group(slot, device) as group:
            train_attempts([attempt], Pack(device), settings, stop_source, group, profile.heartbeat_s, code)
        return run.status().state
    finally:
        unlock(lock)


def _hold_any_slot(slots: list[Slot], results: Path) -> tuple[Lock, Slot]:
    """Lock the first free slot, or wait for the first one if none is free."""
    for slot in slots:
        lock = lock_slot(slot, results, wait=False)
        if lock is not None:
            return lock, slot
    holder_text = "".join(f" for {holder}" for holder in held_slots(lock_paths(slots[0]))[:1])
    print_note(f"all slots are taken: waiting{holder_text}")
    lock = lock_slot(slots[0], results)
    assert lock is not None
    return lock, slots[0]
