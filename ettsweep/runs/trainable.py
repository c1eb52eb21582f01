"""The contract of a run: what planner and views know of what is trained, and what training may touch.

A trainable is a class of recipes. A recipe holds all that changes the numbers of a run except for strategy, lr, wd and
seed, and says what planner and views need to know of it; with those four it is a `RunSpec`. All of it but `train` is
called by commands that must start quickly, so that it imports neither torch nor data. `train` is called in a worker's
process, with a `RunContext`.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from pydantic import SerializerFunctionWrapHandler, model_serializer

from ettsweep.files import Json
from ettsweep.metric import Metric
from ettsweep.runs.spike_spec import SpikeSpec
from ettsweep.runs.trainable_hooks import GridFileHooks, LaunchHooks, OwnCodeHooks, ViewHooks
from ettsweep.schema import StrictModel


class Labels(NamedTuple):
    """Names of a recipe in tables, on the page and in figures; empty ones are left out there.

    Attributes:
        model: what is trained, in a word or two, such as vit-b16 or train.py.
        task: what it is trained on.
        data: digits of the data that it is bound to.
    """

    model: str
    task: str = ""
    data: str = ""
    optimizer: str = ""
    precision: str = ""

    @property
    def title(self) -> str:
        """What is trained on what."""
        return f"{self.model} on {self.task}" if self.task else self.model


@dataclass(frozen=True)
class Size:
    """What a strategy scales lr and wd by.

    Attributes:
        width: n, the size of the residual stream.
        factor_rule: the optimizer, adamw, sgd or muon, whose learning-rate factors apply.
    """

    width: int
    factor_rule: Literal["adamw", "sgd", "muon"]


class Settings(StrictModel):
    """Base of the settings of a trainable: how its runs train, which changes their numbers by rounding at most.

    All fields have defaults: most profiles say nothing of them.

    Attributes:
        trainable: name of the trainable.
    """

    trainable: str = ""

    per_core: ClassVar[tuple[str, ...]] = ()
    """Fields that are numbers of processes of a worker: absurdly many for the cores of a machine are refused."""


TRAINING_LOSSES = ("loss", "train_loss", "train/loss")
"""Names of metrics that are training losses: where one is not finite, the run has diverged."""

BUILT_IN = "transformer"
"""The trainable of grid files without a `run:` block, and of specs older than this contract, which do not name one."""


class Trainable(GridFileHooks, ViewHooks, LaunchHooks, OwnCodeHooks):
    """Base of all recipes. Fields of a subclass change the numbers of a run, and are part of its id.

    Attributes:
        trainable: name under which the class is registered.
        spikes: thresholds for spikes of the recorded losses.
    """

    trainable: str
    spikes: SpikeSpec = SpikeSpec()

    written_last: ClassVar[tuple[str, ...]] = ("spikes",)
    """Fields that files have at the end, after those of the subclass."""

    @model_serializer(mode="wrap")
    def _in_order(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = serialise(self)
        if data.get("trainable") == BUILT_IN:
            del data["trainable"]  # as before there were others
        last = {name: data.pop(name) for name in self.written_last if name in data}
        return data | last

    # --- what it is ---

    @property
    @abstractmethod
    def metric(self) -> Metric:
        """The score that verdicts compare."""

    @property
    @abstractmethod
    def labels(self) -> Labels:
        """Names for people."""

    def matches_model(self, name: str) -> bool:
        """Whether `--model NAME` selects it."""
        return name == self.labels.model

    def summary(self, history: Sequence[Json], *, diverged: bool) -> Json:
        """Return the entries of result.json on metrics, at least the score's, from the lines of metrics.jsonl."""
        return {self.metric.name: self.metric.score(history)}

    records_every_step: ClassVar[bool] = False
    """Whether each step has a line with `loss` in metrics.jsonl, so that a missing one shows damage."""

    @property
    def steps(self) -> int | None:
        """Number of the last step, for progress and time left; None if unknown."""
        return None

    def progress_text(self, progress: float) -> str:
        """Return a share of a run, 0 to 1, as steps: 20/100; empty if their number is unknown."""
        return f"{round(progress * self.steps)}/{self.steps}" if self.steps else ""

    @property
    def eval_every(self) -> int | None:
        """Steps between evaluations; None if unknown."""
        return None

    @property
    def warmup_steps(self) -> int:
        """Steps at the beginning in which runs are not compared."""
        return 0

    @property
    def size(self) -> Size | None:
        """What strategies scale with; None if lr and wd are taken as they are, in one strategy."""
        return None

    @property
    def has_strategies(self) -> bool:
        """Whether strategies can differ; else there is one alone, whose name says nothing to people."""
        return self.size is not None

    @property
    def is_seeded(self) -> bool:
        """Whether runs of a point differ by their seed; else a point has one run, and noise is unknown."""
        return True

    # --- training ---

    settings: ClassVar[type[Settings]] = Settings
    """Schema of what the block `trainer` of a launch profile may set for its runs."""

    def train(self, run: "RunContext") -> None:
        """Train a run to its end, a divergence or `run.stop`; called in a worker's process.

        Whatever it raises makes the run a failed one. A trainable whose runs take several processes names a `runner`
        instead.
        """
        raise NotImplementedError

    processes_together: ClassVar[bool] = False
    """Whether a run on several devices is trained by a process for each, which the runner of the class brings together;
    else `train` is called once, and sees all of them."""

    keeps_checkpoints: ClassVar[bool] = False
    """Whether what trains its runs keeps checkpoints by itself, and says from which it goes on."""

    runner: ClassVar[str] = "ettsweep.worker.in_process:Runner"
    """`module:class` of what trains runs of this class in a worker, see `worker.worker`."""


class RunContext(Protocol):
    """All of a run that its training may touch.

    Attributes:
        lr, wd, seed: of the run.
        strategy: name of the scaling strategy.
        out: folder of the run for files of its own, the same in all attempts.
        data: location of the data; None if the recipe needs none.
        settings: of the launch profile, by the trainable's schema of them.
        resume_from: the newest checkpoint of earlier attempts, a file or folder as `checkpoint` had it written; None
            to start from the beginning.
        resume_step: its step; 0 to start from the beginning.
        stop: why to save a checkpoint and return now: a signal, a time limit, a cancellation; empty to go on.
    """

    lr: float
    wd: float
    seed: int
    strategy: str
    out: Path
    data: str | None
    settings: Any
    resume_from: Path | None
    resume_step: int

    @property
    def stop(self) -> str: ...

    def record(self, step: int, **metrics: float) -> None:
        """Record metrics of a step. A loss or score that is not finite ends the run as diverged."""
        ...

    def checkpoint(self, step: int, write: Callable[[Path], object]) -> None:
        """Save the state after a step: `write` is called with a path at which it makes a file or a folder."""
        ...

    def log(self, text: str) -> None:
        """Add a line to the run's log."""
        ...
