"""Submissions as they lie on disk: what each lists, and what its workers say of themselves.

A folder jobs/<submission>/ holds
- submission.json: written once, before anything is started: the ordered list of runs, the profile, who submits; for
  SLURM also the name that its jobs carry, by which they are found if nobody lived to record their number;
- job.json: the number of the array, from whoever knows it first: the submitter, or the first job that starts;
  unanswered: the submitter got no number, and gave up;
  workers.json: the processes of local workers;
- worker-<name>.json: what each worker says of itself, first when it starts;
- environment.sh: the variables that a profile gives to jobs, for their owner alone: nothing else here has the values;
- the batch script, and the output of the workers.
"""

import contextlib
import os
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ettsweep.errors import CorruptError
from ettsweep.files import Json, dumps, json_or_empty, read_json, write_atomic
from ettsweep.launch.slots import held
from ettsweep.processes import Life, Process
from ettsweep.runs.folder import RunDir, is_run_id, jobs_dir, runs_dir


@dataclass(frozen=True)
class Submission:
    """One submission, as read.

    Attributes:
        kind: local or slurm.
        runs: what it lists, in order.
        profile: the launch profile, as plain data, without the values of its variables.
        submitter: the process that made it.
        code: folder of the snapshot that its workers train from; empty where they use the installed code.
        data: where data sets are, by kind of task; of others, the environment of the workers says it.
        slots: of local workers.
        name: of its jobs in SLURM, which no other submission has.
        user: number of the user whose jobs they are.
        cluster: the one that they went to.
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

    @property
    def results(self) -> Path:
        """The results folder that it lies in."""
        return self.path.parent.parent

    def run_dirs(self, ids: Iterable[str]) -> list[RunDir]:
        """Return the folders of some of its runs."""
        return [RunDir(runs_dir(self.results) / run_id) for run_id in ids]

    def unfinished(self) -> bool:
        """Say whether a run that it lists has no result yet."""
        return any(not run.result_path.exists() for run in self.run_dirs(self.runs))

    # --- local ------------------------------------------------------------------------------------------------------

    def workers(self) -> list[Process | None]:
        """Return the processes that were started for local workers; before they are, the submitter stands for each."""
        workers = json_or_empty(self.path / "workers.json").get("workers")
        if not isinstance(workers, list):
            return [self.submitter] * len(self.slots)
        return [Process.from_json(worker) for worker in workers]

    def live_workers(self) -> list[Process]:
        """Return the local workers that still look for runs, or may do so where they cannot be seen.

        A worker speaks for itself once it has started; before, the job that starts it does, and before that the
        command that is starting the jobs. One that has taken its last look at the list says so, and does not count.
        """
        return [worker for worker, _, _ in self.live_slots()]

    def live_slots(self) -> list[tuple[Process, Json, Json]]:
        """Return the same local workers with their slots, and what each says of itself."""
        live = []
        for slot, starter in zip(self.slots, self.workers(), strict=False):
            report = self.said_by(str(slot.get("name")))
            worker = Process.from_json(report.get("process")) or starter
            if worker and not report.get("leaving") and worker.liveness() != "dead":
                live.append((worker, slot, report))
        return live

    def vacancies(self) -> list["VacantSlot"]:
        """Return the slots whose workers are dead, while others of this submission live and may need help.

        Where all are dead, its runs count as nobody's, and are submitted again. What another user has submitted is left
        to them.
        """
        with contextlib.suppress(OSError):
            if self.path.stat().st_uid != os.getuid():
                return []
        slots = []
        for slot, starter in zip(self.slots, self.workers(), strict=False):
            report = self.said_by(name := str(slot.get("name")))
            worker = Process.from_json(report.get("process")) or starter
            if worker and worker.liveness() == "dead":
                slots.append(VacantSlot(self, name, died=bool(report.get("claimed") and not report.get("leaving"))))
        return slots if self.live_workers() else []

    def at_work(self) -> int:
        """Return how many local workers have their slots, and so may each train a run."""
        return sum(bool(report) and not report.get("waits") for _, _, report in self.live_slots())

    def waits_for(self) -> str:
        """Say which slots local workers wait for, and who has them; empty where a worker does not wait for one."""
        locations = []
        for worker, slot, report in self.live_slots():
            if not isinstance(locks := report.get("waits"), list):
                return ""
            if worker.liveness() == "unknown":
                locations.append(f"slot {slot.get('name')} of {worker.host}")
            else:
                locations += [str(lock) for lock in held(Path(str(path)) for path in locks) if lock.process != worker][
                    :1
                ]
        suffix = f", or one of {len(locations) - 1} more" if len(locations) > 1 else ""
        return f"waits for {locations[0]}{suffix}" if locations else ""

    # --- SLURM ------------------------------------------------------------------------------------------------------

    def array(self) -> str | None:
        """Return the number of its array in SLURM, or None where nobody has recorded one."""
        number = json_or_empty(self.path / "job.json").get("id")
        return number if isinstance(number, str) and number.isdigit() else None

    def record(self, array: str) -> None:
        """Record the number of its array; whoever knows it first does."""
        write_atomic(self.path / "job.json", dumps({"id": array}), exclusive=True)

    def record_silence(self) -> None:
        """Record that the submitter got no answer: whether there is an array shows by its name alone."""
        write_atomic(self.path / "unanswered", "")

    def being_submitted(self) -> Life:
        """Say whether its submitter lives, and still waits for the number of the array."""
        if self.submitter is None or self.array() is not None or (self.path / "unanswered").exists():
            return "dead"
        return self.submitter.liveness()

    @property
    def runs_per_job(self) -> int:
        """Runs that each task of the array is given."""
        count = self.profile.get("runs_per_job")
        return count if isinstance(count, int) and count > 0 else 1

    @cached_property
    def _tasks(self) -> dict[str, int]:
        return {run: number // self.runs_per_job for number, run in enumerate(self.runs)}

    def task_of(self, run_id: str) -> int:
        """Return the index of the task that is given a run."""
        return self._tasks[run_id]

    def runs_of(self, index: int) -> tuple[str, ...]:
        """Return the runs of a task."""
        first = index * self.runs_per_job
        return self.runs[first : first + self.runs_per_job]

    def leave_to_script(self, index: int, restart: int, *, certain: bool) -> None:
        """Leave a note for the batch script to have this job started again, or to do so if it is being preempted."""
        write_atomic(self.path / f"{'again' if certain else 'preempted'}-{index}-{restart}", "")

    def all_leaving(self, index: int, restarts: int) -> bool:
        """Say whether all workers of a task have taken their last look at their list in this life of the job."""
        return all(report.get("leaving") for report in self._said_in(index, restarts))

    def all_saved(self, index: int, restarts: int) -> bool:
        """Say whether all workers of a task have nothing to lose any more in this life of the job."""
        return all(report.get("leaving") or report.get("saved") for report in self._said_in(index, restarts))

    @property
    def workers_per_job(self) -> int:
        """Workers that a task of the array has."""
        return int(self.profile.get("nodes") or 1) * max(1, int(self.profile.get("gpus") or 0))

    @property
    def runs_at_once(self) -> int:
        """Runs that a task of the array can train at a time."""
        together = self.workers_per_job // max(1, int(self.profile.get("devices_per_run") or 1))
        return max(1, min(self.runs_per_job, together))

    def _said_in(self, index: int, restarts: int) -> list[Json]:
        reports = [self.said_by(f"{index}-{rank}") for rank in range(self.workers_per_job)]
        return [report if report.get("restart") == restarts else {} for report in reports]

    # --- workers ----------------------------------------------------------------------------------------------------

    def words_path(self, worker: str) -> Path:
        """Return the file in which a worker speaks of itself."""
        return self.path / f"worker-{worker}.json"

    def said_by(self, worker: str) -> Json:
        """Return what a worker says of itself; empty where it has not started, or its words cannot be read."""
        return json_or_empty(self.words_path(worker))

    def last_words(self) -> str:
        """Return the last line that a worker wrote, and where the rest is."""
        for path in sorted(self.path.glob("*_log.out")):
            for line in reversed(path.read_text(errors="replace").splitlines()):
                if (text := line.strip()) and not text.startswith(("submitit INFO", "srun: ", "slurmstepd: ")):
                    return f"{text} (all of it: {path})"
        return f"without a word, as if killed (their output: {self.path})"


@dataclass(frozen=True)
class VacantSlot:
    """A slot of a live submission whose worker is dead.

    Attributes:
        died: after it had claimed a run, and before it was done; else it was told to end, or may never have worked.
    """

    submission: Submission
    slot: str
    died: bool


def read_submission(folder: Path) -> Submission:
    """Read a submission.

    Raises:
        CorruptError: submission.json is missing or unreadable.
    """
    try:
        content = read_json(folder / "submission.json")
    except FileNotFoundError:
        raise CorruptError(f"{folder}: has no submission.json") from None
    kind, runs = content.get("kind", "local"), content.get("runs")
    if not isinstance(runs, list) or not all(isinstance(run, str) and is_run_id(run) for run in runs):
        raise CorruptError(f"{folder / 'submission.json'}: lists no runs")
    if kind not in ("local", "slurm"):
        raise CorruptError(f"{folder / 'submission.json'}: is of the unknown kind {kind!r}")
    profile, data, slots = content.get("profile"), content.get("data"), content.get("slots")
    return Submission(
        path=folder,
        kind=kind,
        runs=tuple(runs),
        profile=profile if isinstance(profile, dict) else {},
        submitter=Process.from_json(content.get("submitter")),
        code=str(content.get("code") or ""),
        data={str(task): str(location) for task, location in data.items()} if isinstance(data, dict) else {},
        slots=[slot for slot in slots if isinstance(slot, dict)] if isinstance(slots, list) else [],
        name=str(content.get("name") or ""),
        user=str(content.get("user") or ""),
        cluster=str(content.get("cluster") or ""),
    )


def next_name(results: Path) -> str:
    """Return a name for a new submission: a number above all that exist, and what tells two of one number apart.

    Clocks of login nodes differ, and so do their time zones: which job of a run is the newest goes by the number.
    """
    last = max((_number(folder) for folder in submission_folders(results)), default=0)
    return f"{last + 1:06d}-{uuid.uuid4().hex[:8]}"


def _number(folder: Path) -> int:
    """Return the number of a submission; a folder of another name counts as older."""
    return int(match[1]) if (match := _NUMBERED.fullmatch(folder.name)) else 0


_NUMBERED = re.compile(r"([0-9]+)-[0-9a-f]{8}")


def submission_folders(results: Path) -> list[Path]:
    """Return the folders of all submissions, oldest first."""
    folders = [path for path in jobs_dir(results).glob("*") if path.is_dir()]
    return sorted(folders, key=lambda folder: (_number(folder), folder.name))


def readable(folder: Path) -> Submission | None:
    """Return a submission, or None where it cannot be read."""
    with contextlib.suppress(CorruptError):
        return read_submission(folder)
    return None


def submissions(results: Path) -> list[Submission]:
    """Return all submissions that can be read, oldest first."""
    return [submission for folder in submission_folders(results) if (submission := readable(folder))]
