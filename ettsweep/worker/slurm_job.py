"""The SLURM job of a worker, and the liveness of other owners from there."""

import os
from dataclasses import dataclass

from ettsweep.errors import LaunchError
from ettsweep.files import Json
from ettsweep.launch.liveness import SchedulerLiveness
from ettsweep.launch.slurm_cache import SlurmCache
from ettsweep.launch.submissions import Submission
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.state import Liveness, Owner


@dataclass(frozen=True)
class SlurmJob:
    """The array task that this process belongs to, from SLURM's environment variables.

    Attributes:
        cluster: name of the cluster.
        id: job id of the array task, such as 123_4. Not SLURM_JOB_ID: one task has that of the whole array, and a
            requeue or cancellation by it would apply to all tasks.
        restart: how often SLURM has requeued it.
        node: name of this process's node.
        rank: rank of this process in the job.
        local_rank: rank of this process on its node.
    """

    cluster: str
    id: str
    restart: int
    node: str
    rank: int
    local_rank: int

    @classmethod
    def current(cls) -> "SlurmJob":
        """Read the job of this process from the environment.

        Raises:
            LaunchError: the process is not part of an array task.
        """
        env = os.environ
        try:
            return cls(
                cluster=env.get("SLURM_CLUSTER_NAME", ""),
                id=f"{env['SLURM_ARRAY_JOB_ID']}_{env['SLURM_ARRAY_TASK_ID']}",
                restart=int(env.get("SLURM_RESTART_COUNT") or 0),
                node=env.get("SLURMD_NODENAME", ""),
                rank=int(env.get("SLURM_PROCID") or 0),
                local_rank=int(env.get("SLURM_LOCALID") or 0),
            )
        except (KeyError, ValueError) as error:
            raise LaunchError(f"not a task of a SLURM array: {error} is missing or not a number") from None

    @property
    def index(self) -> int:
        """Index of the task in the array."""
        return int(self.id.partition("_")[2])

    def to_json(self) -> Json:
        """Return the fields that a claim records."""
        names = ("cluster", "id", "restart", "node", "rank")
        return {name: getattr(self, name) for name in names}


class JobLiveness(Liveness):
    """Liveness of run owners from a job: it knows its own restarts, and asks SLURM about others.

    Other submissions that list a run do not matter: this job owns its list.
    """

    def __init__(self, job: SlurmJob, submission: Submission) -> None:
        self._job = job
        self._submission = submission
        self._slurm_cache = SlurmCache()

    def owner(self, attempt: Attempt) -> Owner:
        """Return whether the owner of an unfinished attempt is alive, dead or unknown."""
        theirs = attempt.job()
        ours = self._job.cluster, self._job.id, self._submission.path.name
        if (theirs.get("cluster"), theirs.get("id"), attempt.claim().get("submission")) != ours:
            other = SchedulerLiveness(self._submission.results, self._slurm_cache).owner(attempt)
            # Without SLURM, as in a container, the owner's heartbeat decides.
            return (
                other
                if other.life != "unknown"
                else Owner(self._slurm_cache.heartbeat_life(attempt), other.host, other.reason)
            )
        if theirs.get("restart") != self._job.restart:
            # SLURM restarts a job only after it has given up the previous start, even if its process still runs.
            return Owner("dead" if int(theirs.get("restart") or 0) < self._job.restart else "alive")
        owner = attempt.owner()
        life = owner.liveness() if owner else "dead"
        # Unknown means a worker on another node of this start of the job, which is alive.
        return Owner("alive" if life == "unknown" else life)
