"""submitit's executors, made to start workers: on this machine, and as an array of SLURM."""

import os
import shlex
import subprocess
import uuid
from pathlib import Path

from submitit.core.utils import JobPaths
from submitit.local.local import LocalExecutor
from submitit.slurm.slurm import SlurmExecutor

from ettsweep.files import write_atomic
from ettsweep.launch.job_environment import exports
from ettsweep.launch.profile import OURS, SlurmProfile

HOLD = 'hold=; env --block-signal=USR2 true 2>/dev/null && hold="env --block-signal=USR2"'
"""Keeps a warning that comes before the worker listens until it does; else it would end it, and the job."""

AFTERWARDS = """code=$?
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
"""End of the batch script: it has scontrol where a container has not, and some patience with a silent controller."""


class SlotExecutor(LocalExecutor):
    """Starts the workers of a submission on this machine, each in a session of its own.

    So neither Ctrl-C nor a closed terminal reaches them. submitit's own controllers would end with either, keep the
    GPUs from all but one, and stand beside each worker for as long as it lives.
    """

    def __init__(self, folder: Path, code: str = "") -> None:
        super().__init__(folder)
        self._environment = os.environ | code_environment(code, os.environ.get("PYTHONPATH"))

    def start(self, slot: str) -> int:
        """Start the worker of a slot and return its process number.

        Raises:
            OSError: it cannot be started.
        """
        command = f"{worker_command(self.python, self.folder)} --slot {shlex.quote(slot)}"
        output = self.folder / f"{uuid.uuid4().hex}_log.out"
        with output.open("ab") as log:
            worker = subprocess.Popen(
                shlex.split(command),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        output.rename(JobPaths(self.folder, str(worker.pid)).stdout)  # by the number that is only known now
        return worker.pid


class ArrayExecutor(SlurmExecutor):
    """submitit's batch script and submission, for an array whose tasks are workers.

    A worker reads what it is to do from the submission's folder. submitit would hand it a pickled function under the
    number of the job, which is written only after sbatch has answered: a submitter killed in between would leave an
    array behind that can do nothing. And a worker handles signals by itself: submitit's handler counts any signal to
    a job of ten minutes or less as a time-out.
    """

    def __init__(self, folder: Path, profile: SlurmProfile, name: str, tasks: int, parallel: int, code: str = ""):
        super().__init__(folder, python=profile.python)
        path = profile.environment.get("PYTHONPATH") or os.environ.get("PYTHONPATH")
        self._variables = {**profile.environment, **code_environment(code, path)}
        self._variables_path = Path(folder) / "environment.sh"
        self.update_parameters(
            job_name=name,
            partition=profile.partition,
            account=profile.account,
            qos=profile.qos,
            constraint=profile.constraint,
            time=profile.time_min,
            nodes=profile.nodes,
            ntasks_per_node=profile.workers,
            cpus_per_task=profile.cpus,
            gpus_per_node=profile.gpus or None,
            mem=None if profile.mem_gb is None else f"{round(1024 * profile.mem_gb)}M",
            signal_delay_s=profile.warn_s,
            array_parallelism=parallel,
            stderr_to_stdout=True,
            wckey=None,
            setup=[
                HOLD,
                *self._sourced(),
                *(f"{{ {line}\n}} || exit" for line in profile.setup),
            ],
            # srun does not take it from sbatch since SLURM 22.05, and would bind each worker to one CPU.
            # Where sbatch was told to export nothing, srun would keep what the script exports from the workers.
            # Where the workers train together, all of them end with the first that fails: the others wait for it.
            srun_args=[
                f"--cpus-per-task={profile.cpus}",
                "--export=ALL",
                f"--kill-on-bad-exit={int(profile.devices_per_run > 1)}",
            ],
            additional_parameters={"requeue": True, **{k: v for k, v in profile.sbatch.items() if v is not False}},
        )
        self.parameters["map_count"] = tasks

    def _sourced(self) -> list[str]:
        """Return what reads the variables, which are not in the script: it is shown, and SLURM may archive it."""
        source = f". {shlex.quote(str(self._variables_path))} || exit"
        return [f"{source}  # {', '.join(self._variables)}"] if self._variables else []

    @classmethod
    def affinity(cls) -> int:
        """Let the script be shown where there is no SLURM."""
        return 2

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return super()._make_submission_file_text(command, uid) + AFTERWARDS.format(
            folder=shlex.quote(str(self.folder))
        )

    @property
    def command(self) -> str:
        """What srun starts."""
        return f"$hold {worker_command(self.python, self.folder)}"

    def script(self) -> str:
        """Return the batch script."""
        return str(self._make_submission_file_text(self.command, ""))

    def start(self) -> str:
        """Run sbatch and return the number of the array.

        Raises:
            StorageError: the variables cannot be written.
            submitit.core.utils.FailedJobError: sbatch refuses, with its words.
        """
        self.keep_variables()
        return str(self._submit_command(self.command).job_id)

    def keep_variables(self) -> None:
        """Write the variables where the script reads them, for the eyes of its owner."""
        if self._variables:
            write_atomic(self._variables_path, exports(self._variables), private=True)

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        return [*sbatch(self.script()), str(submission_file_path)]


def worker_command(python: str, folder: Path) -> str:
    """Return the command that starts a worker of a submission, with a command that starts Python."""
    # -P: without it Python would look for the package in the folder that the worker is started from.
    return f"{python} -u -P -m ettsweep.worker {shlex.quote(str(folder))}"


def sbatch(script: str) -> list[str]:
    """Return the command that submits a script, and means what the script says.

    sbatch prefers variables to what the script says, and hands those of a job that it is called from on to the new
    one.
    """
    options = {
        line.removeprefix("#SBATCH --").partition("=")[0] for line in script.splitlines() if "#SBATCH --" in line
    }
    options |= OURS  # `requeue` is said, and SBATCH_NO_REQUEUE would win
    variables = {_VARIABLES.get(option, "SBATCH_" + option.upper().replace("-", "_")) for option in options}
    inherited = ("SLURM_", "SLURMD_", "SRUN_", "SUBMITIT_", "PMI_")
    exempt = {"SLURM_CONF", "SLURM_JWT"}
    hidden = [name for name in os.environ if name in variables or (name.startswith(inherited) and name not in exempt)]
    return ["env", *(f"--unset={name}" for name in sorted(hidden)), "sbatch"]


_VARIABLES = {"array": "SBATCH_ARRAY_INX", "time": "SBATCH_TIMELIMIT", "mem": "SBATCH_MEM_PER_NODE"}
"""Variables of sbatch that are not called as the option is."""


def code_environment(code: str, python_path: object) -> dict[str, str]:
    """Return the variables with which Python imports the package from a snapshot, and all else as before."""
    if not code:
        return {}
    path = os.pathsep.join([code, *([str(python_path)] if python_path else [])])
    return {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}  # safe: the folder that it starts in does not come first
