"""Submitting: a plan becomes run folders, a list of them on disk, and workers."""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ettsweep.errors import InputError, LaunchError, NoAnswerError, NotHereError, UnansweredError
from ettsweep.files import Json, dumps, storage_errors, write_atomic
from ettsweep.launch import slurm
from ettsweep.launch.profiles import AnyProfile, LocalProfile, Slot, SlurmProfile
from ettsweep.launch.slots import free_first
from ettsweep.launch.submissions import Submission, read_submission
from ettsweep.models.architectures import model_name
from ettsweep.processes import Process, process
from ettsweep.runs.folder import RunDir
from ettsweep.runs.paths import code_dir, jobs_dir
from ettsweep.scaling.strategies import strategy_name
from ettsweep.sweep.plan import Plan, Planned
from ettsweep.tasks.data import data_env, resolve, said
from ettsweep.tasks.kinds import TASKS

if TYPE_CHECKING:
    from ettsweep.launch.executors import ArrayExecutor


LOST = re.compile(r"timed out|unable to contact|connect|zero bytes|message receive", re.IGNORECASE)
"""What sbatch says when it could not talk to the controller to the end: then there may be jobs all the same."""


def submit(results: Path, plan: Plan, profile: AnyProfile, data: Mapping[str, str] | None = None) -> list[Path]:
    """Make the run folders of a plan and start workers for them.

    Args:
        results: results folder.
        plan: the runs.
        profile: where they train.
        data: where data sets are, by kind of task, as far as somebody has said it.

    Returns:
        The folders of the submissions, none where the plan has nothing to launch.

    Raises:
        StorageError: the results folder cannot be written.
        LaunchError: no worker could be started; SLURM's own words are in it.
    """
    if not plan.to_launch:
        return []
    for planned in plan.to_launch:
        RunDir.create(results, planned.spec)
    if isinstance(profile, LocalProfile):
        return [_submit_local(results, plan.to_launch, profile, data or {})]
    return _submit_arrays(results, plan.to_launch, profile, data or {})


def _new_folder(results: Path) -> Path:
    now = f"{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() // 1000 % 10**6:06d}"
    folder = jobs_dir(results.resolve()) / f"{now}-{uuid.uuid4().hex[:8]}"
    with storage_errors(folder):
        folder.mkdir(parents=True)
    return folder


def _content(results: Path, planned: Sequence[Planned], profile: AnyProfile, data: Mapping[str, str]) -> Json:
    """Return what submission.json says of any submission; with a snapshot of the code, if the profile wants one."""
    code = None
    if profile.snapshot:
        from ettsweep.launch.snapshot import take_snapshot

        code = str(take_snapshot(results.resolve()))
    return {
        "kind": profile.kind,
        "runs": [p.id for p in planned],
        "profile": profile.model_dump(mode="json"),
        "submitter": process().to_json(),
        "code": code,
        "data": {kind: where for kind, where in _data(planned, data).items() if not profile.names(data_env(kind))},
    }


def _data(planned: Sequence[Planned], data: Mapping[str, str]) -> dict[str, str]:
    """Return where the data of some runs are, by kind of task: as was said, else as the user's environment says."""
    kinds = dict.fromkeys(p.spec.task.kind for p in planned if not TASKS[p.spec.task.kind].packaged)
    return {kind: resolve(where) for kind in kinds if (where := said(kind, data.get(kind)))}


def _write(folder: Path, content: Json) -> Submission:
    write_atomic(folder / "submission.json", json.dumps(content))
    return read_submission(folder)


# --- this machine ---------------------------------------------------------------------------------------------------


def _submit_local(results: Path, planned: Sequence[Planned], profile: LocalProfile, data: Mapping[str, str]) -> Path:
    slots = free_first(profile.resolve())[: len(planned)]
    content = _content(results, planned, profile, data) | {"slots": [asdict(slot) for slot in slots]}
    folder = _new_folder(results)
    submission = _write(folder, content)
    workers = start_workers(submission, slots)
    write_atomic(folder / "workers.json", dumps({"workers": [worker.to_json() for worker in workers]}))
    return folder


