"""Liveness of runs: which owners are alive, and which jobs will claim a run.

Processes of this host come first, then SLURM, then heartbeats. A `SlurmCache` keeps SLURM's answers between polls.
"""

import os
import re
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from ettsweep.errors import SlurmUnavailableError
from ettsweep.files import Json, number
from ettsweep.launch import slurm_api
from ettsweep.launch.first_runs import FirstRuns, read_first_runs
from ettsweep.launch.remedies import more_memory, more_time
from ettsweep.launch.slurm_cache import HEARTBEAT_POLL_S, MISSED_BEATS, Heart, SlurmCache
from ettsweep.launch.submissions import MAX_IDLE_LIVES, Submission, VacantSlot, submissions
from ettsweep.processes import Life, Process
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir, runs_dir
from ettsweep.runs.state import Owner, State, Status, unseen_reason

NO_ANSWER = "SLURM does not answer"


class SchedulerLiveness:
    """Liveness of the runs in a results folder at one instant; make one for each poll."""

    def __init__(self, results: Path, slurm_cache: SlurmCache | None = None) -> None:
        self._results = results
        self._slurm_cache = slurm_cache or SlurmCache()
        self._submissions = submissions(results)
        self._slurm = [s for s in self._submissions if s.kind == "slurm"]
        self._submissions_by_run: dict[str, list[Submission]] = {}
        for submission in self._submissions:
            for run in submission.runs:
                self._submissions_by_run.setdefault(run, []).append(submission)
        self._slurm_by_folder = {s.path.name: s for s in self._slurm}
        self._slurm_queried = False
        self._workers_alive: dict[Path, bool] = {}
        self._wait_reasons: dict[Path, str] = {}
        self._first_runs: dict[Path, FirstRuns] = {}
        self._stops: dict[Path, str] = {}

    @property
    def slurm_error(self) -> str:
        """Why SLURM does not answer, if unfinished runs depend on it; otherwise empty."""
        return self._slurm_cache.slurm_error if self._slurm_queried else ""

    # --- owners -----------------------------------------------------------------------------------------------------

    def owner(self, attempt: Attempt) -> Owner:
        """Return whether the owner of an unfinished attempt is alive."""
        # The process is the best evidence, then SLURM, then heartbeats.
        process, job = attempt.owner(), attempt.job()
        if process is None:
            return Owner(attempt.liveness(), reason=unseen_reason(None))
        life = process.liveness()
        host = str(job.get("node") or process.host)
        # The process can be seen from here: no need to ask SLURM.
        if life != "unknown":
            return Owner(life, host)
        if job:
            submission = self._slurm_by_folder.get(str(attempt.claim().get("submission")))
            return self._owner_by_slurm(attempt, job, submission, host)
        return Owner(self._slurm_cache.heartbeat_life(attempt), host, unseen_reason(process))

    def _owner_by_slurm(self, attempt: Attempt, job: Json, submission: Submission | None, host: str) -> Owner:
        if problem := self._slurm_problem(str(job.get("cluster", "")), submission.user if submission else None):
            # A heartbeat proves life; its absence proves nothing.
            is_beating = self._slurm_cache.heartbeat_life(attempt) == "alive"
            return Owner("alive", host) if is_beating else Owner("unknown", host, problem, self._is_unanswered)
        task = self._slurm_cache.tasks.get(str(job.get("id")))
        if task is None or (submission and submission.name != task.name):  # SLURM reuses ids; names are unique
            return Owner("dead", host)
        restart = job.get("restart")
        claimed_restart = restart if isinstance(restart, int) else 0
        # A later start of the job exists, or this answer is older than the claim.
        if claimed_restart != task.restarts:
            return Owner("dead" if claimed_restart < task.restarts else "alive", host)
        if task.is_over:
            return Owner("dead", host)
        # A waiting task with the same restart count: squeue was asked before it started.
        is_listed = task.is_active or task.is_waiting
        return Owner("alive" if is_listed else "unknown", host, f"SLURM reports job {task.id} as {task.state}")

    @property
    def _is_unanswered(self) -> bool:
        return bool(self._slurm_cache.slurm_error)

    def _slurm_problem(self, cluster: str, user: str | None) -> str:
        """Return why SLURM cannot report a user's jobs on a cluster; empty if it can."""
        if not self._slurm_queried:
            # One query per instance: all runs are judged by the same answer.
            self._slurm_cache.refresh(self._slurm)
            self._slurm_queried = True
        if self._slurm_cache.slurm_error:
            return f"{NO_ANSWER}: {self._slurm_cache.slurm_error}"
        try:
            local_cluster = slurm_api.cluster_name()
        except SlurmUnavailableError as error:
            self._slurm_cache.slurm_error = str(error)
            return f"{NO_ANSWER}: {error}"
        if cluster != local_cluster:
            return f"this machine is on cluster {local_cluster} and cannot query {cluster}"
        if user in (None, str(os.getuid())):
            return ""
        # Hidden jobs would look ended.
        hidden = slurm_api.hides_jobs_of_others() or user not in slurm_api.known_users([str(user)])
        return f"SLURM does not show the jobs of user {user} here" if hidden else ""

    # --- jobs of runs -----------------------------------------------------------------------------------------------

    def job_status(self, run_id: str) -> Status | None:
        """Return the status of a run without an owner, from the submissions that list it; None if none is relevant.

        A job that will claim the run comes first, then one that may, then a held one, then the newest submission.
        """
        listing = self._submissions_by_run.get(run_id, [])
        first_runs = self._read_first_runs(listing[-1], run_id) if listing else FirstRuns()
        if reason := first_runs.stop_reason:
            return Status(State.CANCELLED, reason, is_stopped=True)
        statuses = [self._submission_status(submission, run_id) for submission in reversed(listing)]
        # `min` keeps the first of equal rank, which is the newest submission.
        rank = {State.QUEUED: 0, State.UNKNOWN: 1, State.HELD: 2}
        status = min(statuses, key=lambda status: rank.get(status.state, 3) if status else 3, default=None)
        if status and status.state is State.INTERRUPTED and (reason := self._why_left(listing[-1], run_id)):
            return Status(State.CANCELLED, reason, job=status.job, is_stopped=True)
        if status and status.state is State.QUEUED and first_runs.wait_reason:
            return replace(status, reason=", ".join(filter(None, [status.reason, first_runs.wait_reason])))
        return status

    def _why_left(self, submission: Submission, run_id: str) -> str:
        """Return why a job left a run unclaimed, if too many failed with the same error before one got further."""
        if submission.kind == "local" or not submission.is_unproven(run_id):
            return ""
        if not submission.worker_report(f"{submission.task_index(run_id)}-0").get("leaving"):
            return ""
        if submission.path not in self._stops:
            self._stops[submission.path] = read_first_runs(submission, until_stop=True).stop_reason
        return self._stops[submission.path]

    def _read_first_runs(self, submission: Submission, run_id: str) -> FirstRuns:
        """Return the status of a run by the first runs of its submission."""
        if not submission.is_unproven(run_id):
            return FirstRuns()
        if submission.path not in self._first_runs:
            self._first_runs[submission.path] = read_first_runs(submission)
        return self._first_runs[submission.path]

    def _submission_status(self, submission: Submission, run_id: str) -> Status | None:
        if submission.kind == "local":
            if submission.path not in self._workers_alive:
                self._workers_alive[submission.path] = alive = self._has_workers(submission)
                self._wait_reasons[submission.path] = submission.wait_reason() if alive else ""
            return (
                Status(State.QUEUED, self._wait_reasons[submission.path])
                if self._workers_alive[submission.path]
                else None
            )
        if problem := self._slurm_problem(submission.cluster, submission.user):
            return Status(State.UNKNOWN, problem, is_unanswered=self._is_unanswered)
        slurm_cache, index = self._slurm_cache, submission.task_index(run_id)
        # None if not recorded and not in squeue: sbatch still runs, or the submitter died before.
        array = slurm_cache.arrays.get(submission.name)
        if array is None:
            if submission.submitter_life() == "alive" or submission.array_id():  # or recorded after squeue was asked
                return Status(State.QUEUED, "being submitted")
            return Status(State.INTERRUPTED, "its submission was interrupted")
        id_ = f"{array}_{index}"
        task = slurm_cache.tasks.get(id_) or slurm_cache.history(id_, self._slurm)
        if task is None or task.name != submission.name:  # SLURM reuses ids; names are unique
            return self._forgotten_status(submission, index, id_)
        if task.is_held:
            reason = task.reason or task.state
            by = " by an administrator" if reason == "JobHeldAdmin" else ""
            return Status(State.HELD, f"{reason}: run `scontrol release {id_}`{by}, or `cancel` and `retry`", job=id_)
        if task.is_waiting:
            start = f"expected to start {task.start.replace('T', ' ')}" if task.start else ""
            # The job exceeds a limit of its partition or QOS, and waits for ever.
            if re.search(r"TimeLimit|WallDuration", task.reason):
                start = "can never start: `cancel` it, lower time_min, then `retry`"
            return Status(State.QUEUED, ", ".join(filter(None, [task.reason, start])), job=id_)
        if task.is_active:
            # Its workers claim no more runs.
            if submission.all_leaving(index, task.restarts):
                return Status(State.INTERRUPTED, f"job {id_} is ending", job=id_)
            activity = "is ending" if task.state == "COMPLETING" else f"runs on {task.node}" if task.node else "starts"
            return Status(State.QUEUED, f"its job {activity}", job=id_)
        if task.is_over:
            return _ended_status(task, submission, run_id)
        return Status(State.UNKNOWN, f"job {id_} is {task.state}", job=id_)

    def _has_workers(self, submission: Submission) -> bool:
        """`True` if a local submission has workers, or may have some on a host that cannot be seen from here.

        An unreachable owner does not count if `retry` has given it up or its heartbeat has stopped: it would keep the
        whole list queued for ever.
        """
        slots = submission.live_slots()
        if not slots or any(worker.liveness() != "unknown" for worker, _, _ in slots):
            return bool(slots)
        unfinished = (run for run in submission.run_dirs(submission.runs) if not run.result_path.exists())
        attempts = [attempt for run in unfinished if (attempt := run.latest_attempt())]
        given_up = [
            attempt.owner()
            for attempt in attempts
            if attempt.is_given_up() or not (attempt.failure() or self._slurm_cache.heartbeat_life(attempt) != "dead")
        ]
        return any(
            worker not in given_up
            and self._worker_life(worker, submission.worker_heart(str(slot.get("name")))) != "dead"
            for worker, slot, _ in slots
        )

    def _worker_life(self, worker: Process, heart: Heart) -> Life:
        """Return whether a hidden worker is alive."""
        if heart.heartbeat_interval_s() is None and worker.is_of_another_boot:
            # Without a heart, as in submissions of older versions or those that a power cut ended at their start, its
            # list would stay queued for ever. If it lives on another machine, claims still prevent training a run
            # twice.
            return "dead"
        return self._slurm_cache.heartbeat_life(heart)

    def undecided_hearts(self, run_ids: Collection[str], *, of_this_name: bool = False) -> list[Heart]:
        """Return the hearts that decide who has some runs, and that need more watching.

        Args:
            run_ids: ids of the runs.
            of_this_name: only those of processes on machines with this machine's name.
        """
        hearts: list[tuple[Process | None, Heart]] = []
        for run_id in run_ids:
            run = RunDir(runs_dir(self._results) / run_id)
            attempt = None if run.result_path.exists() else run.latest_attempt()
            if attempt and not (attempt.job() or attempt.is_given_up() or attempt.failure()):
                hearts.append((attempt.owner(), attempt))
        wanted = set(run_ids)
        for submission in self._submissions:
            if submission.kind == "local" and not wanted.isdisjoint(submission.runs):
                hearts += [
                    (w, submission.worker_heart(str(slot.get("name")))) for w, slot, _ in submission.live_slots()
                ]
        return [
            heart
            for process, heart in hearts
            if process
            and process.liveness() == "unknown"
            and (process.has_name_of_this_host or not of_this_name)
            and heart.heartbeat_interval_s() is not None
            and self._slurm_cache.heartbeat_life(heart) == "unknown"
        ]

    def _forgotten_status(self, submission: Submission, index: int, id_: str) -> Status:
        """Return the status of a task that is unknown to the controller and the accounting database.

        SLURM forgets a single task that is cancelled while it waits. A started task is in the accounting database, and
        its worker has left a report.
        """
        if self._slurm_cache.history_error:
            return Status(State.INTERRUPTED, f"job {id_} has ended; {self._slurm_cache.history_error}", job=id_)
        tasks = (*self._slurm_cache.ended_tasks.values(), *self._slurm_cache.tasks.values())
        siblings = any(task.name == submission.name for task in tasks)
        if siblings and not submission.worker_report(f"{index}-0"):
            return Status(State.CANCELLED, f"job {id_} was cancelled in SLURM before it started", job=id_)
        return Status(State.INTERRUPTED, f"job {id_} has ended", job=id_)

    def withdrawable_jobs(self, submission: Submission) -> list[str]:
        """Return the ids of a submission's jobs that wait, and have only cancelled or finished runs.

        Raises:
            SlurmUnavailableError: SLURM cannot report its jobs, or they are being submitted.
        """
        if problem := self._slurm_problem(submission.cluster, submission.user):
            raise SlurmUnavailableError(problem)
        array = self._slurm_cache.arrays.get(submission.name)
        if array is None and submission.submitter_life() == "alive":
            raise SlurmUnavailableError("jobs are being submitted")
        job_ids = []
        for index in dict.fromkeys(map(submission.task_index, submission.runs)):
            task = self._slurm_cache.tasks.get(f"{array}_{index}")
            runs = submission.run_dirs(submission.task_runs(index))
            # Keep a job with an unfinished run of another sweep.
            is_waiting_job = task and task.name == submission.name and task.is_waiting
            if is_waiting_job and all(run.cancel_path.exists() or run.result_path.exists() for run in runs):
                job_ids.append(f"{array}_{index}")
        return job_ids

    def count_active_workers(self, runs: Collection[str]) -> int:
        """Return how many workers (with a slot here, or in a running job) can train some of these runs now."""
        workers, run_ids = 0, set(runs)
        for submission in self._submissions:
            if run_ids.isdisjoint(submission.runs):
                continue
            if submission.kind == "local":
                workers += submission.count_active_workers()
            elif not self._slurm_problem(submission.cluster, submission.user):
                jobs = [
                    t for t in self._slurm_cache.tasks.values() if t.name == submission.name and t.state == "RUNNING"
                ]
                workers += len(jobs) * submission.runs_at_once
        return workers

    def vacant_slots(self, queued: Collection[str]) -> list[VacantSlot]:
        """Return this machine's slots whose workers died while others live, at most one for each queued run."""
        slots, waiting = [], set(queued)
        for submission in self._submissions:
            if submission.kind == "local" and (waiting_count := len(waiting.intersection(submission.runs))):
                slots += sorted(submission.vacant_slots(), key=lambda vacancy: not vacancy.died)[:waiting_count]
        return slots

    def is_live(self, submission: Submission) -> bool:
        """`True` if a submission has or may get workers: then keep all of it."""
        if submission.kind == "local":
            return self._has_workers(submission)
        if self._slurm_problem(submission.cluster, submission.user):
            return True
        if submission.submitter_life() != "dead":
            return True
        return any(
            task.name == submission.name and (task.is_waiting or task.is_active)
            for task in self._slurm_cache.tasks.values()
        )


