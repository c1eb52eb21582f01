"""Submission: create the run folders of a plan, record the list of runs on disk, and start workers."""

import contextlib
import io
import json
import locale
import os
import re
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from ettsweep.console import print_note
from ettsweep.errors import (
    InputError,
    LaunchError,
    SlurmNotInstalledError,
    SlurmUnavailableError,
    SubmissionUnknownError,
)
from ettsweep.extras import check_installed
from ettsweep.files import Json, dumps, lock_dir, storage_errors, write_atomic
from ettsweep.launch import slurm
from ettsweep.launch.first_runs import MAX_ALIKE
from ettsweep.launch.folders import check_folders
from ettsweep.launch.gpus import NO_MPS_NOTE, mps_is_running
from ettsweep.launch.profile import AnyProfile, LocalProfile, Slot, SlurmProfile
from ettsweep.launch.slots import sort_free_first
from ettsweep.launch.submissions import Submission, next_name, read_submission
from ettsweep.processes import process_identity
from ettsweep.runs.data_location import configured_data, data_env, resolve_data
from ettsweep.runs.folder import TRIAL_PREFIX, RunDir, code_dir, jobs_dir
from ettsweep.runs.point import Point, from_the_middle
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.trainable import BUILT_IN
from ettsweep.strategies.strategy import strategy_name
from ettsweep.study.plan import Plan, PlannedRun

if TYPE_CHECKING:
    from ettsweep.launch.executors import ArrayExecutor

CONNECTION_LOST = re.compile(r"timed out|unable to contact|connect|zero bytes|message receive", re.IGNORECASE)
"""Messages of sbatch when the connection to the controller broke, so that the jobs may exist all the same."""


def submit(
    results: Path,
    plan: Plan,
    profile: AnyProfile,
    data: Mapping[str, str] | None = None,
    sweeps: Sequence[str] = (),
    *,
    one_first: bool = True,
) -> list[Path]:
    """Create the run folders of a plan, start workers for them, and return the folders of the submissions.

    Args:
        results: the results folder.
        plan: runs to launch.
        profile: where and how they train.
        data: paths of data sets by kind of task, as far as given.
        sweeps: names of the sweeps that the runs belong to.
        one_first: whether one run of families that have finished none starts first, see `first_runs`.

    Raises:
        LaunchError: no worker could be started; the message has SLURM's own.
        InputError: others may change what would be executed.
    """
    if not plan.to_launch:
        return []
    check_folders(results, [planned.spec for planned in plan.to_launch])
    from ettsweep.launch.code_snapshot import release_snapshots
    from ettsweep.launch.project_copy import ensure_copies

    try:
        trial = results.parent if results.parent.name.startswith(TRIAL_PREFIX) else None
        ensure_copies(results, (planned.spec for planned in plan.to_launch), trial)
        for planned in plan.to_launch:
            run = RunDir.create(results, planned.spec)
            run.give_up(plan.run_index.status_of(planned.id).attempt)
        ordered, unproven = _first_in_front(plan) if one_first else (plan.to_launch, [])
        content: Json = {"sweeps": list(sweeps), "unproven": unproven}
        return _submit_planned(results, ordered, profile, data or {}, content)
    finally:
        release_snapshots(results)


def _submit_planned(
    results: Path,
    planned: Sequence[PlannedRun],
    profile: AnyProfile,
    data: Mapping[str, str],
    content: Json,
) -> list[Path]:
    if isinstance(profile, LocalProfile):
        # More workers than runs would only start, find nothing and end.
        slots = sort_free_first(profile.resolve_slots())[: len(planned)]
        if max(slot.sharers for slot in slots) > 1 and not mps_is_running():
            print_note(f"workers compute on a GPU {NO_MPS_NOTE}")
        content |= _submission_content(results, planned, profile, data)
        return [_submit_local(content, slots, results)]
    folders: list[Path] = []
    arrays = _split_into_arrays(results, planned, profile, _max_array_size())
    content |= _submission_content(results, planned, profile, data)
    for array in arrays:
        try:
            folders.append(_submit_array(content, array, results, profile))
        except LaunchError as error:
            # Nothing was submitted: the plain error is enough.
            if not folders:
                raise
            submitted_count = sum(len(a.planned) for a in arrays[: len(folders)])
            message = f"{submitted_count} of {len(planned)} runs were submitted, and then: {error}"
            raise type(error)(message) from None
    return folders


