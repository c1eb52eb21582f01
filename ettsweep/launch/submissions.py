"""Submissions on disk: their lists of runs and the reports of their workers.

A folder jobs/<submission>/ holds
- submission.json: written once, before anything starts: the ordered list of runs, those of families that have
  finished none, the profile, the submitting process; for SLURM also the unique name of its jobs, by which they are
  found if the submitter died before it recorded their id;
- job.json: id of the SLURM array, written by the submitter or by the first job that starts;
  unanswered: the submitter got no id and gave up;
  workers.json: processes of local workers;
- worker-<name>.json: the report of a worker about itself, first written when it starts;
- worker-<name>.heartbeat: a counter that a local worker increments, while it waits for its slot too;
- environment.sh: the profile's variables for jobs, readable only by their owner: no other file has the values;
- the batch script, and the output of the workers.

Beside it lies jobs/<submission>.withdraw-<hex>: a request of `cancel` to withdraw the jobs that find no run to train,
until SLURM has answered it.
"""

import contextlib
import json
import os
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ettsweep.errors import CorruptError
from ettsweep.files import (
    DISK_FULL_MESSAGE,
    SLOTS_ENV,
    Json,
    dumps,
    folder_names,
    is_full,
    json_or_empty,
    number,
    read_counter,
    read_file,
    read_json,
    storage_errors,
    write_atomic,
    write_counter,
)
from ettsweep.launch.slots import held_slots
from ettsweep.processes import Life, Process
from ettsweep.runs.folder import RunDir, is_run_id, jobs_dir, runs_dir

MAX_IDLE_LIVES = 6
"""Consecutive starts of a job without a training step, after which ettsweep does not requeue it."""


