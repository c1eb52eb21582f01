"""Talking to SLURM: its commands, in a fixed environment, and what they answer as plain data.

Who talks decides; nothing is decided here. One `squeue` answers for all jobs of the tool; `sacct` says how jobs ended
that the controller has forgotten. What cannot be asked raises NoAnswerError with SLURM's own words, unless what is
returned says so.
"""

import contextlib
import os
import pwd
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from ettsweep.errors import SlurmNotInstalledError, SlurmUnavailableError

ANSWER_S = 20.0
"""Seconds after which a command of SLURM's counts as not answering; its own patience is 10 s by default."""

HOLDS = {"REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
HELD = re.compile(r"JobH[eo]ld|requeued[ _](in[ _])?(held|special)")
"""States, and reasons in the state PENDING, of jobs that start when somebody says so: JobHeldUser, JobHeldAdmin,
JobHoldMaxRequeue, `launch failed requeued held`, `job requeued in held state`; some versions have _ for blanks."""

WAITING = {"PENDING", "REQUEUED", "REQUEUE_FED", *HOLDS}
ACTIVE = {"RUNNING", "CONFIGURING", "COMPLETING", "STAGE_OUT", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"}

ENDS = {
    "TIMEOUT": "timed out",
    "PREEMPTED": "preempted",
    "NODE_FAIL": "its node failed",
    "BOOT_FAIL": "its node failed to boot",
    "OUT_OF_MEMORY": "out of memory",
    "DEADLINE": "its deadline passed",
    "REVOKED": "revoked by the federation",
}
"""States in which a job ends without having been told to by anyone, in words."""

ENDED = {*ENDS, "COMPLETED", "CANCELLED", "FAILED", "LAUNCH_FAILED", "RECONFIG_FAIL"}
"""States in which a job is over. Of a state that is in none of these sets nothing is concluded."""

INHERITED = ("SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_", "SCONTROL_", "SLURM_TIME_FORMAT", "SLURM_CLUSTERS")
"""Variables by which a user changes what the commands print, or whom they ask."""


@dataclass(frozen=True)
class ArrayTask:
    """One job as SLURM tells of it: for the tool, always a task of an array.

    Attributes:
        id: such as 123_4.
        state: SLURM's word, without what follows it: CANCELLED, not CANCELLED by 0.
        reason: why it waits, as SLURM says; its exit code where it failed.
        node: where it runs or ran.
        start: when it started or is expected to, by the cluster's clock; empty where that is not known.
        restarts: how often SLURM has started it anew.
    """

    id: str
    name: str
    state: str
    reason: str = ""
    node: str = ""
    start: str = ""
    restarts: int = 0

    @property
    def waiting(self) -> bool:
        """Whether it is yet to start, again or for the first time."""
        return self.state in WAITING

    @property
    def held(self) -> bool:
        """Whether it waits, and will until somebody releases it."""
        return self.state in HOLDS or (self.waiting and bool(HELD.search(self.reason)))

    @property
    def over(self) -> bool:
        """Whether it has ended, for whatever reason."""
        return self.state in ENDED

    @property
    def active(self) -> bool:
        """Whether it runs, or its processes may still be there."""
        return self.state in ACTIVE


def ask(*command: str) -> str:
    """Run a command of SLURM's and return what it prints.

    Raises:
        NoAnswerError: it is not installed, fails, or takes too long.
    """
    env = {key: value for key, value in os.environ.items() if not key.startswith(INHERITED)}
    env["SLURM_BITSTR_LEN"] = "0"  # sacct would cut lists of tasks short
    try:
        completed = subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_S,
            check=False,
        )
    except FileNotFoundError:
        raise SlurmNotInstalledError(f"{command[0]} is not on this machine") from None
    except subprocess.TimeoutExpired:
        raise SlurmUnavailableError(f"{command[0]} gave no answer in {ANSWER_S:.0f} s") from None
    except OSError as error:
        raise SlurmUnavailableError(f"{command[0]}: {error.strerror}") from None
    # squeue complains of a user that it does not know, prints no jobs, and exits 0.
    if completed.returncode or re.search(r"^\w+: error: ", completed.stderr, re.MULTILINE):
        raise SlurmUnavailableError(f"{command[0]}: {words(completed.stderr) or f'exit code {completed.returncode}'}")
    return completed.stdout


def words(stderr: str) -> str:
    """Return SLURM's own words, without the names of its functions before each line."""
    prefix = r"^(\w+(?: error)?: )?(?:error: |fatal: )*(?:slurm\w*: )*"
    lines = [re.sub(prefix, "", line).strip() for line in stderr.splitlines()]
    messages = list(dict.fromkeys(line for line in lines if line))
    return "; ".join(messages[:MANY]) + (f"; and {len(messages) - MANY} more" if len(messages) > MANY else "")


MANY = 4
"""Lines of SLURM's that are worth repeating."""


def queue(users: Iterable[str]) -> dict[str, ArrayTask]:
    """Return the jobs of some users, by their numbers, that the controller knows, also those that ended minutes ago."""
    fields = ("JobArrayID", "Name", "State", "Reason", "NodeList", "StartTime", "RestartCnt")
    output_format = ",".join(f"{field}:|" for field in fields)
    text = ask("squeue", "--all", "-h", "-r", "-t", "all", "-u", ",".join(users), "-O", output_format)
    tasks = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) < len(fields):
            continue
        id_, name, state, reason, node, start, restarts = cells[: len(fields)]
        tasks[id_] = ArrayTask(
            id=id_,
            name=name,
            state=_word(state),
            reason="" if reason == "None" else reason,
            node=node,
            start="" if start in ("N/A", "Unknown", "NONE") else start,
            restarts=int(restarts) if restarts.isdigit() else 0,
        )
    return tasks