def start_workers(submission: Submission, slots: Sequence[Slot]) -> list[Process]:
    """Start a worker for each slot; all are given the same list of runs."""
    from ettsweep.launch.executors import SlotExecutor

    executor = SlotExecutor(submission.path, Path(submission.code) if submission.code else None)
    try:
        return [process(executor.start(slot.name)) for slot in slots]
    except OSError as error:
        raise LaunchError(f"{submission.path}: worker could not be started: {error}") from error


# --- SLURM ----------------------------------------------------------------------------------------------------------


def _submit_arrays(
    results: Path, planned: Sequence[Planned], profile: SlurmProfile, data: Mapping[str, str]
) -> list[Path]:
    """Submit one array, or several where the site's MaxArraySize is less than the tasks that are needed."""
    parts = _parts(planned, profile, _max_array_size())
    folders = []
    for part in parts:
        try:
            folders.append(_submit_array(results, part, profile, data, _parallel(profile, len(parts))))
        except LaunchError as error:
            if not folders:
                raise
            done = sum(len(p) for p in parts[: len(folders)])
            told = f"{done} of {len(planned)} runs were submitted, and then: {error}"
            raise type(error)(told) from None
    return folders


def _parts(planned: Sequence[Planned], profile: SlurmProfile, max_tasks: int) -> list[Sequence[Planned]]:
    size = max_tasks * profile.runs_per_job
    return [planned[first : first + size] for first in range(0, len(planned), size)]


