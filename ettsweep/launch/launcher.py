"""What a launch profile is and does, here (`local`) or on a cluster (`slurm`): the one interface of both launchers."""

import os
import shlex
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from ettsweep.files import Json
from ettsweep.launch.slots import Slot
from ettsweep.launch.trainer_settings import TrainerSettings
from ettsweep.schema import NonNegative, Positive, PositiveFloat, StrictModel
from ettsweep.study.plan import PlannedRun


@dataclass(frozen=True)
class RunDevices:
    """The devices that train a run, as far as they change its duration.

    Attributes:
        kind: cpu or cuda.
        per_run: number of devices that train one run together.
        threads: threads per device on the CPU.
        gpu_models: models of the GPUs; empty if unknown.
        allow_fewer_threads: a run may have used fewer threads than `threads`.
    """

    kind: str
    per_run: int
    threads: int
    gpu_models: frozenset[str] = frozenset()
    allow_fewer_threads: bool = False

    def match(self, result: Json) -> bool:
        """`True` if a result was computed on such devices."""
        environment, execution = result.get("environment") or {}, result.get("execution") or {}
        if str(environment.get("device")).partition(":")[0] != self.kind or execution.get("processes") != self.per_run:
            return False
        if self.kind == "cpu":
            threads = environment.get("threads")  # `auto` gives small models fewer threads
            return threads == self.threads or (
                self.allow_fewer_threads and isinstance(threads, int) and threads < self.threads
            )
        # Unknown GPU models match all: a rough estimate is better than none.
        return not self.gpu_models or environment.get("device_name") in self.gpu_models


class Launcher(StrictModel):
    """A launch profile: on which machines, with how many workers and how runs train; it never changes their results.

    Attributes:
        checkpoint_every_s: seconds between checkpoints.
        checkpoint_every_steps: steps between checkpoints, in addition.
        heartbeat_s: seconds between heartbeats, which tell observers that can see neither the process nor the
            scheduler that a run is alive. On a shared file system without close-to-open consistency, keep it above a
            third of the time for which old contents may be read.
        snapshot: train from a copy of the code made at submission.
        devices_per_run: GPUs, or CPU slots, that train one run together.
        trainer: how Transformers train.
    """

    kind: str
    checkpoint_every_s: NonNegative = 300.0
    checkpoint_every_steps: Positive | None = None
    heartbeat_s: PositiveFloat = 30.0
    snapshot: bool = False
    devices_per_run: Positive = 1
    trainer: TrainerSettings = Field(default_factory=TrainerSettings)

    max_submissions: ClassVar[int]
    """Submissions of a run that never starts before a command gives up."""

    def check_counts(self) -> None:
        """Check that no count is absurd for this machine, if runs train on it.

        Raises:
            InputError: one is.
        """

    # --- what there is to train on ---

    def resolve_slots(self) -> list[Slot]:
        """Return the slots of this machine, none where a scheduler gives out devices.

        Each lists the others that train its runs with it.

        Raises:
            InputError: they do not exist.
        """
        return []

    @abstractmethod
    def run_devices(self) -> RunDevices:
        """Return the devices that train a run.

        Raises:
            InputError: they are this machine's, and do not exist.
        """

    @abstractmethod
    def capacity(self) -> int:
        """Return how many runs train in parallel; a guess where only the scheduler decides."""

    @abstractmethod
    def at_once(self, runs: int) -> tuple[int, str] | None:
        """Return how many of some runs train at once, and on what; None if only the scheduler decides."""

    @abstractmethod
    def memory_limit(self) -> tuple[int, str]:
        """Return the memory in bytes that a run can have at most, and a label of what provides it."""

    @abstractmethod
    def describe(self) -> str:
        """Return what workers get, for people."""

    def warning_s(self) -> int | None:
        """Return how many seconds before its end a worker is told to save; None if nothing ends it."""
        return None

    def sets_variable(self, variable: str) -> bool:
        """`True` if the profile itself sets an environment variable."""
        return False

    def starts_other_python(self) -> bool:
        """`True` if workers have another Python than this process, with other packages."""
        return False

    # --- advice ---

    @abstractmethod
    def memory_advice(self, run_id: str, workers: int) -> str:
        """Return what would give a run more memory, which trains beside those of other workers."""

    def time_advice(self, run_id: str) -> str:
        """Return the command that gives a run more time; empty if nothing limits it."""
        return ""

    # --- launching ---

    @abstractmethod
    def check_nodes(self, nodes: int) -> None:
        """Check that a run can have so many nodes.

        Raises:
            InputError: it cannot.
        """

    @abstractmethod
    def check(self, results: Path, runs: Sequence[PlannedRun], *, dry_run: bool = False) -> None:
        """Check that runs could be started. A dry run asks no scheduler: this machine may have none.

        Raises:
            InputError: a device, or the folder of slots, does not exist; or a path cannot be used.
            LaunchError: SLURM refuses the profile, or does not answer.
        """

    def scripts(self, results: Path, runs: Sequence[PlannedRun]) -> list[str]:
        """Return the batch scripts that `start` would submit, with XXXXXXXX in place of unique names."""
        return []

    @abstractmethod
    def start(self, results: Path, runs: Sequence[PlannedRun], content: Json) -> list[Path]:
        """Start workers for runs whose folders exist; return the folders of the submissions.

        Args:
            results: the results folder.
            runs: the runs, in order.
            content: of submission.json, without what the launcher knows.

        Raises:
            LaunchError: no worker could be started; the message has SLURM's own.
        """


def worker_command(python: str, folder: Path) -> str:
    """Return the shell command that starts a worker of a submission."""
    # Without -P Python would import an `ettsweep` from the folder in which the worker starts.
    return f"{python} -u -P -m ettsweep.worker {shlex.quote(str(folder))}"


def code_environment(code: str, python_path: object) -> dict[str, str]:
    """Return the variables that make Python import the package from a snapshot; none without a snapshot."""
    if not code:
        return {}
    path = os.pathsep.join([code, *([str(python_path)] if python_path else [])])
    return {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}  # safe path: the working folder must not come first
