"""The job of SLURM's that a worker belongs to, and what it knows of other owners."""

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
    """This job, as SLURM told its processes.

    Attributes:
        cluster: name of the cluster.
        id: of the task of the array, such as 123_4. SLURM_JOB_ID is no name for it: that of one task is the array's,
            and what is asked of it happens to all.
        restart: how often SLURM has started it anew.
        node: of this process.
        rank: of this process among those of the job; `local_rank` among those of its node.
    """

    cluster: str
    id: str
    restart: int
    node: str
    rank: int
    local_rank: int

    @classmethod
    def this(cls) -> "SlurmJob":
        """Return the job that this process belongs to.

        Raises:
            LaunchError: it belongs to no task of an array.
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
            raise LaunchError(f"this is no task of a SLURM array: {error} is not as it should be") from None

    @property
    def index(self) -> int:
        """Index of the task in its array."""
        return int(self.id.partition("_")[2])

    def to_json(self) -> Json:
        """Return what a claim says of it."""
        names = ("cluster", "id", "restart", "node", "rank")
        return {name: getattr(self, name) for name in names}


class JobLiveness(Liveness):
    """What a job knows of other owners: of its own earlier and later lives at once, of others by asking SLURM.

    It looks at no other submission: this job has been given its runs.
    """

    def __init__(self, job: SlurmJob, submission: Submission) -> None:
        self._job = job
        self._submission = submission
        self._slurm_cache = SlurmCache()

    def owner(self, attempt: Attempt) -> Owner:
        """Say whether the owner of an attempt that has not ended lives."""
        theirs = attempt.job()
        ours = self._job.cluster, self._job.id, self._submission.path.name
        if (theirs.get("cluster"), theirs.get("id"), attempt.claim().get("submission")) != ours:
            other = SchedulerLiveness(self._submission.results, self._slurm_cache).owner(attempt)
            # Where SLURM cannot be asked, as in a container, whoever wants to own a run goes by its owner's heart.
            return (
                other if other.life != "unknown" else Owner(self._slurm_cache.pulse(attempt), other.where, other.reason)
            )
        if theirs.get("restart") != self._job.restart:
            # SLURM starts a job again only when it has given up the copy before, whether or not that still runs.
            return Owner("dead" if int(theirs.get("restart") or 0) < self._job.restart else "alive")
        owner = attempt.owner()
        life = owner.liveness() if owner else "dead"
        return Owner("alive" if life == "unknown" else life)  # a worker of this job on another of its nodes