def _first_in_front(plan: Plan) -> tuple[tuple[PlannedRun, ...], list[str]]:
    """Return the runs to launch, and the ids of those whose families have finished none, both with the first in front.

    The first are of different points, from the middle outwards: all seeds of one point may fail.
    """
    proven = {run.family for run in plan.run_index.runs.values() if run.state.finished}
    by_point: dict[Point, list[PlannedRun]] = {}
    for each in plan.to_launch:
        if each.spec.family_id not in proven:
            by_point.setdefault(Point(each.spec.lr, each.spec.wd), []).append(each)
    across = zip_longest(*(by_point[point] for point in from_the_middle(by_point)))
    first = {each.id: each for each in islice(filter(None, chain.from_iterable(across)), MAX_ALIKE)}
    planned = (*first.values(), *(each for each in plan.to_launch if each.id not in first))
    return planned, [each.id for each in planned if each.spec.family_id not in proven]


def _submission_content(
    results: Path, planned: Sequence[PlannedRun], profile: AnyProfile, data: Mapping[str, str]
) -> Json:
    """Return the content of submission.json; take a code snapshot if the profile asks for one."""
    code = None
    if profile.snapshot:
        from ettsweep.launch.code_snapshot import take_snapshot

        code = str(take_snapshot(results.resolve()))
    # Paths are resolved now, on the submitting machine: workers may start in another folder.
    kinds = dict.fromkeys(kind for p in planned if (kind := p.spec.data_kind))
    locations = {kind: location for kind in kinds if (location := configured_data(kind, data.get(kind)))}
    return {
        "kind": profile.kind,
        "runs": [p.id for p in planned],
        "profile": profile.model_dump(mode="json"),
        "submitter": process_identity().to_json(),
        "code": code,
        "data": {
            kind: resolve_data(location)
            for kind, location in locations.items()
            if not profile.sets_variable(data_env(kind))
        },
    }


def _write_submission(results: Path, content: Json) -> Submission:
    """Write a submission into a new folder, before any of its workers starts."""
    folder = jobs_dir(results.resolve()) / next_name(results)
    with storage_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
    # First of all files: a folder without it counts as unreadable, and its jobs would find no list.
    write_atomic(folder / "submission.json", json.dumps(content))
    return read_submission(folder)


def _submit_local(content: Json, slots: Sequence[Slot], results: Path) -> Path:
    """Start a worker for each slot; all get the same list of runs."""
    from ettsweep.launch.executors import SlotExecutor

    submission = _write_submission(results, content | {"slots": [asdict(slot) for slot in slots]})
    executor = SlotExecutor(submission.path, submission.code)
    for slot in slots:
        with storage_errors(submission.path):
            submission.worker_heart(slot.name).write_heartbeat(0)
    try:
        workers = [process_identity(executor.start(slot.name)).to_json() for slot in slots]
    except OSError as error:
        raise LaunchError(f"{submission.path}: worker could not be started: {error}") from error
    write_atomic(submission.path / "workers.json", dumps({"workers": workers}))
    return submission.path


# --- SLURM ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ArrayRequest:
    """An array to submit.

    Attributes:
        planned: its runs.
        tasks: number of tasks that share them.
        parallel: how many tasks run at the same time.
        one_process: whether a job has a single worker, since its runs divide their devices themselves.
    """

    planned: Sequence[PlannedRun]
    tasks: int
    parallel: int
    one_process: bool

    @property
    def name(self) -> str:
        """Job name shown to users, such as vit-b16-ntk."""
        models = dict.fromkeys(p.spec.labels.model for p in self.planned)
        strategies = dict.fromkeys(strategy_name(p.spec.strategy.s) for p in self.planned)
        components = [
            next(iter(models)) if len(models) == 1 else "sweep",
            next(iter(strategies)) if len(strategies) == 1 else f"{len(strategies)}-strategies",
        ]
        # `submit` appends a unique suffix; squeue shows the beginning.
        return re.sub(r"[^\w.=-]+", "_", "-".join(components))[:60]