@dataclass(frozen=True)
class Submission:
    """A submission as read from its folder.

    Attributes:
        kind: local or slurm.
        runs: ids of the runs that it lists, in order.
        profile: the launch profile as plain data, without the values of its environment variables.
        submitter: the process that made it.
        code: folder of the code snapshot of its workers; empty if they use the installed code.
        data: paths of data sets by kind of task; for other kinds the workers' environment has the path.
        slots: slots of local workers, as JSON.
        name: name of its SLURM jobs, unique to this submission.
        user: uid of the user who owns the jobs.
        cluster: SLURM cluster that has the jobs.
        sweeps: names of the sweeps that its runs were requested for.
        unproven: ids of runs of families without a finished run; the first starts first.
    """

    path: Path
    kind: str
    runs: tuple[str, ...]
    profile: Json
    submitter: Process | None
    code: str
    data: dict[str, str]
    slots: list[Json]
    name: str
    user: str
    cluster: str
    sweeps: tuple[str, ...] = ()
    unproven: tuple[str, ...] = ()

    @property
    def results(self) -> Path:
        """Its results folder."""
        return self.path.parent.parent

    def run_dirs(self, ids: Iterable[str]) -> list[RunDir]:
        """Return the folders of runs."""
        return [RunDir(runs_dir(self.results) / run_id) for run_id in ids]

    @cached_property
    def _unproven(self) -> frozenset[str]:
        return frozenset(self.unproven)

    def is_unproven(self, run_id: str) -> bool:
        """`True` if the family of a run had finished none."""
        return run_id in self._unproven

    def has_unfinished_runs(self) -> bool:
        """`True` if a run of its list has no result yet."""
        return any(not run.result_path.exists() for run in self.run_dirs(self.runs))

    # --- local ------------------------------------------------------------------------------------------------------

    def workers(self) -> list[Process | None]:
        """Return the processes of local workers; the submitter counts as each until they are recorded."""
        workers = json_or_empty(self.path / "workers.json").get("workers")
        if not isinstance(workers, list):
            return [self.submitter] * len(self.slots)
        return [Process.from_json(worker) for worker in workers]

    def record_workers(self, workers: Sequence[Process | None]) -> None:
        """Record the processes started for local workers."""
        content = {"workers": [worker.to_json() if worker else None for worker in workers]}
        write_atomic(self.path / "workers.json", dumps(content))

    def live_workers(self) -> list[Process]:
        """Return the local workers that still look for runs, or may do so on a hidden host.

        A started worker has its own report; before, its process counts, and before that the submitter. It omits workers
        that report having read their list for the last time.
        """
        return [worker for worker, _, _ in self.live_slots()]

    def live_slots(self) -> list[tuple[Process, Json, Json]]:
        """Return each live local worker with its slot and its report."""
        live = []
        for slot, starter in zip(self.slots, self.workers(), strict=False):
            # A report outlives its worker: check the process.
            report = self.worker_report(str(slot.get("name")))
            worker = Process.from_json(report.get("process")) or starter
            if worker and not report.get("leaving") and worker.liveness() != "dead":
                live.append((worker, slot, report))
        return live

    def vacant_slots(self) -> list["VacantSlot"]:
        """Return the slots whose workers are dead while other workers of this submission live.

        Without live workers there are none: the runs are interrupted, and need a new submission. Nor for submissions of
        other users.
        """
        # Workers must run under the owner of the submission.
        with contextlib.suppress(OSError):
            if self.path.lstat().st_uid != os.getuid():
                return []
        slots = []
        for slot, starter in zip(self.slots, self.workers(), strict=False):
            report = self.worker_report(name := str(slot.get("name")))
            worker = Process.from_json(report.get("process")) or starter
            if worker and worker.liveness() == "dead":
                slots.append(VacantSlot(self, name, died=bool(report.get("claimed") and not report.get("leaving"))))
        # Check last: if a worker died meanwhile, this list is empty, which is safe.
        return slots if self.live_workers() else []

    def worker_heart(self, worker: str) -> "WorkerHeart":
        """Return a local worker's heart."""
        interval_s = number(self.profile.get("heartbeat_s"))
        return WorkerHeart(self.path / f"worker-{worker}.heartbeat", interval_s or 0.0)

    def count_active_workers(self) -> int:
        """Return the number of local workers that hold their slots."""
        return sum(bool(report) and not report.get("waits") for _, _, report in self.live_slots())

    def wait_reason(self) -> str:
        """Return the slots that local workers wait for, with their holders; empty if a worker does not wait."""
        locations = []
        for worker, slot, report in self.live_slots():
            if not isinstance(locks := report.get("waits"), list):
                return ""
            # Locks of another host are invisible here.
            if worker.liveness() == "unknown":
                locations.append(f"slot {slot.get('name')} of {worker.host}")
            else:
                locations += [
                    str(lock) for lock in held_slots(Path(str(path)) for path in locks) if lock.process != worker
                ][:1]
        suffix = f", and {len(locations) - 1} more" if len(locations) > 1 else ""
        apart = f"for separate slots, set {SLOTS_ENV} to another folder"
        return f"waits for {locations[0]}{suffix} ({apart})" if locations else ""

    # --- SLURM ------------------------------------------------------------------------------------------------------

    def array_id(self) -> str | None:
        """Return the id of its SLURM array, or None before it is recorded."""
        array = json_or_empty(self.path / "job.json").get("id")
        return array if isinstance(array, str) and array.isdigit() else None

    def record_array(self, array: str) -> None:
        """Record the id of its SLURM array, unless another process has done so."""
        # Exclusive: the submitter and the first job may both write, with the same id.
        write_atomic(self.path / "job.json", dumps({"id": array}), exclusive=True)

    def record_unanswered(self) -> None:
        """Record that SLURM did not answer the submitter: only its name can find the array."""
        write_atomic(self.path / "unanswered", "")

    def submitter_life(self) -> Life:
        """Return the liveness of a submitter that still waits for the array's id; "dead" if none does."""
        # From here on, only the jobs matter.
        if self.submitter is None or self.array_id() is not None or (self.path / "unanswered").exists():
            return "dead"
        return self.submitter.liveness()

    def request_withdrawal(self) -> None:
        """Request that jobs that wait only for cancelled or finished runs be withdrawn."""
        # A file for each request: one made while SLURM answers another must stay.
        write_atomic(self.path.with_name(f"{self.path.name}.withdraw-{uuid.uuid4().hex}"), "")

    @property
    def is_withdrawable(self) -> bool:
        """`True` if SLURM lets this user cancel its jobs."""
        return os.getuid() == 0 or self.user in ("", str(os.getuid()))

    @property
    def runs_per_job(self) -> int:
        """Runs that each array task is given."""
        count = self.profile.get("runs_per_job")
        return count if isinstance(count, int) and count > 0 else 1

    @cached_property
    def _task_by_run(self) -> dict[str, int]:
        return {run: number // self.runs_per_job for number, run in enumerate(self.runs)}

    def task_index(self, run_id: str) -> int:
        """Return the index of the array task that is given a run."""
        return self._task_by_run[run_id]

    def task_runs(self, index: int) -> tuple[str, ...]:
        """Return the ids of the runs of an array task."""
        first = index * self.runs_per_job
        return self.runs[first : first + self.runs_per_job]

    def request_requeue(self, index: int, restart: int, *, certain: bool) -> None:
        """Leave a note for the batch script to requeue this job: always, or only if it is being preempted."""
        write_atomic(self.path / f"{'again' if certain else 'preempted'}-{index}-{restart}", "")

    def all_leaving(self, index: int, restarts: int) -> bool:
        """`True` if all workers of an array task have read their list for the last time since this start of the job."""
        return all(report.get("leaving") for report in self._task_reports(index, restarts))

    def all_saved(self, index: int, restarts: int) -> bool:
        """`True` if no worker of an array task has unsaved progress since this start of the job."""
        return all(report.get("leaving") or report.get("saved") for report in self._task_reports(index, restarts))

    @property
    def workers_per_job(self) -> int:
        """Workers of an array task."""
        if int(self.profile.get("devices_per_run") or 1) > 1:
            return 1  # the programs of its runs divide all devices
        # A node without GPUs has one worker, as in `SlurmProfile.workers`.
        return int(self.profile.get("nodes") or 1) * max(1, int(self.profile.get("gpus") or 0))

    @property
    def runs_at_once(self) -> int:
        """Runs that an array task trains at the same time."""
        return max(1, min(self.runs_per_job, self.workers_per_job))

    def _task_reports(self, index: int, restarts: int) -> list[Json]:
        reports = [self.worker_report(f"{index}-{rank}") for rank in range(self.workers_per_job)]
        # Ignore reports of an earlier start of the same job.
        return [report if report.get("restart") == restarts else {} for report in reports]

    # --- workers ----------------------------------------------------------------------------------------------------

    def report_path(self, worker: str) -> Path:
        """Return the file that a worker writes its report to."""
        return self.path / f"worker-{worker}.json"

    def worker_report(self, worker: str) -> Json:
        """Return the report of a worker; empty before its start, or if its file cannot be read."""
        return json_or_empty(self.report_path(worker))

    def last_output(self) -> str:
        """Return the last line that a worker printed, with the path of its output.

        On a full disk, workers cannot print the reason of their end.
        """
        for path in sorted(self.path.glob("*_log.out")):
            lines: list[str] = []
            with contextlib.suppress(OSError):
                lines = read_file(path).decode(errors="replace").splitlines()
            for line in reversed(lines):
                # Lines of submitit and SLURM follow the worker's own error, and would hide it.
                if (text := line.strip()) and not text.startswith(("submitit INFO", "srun: ", "slurmstepd: ")):
                    return f"{text} (full output: {path})"
        cause = DISK_FULL_MESSAGE if is_full(self.path) else "as if killed"
        return f"no output, {cause} (all output: {self.path})"


@dataclass(frozen=True)
class WorkerHeart:
    """The heart of a local worker; the submitter makes its file, except in older submissions."""

    heartbeat_path: Path
    interval_s: float

    def heartbeat_interval_s(self) -> float | None:
        """Return the interval in seconds of the heartbeats; None if none was promised."""
        return self.interval_s if self.interval_s > 0 and self.heartbeat_path.exists() else None

    def read_heartbeat(self) -> str:
        """Return the text of the counter."""
        return read_counter(self.heartbeat_path)

    def write_heartbeat(self, count: int) -> None:
        """Write the counter."""
        write_counter(self.heartbeat_path, count)


@dataclass(frozen=True)
class VacantSlot:
    """A slot of a live submission whose worker is dead.

    Attributes:
        died: the worker died between claiming a run and finishing its list; otherwise it stopped on request, or may
            never have worked.
    """

    submission: Submission
    slot: str
    died: bool


def read_submission(folder: Path) -> Submission:
    """Read a submission from its folder.

    Raises:
        CorruptError: submission.json is missing or invalid.
    """
    try:
        content = read_json(folder / "submission.json")
    except FileNotFoundError:
        raise CorruptError(f"{folder}: submission.json is missing") from None
    kind, runs = content.get("kind", "local"), content.get("runs")
    # Ids become paths below runs/: refuse `../x`.
    if not isinstance(runs, list) or not all(isinstance(run, str) and is_run_id(run) for run in runs):
        raise CorruptError(f"{folder / 'submission.json'}: lists no runs")
    if kind not in ("local", "slurm"):
        raise CorruptError(f"{folder / 'submission.json'}: unknown kind {kind!r}")
    profile, data, slots = content.get("profile"), content.get("data"), content.get("slots")
    sweeps = content.get("sweeps")
    unproven = frozenset(listed) if isinstance(listed := content.get("unproven"), list) else frozenset()
    return Submission(
        path=folder,
        kind=kind,
        runs=tuple(runs),
        profile=profile if isinstance(profile, dict) else {},
        submitter=Process.from_json(content.get("submitter")),
        code=str(content.get("code") or ""),
        # Only kind and runs are required: all else reads as empty if it is missing or of the wrong type.
        data={str(task): str(location) for task, location in data.items()} if isinstance(data, dict) else {},
        slots=[slot for slot in slots if isinstance(slot, dict)] if isinstance(slots, list) else [],
        name=str(content.get("name") or ""),
        user=str(content.get("user") or ""),
        cluster=str(content.get("cluster") or ""),
        sweeps=tuple(map(str, sweeps)) if isinstance(sweeps, list) else (),
        unproven=tuple(run for run in runs if run in unproven),
    )


def write_submission(results: Path, content: Json) -> Submission:
    """Write a submission into a new folder, before any of its workers starts."""
    folder = jobs_dir(results.resolve()) / next_name(results)
    with storage_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
    # First: a folder without it is unreadable, and its jobs would find no list.
    write_atomic(folder / "submission.json", json.dumps(content))
    return read_submission(folder)


def next_name(results: Path) -> str:
    """Return a unique name for a submission: a number above all existing ones, and a random suffix.

    Numbers, not times, order submissions: clocks and time zones of login nodes differ.
    """
    last = max((_submission_number(folder) for folder in submission_folders(results)), default=0)
    return f"{last + 1:06d}-{uuid.uuid4().hex[:8]}"


def _submission_number(folder: Path) -> int:
    """Return the number of a submission folder; 0, the oldest, for a folder of another name."""
    return int(match[1]) if (match := _FOLDER_NAME.fullmatch(folder.name)) else 0


_FOLDER_NAME = re.compile(r"([0-9]+)-[0-9a-f]{8}")


def submission_folders(results: Path) -> list[Path]:
    """Return the folders of all submissions, oldest first.

    Raises:
        CorruptError: the folder that holds them cannot be read.
    """
    folders = [path for name in folder_names(jobs_dir(results)) if (path := jobs_dir(results) / name).is_dir()]
    return sorted(folders, key=lambda folder: (_submission_number(folder), folder.name))


def try_read_submission(folder: Path) -> Submission | None:
    """Return a submission, or None if it cannot be read."""
    with contextlib.suppress(CorruptError):
        return read_submission(folder)
    return None


def submissions(results: Path) -> list[Submission]:
    """Return all readable submissions, oldest first."""
    return [submission for folder in submission_folders(results) if (submission := try_read_submission(folder))]
