"""The worker: trains a list of runs in a slot of this machine or as a task of a SLURM array."""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ettsweep.console import print_note
from ettsweep.errors import LaunchError, StorageError
from ettsweep.files import Json, dumps, write_atomic
from ettsweep.launch import slurm_api
from ettsweep.launch.first_runs import Gate
from ettsweep.launch.liveness import SchedulerLiveness, watch_hearts
from ettsweep.launch.log_follow import LogFollower
from ettsweep.launch.profile import AnyProfile, read_profile
from ettsweep.launch.remedies import more_time
from ettsweep.launch.slots import Lock, Slot, held_slots, is_waited_for, lock_paths, lock_slot, unlock
from ettsweep.launch.slurm_cache import MISSED_BEATS
from ettsweep.launch.submissions import MAX_IDLE_LIVES, Submission
from ettsweep.processes import background_thread, process_identity
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import Liveness, LocalLiveness, State, Status, StopReason
from ettsweep.worker.program import Programs
from ettsweep.worker.signals import POLL_S, StopSource
from ettsweep.worker.slot import device_facts, pin_devices
from ettsweep.worker.slurm_job import JobLiveness, SlurmJob
from ettsweep.worker.training import train_together
from ettsweep.worker.work_list import CLAIMABLE_STATES, WorkList, claimable, heartbeat, made_progress

TURN_S = 10.0
"""Seconds of work before a worker releases its slot to a waiting one: a turn costs a start of its program."""

LOG_POLL_S = 0.2
"""Seconds between reads of the log of a run in the foreground."""

LOOK_REST_FACTOR = 5
"""Rest after a read of the first runs, in multiples of its time."""


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
    """Write a worker's report for other processes and later starts of the job.

    Args:
        submission: the worker's submission.
        worker: name of its slot.
        job: its SLURM job, if any.
        leaving: whether it claims no more runs, and others may take over its list.
        saved: whether its checkpoints are on disk, and the job may end.
        idle_lives: consecutive starts of the job without a training step.
        waits: paths of the locks that it waits for.
        claimed: whether it has claimed a run; if not, a replacement would die the same way.
    """
    earlier, process = submission.worker_report(worker), process_identity().to_json()
    claimed = claimed or (earlier.get("process") == process and earlier.get("claimed") is True)  # in an earlier turn
    status: Json = {"process": process, "leaving": leaving, "claimed": claimed}
    if waits:
        status["waits"] = list(map(str, waits))
    if job:
        status |= {"restart": job.restart, "saved": saved, "idle_lives": idle_lives}
    write_atomic(submission.report_path(worker), dumps(status))


