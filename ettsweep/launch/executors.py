"""submitit's executors, adapted to start workers: on this machine, and as a SLURM array."""

import os
import re
import shlex
import subprocess
import uuid
from pathlib import Path

from submitit.core.utils import FailedSubmissionError, JobPaths
from submitit.local.local import LocalExecutor
from submitit.slurm.slurm import SlurmExecutor

from ettsweep.files import storage_errors, write_atomic
from ettsweep.launch.job_environment import export_lines
from ettsweep.launch.profile import RESERVED_OPTIONS, SlurmProfile
from ettsweep.ownership import TRUST_VARIABLE, trusts_group

BLOCK_WARNING = 'hold=; env --block-signal=USR2 true 2>/dev/null && hold="env --block-signal=USR2"'
"""Shell command that blocks SIGUSR2 until the worker handles it; a warning before that would kill the job."""

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

Outside a container there is scontrol, and the script can retry while the controller does not answer."""


class SlotExecutor(LocalExecutor):
    """Starts the workers of a submission on this machine, each in its own session.

    So neither Ctrl-C nor a closed terminal stops them. submitit's own controllers would stop on either, give the GPUs
    to one job only, and keep a process beside each worker.
    """

    def __init__(self, folder: Path, code: str = "") -> None:
        super().__init__(folder)
        self._environment = os.environ | code_environment(code, os.environ.get("PYTHONPATH"))

    def start(self, slot: str) -> int:
        """Start the worker of a slot and return its process id.

        Raises:
            StorageError: the file of its output cannot be written.
            OSError: it cannot be started.
        """
        command = f"{worker_command(self.python, self.folder)} --slot {shlex.quote(slot)}"
        # The output needs a file before the process id that names it exists.
        output = self.folder / f"{uuid.uuid4().hex}_log.out"
        with storage_errors(output):
            log = output.open("ab")
        with log:
            worker = subprocess.Popen(
                shlex.split(command),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        with storage_errors(output):
            output.rename(JobPaths(self.folder, str(worker.pid)).stdout)
        return worker.pid


class ArrayExecutor(SlurmExecutor):
    """submitit's batch script and submission, for an array whose tasks are workers.

    A worker reads its runs from the submission's folder. submitit would pickle a function under the job id, which
    exists only after sbatch has answered: a submitter killed in between would leave an array that can do nothing.
    A worker also handles signals itself: submitit's handler takes any signal to a job of ten minutes or less for a
    time-out.
    """

    def __init__(
        self,
        folder: Path,
        profile: SlurmProfile,
        name: str,
        tasks: int,
        parallel: int,
        code: str = "",
        *,
        one_process: bool = False,
    ) -> None:
        super().__init__(folder, python=profile.python)
        # A run that divides its devices itself has all of each node, and its one worker the first node.
        workers, cpus = (1, profile.cpus * profile.workers) if one_process else (profile.workers, profile.cpus)
        first_node = ["--nodes=1", "--ntasks=1"] if one_process and profile.nodes > 1 else []
        path = profile.environment.get("PYTHONPATH") or os.environ.get("PYTHONPATH")
        trust = {TRUST_VARIABLE: "1"} if trusts_group() else {}
        self._variables = {**profile.environment, **code_environment(code, path), **trust}
        self._variables_path = Path(folder) / "environment.sh"
        self.update_parameters(
            job_name=name,
            partition=profile.partition,
            account=profile.account,
            qos=profile.qos,
            constraint=profile.constraint,
            time=profile.time_min,
            nodes=profile.nodes,
            ntasks_per_node=workers,
            cpus_per_task=cpus,
            gpus_per_node=profile.gpus or None,
            # Megabytes, since sbatch takes no fractions.
            mem=None if profile.mem_gb is None else f"{round(1024 * profile.mem_gb)}M",
            # SIGUSR2 to the worker, warn_s before the time limit.
            signal_delay_s=profile.warn_s,
            array_parallelism=parallel,
            # One output file per job: an error stands beside the lines that led to it.
            stderr_to_stdout=True,
            wckey=None,
            setup=[
                BLOCK_WARNING,
                *self._source_variables(),
                # A failed setup command ends the job, instead of training without the module or data.
                *(f"{{ {line}\n}} || exit" for line in profile.setup),
            ],
            # Since SLURM 22.05 srun does not inherit --cpus-per-task, and would bind each worker to one CPU.
            # With --export=NONE for sbatch, srun would withhold the variables that the script exports.
            # Workers that train a run together must end with the first that fails: they would wait for it for ever.
            srun_args=[
                f"--cpus-per-task={cpus}",
                *first_node,
                "--export=ALL",
                f"--kill-on-bad-exit={int(profile.devices_per_run > 1)}",
            ],
            additional_parameters={"requeue": True, **{k: v for k, v in profile.sbatch.items() if v is not False}},
        )
        self.parameters["map_count"] = tasks

    def _source_variables(self) -> list[str]:
        """Return the shell lines that read the variables; the script itself is shown, and SLURM may archive it."""
        if not self._variables:
            return []
        return [f". {shlex.quote(str(self._variables_path))} || exit  # {', '.join(self._variables)}"]

    @classmethod
    def affinity(cls) -> int:
        """Return a positive affinity, so that scripts can be shown without SLURM."""
        return 2

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return super()._make_submission_file_text(command, uid) + REQUEUE_SCRIPT.format(
            folder=shlex.quote(str(self.folder))
        )

    @property
    def command(self) -> str:
        """Command that srun starts."""
        return f"$hold {worker_command(self.python, self.folder)}"

    def script(self) -> str:
        """Return the batch script."""
        return str(self._make_submission_file_text(self.command, ""))

    def start(self) -> str:
        """Run sbatch and return the id of the array.

        Raises:
            StorageError: the variables cannot be written.
            submitit.core.utils.FailedJobError: sbatch refuses; the message is its own.
            submitit.core.utils.FailedSubmissionError: it accepts the script, and does not print the id.
        """
        self.write_variables()
        return str(self._submit_command(self.command).job_id)

    @staticmethod
    def _get_job_id_from_submission_command(string: bytes | str) -> str:
        # A site's banner may have other numbers, of other jobs too.
        text = string.decode(errors="replace") if isinstance(string, bytes) else string
        if ids := re.findall(r"^\s*(?:sbatch: )?Submitted batch job (\d+)\b", text, re.MULTILINE):
            return str(ids[-1])
        raise FailedSubmissionError(f"no line `Submitted batch job ID` in the output {text[:200]!r}")

    def write_variables(self) -> None:
        """Write the variables to a file that only its owner can read."""
        if self._variables:
            write_atomic(self._variables_path, export_lines(self._variables), mode=0o600)

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        return [*sbatch_command(self.script()), str(submission_file_path)]


def worker_command(python: str, folder: Path) -> str:
    """Return the shell command that starts a worker of a submission."""
    # Without -P Python would import an `ettsweep` from the folder in which the worker starts.
    return f"{python} -u -P -m ettsweep.worker {shlex.quote(str(folder))}"


def sbatch_command(script: str) -> list[str]:
    """Return the command that submits a script so that the script's own options apply.

    sbatch prefers SBATCH_* variables to the script's options, and passes variables of a surrounding job to the new one.
    """
    options = {
        line.removeprefix("#SBATCH --").partition("=")[0] for line in script.splitlines() if "#SBATCH --" in line
    }
    options |= RESERVED_OPTIONS  # the script has --requeue, and SBATCH_NO_REQUEUE would win
    variables = {_SBATCH_VARIABLES.get(option, "SBATCH_" + option.upper().replace("-", "_")) for option in options}
    inherited = ("SLURM_", "SLURMD_", "SRUN_", "SUBMITIT_", "PMI_")
    # Without these sbatch would not find or not authenticate to its controller.
    exempt = {"SLURM_CONF", "SLURM_JWT"}
    hidden = [name for name in os.environ if name in variables or (name.startswith(inherited) and name not in exempt)]
    return ["env", *(f"--unset={name}" for name in sorted(hidden)), "sbatch"]


_SBATCH_VARIABLES = {"array": "SBATCH_ARRAY_INX", "time": "SBATCH_TIMELIMIT", "mem": "SBATCH_MEM_PER_NODE"}
"""Input variables of sbatch whose names differ from their options."""


def code_environment(code: str, python_path: object) -> dict[str, str]:
    """Return the variables that make Python import the package from a snapshot; none without a snapshot."""
    if not code:
        return {}
    path = os.pathsep.join([code, *([str(python_path)] if python_path else [])])
    return {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}  # safe path: the working folder must not come first
