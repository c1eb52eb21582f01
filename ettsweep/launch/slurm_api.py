"""SLURM's commands, run in a fixed environment, with their answers as plain data.

One `squeue` covers all jobs of ettsweep; `sacct` has the ends of jobs that the controller has forgotten. A command
without an answer raises SlurmUnavailableError with SLURM's message, unless documented otherwise.
"""

import contextlib
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ettsweep.errors import LaunchError, SlurmNotInstalledError, SlurmUnavailableError

TIMEOUT_S = 20.0
"""Seconds to wait for a SLURM command; SLURM's own message timeout is 10 s by default."""

HOLD_STATES = {"REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
HOLD_REASON = re.compile(r"JobH[eo]ld|requeued[ _](in[ _])?(held|special)")
"""Job states, and reasons of PENDING jobs, that need a person to release the job: JobHeldUser, JobHeldAdmin,
JobHoldMaxRequeue, `launch failed requeued held`, `job requeued in held state`; some versions write _ for blanks."""

WAITING_STATES = {"PENDING", "REQUEUED", "REQUEUE_FED", *HOLD_STATES}
ACTIVE_STATES = {"RUNNING", "CONFIGURING", "COMPLETING", "STAGE_OUT", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"}

END_REASONS = {
    "TIMEOUT": "timed out",
    "PREEMPTED": "preempted",
    "NODE_FAIL": "its node failed",
    "BOOT_FAIL": "its node failed to boot",
    "OUT_OF_MEMORY": "out of memory",
    "DEADLINE": "its deadline passed",
    "REVOKED": "revoked by the federation",
}
"""Job states of unrequested ends, as text."""

END_STATES = {*END_REASONS, "COMPLETED", "CANCELLED", "FAILED", "LAUNCH_FAILED", "RECONFIG_FAIL"}
"""States of ended jobs. States in none of these sets mean nothing."""

IGNORED_VARIABLES = ("SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_", "SCONTROL_", "SLURM_TIME_FORMAT", "SLURM_CLUSTERS")
"""Environment variables that change the output of the commands, or the cluster that they query."""


@dataclass(frozen=True)
class ArrayTask:
    """A job as SLURM reports it; ettsweep's jobs are always array tasks.

    Attributes:
        id: such as 123_4.
        name: job name; unique to a submission.
        state: SLURM's state without details: CANCELLED, not CANCELLED by 0.
        reason: why it waits, in SLURM's words; the exit code if it has failed.
        node: node on which it runs or ran.
        start: when it started or is expected to, by the cluster's clock; empty if unknown.
        restarts: how often SLURM has restarted it.
    """

    id: str
    name: str
    state: str
    reason: str = ""
    node: str = ""
    start: str = ""
    restarts: int = 0

    @property
    def is_waiting(self) -> bool:
        """`True` if it has yet to start, for the first time or again."""
        return self.state in WAITING_STATES

    @property
    def is_held(self) -> bool:
        """`True` if it is held."""
        return self.state in HOLD_STATES or (self.is_waiting and bool(HOLD_REASON.search(self.reason)))

    @property
    def is_over(self) -> bool:
        """`True` if it has ended, for any reason."""
        return self.state in END_STATES

    @property
    def is_active(self) -> bool:
        """`True` if it runs, or its processes may still exist."""
        return self.state in ACTIVE_STATES


def run_command(*command: str) -> str:
    """Run a SLURM command and return its standard output.

    Raises:
        SlurmUnavailableError: it is not installed, fails, or takes too long.
    """
    env = {key: value for key, value in os.environ.items() if not key.startswith(IGNORED_VARIABLES)}
    env["SLURM_BITSTR_LEN"] = "0"  # sacct would cut lists of tasks short
    try:
        completed = subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
            encoding="utf-8",
        )
    except FileNotFoundError:
        raise SlurmNotInstalledError(f"{command[0]} is not installed on this machine") from None
    except subprocess.TimeoutExpired:
        raise SlurmUnavailableError(f"{command[0]} did not answer within {TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise SlurmUnavailableError(f"{command[0]}: {error.strerror}") from None
    # For an unknown user squeue prints an error and no jobs, and exits 0.
    if completed.returncode or re.search(r"^\w+: error: ", completed.stderr, re.MULTILINE):
        raise SlurmUnavailableError(
            f"{command[0]}: {clean_message(completed.stderr) or f'exit code {completed.returncode}'}"
        )
    return completed.stdout


def clean_message(stderr: str) -> str:
    """Return SLURM's error message without program and function names."""
    prefix = r"^(\w+(?: error)?: )?(?:error: |fatal: )*(?:slurm\w*: )*"
    lines = [re.sub(prefix, "", line).strip() for line in stderr.splitlines()]
    messages = list(dict.fromkeys(line for line in lines if line))
    return "; ".join(messages[:MAX_MESSAGE_LINES]) + (
        f"; and {len(messages) - MAX_MESSAGE_LINES} more" if len(messages) > MAX_MESSAGE_LINES else ""
    )


MAX_MESSAGE_LINES = 4
"""Most lines of an error message for the user."""


def queue(users: Iterable[str]) -> dict[str, ArrayTask]:
    """Return the jobs of users, by job id, that the controller knows, including those that ended minutes ago."""
    # -r lists each array task, -t all also jobs that ended lately; the suffix | separates fields with blanks in them.
    fields = ("JobArrayID", "Name", "State", "Reason", "NodeList", "StartTime", "RestartCnt")
    output_format = ",".join(f"{field}:|" for field in fields)
    text = run_command("squeue", "--all", "-h", "-r", "-t", "all", "-u", ",".join(users), "-O", output_format)
    tasks = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        # A job name with a line break would split a line.
        if len(cells) < len(fields):
            continue
        id_, name, state, reason, node, start, restarts = cells[: len(fields)]
        tasks[id_] = ArrayTask(
            id=id_,
            name=name,
            state=_state_name(state),
            reason="" if reason == "None" else reason,
            node=node,
            start="" if start in ("N/A", "Unknown", "NONE") else start,
            restarts=int(restarts) if restarts.isdigit() else 0,
        )
    return tasks


def _state_name(state: str) -> str:
    return state.split()[0] if state.split() else "UNKNOWN"


def history(arrays: Iterable[str]) -> dict[str, ArrayTask]:
    """Return how the tasks of arrays ended according to the accounting database, by job id."""
    fields = "JobID,JobName,State,ExitCode,NodeList"
    text = run_command("sacct", "-n", "-P", "-X", "-j", ",".join(arrays), "-o", fields)
    tasks = {}
    for line in text.splitlines():
        cells = line.split("|")
        # 12_3.batch and the like are steps of a job; tasks that never started share a line: 12_[3-9,11%4].
        found = re.fullmatch(r"(\d+)_(?:(\d+)|\[([\d,-]+)(?:%\d+)?\])", cells[0])
        if len(cells) < 5 or not found:
            continue
        for part in (found[2] or found[3]).split(","):
            first, _, last = part.partition("-")
            for index in range(int(first), int(last or first) + 1):
                id_ = f"{found[1]}_{index}"
                tasks[id_] = ArrayTask(id_, cells[1], _state_name(cells[2]), f"exit code {cells[3]}", cells[4])
    return tasks


@cache
def configuration() -> dict[str, str]:
    """Return the settings of `scontrol show config`, by key."""
    pairs = (line.partition(" = ") for line in run_command("scontrol", "show", "config").splitlines())
    return {key.strip(): value.strip() for key, equals, value in pairs if equals}


def hides_jobs_of_others() -> bool:
    """`True` if SLURM shows this user only their own jobs."""
    # PrivateData=jobs hides them without an error: hidden jobs would look ended.
    return os.getuid() != 0 and "jobs" in configuration().get("PrivateData", "").split(",")


def known_users(users: Iterable[str]) -> list[str]:
    """Return the uids that this machine knows, plus the own one; squeue rejects unknown ones."""
    user_ids = {str(os.getuid())}
    for user in users:
        with contextlib.suppress(KeyError, ValueError):
            user_ids.add(str(pwd.getpwuid(int(user)).pw_uid))
    return sorted(user_ids)


def cluster_name() -> str:
    """Return the name of the cluster that this machine queries."""
    return configuration().get("ClusterName", "")


def cancel_jobs(ids: Iterable[str]) -> None:
    """Cancel array tasks; those that have ended are ignored."""
    arrays: dict[str, list[int]] = {}
    for id_ in ids:
        array, _, index = id_.partition("_")
        arrays.setdefault(array, []).append(int(index))
    for array, indices in arrays.items():
        try:
            # No --state=PENDING: with a filter, scancel treats all waiting tasks of an array as one.
            run_command("scancel", f"{array}_[{format_ranges(indices)}]")
        except SlurmUnavailableError as error:
            if "Invalid job id" not in str(error):  # it has ended since squeue was asked
                raise


def kill_job(id_: str) -> None:
    """Kill all processes of a job at once, as the loss of its node would: it saves nothing, and is not requeued."""
    try:
        run_command("scancel", "--signal=KILL", "--full", id_)
    except SlurmUnavailableError as error:
        if "Invalid job id" not in str(error):
            raise


def format_ranges(indices: Iterable[int]) -> str:
    """Format array indices as SLURM does: 0, 1, 2, 5 as `0-2,5`."""
    intervals: list[list[int]] = []
    for index in sorted(indices):
        if intervals and index == intervals[-1][1] + 1:
            intervals[-1][1] = index
        else:
            intervals.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in intervals)


def requeue(job: str) -> bool:
    """Ask SLURM to restart a job; return whether it will."""
    try:
        run_command("scontrol", "requeue", job)
    except SlurmUnavailableError as error:
        return "pending execution" in str(error)  # already requeued
    return True


def has_down_nodes() -> bool:
    """`True` if nodes are down or drained: sbatch would queue jobs for them, which --test-only refuses."""
    try:
        states = run_command("sinfo", "-h", "-N", "-o", "%T").split()
    except SlurmUnavailableError:
        return True
    return any(not state.rstrip("*~#!%$@^-+").startswith(("idle", "alloc", "mix", "comp")) for state in states)


def is_being_preempted(job: str) -> bool | None:
    """`True` if a job that was signalled is being preempted, not cancelled; None if SLURM does not answer."""
    try:
        output = run_command("scontrol", "--oneliner", "show", "job", job)
    except SlurmUnavailableError:
        return None
    fields = dict(re.findall(r"\b(JobState|PreemptTime)=(\S+)", output))
    return fields.get("JobState") == "RUNNING" and fields.get("PreemptTime", "None") not in ("None", "N/A", "Unknown")


# --- sbatch ---------------------------------------------------------------------------------------------------------

CONNECTION_LOST = re.compile(r"timed out|unable to contact|connect|zero bytes|message receive", re.IGNORECASE)
"""Messages of sbatch after a broken connection to the controller: the jobs may still exist."""

RESERVED_OPTIONS = {
    *("array", "job-name", "output", "error", "open-mode", "signal", "requeue", "no-requeue", "wrap", "test-only"),
    *("wait", "parsable", "quiet", "clusters", "help", "usage", "version"),
}
"""sbatch options that ettsweep relies on; `sbatch:` must not set these."""


def max_array_size() -> int:
    """Return the most tasks that the site allows in an array."""
    config = configuration()
    limits = [config.get("MaxArraySize", "")]
    limits += re.findall(r"max_array_tasks=(\d+)", config.get("SchedulerParameters", ""))
    return min((int(limit) for limit in limits if limit.isdigit() and int(limit) > 0), default=1)


def submit_script(path: Path) -> str:
    """Submit the batch script at a path; return the id of its array.

    Raises:
        SlurmUnavailableError: the connection broke, or sbatch does not print the id: the jobs may exist.
        LaunchError: sbatch refuses the script, or cannot be run.
    """
    # Without a time limit: a busy controller may take minutes and still accept the jobs.
    completed = _run_sbatch(path.read_bytes(), str(path))
    # A site's banner may have other numbers, of other jobs too.
    if ids := re.findall(r"^\s*(?:sbatch: )?Submitted batch job (\d+)\b", completed.stdout, re.MULTILINE):
        return str(ids[-1])
    output = completed.stdout.strip()[:200]
    raise SlurmUnavailableError(f"sbatch printed no line `Submitted batch job ID`, but {output!r}")


def expected_start(script: str) -> str:
    """Return sbatch's estimate of when and where a batch script would start; nothing is submitted.

    Raises:
        SlurmNotInstalledError, SlurmUnavailableError: there is no sbatch, or it does not answer.
        LaunchError: sbatch refuses the script.
    """
    if shutil.which("sbatch") is None:
        raise SlurmNotInstalledError("sbatch is not installed on this machine; to train here, pass `--launch local`")
    try:
        return clean_message(_run_sbatch(script_bytes(script), "--test-only", timeout_s=TIMEOUT_S).stderr)
    except subprocess.TimeoutExpired:
        raise SlurmUnavailableError(f"sbatch did not answer within {TIMEOUT_S:.0f} s") from None
    except LaunchError as error:
        # --test-only also refuses jobs that would wait for broken nodes; sbatch itself would queue them.
        if "configuration is not available" in str(error) and has_down_nodes():
            return str(error).removeprefix("sbatch refuses: ")
        raise


def _run_sbatch(script: bytes, argument: str, timeout_s: float | None = None) -> "subprocess.CompletedProcess[str]":
    # A file, not a pipe: sbatch may end before it has read all of it.
    with tempfile.TemporaryFile() as file:
        file.write(script)
        file.seek(0)
        try:
            completed = subprocess.run(
                [*sbatch_command(script.decode(errors="replace")), argument],
                stdin=file,
                capture_output=True,
                timeout=timeout_s,
                check=False,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            raise LaunchError(f"cannot run sbatch: {error.strerror or error}") from error
    message = clean_message(completed.stderr)
    if completed.returncode and CONNECTION_LOST.search(message):
        raise SlurmUnavailableError(f"sbatch: {message}")
    if completed.returncode:
        raise LaunchError(f"sbatch refuses: {message}")
    return completed


def script_bytes(script: str) -> bytes:
    """Return a batch script as bytes: a path may have some that are not UTF-8."""
    return script.encode(errors="surrogateescape")


def sbatch_command(script: str) -> list[str]:
    """Return the command that submits a script with the script's own options.

    sbatch prefers SBATCH_* variables to the script's options, and passes variables of a surrounding job to the new one.
    """
    options = {
        line.removeprefix("#SBATCH --").partition("=")[0] for line in script.splitlines() if "#SBATCH --" in line
    }
    options |= RESERVED_OPTIONS  # the script has --requeue, and SBATCH_NO_REQUEUE would win
    variables = {_SBATCH_VARIABLES.get(option, "SBATCH_" + option.upper().replace("-", "_")) for option in options}
    inherited = ("SLURM_", "SLURMD_", "SRUN_", "SUBMITIT_", "PMI_")
    # sbatch needs these to find its controller and authenticate.
    exempt = {"SLURM_CONF", "SLURM_JWT"}
    hidden = [name for name in os.environ if name in variables or (name.startswith(inherited) and name not in exempt)]
    return ["env", *(f"--unset={name}" for name in sorted(hidden)), "sbatch"]


_SBATCH_VARIABLES = {"array": "SBATCH_ARRAY_INX", "time": "SBATCH_TIMELIMIT", "mem": "SBATCH_MEM_PER_NODE"}
"""Input variables of sbatch whose names differ from their options."""