def _ended_status(task: slurm_api.ArrayTask, submission: Submission, run_id: str) -> Status:
    mem_gb, time_min = number(submission.profile.get("mem_gb")), int(number(submission.profile.get("time_min")) or 0)
    if task.state == "CANCELLED":
        return Status(State.CANCELLED, f"job {task.id} was cancelled in SLURM", job=task.id)
    if task.state == "OUT_OF_MEMORY":
        return Status(State.FAILED, f"job {task.id} ran out of memory; {more_memory(run_id, mem_gb)}", job=task.id)
    if task.state == "COMPLETED":
        return Status(State.INTERRUPTED, job=task.id)
    if task.state == "TIMEOUT":
        return Status(State.INTERRUPTED, f"job {task.id}: timed out; {more_time(run_id, time_min)}", job=task.id)
    report = submission.worker_report(f"{submission.task_index(run_id)}-0")
    if task.state == "FAILED" and (number(report.get("idle_lives")) or 0) >= MAX_IDLE_LIVES:
        reason = f"job {task.id} started {MAX_IDLE_LIVES} times without time for a single step"
        return Status(State.INTERRUPTED, f"{reason}; {more_time(run_id, time_min)}", job=task.id)
    if task.state == "FAILED":
        return Status(State.INTERRUPTED, f"job {task.id} failed ({task.reason})", job=task.id)
    return Status(
        State.INTERRUPTED, f"job {task.id}: {slurm_api.END_REASONS.get(task.state, task.state.lower())}", job=task.id
    )


def watch_hearts(
    results: Path, run_ids: Collection[str], notify: Callable[[str], None], *, of_this_name: bool
) -> SlurmCache:
    """Watch the hearts that decide who has some runs until each has beaten or been silent for too long.

    Args:
        results: the results folder.
        run_ids: ids of the runs.
        notify: receives a line if this takes long.
        of_this_name: watch only processes on machines with this machine's name.

    Returns:
        The observed heartbeats, for a `SchedulerLiveness`.
    """
    slurm_cache, is_first = SlurmCache(), True
    while hearts := SchedulerLiveness(results, slurm_cache).undecided_hearts(run_ids, of_this_name=of_this_name):
        if is_first:
            longest_s = MISSED_BEATS * max(heart.heartbeat_interval_s() or 0.0 for heart in hearts)
            notify(
                "processes that this machine cannot see have claimed runs (before the last boot, in a container or "
                f"elsewhere): watching their heartbeats, up to {longest_s:g} s"
            )
        is_first = False
        time.sleep(HEARTBEAT_POLL_S)
    return slurm_cache
