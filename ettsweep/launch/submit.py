"""Submissions: a plan becomes run folders, a list of them, and workers; and which submissions still live.

A folder jobs/<submission>/ holds
- submission.json: the ordered list of runs, the profile, the slots, and the workers once they are started;
- worker-<slot>.json: what each worker says of itself, first when it starts;
- <job id>_*: submitit's files and the workers' output.
"""

import contextlib
import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ettsweep.errors import CorruptError, LaunchError
from ettsweep.files import Json, read_json, storage_errors, write_atomic
from ettsweep.launch.profiles import LocalProfile, Slot
from ettsweep.launch.slots import free_first
from ettsweep.processes import Process, process
from ettsweep.rundir import RunDir, is_run_id
from ettsweep.sweep.plan import Plan


def submit(results: Path, plan: Plan, profile: LocalProfile) -> Path | None:
    """Make the run folders of a plan and start workers for them.

    Returns:
        The submission's folder, or None where the plan has nothing to launch.

    Raises:
        StorageError: the results folder cannot be written.
        LaunchError: no worker could be started.
    """
    if not plan.to_launch:
        return None
    slots = free_first(profile.resolve())[: len(plan.to_launch)]
    for planned in plan.to_launch:
        RunDir.create(results, planned.spec)
    folder = results.resolve() / "jobs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}"
    with storage_errors(folder):
        folder.mkdir(parents=True)
    content: Json = {
        "runs": [planned.id for planned in plan.to_launch],
        "profile": profile.model_dump(mode="json"),
        "slots": [asdict(slot) for slot in slots],
        "submitter": process().to_json(),
        "workers": [],
    }
    write_atomic(folder / "submission.json", json.dumps(content))
    content["workers"] = [worker.to_json() for worker in start_workers(folder, slots)]
    write_atomic(folder / "submission.json", json.dumps(content))
    return folder


def start_workers(folder: Path, slots: Sequence[Slot]) -> list[Process]:
    """Start one submitit job per slot; all are given the same list of runs."""
    from ettsweep.launch.executors import TEN_YEARS_MIN, DetachedLocalExecutor
    from ettsweep.launch.worker import run_worker

    workers = []
    try:
        for slot in slots:
            executor = DetachedLocalExecutor(folder)  # one each: submitit waits 0.2 s between jobs of one executor
            executor.update_parameters(timeout_min=TEN_YEARS_MIN)
            job = executor.submit(run_worker, str(folder), slot.name)
            workers.append(process(int(job.job_id)))
    except OSError as error:
        raise LaunchError(f"{folder}: worker could not be started: {error}") from error
    return workers


def read_submission(folder: Path) -> Json:
    """Read submission.json.

    Raises:
        CorruptError: it is missing or unreadable.
    """
    try:
        content = read_json(folder / "submission.json")
    except FileNotFoundError:
        raise CorruptError(f"{folder}: has no submission.json") from None
    runs, slots, workers = (content.get(key) for key in ("runs", "slots", "workers"))
    sound = (
        isinstance(runs, list)
        and all(isinstance(run, str) and is_run_id(run) for run in runs)
        and isinstance(slots, list)
        and all(isinstance(slot, dict) and isinstance(slot.get("name"), str) for slot in slots)
        and isinstance(workers, list)
    )
    if not sound:
        raise CorruptError(f"{folder / 'submission.json'}: lists no runs, slots and workers")
    return content


def live_workers(folder: Path) -> list[Process]:
    """Return the workers of a submission that still look for runs, or may do so where they cannot be seen.

    A worker speaks for itself once it has started; before, the job that starts it does, and before that the
    command that is starting the jobs. One that has taken its last look at the list says so, and does not count.
    """
    try:
        content = read_submission(folder)
    except CorruptError:
        return []
    jobs = content.get("workers") or [content.get("submitter")] * len(content["slots"])
    found = []
    for slot, job in zip(content["slots"], jobs, strict=False):
        said: Json = {}
        with contextlib.suppress(CorruptError, FileNotFoundError):
            said = read_json(folder / f"worker-{slot['name']}.json")
        worker = Process.from_json(said.get("process") or job)
        if worker and not said.get("leaving") and worker.liveness() != "dead":
            found.append(worker)
    return found


def last_words(folder: Path) -> str:
    """Return the last line that a worker of a submission wrote, and where the rest is."""
    for path in sorted(folder.glob("*_log.out")):
        lines = [line.strip() for line in path.read_text(errors="replace").splitlines()]
        lines = [line for line in lines if line and not line.startswith("submitit INFO")]
        if lines:
            return f"{lines[-1]} (all of it: {path})"
    return f"without a word, as if killed (their output: {folder})"


def submissions(results: Path) -> list[Path]:
    """Return the folders of all submissions, oldest first."""
    return sorted(path for path in (results / "jobs").glob("*") if path.is_dir())


def queued_runs(results: Path) -> set[str]:
    """Return the runs that live submissions list."""
    queued: set[str] = set()
    for folder in submissions(results):
        if live_workers(folder):
            with contextlib.suppress(CorruptError):
                queued.update(read_submission(folder)["runs"])
    return queued