def _parallel(profile: SlurmProfile, arrays: int) -> int | None:
    return None if profile.max_parallel is None else max(1, profile.max_parallel // arrays)


def _max_array_size() -> int:
    """Return how many tasks an array may have: the site's largest index plus one, less if it says so."""
    config = slurm.configuration()
    limits = [config.get("MaxArraySize", "")]
    limits += re.findall(r"max_array_tasks=(\d+)", config.get("SchedulerParameters", ""))
    return min((int(limit) for limit in limits if limit.isdigit() and int(limit) > 0), default=1)


def _submit_array(
    results: Path, planned: Sequence[Planned], profile: SlurmProfile, data: Mapping[str, str], parallel: int | None
) -> Path:
    """Write what the jobs are to do, under a name that no other job has, then run sbatch and record its answer."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    content = _content(results, planned, profile, data)
    content |= {"cluster": slurm.cluster(), "user": str(os.getuid()), "name": _job_name(planned)}
    folder = _new_folder(results)
    executor = _executor(folder, len(planned), profile, parallel, content["name"], content["code"] or "")
    submission = _write(folder, content)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # submitit prints what it raises
            array = executor.start()
    except (FailedJobError, FailedSubmissionError) as error:
        array = _after_failure(submission, slurm.words(str(error)))
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise LaunchError(f"sbatch cannot be run: {error.strerror or error}") from error
    submission.record(array)
    return folder


def _after_failure(submission: Submission, told: str) -> str:
    """Return the array that sbatch made although it failed, by its name.

    Raises:
        LaunchError: there is none, and nothing is left behind.
        UnansweredError: SLURM does not say.
    """
    lost = LOST.search(told)
    with contextlib.suppress(NoAnswerError):
        for task in slurm.queue([submission.user]).values():
            if task.name == submission.name:
                return task.id.partition("_")[0]
        if not lost:
            shutil.rmtree(submission.path, ignore_errors=True)
            raise LaunchError(f"sbatch refuses: {told}")
    # A controller that was too busy to answer can accept the jobs minutes later: what was written for them stays.
    submission.record_silence()
    raise UnansweredError(f"sbatch: {told}; the next command looks whether the jobs were made")


def _executor(
    folder: Path, runs: int, profile: SlurmProfile, parallel: int | None, name: str, code: str
) -> "ArrayExecutor":
    from ettsweep.launch.executors import ArrayExecutor

    if "%" in str(folder):
        raise InputError(f"{folder}: SLURM gives % in a path a meaning of its own; --results names another folder")
    tasks = -(-runs // profile.runs_per_job)
    return ArrayExecutor(folder, profile, name, tasks, min(tasks, parallel or tasks), Path(code) if code else None)


def _job_name(planned: Sequence[Planned]) -> str:
    """Return a name that people can read and that no other job has, such as vit-b16-ntk.1a2b3c4d."""
    models = dict.fromkeys(model_name(p.spec.model) for p in planned)
    strategies = dict.fromkeys(strategy_name(p.spec.strategy.s) for p in planned)
    words = [
        next(iter(models)) if len(models) == 1 else "sweep",
        next(iter(strategies)) if len(strategies) == 1 else f"{len(strategies)}-strategies",
    ]
    return re.sub(r"[^\w.=-]+", "_", "-".join(words))[:60] + f".{uuid.uuid4().hex[:8]}"


def scripts(results: Path, plan: Plan, profile: AnyProfile) -> list[str]:
    """Return the batch scripts that `submit` would hand to sbatch, with XXXXXXXX for what makes their names unique."""
    if not isinstance(profile, SlurmProfile) or not plan.to_launch:
        return []
    try:
        max_tasks = _max_array_size()
    except NoAnswerError:
        max_tasks = len(plan.to_launch)  # whoever looks at the script where there is no SLURM sees one array
    parts = _parts(plan.to_launch, profile, max_tasks)
    found = []
    for part in parts:
        name = _job_name(part).rpartition(".")[0] + ".XXXXXXXX"
        folder = jobs_dir(results.resolve()) / "XXXXXXXX"
        code = str(code_dir(results.resolve()) / "XXXXXXXX") if profile.snapshot else ""
        found.append(_executor(folder, len(part), profile, _parallel(profile, len(parts)), name, code).script())
    return found


def check(results: Path, plan: Plan, profile: AnyProfile) -> None:
    """Find out, before anything is recorded, whether a plan could be submitted.

    Raises:
        InputError: a device that the profile names is not here, or a run has fewer samples a step than devices.
        LaunchError: SLURM refuses the profile, in its own words, or does not answer.
    """
    if not plan.to_launch:
        return
    least = min(planned.spec.batch_size for planned in plan.to_launch)
    if least < profile.devices_per_run:
        raise InputError(f"devices_per_run: {profile.devices_per_run} devices cannot share a batch of {least}")
    if isinstance(profile, LocalProfile):
        profile.resolve()
        return
    for script in scripts(results, plan, profile):
        would_start(script)


def would_start(script: str) -> str:
    """Return what sbatch says of when and where a batch script would start; nothing is submitted.

    Raises:
        LaunchError: sbatch refuses it, in its own words.
    """
    from ettsweep.launch.executors import sbatch

    command = [*sbatch(script), "--test-only"]
    try:
        done = subprocess.run(
            command, input=script, capture_output=True, text=True, timeout=slurm.ANSWER_S, check=False
        )
    except FileNotFoundError:
        raise NotHereError("sbatch is not on this machine; `--launch local` trains here") from None
    except subprocess.TimeoutExpired:
        raise NoAnswerError(f"sbatch gave no answer in {slurm.ANSWER_S:.0f} s") from None
    if done.returncode == 127:  # from env
        raise NotHereError("sbatch is not on this machine; `--launch local` trains here")
    told = slurm.words(done.stderr)
    if done.returncode and LOST.search(told):
        raise NoAnswerError(f"sbatch: {told}")
    if done.returncode and not ("configuration is not available" in told and slurm.under_repair()):
        raise LaunchError(f"sbatch refuses: {told}")
    return told
