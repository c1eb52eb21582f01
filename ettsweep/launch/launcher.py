"""The interface of launch profiles, for this machine (`local`) and clusters (`slurm`)."""

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
    """A launch profile: machines, number of workers, and settings of training that never change results.

    Attributes:
        checkpoint_every_s: seconds between checkpoints.
        checkpoint_every_steps: steps between checkpoints, in addition.
        heartbeat_s: seconds between heartbeats, which show that a run is alive to observers without access to the
            process or scheduler. On a shared file system without close-to-open consistency, keep it above a third of
            the time for which readers may see old contents.
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
    """Times that a command submits a run that never starts before it gives up."""

    def check_counts(self) -> None:
        """Check that no count is absurd for this machine, if runs train on it.

        Raises:
            InputError: one is.
        """

    # --- what there is to train on ---

    def resolve_slots(self) -> list[Slot]:
        """Return the slots of this machine; none for a scheduler.

        Each lists the other slots that train its runs with it.

        Raises:
            InputError: they do not exist.
        """
        return []

    @abstractmethod
    def run_devices(self) -> RunDevices:
        """Return the devices that train a run.

        Raises:
            InputError: this machine does not have them.
        """

    @abstractmethod
    def capacity(self) -> int:
        """Return how many runs train in parallel; a guess if only the scheduler decides."""

    @abstractmethod
    def at_once(self, runs: int) -> tuple[int, str] | None:
        """Return how many of some runs train at once, and on what; None if only the scheduler decides."""

    @abstractmethod
    def memory_limit(self) -> tuple[int, str]:
        """Return the most memory of a run in bytes, and the name of its devices."""

    @abstractmethod
    def describe(self) -> str:
        """Return a description of the workers."""

    def warning_s(self) -> int | None:
        """Return how many seconds before its end a worker gets the signal to save; None without a limit."""
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
        """Return advice on more memory for a run beside those of other workers."""

    def time_advice(self, run_id: str) -> str:
        """Return the command that gives a run more time; empty without a limit."""
        return ""

    # --- launching ---

    @abstractmethod
    def check_nodes(self, nodes: int) -> None:
        """Check that a run can have this number of nodes.

        Raises:
            InputError: it cannot.
        """

    @abstractmethod
    def check(self, results: Path, runs: Sequence[PlannedRun], *, dry_run: bool = False) -> None:
        """Check that runs could start. A dry run asks no scheduler: this machine may have none.

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
            content: of submission.json, without the launcher's own entries.

        Raises:
            LaunchError: no worker could be started; the message has SLURM's own.
        """


def worker_command(python: str, folder: Path) -> str:
    """Return the shell command that starts a worker of a submission."""
    # Without -P Python would import an `ettsweep` from the folder in which the worker starts.
    return f"{python} -u -P -m ettsweep.worker {shlex.quote(str(folder))}"


def code_environment(code: str, python_path: object) -> dict[str, str]:
    """Return the variables that make Python import the package from a snapshot."""
    if not code:
        return {}
    path = os.pathsep.join([code, *([str(python_path)] if python_path else [])])
    return {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}  # safe path: the working folder must not come first