@dataclass
class Worker:
    """A process that trains unclaimed runs of a list until none is left or it must stop.

    Attributes:
        submission: of the worker.
        slot: devices and threads to train on.
        runs: the list, shared with other workers.
        stop_source: signals and stop conditions.
        job: the SLURM job it belongs to; None on this machine.
    """

    submission: Submission
    slot: Slot
    runs: list[RunDir]
    stop_source: StopSource
    job: SlurmJob | None = None

    def __post_init__(self) -> None:
        self._liveness: Liveness = JobLiveness(self.job, self.submission) if self.job else LocalLiveness()
        self._gate = Gate(self.submission)
        self._programs = Programs()
        self._claimed = self._has_trained = False
        self._turn_ends_s = 0.0
        # This start counts as idle until a run makes a step.
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
        return any(not self._gate.is_stopped(run) and claimable(run, self._liveness) for run in self.runs)

    def _gives_way(self) -> bool:
        """`True` if this worker has had its turn, and another one waits for its slot."""
        has_had_turn = self._has_trained and time.monotonic() >= self._turn_ends_s
        return has_had_turn and self.job is None and is_waited_for(self.slot)

    def _may_start(self, run: RunDir) -> bool:
        return not self._gives_way() and self._gate.may_start(run)

    def serve(self) -> bool:
        """Train until no run is left or a signal arrives; repeat the list for runs of dead workers.

        Returns:
            Whether runs are left, and another worker gets the slot.
        """
        pin_devices(self.slot)
        self._write_report(leaving=False)
        with contextlib.closing(self._programs):
            return self._serve()

    def _serve(self) -> bool:
        while True:
            self._gate.look()
            if self.has_work():
                train_runs(self.work_list(), self._programs)
            if not self.stop_source.stop_reason and self._gives_way() and self.has_work():
                return True
            if self._wait_for_first_run():
                continue
            if self.stop_source.stop_reason and self.job and self.has_work():
                return False  # this job keeps its list until SLURM has requeued it
            self._wait_for_unknown_owners()
            # Announce leaving before the last check. In the other order, a run that becomes free in between would be
            # lost: this worker would still count as present.
            self._write_report(leaving=True)
            if self.stop_source.stop_reason or not self.has_work():
                return False
            self._write_report(leaving=False)

    def _wait_for_first_run(self) -> bool:
        """Wait while all remaining runs wait for the first one; return whether one may start now."""
        wait_s = 0.02
        while self.has_work() and not self.stop_source.stop_reason:
            looked_s = time.monotonic()
            self._gate.look()
            if any(self._gate.may_start(run) and claimable(run, self._liveness) for run in self.runs):
                return True
            # Many jobs may read the same folders of a network file system.
            time.sleep(max(wait_s, LOOK_REST_FACTOR * (time.monotonic() - looked_s)))
            wait_s = min(2 * wait_s, POLL_S)
        return False

    def _wait_for_unknown_owners(self) -> None:
        """Wait, in a job, until heartbeats show whether each owner is alive or dead."""
        # Twice the time for a verdict: a heartbeat must be silent for that many intervals.
        until_s = time.monotonic() + 2 * MISSED_BEATS * float(self.submission.profile["heartbeat_s"])
        while self.job and not self.stop_source.stop_reason and time.monotonic() < until_s:
            states = [run.status(self._liveness).state for run in self.runs]
            if State.UNKNOWN not in states or any(s in CLAIMABLE_STATES for s in states):
                return
            time.sleep(POLL_S)

    def work_list(self) -> WorkList:
        """Return the work list."""
        claim_facts = {
            "job": self.job.to_json() if self.job else None,
            "submission": self.submission.path.name,
            "heartbeat_s": self.submission.profile["heartbeat_s"],
        }
        path = str(self.submission.path / "submission.json")
        return WorkList(
            self.runs,
            self.slot,
            read_profile(self.submission.kind, self.submission.profile, path),
            self.submission.data,
            self.stop_source,
            self._liveness,
            claim_facts,
            workers=len(self.submission.slots) or self.submission.workers_per_job,
            may_start=self._may_start,
            on_claim=self._note_claim,
            on_end=self._note_end,
            device_facts=device_facts(self.slot),
        )

    def _note_claim(self, run: RunDir) -> None:
        self._gate.note_claim(run)
        if not self._claimed:
            self._claimed, self._turn_ends_s = True, time.monotonic() + TURN_S
            with contextlib.suppress(StorageError):  # a full disk costs the report, not the run
                self._write_report(leaving=False)

    def _note_end(self, attempt: Attempt, stop: StopReason | None) -> None:
        self._has_trained = True
        self._gate.look()
        self.stop_source.record_stop(stop)
        if stop is None or made_progress(attempt):
            self._idle_lives = 0

    def requeue_job(self) -> int:
        """Requeue this job if its time is up or it was preempted; return the exit code.

        SLURM does not requeue a preempted job that exits by itself, so the worker requests it. A cancelled job remains
        cancelled.
        """
        assert self.job is not None
        reason = self.stop_source.stop_reason
        # SLURM signals all processes of a step: a second SIGTERM would kill the scontrol child, which inherits this.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if reason == "SUPERSEDED":
            return 1
        if self._idle_lives >= MAX_IDLE_LIVES:
            print(
                f"{reason}: this job started {MAX_IDLE_LIVES} times in a row without time for a single step; "
                + more_time(self.runs[0].id, self.submission.profile["time_min"]),
                flush=True,
            )
            return 1
        preempted = None if reason == "SIGUSR2" else slurm_api.is_being_preempted(self.job.id)
        if preempted is False:
            print(f"{reason}: checkpoint saved; no requeue, since SLURM did not preempt this job", flush=True)
            return 1
        self._wait_for_other_workers()
        # SIGUSR2 means that SLURM ends the job for its time limit or a preemption.
        certain = preempted or reason == "SIGUSR2"
        if certain and slurm_api.requeue(self.job.id):
            print(f"{reason}: checkpoint saved; SLURM requeues this job", flush=True)
            return 0
        # A container may lack scontrol, or SLURM does not answer: the batch script retries outside.
        self.submission.request_requeue(self.job.index, self.job.restart, certain=bool(certain))
        print(f"{reason}: checkpoint saved; the batch script asks SLURM to requeue this job", flush=True)
        return 1

    def _wait_for_other_workers(self) -> None:
        """Wait until all workers of this job have saved: a requeue kills the others."""
        assert self.job is not None
        self._write_report(leaving=False, saved=True)
        until_s = time.monotonic() + self.submission.profile["warn_s"] / 2
        while time.monotonic() < until_s and not self.submission.all_saved(self.job.index, self.job.restart):
            time.sleep(POLL_S)


