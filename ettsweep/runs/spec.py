"""RunSpec: everything that changes the numbers of a run, and the run id, a hash of it.

A spec is resolved: it holds numbers instead of names, and every default. It holds nothing about machines: devices,
partitions and worker counts are in a launch profile, so a run has the same id wherever it trains.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, Self, runtime_checkable

from pydantic import Field, SerializeAsAny, model_validator

from ettsweep.powers import log2
from ettsweep.runs.point import Point
from ettsweep.schema import NonNegative, Positive, PositiveFloat, Registered, StrictModel, digest, identity

MAX_SEED = 2**31 - 1

DEFAULT_OPTIMIZER = "adamw"


class ModelSpec(StrictModel):
    """Fields of all models; each architecture (trainer/models/registry.py) adds its own.

    Attributes:
        kind: name of the architecture.
        width: n, the size of the residual stream.
        depth: number of layers.
        mlp_ratio: M, hidden size of the MLP over `width`.
    """

    kind: str
    width: Positive
    depth: Positive
    heads: Positive
    mlp_ratio: Positive = 4


@runtime_checkable
class ImageModel(Protocol):
    """A classifier of square images."""

    @property
    def image_size(self) -> int: ...
    @property
    def channels(self) -> int: ...
    @property
    def classes(self) -> int: ...


@runtime_checkable
class TextModel(Protocol):
    """A model that reads and predicts sequences of at most `tokens` tokens."""

    @property
    def vocabulary(self) -> int: ...
    @property
    def tokens(self) -> int: ...


class TaskSpec(StrictModel):
    """A data set with the loss to train on it; each kind (trainer/tasks/registry.py) adds its own fields."""

    kind: str

    @property
    def name(self) -> str:
        """Name for people; ids have the kind."""
        return self.kind


class OptimizerSpec(StrictModel):
    """Fields of all optimizers; each (strategies/optimizers.py) adds its own.

    Attributes:
        clip_norm: maximal global norm of the gradient; None does not clip.
        decay_pe: whether weight decay applies to positional embeddings.
    """

    kind: str
    if TYPE_CHECKING:  # subclasses declare them last, since spec.json lists fields in the order of declaration
        clip_norm: PositiveFloat | None = None
        decay_pe: bool = True


def indivisible_problems(name: str, value: int, by: str, divisor: int) -> Iterator[str]:
    """Yield an error message with the nearest valid values if `divisor` does not divide `value`."""
    if value % divisor:
        below = value - value % divisor
        nearest = ", ".join(str(v) for v in (below, below + divisor) if v > 0)
        yield f"{name} {value} is not divisible by {by} {divisor}; nearest {name}: {nearest}"


class StrategySpec(StrictModel):
    """Scaling strategy: `s` in [0, 1] (0 neural tangent, 1 maximal update), or None for standard.

    Attributes:
        mlp_factor: whether the MLP's ratio M enters the scaling factors.
    """

    s: Annotated[float, Field(ge=0, le=1)] | None
    mlp_factor: Literal["ignore", "include"] = "ignore"

    @model_validator(mode="before")
    @classmethod
    def _standard_has_no_factors(cls, data: object) -> object:
        """Drop `mlp_factor` from the standard strategy, which has no factors: equal training must have one id."""
        standard = isinstance(data, dict) and data.get("s", 0.0) is None and data.get("mlp_factor") == "include"
        return {**data, "mlp_factor": "ignore"} if standard and isinstance(data, dict) else data


class ScheduleSpec(StrictModel):
    """Linear warmup over `warmup_steps`, then decay to `lr_min` at `total_steps`.

    `stop_step` ends the run early and leaves the learning-rate curve as it is. The model is evaluated every
    `eval_every` steps and at the end.
    """

    total_steps: Positive
    warmup_steps: Annotated[int, Field(ge=0)]
    decay: Literal["cosine", "linear"] = "cosine"
    lr_min: NonNegative = 0.0
    eval_every: Positive
    stop_step: Positive | None = None

    @model_validator(mode="before")
    @classmethod
    def _stop_at_the_end(cls, data: object) -> object:
        """Drop a `stop_step` at the last step: equal training must have one id."""
        if isinstance(data, dict) and data.get("stop_step") == data.get("total_steps"):
            return {key: value for key, value in data.items() if key != "stop_step"}
        return data

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.warmup_steps >= self.total_steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} must be below total_steps {self.total_steps}")
        if self.stop_step is not None and self.stop_step > self.total_steps:
            raise ValueError(f"stop_step {self.stop_step} is beyond total_steps {self.total_steps}")
        return self

    @property
    def last_step(self) -> int:
        """Number of optimizer steps of the run."""
        return self.total_steps if self.stop_step is None else self.stop_step


class SpikeSpec(StrictModel):
    """Thresholds of the two spike detectors, per step and per evaluation (runs/spikes.py).

    Attributes:
        window_steps: values before a step that it is compared with.
        sigmas: standard deviations above their mean that make a spike.
        merge_steps: spike steps at most this far apart are one spike.
        window_evals: evaluations whose median is the baseline.
        eval_sigmas: standard deviations of the evaluation noise that a spike must exceed.
        accuracy_drop, accuracy_recovered: drops of accuracy, a fraction, that begin and end a spike.
        loss_rise, loss_recovered: the same for rises of the loss, relative to the baseline.
    """

    window_steps: Annotated[int, Field(ge=2)] = 128
    sigmas: PositiveFloat = 6.0
    merge_steps: Positive = 10
    window_evals: Annotated[int, Field(ge=2)] = 5
    eval_sigmas: PositiveFloat = 5.0
    accuracy_drop: PositiveFloat = 0.01
    accuracy_recovered: NonNegative = 0.005
    loss_rise: PositiveFloat = 0.05
    loss_recovered: NonNegative = 0.025


AnyModelSpec = Annotated[
    SerializeAsAny[ModelSpec], Registered("ettsweep.trainer.models.registry:ARCHITECTURES", default="vit")
]
AnyTaskSpec = Annotated[SerializeAsAny[TaskSpec], Registered("ettsweep.trainer.tasks.registry:TASKS")]
AnyOptimizerSpec = Annotated[
    SerializeAsAny[OptimizerSpec], Registered("ettsweep.strategies.optimizers:OPTIMIZERS", default=DEFAULT_OPTIMIZER)
]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]


class Recipe(StrictModel):
    """A training recipe: everything of a run but strategy, lr, wd and seed."""

    model: AnyModelSpec
    task: AnyTaskSpec
    # validate_default turns the name into a spec with all its defaults, which are part of the id.
    optimizer: AnyOptimizerSpec = Field(default=DEFAULT_OPTIMIZER, validate_default=True)
    schedule: ScheduleSpec
    batch_size: Positive
    precision: Precision = "fp32"
    spikes: SpikeSpec = SpikeSpec()


class RunSpec(Recipe):
    """One run: a recipe with its strategy, a point (lr, wd) and a seed."""

    strategy: StrategySpec
    lr: PositiveFloat
    wd: NonNegative
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)]

    @property
    def recipe_key(self) -> tuple[object, ...]:
        """Hashable key of the recipe; runs with the same key take equally long."""
        return tuple(getattr(self, name) for name in Recipe.model_fields)

    @property
    def point(self) -> Point:
        return Point(self.lr, self.wd)

    @property
    def run_id(self) -> str:
        """12 hex digits that name the run and its folder."""
        return id_of_run(family_identity(self), self.lr, self.wd, self.seed)

    @property
    def family_id(self) -> str:
        """12 hex digits shared by all runs that differ only in lr, wd and seed."""
        return digest(family_identity(self))

    @property
    def canonical(self) -> "RunSpec":
        """A representative of all runs with this recipe, for measurements of time and memory."""
        # Strategy, point and seed hardly change time and memory.
        return self.model_copy(update={"strategy": StrategySpec(s=None)}).with_point(1.0, 0.0, 0)

    def with_point(self, lr: float, wd: float, seed: int) -> "RunSpec":
        """Return the spec of the same family at another point and seed."""
        return self.model_copy(update={"lr": lr, "wd": wd, "seed": seed})


def family_identity(spec: RunSpec) -> dict[str, object]:
    """Return the fields by which a run's family enters the hash of its id."""
    # lr and wd enter a run id by their rounded log2 instead, see `point_identity`.
    return {k: v for k, v in identity(spec).items() if k not in ("lr", "wd", "seed")}


def id_of_run(family: dict[str, object], lr: float, wd: float, seed: int) -> str:
    """Return the id of a run: of a family, given by its `family_identity`, at a point with a seed."""
    return digest(family | point_identity(lr, wd) | {"seed": seed})


def point_identity(lr: float, wd: float) -> dict[str, object]:
    """Return the fields by which a point (lr, wd) enters the hash of a run id."""
    return {"log2_lr": log2(lr), "log2_wd": log2(wd)}


Seeds = Annotated[tuple[Annotated[int, Field(ge=0, le=MAX_SEED)], ...], Field(min_length=1, strict=False)]
