"""The contract of a run: what planner and views know of what is trained, and what training may touch.

A trainable is a class of recipes. A recipe holds all that changes the numbers of a run except for strategy, lr, wd and
seed, and says what planner and views need to know of it; with those four it is a `RunSpec`. All of it but `train` is
called by commands that must start quickly, so that it imports neither torch nor data. `train` is called in a worker's
process, with a `RunContext`.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self

from pydantic import SerializerFunctionWrapHandler, model_serializer

from ettsweep.errors import InputError
from ettsweep.files import Json
from ettsweep.metric import Metric
from ettsweep.runs.spike_spec import SpikeSpec
from ettsweep.schema import Key, Source, StrictModel, validate


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


@dataclass(frozen=True)
class OwnCode:
    """Code of a user that a run trains with.

    Attributes:
        folder: that names of its files are relative to.
        digest: of the code, as it enters the id.
        other_folders: that some of it lies in.
        is_copied: whether runs train in a copy of it that is made when they are submitted.
    """

    folder: Path
    digest: str
    other_folders: tuple[Path, ...] = ()
    is_copied: bool = True


class Settings(StrictModel):
    """Base of the settings of a trainable: how its runs train, which changes their numbers by rounding at most.

    All fields have defaults: most profiles say nothing of them.

    Attributes:
        trainable: name of the trainable.
    """

    trainable: str = ""

    per_core: ClassVar[tuple[str, ...]] = ()
    """Fields that are numbers of processes of a worker: absurdly many for the cores of a machine are refused."""

    recorded: ClassVar[tuple[str, ...]] = ()
    """Fields that `execution.json` of an attempt has, and that whoever reproduces its run sets."""

    def resume_note(self, execution: Json) -> str:
        """Return what changes for a run that resumes what was trained so, as the end of a sentence; "" for nothing."""
        return ""


TRAINING_LOSSES = ("loss", "train_loss", "train/loss")
"""Names of metrics that are training losses: where one is not finite, the run has diverged."""

BUILT_IN = "transformer"
"""The trainable of grid files without a `run:` block, and of specs older than this contract, which do not name one."""


class Trainable(StrictModel):
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
    def steps_per_epoch(self) -> int | None:
        """Steps of an epoch, for the axis of curves; None for an axis of steps."""
        return None

    @property
    def tokens_per_step(self) -> int | None:
        """Tokens that a step is trained on; None unless samples are text, and where padding differs between them."""
        return None

    @property
    def momentum_gain(self) -> float:
        """What steps of one direction, decay among them, add up to over lr: 1 unless momentum adds to them."""
        return 1.0

    @property
    def samples_name(self) -> str:
        """Plural noun of what a step is trained on, for speeds."""
        return "samples"

    @property
    def size(self) -> Size | None:
        """What strategies scale with; None if lr and wd are taken as they are, in one strategy."""
        return None

    def matches_model(self, name: str) -> bool:
        """Whether `--model NAME` selects it."""
        return name == self.labels.model

    @property
    def is_seeded(self) -> bool:
        """Whether runs of a point differ by their seed; else a point has one run, and noise is unknown."""
        return True

    def for_trial(self) -> Self:
        """Return the recipe with shorter runs, as far as it states how, for a trial of what trains them."""
        return self

    # --- in a grid file ---

    @classmethod
    def from_block(cls, block: dict[str, Any], overrides: Sequence[str], location: str, folder: Path) -> Self:
        """Return the recipe that a grid file describes.

        Args:
            block: what stands under `run:`.
            overrides: `key=value` for dotted keys of it, from the command line.
            location: the file and the key of the block, for messages.
            folder: of the file.

        Raises:
            InputError: all problems of the block.
        """
        source, data = override_block(block, overrides, location)
        return validate(cls, data, source)

    @classmethod
    def block_problems(cls, block: dict[str, Any], overrides: Sequence[str], location: str) -> list[str]:
        """Return the problems of a block, one a line, in a grid file that has other problems; see `from_block`."""
        try:
            cls.from_block(block, overrides, location, Path())
        except InputError as error:
            return str(error).splitlines()
        return []

    block_keys: ClassVar[Sequence[Key]] = ()
    """Keys that a block may have beside its fields, to suggest for misspelt ones."""

    @classmethod
    def check_name(cls, field: str, name: str) -> None:
        """Check the name of a model or task that stands at the top of a grid file.

        Raises:
            InputError: there is none of that name.
        """

    @classmethod
    def model_names(cls) -> Sequence[str]:
        """Return names that `--model` can have, for completion."""
        return ()

    @classmethod
    def task_names(cls) -> Sequence[str]:
        """Return names that `--task` can have, for completion."""
        return ()

    # --- whether it can be trained ---

    @property
    def data_kind(self) -> str:
        """Name of the data whose location `--data` or a variable gives; empty if it reads none."""
        return ""

    @property
    def needs_data(self) -> bool:
        """Whether a run is impossible unless somebody says where its data are."""
        return bool(self.data_kind)

    @property
    def no_data_reason(self) -> str:
        """Why `--data` is refused where no data are needed."""
        return f"{self.labels.title} reads no data that --data could locate"

    def check_data(self, data: str | None, *, count: bool = False) -> None:
        """Check that the data are where workers look for them; with `count`, quickly that they are all there.

        Raises:
            DataMissingError: they are missing or do not fit.
        """

    def bound_to(self, data: str | None) -> Self:
        """Return the recipe bound to what it is trained with here, by digests of data or code that enter the id.

        Raises:
            DataMissingError: it is missing.
        """
        return self

    def check_lrs(self, lrs: Sequence[float]) -> str:
        """Return a note on effects of the recipe on these lr that people rarely want; empty for none.

        Raises:
            InputError: training would not depend on lr.
        """
        return ""

    def check_wds(self, wds: Sequence[float]) -> None:
        """Check that training depends on wd where it has several values.

        Raises:
            InputError: it does not.
        """

    @property
    def no_program(self) -> str:
        """Why none of its runs can be trained, and what to do, for people; empty if they can."""
        return ""

    def check_resources(self, devices: int, memory_bytes: int, owner: str) -> None:
        """Check that a run fits on this many devices with this memory in all, which `owner` names.

        Raises:
            InputError: it does not.
        """

    @property
    def job_nodes(self) -> int | None:
        """Nodes that a run takes; None if it is all the same."""
        return None

    settings: ClassVar[type[Settings]] = Settings
    """Schema of what the block `trainer` of a launch profile may set for its runs."""

    def runs_at_once(self, settings: Any, devices: int) -> int:
        """Return how many runs one worker may train at once with these settings, each on so many devices."""
        return 1

    def own_code(self) -> OwnCode | None:
        """Return the user's code that runs train with; None if all comes with installed packages."""
        return None

    def code_paths(self) -> Sequence[Path]:
        """Return the files that the digest of its own code is made of.

        Raises:
            DataMissingError: one is missing.
        """
        return ()

    def code_differences(self, other: "Trainable") -> Sequence[str]:
        """Return the names of files of its own code that are others in another recipe.

        Raises:
            DataMissingError: a file is missing.
        """
        return ()

    def content_digest(self) -> str:
        """Return the digest of these files as they are, whatever is stated of them.

        Raises:
            DataMissingError: one is missing.
        """
        return ""

    def with_code_in(self, folder: Path, same_code: Sequence[str] = ()) -> Self:
        """Return the recipe with the folder of its own code moved, where contents with these digests count as it."""
        return self

    def as_code(self, digest: str) -> Self:
        """Return the recipe with its own code as it is now counted as code with a digest: the numbers are the same.

        Raises:
            DataMissingError: a file of it is missing.
        """
        return self

    def without_score(self) -> Self | None:
        """Return the recipe without what only says how a finished run is scored; None if its score is fixed."""
        return None

    def rescored_history(self, history: Sequence[Json], trained_as: "Trainable") -> Sequence[Json] | None:
        """Return the metrics that a run would have recorded, had it been trained with the score of this recipe.

        None if that is not known, and the run is to be trained.

        Args:
            history: the metrics that it has recorded.
            trained_as: the recipe that it was trained with, which differs in its score alone.
        """
        return None

    @property
    def kept_outputs(self) -> Sequence[str] | None:
        """Patterns of the files in `out` that are kept where space is made after a run has ended; None for all."""
        return None

    def changes(self) -> list[str]:
        """Return a line for each change since the run was requested that would make its numbers others."""
        return []

    # --- training ---

    def train(self, run: "RunContext") -> None:
        """Train a run to its end, a divergence or `run.stop`; called in a worker's process.

        Whatever it raises makes the run a failed one. A trainable whose runs take several processes, or are packed,
        names a `runner` instead.
        """
        raise NotImplementedError

    has_canary: ClassVar[bool] = True
    """Whether one run goes ahead of the others while none of its family has finished, see `launch/canary.py`."""

    processes_together: ClassVar[bool] = False
    """Whether a run on several devices is trained by a process for each, which the runner of the class brings together;
    else `train` is called once, and sees all of them."""

    keeps_checkpoints: ClassVar[bool] = False
    """Whether what trains its runs keeps checkpoints by itself, and says from which it goes on."""

    runner: ClassVar[str] = "ettsweep.worker.in_process:Runner"
    """`module:class` of what trains runs of this class in a worker, see `worker.worker`."""


def override_block(block: dict[str, Any], overrides: Sequence[str], location: str) -> tuple[Source, dict[str, Any]]:
    """Return a block with `key=value` from the command line applied, and where its values come from, for messages."""
    from ettsweep.config import options_by_key, set_nested, split_override  # YAML: only grid files need it

    data = deepcopy(block)
    for override in overrides:
        set_nested(data, *split_override(override))
    return Source(location, options_by_key(overrides)), data


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
