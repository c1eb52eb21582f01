"""The launcher for SLURM: a submission is an array, and each task is a job whose workers train runs of the list."""

import contextlib
import os
import re
import shlex
import shutil
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, model_validator

from ettsweep.config import HIDDEN_VALUE
from ettsweep.console import format_count, format_minutes
from ettsweep.errors import InputError, LaunchError, SlurmUnavailableError, SubmissionUnknownError
from ettsweep.files import Json, write_atomic
from ettsweep.launch import slurm_api
from ettsweep.launch.launcher import Launcher, RunDevices, code_environment, worker_command
from ettsweep.launch.remedies import more_memory, more_time
from ettsweep.launch.slurm_api import RESERVED_OPTIONS
from ettsweep.launch.submissions import Submission, write_submission
from ettsweep.ownership import TRUST_VARIABLE, trusts_group
from ettsweep.processes import GIB
from ettsweep.runs.folder import code_dir, jobs_dir
from ettsweep.schema import Positive, PositiveFloat, expect, home_expanded
from ettsweep.strategies.strategy import strategy_name
from ettsweep.study.plan import PlannedRun

# --- fields ---------------------------------------------------------------------------------------------------------


def _one_line(value: str) -> str:
    """Reject text that would end a line of the batch script."""
    if not value or not value.isprintable():
        raise ValueError(f"must be on one line, got {value!r}")
    return value


SingleLine = Annotated[str, AfterValidator(_one_line)]


def _expand_path(value: object) -> object:
    """Expand `~` of paths, as of `output`; without a slash it may be a comment or an account."""
    return home_expanded(value) if isinstance(value, str) and "/" in value else value


SbatchValue = Annotated[
    str | int | float | bool,
    expect("a word or a number", lambda v: isinstance(v, str | int | float) and (v == "" or str(v).isprintable())),
    AfterValidator(_expand_path),
]


def _check_variables(value: object) -> object:
    """Reject invalid variables, without their values in messages."""
    if not isinstance(value, dict):
        raise ValueError("must be names with values, such as {NCCL_SOCKET_IFNAME: ib0}")
    if problems := [problem for name, entry in value.items() if (problem := _find_problem(name, entry))]:
        raise ValueError("; ".join(problems))
    return value


def _find_problem(name: object, value: object) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        return f"{str(name).partition('=')[0]!r} is not a name of a variable"
    # 1.10 would become 1.1, and 1e3 become 1000.0.
    if isinstance(value, float):
        return f"{name}: put the number in quotes, since YAML may change it"
    if not isinstance(value, str | int) or not (value == "" or str(value).isprintable()):
        return f"{name}: must be a word or a number on one line"
    return ""


Variables = Annotated[
    dict[str, str | int | bool],
    BeforeValidator(_check_variables),
    PlainSerializer(lambda variables: dict.fromkeys(variables, HIDDEN_VALUE)),
    Field(repr=False),
]
"""Values by name; it prints and serialises the names only."""


FIELD_BY_OPTION = {
    **{option: option.replace("-", "_") for option in ("partition", "account", "qos", "constraint", "nodes")},
    **{"time": "time_min", "mem": "mem_gb", "cpus-per-task": "cpus", "gpus-per-node": "gpus", "gpus": "gpus"},
    **{"ntasks-per-node": "gpus", "ntasks": "gpus"},
}
"""The profile's field for each sbatch option that has one; `sbatch:` must not set these."""


LARGEST_GPU_BYTES, LARGEST_NODE_BYTES = 2**40, 2**46
"""Bounds that no GPU and no node reaches: 1 TiB and 64 TiB, a few times the largest of 2026."""


DEFAULT_PARALLEL_JOBS = 16
"""Jobs that racing counts on if the profile does not limit how many run in parallel."""

VARIABLES_FILE = "environment.sh"

BLOCK_WARNING = 'hold=; env --block-signal=USR2 true 2>/dev/null && hold="env --block-signal=USR2"'
"""Shell command that blocks SIGUSR2 until the worker handles it; an earlier warning would kill the job."""