def _word(state: str) -> str:
    return state.split()[0] if state.split() else "UNKNOWN"


def history(arrays: Iterable[str]) -> dict[str, ArrayTask]:
    """Return how the tasks of some arrays ended, as the accounting tells, by id."""
    from submitit.slurm.slurm import read_job_id

    fields = "JobID,JobName,State,ExitCode,NodeList"
    text = ask("sacct", "-n", "-P", "-X", "-j", ",".join(arrays), "-o", fields)
    tasks = {}
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) < 5 or "." in cells[0]:
            continue
        try:
            ids = read_job_id(cells[0])
        except ValueError:
            continue
        for array, *bounds in ids:  # tasks that never started are told together: 12_[3-9]
            suffixes = [f"_{n}" for n in range(int(bounds[0]), int(bounds[-1]) + 1)] if bounds else [""]
            for suffix in suffixes:
                task_id = f"{array}{suffix}"
                tasks[task_id] = ArrayTask(task_id, cells[1], _word(cells[2]), f"exit code {cells[3]}", cells[4])
    return tasks


@cache
def configuration() -> dict[str, str]:
    """Return what `scontrol show config` tells, by key."""
    pairs = (line.partition(" = ") for line in ask("scontrol", "show", "config").splitlines())
    return {key.strip(): value.strip() for key, equals, value in pairs if equals}


def hides_jobs_of_others() -> bool:
    """Say whether SLURM shows this user no jobs but its own."""
    return os.getuid() != 0 and "jobs" in configuration().get("PrivateData", "").split(",")


def known_users(users: Iterable[str]) -> list[str]:
    """Return those of some user numbers that this machine knows, and its own: of another, squeue will not hear."""
    user_ids = {str(os.getuid())}
    for user in users:
        with contextlib.suppress(KeyError, ValueError):
            user_ids.add(str(pwd.getpwuid(int(user)).pw_uid))
    return sorted(user_ids)


def cluster() -> str:
    """Return the name of the cluster that is asked from here."""
    return configuration().get("ClusterName", "")


def cancel(ids: Iterable[str]) -> None:
    """Cancel tasks; those that are gone are left alone."""
    arrays: dict[str, list[int]] = {}
    for id_ in ids:
        array, _, index = id_.partition("_")
        arrays.setdefault(array, []).append(int(index))
    for array, indices in arrays.items():
        try:
            # No --state=PENDING: with a filter, scancel takes all waiting tasks of an array for one.
            ask("scancel", f"{array}_[{ranges(indices)}]")
        except SlurmUnavailableError as error:
            if "Invalid job id" not in str(error):  # it has started or ended since squeue was asked
                raise


def ranges(indices: Iterable[int]) -> str:
    """Return 0, 1, 2, 5 as `0-2,5`, as SLURM writes the tasks of an array."""
    intervals: list[list[int]] = []
    for index in sorted(indices):
        if intervals and index == intervals[-1][1] + 1:
            intervals[-1][1] = index
        else:
            intervals.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in intervals)


def requeue(job: str) -> bool:
    """Ask for a job to be started again; say whether SLURM will."""
    try:
        ask("scontrol", "requeue", job)
    except SlurmUnavailableError as error:
        return "pending execution" in str(error)  # it has been asked for already
    return True


def under_repair() -> bool:
    """Say whether nodes are down or drained: --test-only refuses what fits those alone, and sbatch lets it wait."""
    try:
        states = ask("sinfo", "-h", "-N", "-o", "%T").split()
    except SlurmUnavailableError:
        return True
    return any(not state.rstrip("*~#!%$@^-+").startswith(("idle", "alloc", "mix", "comp")) for state in states)


def preempted(job: str) -> bool | None:
    """Say whether a job that has been told to end is making room for another, and not cancelled; None: no answer."""
    try:
        output = ask("scontrol", "--oneliner", "show", "job", job)
    except SlurmUnavailableError:
        return None
    fields = dict(re.findall(r"\b(JobState|PreemptTime)=(\S+)", output))
    return fields.get("JobState") == "RUNNING" and fields.get("PreemptTime", "None") not in ("None", "N/A", "Unknown")