def _split_into_arrays(
    results: Path, planned: Sequence[PlannedRun], profile: SlurmProfile, max_tasks: int
) -> list[ArrayRequest]:
    """Split runs into arrays, several if they need more tasks than the site's MaxArraySize.

    Raises:
        InputError: the path of the results contains a %.
    """
    # sbatch replaces %j and the like in the paths of its output files.
    if "%" in str(folder := placeholder_folder(results)):
        raise InputError(f"{folder}: SLURM replaces % in paths; choose another folder with --results")
    size = max_tasks * profile.runs_per_job
    alike: dict[bool, list[PlannedRun]] = {}
    for each in planned:
        one_process = profile.devices_per_run > 1 and not each.spec.processes_together
        alike.setdefault(one_process, []).append(each)
    chunks = [(key, runs[first : first + size]) for key, runs in alike.items() for first in range(0, len(runs), size)]
    # Arrays run side by side, so they share the limit.
    max_parallel = profile.max_parallel and max(1, profile.max_parallel // len(chunks))
    task_counts = [-(-len(chunk) // profile.runs_per_job) for _, chunk in chunks]
    return [
        ArrayRequest(chunk, task_count, min(task_count, max_parallel or task_count), one_process)
        for (one_process, chunk), task_count in zip(chunks, task_counts, strict=True)
    ]


def _max_array_size() -> int:
    """Return the most tasks that the site allows in an array."""
    config = slurm.configuration()
    limits = [config.get("MaxArraySize", "")]
    limits += re.findall(r"max_array_tasks=(\d+)", config.get("SchedulerParameters", ""))
    return min((int(limit) for limit in limits if limit.isdigit() and int(limit) > 0), default=1)


def _submit_array(content: Json, array: ArrayRequest, results: Path, profile: SlurmProfile) -> Path:
    """Record the submission under a unique job name, run sbatch, and record the id of the array."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    # Unique, so that the jobs can be found even if sbatch never returns their id.
    name = f"{array.name}.{uuid.uuid4().hex[:8]}"
    array_content = {
        "runs": [p.id for p in array.planned],
        "cluster": slurm.cluster_name(),
        "user": str(os.getuid()),
        "name": name,
        "one_process": array.one_process,
    }
    submission = _write_submission(results, content | array_content)
    executor = _executor(submission.path, profile, name, array, submission.code)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # submitit also prints its errors
            number = executor.start()
    except FailedJobError as error:
        # sbatch may fail after the controller has accepted the jobs.
        message = slurm.clean_message(str(error))
        number = _recover_array(submission, message, is_refused=not CONNECTION_LOST.search(message))
    except FailedSubmissionError as error:
        number = _recover_array(submission, str(error), is_refused=False)
    except OSError as error:
        shutil.rmtree(submission.path, ignore_errors=True)
        raise LaunchError(f"sbatch cannot be run: {error.strerror or error}") from error
    submission.record_array(number)
    return submission.path


def _executor(folder: Path, profile: SlurmProfile, name: str, array: ArrayRequest, code: str) -> "ArrayExecutor":
    from ettsweep.launch.executors import ArrayExecutor

    return ArrayExecutor(folder, profile, name, array.tasks, array.parallel, code, one_process=array.one_process)


def _recover_array(submission: Submission, message: str, *, is_refused: bool) -> str:
    """Return the id of an array that sbatch has not told; it is found by its unique name.

    Raises:
        LaunchError: there is none; the submission is deleted.
        SubmissionUnknownError: SLURM does not answer.
    """
    # If squeue fails too, nothing is known: the submission stays, and is looked up later.
    with contextlib.suppress(SlurmUnavailableError):
        for task in slurm.queue([submission.user]).values():
            if task.name == submission.name:
                return task.id.partition("_")[0]
        if is_refused:
            shutil.rmtree(submission.path, ignore_errors=True)
            raise LaunchError(f"sbatch refuses: {message}")
    # A busy controller can accept the jobs minutes later: their submission must stay.
    submission.record_unanswered()
    raise SubmissionUnknownError(f"sbatch: {message}; the next command looks whether the jobs were made")


def placeholder_folder(results: Path) -> Path:
    """Return the placeholder path of a submission that has no name yet."""
    return jobs_dir(results.resolve()) / "XXXXXXXX"


def batch_scripts(results: Path, plan: Plan, profile: AnyProfile) -> list[str]:
    """Return the batch scripts that `submit` would pass to sbatch, with XXXXXXXX in place of unique names.

    Raises:
        InputError: a script cannot be written.
    """
    if not isinstance(profile, SlurmProfile) or not plan.to_launch:
        return []
    try:
        max_tasks = _max_array_size()
    except SlurmUnavailableError:
        max_tasks = len(plan.to_launch)  # without SLURM, show one array
    code = str(code_dir(results.resolve()) / "XXXXXXXX") if profile.snapshot else ""
    texts = []
    for array in _split_into_arrays(results, plan.to_launch, profile, max_tasks):
        name = f"{array.name}.XXXXXXXX"
        executor = _executor(placeholder_folder(results), profile, name, array, code)
        texts.append(_check_encoding(executor.script()))
    return texts


def _check_encoding(script: str) -> str:
    """Return a batch script, which submitit writes in the encoding of the locale.

    Raises:
        InputError: it has a character that this encoding lacks, such as a byte of a path that is not UTF-8.
    """
    encoding = locale.getpreferredencoding(False)
    try:
        script.encode(encoding)
    except UnicodeEncodeError as error:
        line = script[: error.start].count("\n")
        raise InputError(
            f"batch script: {encoding} cannot write {script.splitlines()[line]!r}; use a results folder whose path is "
            "UTF-8, and a locale such as LC_ALL=C.UTF-8"
        ) from None
    return script


def check_plan(results: Path, plan: Plan, profile: AnyProfile) -> None:
    """Check that a plan could be submitted, before anything is recorded.

    Raises:
        InputError: a device of the profile or the folder of slots does not exist, a batch is smaller than
            `devices_per_run`, a model does not fit into memory, runs cannot be trained in such a results folder, or
            others may change what would be executed.
        LaunchError: SLURM refuses the profile, or does not answer.
    """
    if not plan.to_launch:
        return
    check_folders(results, [planned.spec for planned in plan.to_launch])
    if isinstance(profile, LocalProfile):
        profile.resolve_slots()
        lock_dir()
    check_resources([planned.spec for planned in plan.to_launch], profile)
    for spec in {planned.spec.recipe_key: planned.spec for planned in plan.to_launch}.values():
        spec.check_results(results)
    for script in batch_scripts(results, plan, profile):
        expected_start(script)


def check_resources(specs: Sequence[RunSpec], profile: AnyProfile) -> None:
    """Check that runs can be trained on the devices of a profile.

    Raises:
        InputError: a model is too large for their memory, or they cannot share a run.
    """
    nodes = profile.nodes if isinstance(profile, SlurmProfile) else 1
    for spec in {spec.recipe_key: spec for spec in specs}.values():
        if spec.job_nodes not in (None, nodes) and (spec.job_nodes != 1 or profile.devices_per_run > 1):
            option = f"--launch-set nodes={spec.job_nodes}"
            where = f"jobs of {nodes}: {option}" if isinstance(profile, SlurmProfile) else "none but this machine"
            raise InputError(f"nodes: a run of this sweep takes {spec.job_nodes}, and the launch profile has {where}")
        if spec.trainable == BUILT_IN and not (isinstance(profile, SlurmProfile) and profile.python):
            check_installed(f"training {spec.labels.model}", "torch")
        spec.check_resources(profile.devices_per_run, *profile.memory_limit())


def expected_start(script: str) -> str:
    """Return sbatch's estimate of when and where a batch script would start; nothing is submitted.

    Raises:
        LaunchError: sbatch refuses the script.
    """
    from ettsweep.launch.executors import sbatch_command

    if shutil.which("sbatch") is None:
        raise SlurmNotInstalledError("sbatch is not on this machine; `--launch local` trains here")
    command, wait_s = [*sbatch_command(script), "--test-only"], slurm.TIMEOUT_S
    try:
        # A file, not a pipe: a command ends at once where it writes to a program that has not read all.
        with tempfile.TemporaryFile() as file:
            file.write(script.encode(errors="replace"))
            file.seek(0)
            completed = subprocess.run(
                command,
                stdin=file,
                capture_output=True,
                timeout=wait_s,
                check=False,
                encoding="utf-8",
                errors="replace",
            )
    except subprocess.TimeoutExpired:
        raise SlurmUnavailableError(f"sbatch gave no answer in {wait_s:.0f} s") from None
    message = slurm.clean_message(completed.stderr)
    if completed.returncode and CONNECTION_LOST.search(message):
        raise SlurmUnavailableError(f"sbatch: {message}")
    # --test-only also refuses what would wait for nodes that are down at present; sbatch itself would queue it.
    if completed.returncode and not ("configuration is not available" in message and slurm.has_down_nodes()):
        raise LaunchError(f"sbatch refuses: {message}")
    return message