REQUEUE_SCRIPT = """code=$?
# A worker that could not ask SLURM to start this job again has left a note.
notes={folder}
job=${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID life=$SLURM_ARRAY_TASK_ID-${{SLURM_RESTART_COUNT:-0}}
for pause in 0 5 15 30; do
  sleep $pause
  if [ -e "$notes"/preempted-$life ]; then
    told=$(scontrol --oneliner show job $job) || continue
    [[ $told == *JobState=RUNNING* && $told =~ PreemptTime=[0-9] ]] || break
  elif [ ! -e "$notes"/again-$life ]; then
    break
  fi
  scontrol requeue $job && break
done
exit $code
"""
"""End of the batch script, which requeues the job if its worker could not.

Outside a container the script has scontrol, and can retry while the controller does not answer."""


class SlurmProfile(Launcher):
    """Jobs on a SLURM cluster: a submission is one array, and each array task is a job.

    Attributes:
        partition, account, qos, constraint: as for sbatch; the site's default if not given.
        time_min: time limit of a job in minutes. Longer runs continue in further jobs.
        nodes: nodes of a job.
        gpus: GPUs of a job on each node, with one worker each. Each worker trains one run at a time, or all of them
            train one run together (see devices_per_run). 0 trains on the CPU, with one worker per node.
        cpus: CPUs of a worker.
        mem_gb: memory of a job on each node, in GiB; the site's default if not given.
        max_parallel: jobs of one array that run at the same time; by default only the site limits them.
        runs_per_job: runs of a job, trained one after another (or in parallel on its GPUs).
        setup: shell commands before the workers start, such as `module load cuda`.
        environment: environment variables of the job; only their owner can read the file with the values.
        sbatch: further options of sbatch by their long names; true for a flag.
        python: command that starts Python on a node, such as `singularity exec image.sif python`; by default the
            submitter's Python.
        warn_s: seconds before the time limit at which SLURM signals a job to save and to continue in the next one; the
            signal may come up to a minute earlier.
    """

    kind: Literal["slurm"]
    partition: SingleLine | None = None
    account: SingleLine | None = None
    qos: SingleLine | None = None
    constraint: SingleLine | None = None
    time_min: Positive = 240
    nodes: Positive = 1
    gpus: Annotated[int, Field(ge=0)] = 1
    cpus: Positive = 4
    mem_gb: PositiveFloat | None = None
    max_parallel: Positive | None = None
    runs_per_job: Positive = 1
    setup: Annotated[tuple[SingleLine, ...], Field(strict=False)] = ()
    environment: Variables = Field(default_factory=dict)
    sbatch: dict[str, SbatchValue] = Field(default_factory=dict)
    python: SingleLine | None = None
    warn_s: Positive = 120

    max_submissions: ClassVar[int] = 3  # a cluster may have a bad node

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        # srun starts all workers of a job the same way: they form one group or none.
        if self.devices_per_run not in (1, self.nodes * self.workers):
            raise ValueError(
                f"devices_per_run: must be 1 or {self.nodes * self.workers}, got {self.devices_per_run}: the "
                f"{self.nodes * self.workers} workers of a job (nodes x gpus) train a run each, or one run together"
            )
        early_s = 60 if self.time_min > 1 else 0  # SLURM may signal this much earlier
        if self.warn_s + early_s >= 60 * self.time_min:
            raise ValueError(
                f"warn_s: {self.warn_s} s is too long for jobs of {self.time_min} min: SLURM may signal a minute "
                "earlier still"
            )
        for command in self.setup:
            # sbatch reads options only above the first command.
            if command.startswith("#SBATCH"):
                raise ValueError(f"setup: {command!r} is an option of sbatch: put it under sbatch")
        for option in self.sbatch:
            if not re.fullmatch(r"[a-z][a-z0-9-]*", option):
                raise ValueError(f"sbatch: {option!r} is not a long option of sbatch, such as mail-type")
            if fields := [
                field for sbatch_option, field in FIELD_BY_OPTION.items() if sbatch_option.startswith(option)
            ]:
                raise ValueError(f"sbatch: {option}: set the profile's field {fields[0]} instead")
            # sbatch accepts any unique prefix of an option.
            if any(sbatch_option.startswith(option) for sbatch_option in RESERVED_OPTIONS):
                raise ValueError(f"sbatch: leave out {option}: ettsweep sets it")
        return self

    def sets_variable(self, variable: str) -> bool:
        """`True` if the profile sets an environment variable, for example to a copy of the data on the node."""
        return variable in self.environment or any(variable in command for command in self.setup)

    @property
    def workers(self) -> int:
        """Workers of a job on each of its nodes."""
        return max(1, self.gpus)

    @property
    def runs_at_once(self) -> int:
        """Runs that a job trains at the same time."""
        return min(self.runs_per_job, self.nodes * self.workers // self.devices_per_run)

    # --- what there is to train on ---

    def run_devices(self) -> RunDevices:
        # The scheduler may place jobs on any GPU model, so none is required.
        return RunDevices("cuda" if self.gpus else "cpu", self.devices_per_run, self.cpus, allow_fewer_threads=True)

    def capacity(self) -> int:
        return (self.max_parallel or DEFAULT_PARALLEL_JOBS) * self.runs_per_job

    def at_once(self, runs: int) -> tuple[int, str] | None:
        if not self.max_parallel:
            return None
        jobs = min(self.max_parallel, -(-runs // self.runs_per_job))
        return jobs * self.runs_at_once, f"with {format_count(jobs, 'job')} at a time"

    def memory_limit(self) -> tuple[int, str]:
        if self.gpus:
            return self.devices_per_run * LARGEST_GPU_BYTES, format_count(self.devices_per_run, "GPU")
        node_bytes = LARGEST_NODE_BYTES if self.mem_gb is None else int(self.mem_gb * GIB)
        return self.nodes * node_bytes, format_count(self.nodes, "node") + (
            "" if self.mem_gb is None else " with that mem_gb"
        )

    def describe(self) -> str:
        per_node = [format_count(self.workers * self.cpus, "CPU")]
        if self.gpus:
            per_node.append(format_count(self.gpus, "GPU"))
        per_node.append("the site's memory" if self.mem_gb is None else f"{self.mem_gb:g} GiB")
        facts = [
            f"a job: {format_count(self.nodes, 'node')} with {', '.join(per_node)}; {format_minutes(self.time_min)}",
            f"runs a job: {self.runs_per_job}",
            f"starts {self.python or sys.executable}, which must exist on the nodes",
        ]
        return "; ".join(facts)

    def warning_s(self) -> int:
        return self.warn_s

    def starts_other_python(self) -> bool:
        return self.python is not None

    def memory_advice(self, run_id: str, workers: int) -> str:
        return more_memory(run_id, self.mem_gb)

    def time_advice(self, run_id: str) -> str:
        return more_time(run_id, self.time_min)

    # --- launching ---

    def check_nodes(self, nodes: int) -> None:
        if nodes != self.nodes and (nodes != 1 or self.devices_per_run > 1):
            raise InputError(
                f"nodes: a run of this sweep needs {nodes}, but jobs of the launch profile have {self.nodes}: pass "
                f"--launch-set nodes={nodes}"
            )

    def check(self, results: Path, runs: Sequence[PlannedRun], *, dry_run: bool = False) -> None:
        for script in [] if dry_run else self.scripts(results, runs):
            slurm_api.expected_start(script)

    def scripts(self, results: Path, runs: Sequence[PlannedRun]) -> list[str]:
        try:
            max_tasks = slurm_api.max_array_size()
        except SlurmUnavailableError:
            max_tasks = len(runs)  # without SLURM, show one array
        code = str(code_dir(results.resolve()) / "XXXXXXXX") if self.snapshot else ""
        arrays = self._arrays(results, runs, max_tasks) if runs else []
        return [self.script(placeholder_folder(results), array, f"{array.name}.XXXXXXXX", code) for array in arrays]

    def start(self, results: Path, runs: Sequence[PlannedRun], content: Json) -> list[Path]:
        arrays, folders = self._arrays(results, runs, slurm_api.max_array_size()), list[Path]()
        for array in arrays:
            try:
                folders.append(self._submit(results, array, content))
            except LaunchError as error:
                # Nothing was submitted.
                if not folders:
                    raise
                submitted_count = sum(len(each.runs) for each in arrays[: len(folders)])
                message = f"submitted only {submitted_count} of {len(runs)} runs: {error}"
                raise type(error)(message) from None
        return folders

    def _arrays(self, results: Path, runs: Sequence[PlannedRun], max_tasks: int) -> list["Array"]:
        """Split runs into arrays, several if they need more tasks than the site's MaxArraySize.

        Raises:
            InputError: the path of the results contains a %.
        """
        # sbatch replaces %j and the like in the paths of its output files.
        if "%" in str(folder := placeholder_folder(results)):
            raise InputError(f"{folder}: SLURM replaces % in paths; pass another folder by --results")
        size = max_tasks * self.runs_per_job
        chunks = [runs[n : n + size] for n in range(0, len(runs), size)]
        # Arrays run side by side, so they share the limit.
        max_parallel = self.max_parallel and max(1, self.max_parallel // len(chunks))
        task_counts = [-(-len(chunk) // self.runs_per_job) for chunk in chunks]
        return [
            Array(tasks, min(tasks, max_parallel or tasks), chunk)
            for chunk, tasks in zip(chunks, task_counts, strict=True)
        ]

    def _submit(self, results: Path, array: "Array", content: Json) -> Path:
        """Record a submission under a unique job name, run sbatch, and record the id of the array."""
        # A unique name finds the jobs even if sbatch never returns their id.
        name = f"{array.name}.{uuid.uuid4().hex[:8]}"
        array_content = {
            "runs": [each.id for each in array.runs],
            "cluster": slurm_api.cluster_name(),
            "user": str(os.getuid()),
            "name": name,
        }
        submission = write_submission(results, content | array_content)
        self.write_variables(submission.path, submission.code)
        path = submission.path / "batch.sh"
        write_atomic(path, slurm_api.script_bytes(self.script(submission.path, array, name, submission.code)))
        try:
            number = slurm_api.submit_script(path)
        except LaunchError as error:
            number = _recover_array(submission, error)
        submission.record_array(number)
        return submission.path

    # --- the batch script ---

    def script(self, folder: Path, array: "Array", name: str, code: str = "") -> str:
        """Return the batch script of an array whose tasks are workers.

        Args:
            folder: of the submission.
            array: the array.
            name: name of its jobs.
            code: folder of the code snapshot of its workers; empty if they use the installed code.
        """
        from submitit.slurm.slurm import _make_sbatch_string  # a tenth of a second, which a plan does without

        # A run that divides its devices itself has all of each node, and its one worker the first node.
        workers, cpus = (1, self.cpus * self.workers) if self.devices_per_run > 1 else (self.workers, self.cpus)
        variables = self._variables(code)
        # Users and SLURM's archive see the script: keep the values of variables in a file.
        source = f". {shlex.quote(str(folder / VARIABLES_FILE))} || exit  # {', '.join(variables)}"
        # Since SLURM 22.05 srun does not inherit --cpus-per-task, and would bind each worker to one CPU.
        # With --export=NONE for sbatch, srun would withhold the variables that the script exports.
        # If nodes train a run together, the first failing worker ends the job.
        srun = [f"--cpus-per-task={cpus}"]
        srun += ["--nodes=1", "--ntasks=1"] if self.devices_per_run > 1 and self.nodes > 1 else []
        srun += ["--export=ALL", f"--kill-on-bad-exit={int(self.devices_per_run > 1)}"]
        script: str = _make_sbatch_string(
            f"$hold {worker_command(self.python or shlex.quote(sys.executable), folder)}",
            folder,
            job_name=name,
            partition=self.partition,
            account=self.account,
            qos=self.qos,
            constraint=self.constraint,
            time=self.time_min,
            nodes=self.nodes,
            ntasks_per_node=workers,
            cpus_per_task=cpus,
            gpus_per_node=self.gpus or None,
            # Megabytes, since sbatch takes no fractions.
            mem=None if self.mem_gb is None else f"{round(1024 * self.mem_gb)}M",
            # SIGUSR2 to the worker, warn_s before the time limit.
            signal_delay_s=self.warn_s,
            map_count=array.tasks,
            array_parallelism=array.parallel,
            # One output file per worker, and its errors beside the lines that led to them.
            stderr_to_stdout=True,
            wckey=None,  # type: ignore[arg-type]
            # A failed setup command ends the job: do not train without the module or data.
            setup=[BLOCK_WARNING, *([source] if variables else []), *(f"{{ {line}\n}} || exit" for line in self.setup)],
            srun_args=srun,
            additional_parameters={"requeue": True, **{k: v for k, v in self.sbatch.items() if v is not False}},
        )
        return script + REQUEUE_SCRIPT.format(folder=shlex.quote(str(folder)))

    def _variables(self, code: str) -> dict[str, str | int]:
        path = self.environment.get("PYTHONPATH") or os.environ.get("PYTHONPATH")
        trust = {TRUST_VARIABLE: "1"} if trusts_group() else {}
        return {**self.environment, **code_environment(code, path), **trust}

    def write_variables(self, folder: Path, code: str = "") -> None:
        """Write the variables of jobs to a file that only its owner can read."""
        # YAML's `true` must not become Python's `True`.
        texts = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in self._variables(code).items()
        }
        if texts:
            lines = (f"export {name}={shlex.quote(text)}\n" for name, text in texts.items())
            write_atomic(folder / VARIABLES_FILE, "".join(lines), mode=0o600)


@dataclass(frozen=True)
class Array:
    """An array to submit.

    Attributes:
        tasks: number of tasks that share its runs.
        parallel: how many tasks run at the same time.
        runs: its runs.
    """

    tasks: int = 1
    parallel: int = 1
    runs: Sequence[PlannedRun] = ()

    @property
    def name(self) -> str:
        """Job name shown to users, such as vit-b16-ntk."""
        models = dict.fromkeys(each.spec.info.labels.model for each in self.runs)
        strategies = dict.fromkeys(strategy_name(each.spec.strategy.s) for each in self.runs)
        components = [
            next(iter(models)) if len(models) == 1 else "sweep",
            next(iter(strategies)) if len(strategies) == 1 else f"{len(strategies)}-strategies",
        ]
        # squeue shows the beginning; a unique suffix follows.
        return re.sub(r"[^\w.=-]+", "_", "-".join(components))[:60]


def _recover_array(submission: Submission, error: LaunchError) -> str:
    """Return the id of an array that sbatch did not print, found by its unique name.

    Raises:
        LaunchError: the jobs do not exist; deletes the submission.
        SubmissionUnknownError: SLURM does not answer.
    """
    # If squeue fails too, keep the submission and look it up later.
    with contextlib.suppress(SlurmUnavailableError):
        for task in slurm_api.queue([submission.user]).values():
            if task.name == submission.name:
                return task.id.partition("_")[0]
        # sbatch may fail after the controller has accepted the jobs; a busy one accepts them minutes later.
        if not isinstance(error, SlurmUnavailableError):
            shutil.rmtree(submission.path, ignore_errors=True)
            raise error
    submission.record_unanswered()
    raise SubmissionUnknownError(f"{error}; the next command checks whether the jobs exist") from error


def placeholder_folder(results: Path) -> Path:
    """Return the placeholder path of a submission without a name."""
    return jobs_dir(results.resolve()) / "XXXXXXXX"