def train_runs(work: WorkList, programs: Programs) -> None:
    """Claim and train runs until a pass over the list claims none, or the worker must stop."""
    claimed = True
    while claimed:
        claimed = False
        for position, run in enumerate(work.runs):
            attempt = work.claim(run)
            if attempt is None:
                continue
            claimed = True
            members = [(run, attempt), *work.claim_companions(run, work.runs[position + 1 :])]
            attempts = [each for _, each in members]
            with heartbeat(attempts, work.profile.heartbeat_s):
                stops = train_together(members, work, programs)
            for each, stop in zip(attempts, stops, strict=True):
                work.on_end(each, stop)
                if stop is StopReason.SUPERSEDED and each.was_requeued():
                    work.stop_source.stop_reason = "SUPERSEDED"  # SLURM has requeued the job with its list
            if work.stop_source.stop_reason == "SUPERSEDED":
                return


# --- one run in the foreground: `ettsweep train` ----------------------------------------------------------------------


class OwnerLiveness(SchedulerLiveness):
    """Liveness that asks SLURM about the owner of a run, and ignores submissions that list it."""

    def job_status(self, run_id: str) -> Status | None:
        """Return None: no submission counts."""
        return None


def train_in_foreground(results: Path, spec: RunSpec, profile: AnyProfile, data: str | None = None) -> State:
    """Train one run, and wait for it; return its state.

    It retries a failed or cancelled run, since the user requested it.

    Args:
        results: results folder.
        spec: the run.
        profile: has slots and settings; waits for a slot if all are taken.
        data: path of the task's data; None if they come with a package.

    Raises:
        LaunchError: another process trains the run.
        KeyboardInterrupt: a signal came before the run began.
    """
    # Writing to a dead program raises BrokenPipeError, instead of killing this process.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    run = RunDir.create(results, spec)
    liveness = OwnerLiveness(results, watch_hearts(results, [run.id], print_note, of_this_name=True))
    if run.status(liveness).state in (State.FAILED, State.CANCELLED):
        run.retry()
    if (state := run.status().state).finished:
        return state
    lock, slot = _hold_any_slot(profile.resolve_slots(), results)
    try:
        # Before the claim: from here on Ctrl-C stops after a step, and the attempt records its end.
        stop_source = StopSource()
        data_by_kind = {spec.info.data_kind: data} if data else {}
        claims = list[RunDir]()
        work = WorkList(
            [run],
            slot,
            profile,
            data_by_kind,
            stop_source,
            liveness,
            {"heartbeat_s": profile.heartbeat_s},
            on_claim=claims.append,
            device_facts=device_facts(slot),
        )
        pin_devices(slot)
        with contextlib.closing(Programs()) as programs, log_shown(run):
            train_runs(work, programs)
        status = run.status(liveness)
        if not (claims or status.state.finished):
            if stop_source.stop_reason:
                raise KeyboardInterrupt  # nothing has begun
            reason = f" ({status.reason})" if status.reason else ""
            raise LaunchError(
                f"another process trains run {run.id}, which is {status.state}{reason}; `ettsweep watch` shows it"
            )
        return run.status().state
    finally:
        unlock(lock)


@contextlib.contextmanager
def log_shown(run: RunDir) -> Iterator[None]:
    """Show the log of a run while the body trains it."""
    follower = LogFollower(run)

    def show(over: threading.Event) -> None:
        while True:
            is_over = over.wait(LOG_POLL_S)
            print(follower.read_new_lines(), end="", file=sys.stderr, flush=True)
            if is_over:
                return

    with background_thread("log", show):
        yield


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
