"""RunSpec: everything that changes the numbers of a run, and the run id made from it.

A spec is resolved: it holds numbers, not names, and every default. Nothing about machines is in it
(devices, partitions, worker counts live in a launch profile), so where a run trains never changes its id.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, Self, runtime_checkable

from pydantic import Field, SerializeAsAny, model_validator

from ettsweep.powers import log2
from ettsweep.schema import NonNegative, Positive, PositiveFloat, Registered, StrictModel, digest, identity

MAX_SEED = 2**31 - 1

DEFAULT_OPTIMIZER = "adamw"


class ModelSpec(StrictModel):
    """What all models have; each architecture (trainer/models/registry.py) adds its own.

    Attributes:
        width: n.
        mlp_ratio: M, what the MLP is wider.
    """

    kind: str
    width: Positive
    depth: Positive
    heads: Positive
    mlp_ratio: Positive = 4


@runtime_checkable
class ImageModel(Protocol):
    """A model that reads square images and tells classes."""

    @property
    def image_size(self) -> int: ...
    @property
    def channels(self) -> int: ...
    @property
    def classes(self) -> int: ...


@runtime_checkable
class TextModel(Protocol):
    """A model that reads and predicts tokens, `tokens` of them at most."""

    @property
    def vocabulary(self) -> int: ...
    @property
    def tokens(self) -> int: ...


class TaskSpec(StrictModel):
    """A data set and what is asked of it; each kind (trainer/tasks/registry.py) adds its own."""

    kind: str


class OptimizerSpec(StrictModel):
    """What all optimizers have; each (strategies/optimizers.py) adds its own.

    Attributes:
        clip_norm: norm that gradients are clipped to, all together.
        decay_pe: whether positional embeddings decay.
    """

    kind: str
    if TYPE_CHECKING:  # each states them last: spec.json has them there
        clip_norm: PositiveFloat | None = None
        decay_pe: bool = True


def indivisible(what: str, value: int, by: str, divisor: int) -> Iterator[str]:
    """Yield a message with the nearest legal values where `divisor` does not divide `value`."""
    if value % divisor:
        below = value - value % divisor
        nearest = ", ".join(str(v) for v in (below, below + divisor) if v > 0)
        yield f"{what} {value} is not divisible by {by} {divisor}; nearest {what}: {nearest}"


class StrategySpec(StrictModel):
    """Scaling strategy: `s` in [0, 1] (0 neural tangent, 1 maximal update), or None for standard."""

    s: Annotated[float, Field(ge=0, le=1)] | None
    mlp_factor: Literal["ignore", "include"] = "ignore"

    @model_validator(mode="before")
    @classmethod
    def _standard_has_no_factors(cls, data: object) -> object:
        """Make one run of what trains alike: M enters no factor of the standard strategy."""
        standard = isinstance(data, dict) and data.get("s", 0.0) is None and data.get("mlp_factor") == "include"
        return {**data, "mlp_factor": "ignore"} if standard and isinstance(data, dict) else data


class ScheduleSpec(StrictModel):
    """Linear warmup over `warmup_steps`, then decay to `lr_min` at `total_steps`.

    `stop_step` ends the run earlier without bending the curve. The model is evaluated every `eval_every` steps
    and at the end.
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
        """Make one run of what trains alike: stopping at the last step is not stopping."""
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
        """Number of optimizer steps that the run takes."""
        return self.total_steps if self.stop_step is None else self.stop_step


class SpikeSpec(StrictModel):
    """Thresholds of the two spike detectors (runs/spikes.py)."""

    window_steps: Annotated[int, Field(ge=2)] = 128
    sigmas: PositiveFloat = 6.0
    merge_steps: Positive = 10
    window_evals: Annotated[int, Field(ge=2)] = 5
    eval_sigmas: PositiveFloat = 5.0
    accuracy_drop: PositiveFloat = 0.01
    accuracy_recovered: NonNegative = 0.005
    loss_rise: PositiveFloat = 0.05
    loss_recovered: NonNegative = 0.025


OneModel = Annotated[
    SerializeAsAny[ModelSpec], Registered("ettsweep.trainer.models.registry:ARCHITECTURES", default="vit")
]
OneTask = Annotated[SerializeAsAny[TaskSpec], Registered("ettsweep.trainer.tasks.registry:TASKS")]
OneOptimizer = Annotated[
    SerializeAsAny[OptimizerSpec], Registered("ettsweep.strategies.optimizers:OPTIMIZERS", default=DEFAULT_OPTIMIZER)
]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]


class Recipe(StrictModel):
    """What all runs of a family train: model, task and everything but strategy, lr, wd and seed."""

    model: OneModel
    task: OneTask
    optimizer: OneOptimizer = Field(default=DEFAULT_OPTIMIZER, validate_default=True)
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
        """Return what runs share that differ only in strategy, lr, wd and seed, and so take equally long."""
        return tuple(getattr(self, name) for name in Recipe.model_fields)

    @property
    def run_id(self) -> str:
        """Return 12 hex digits that name the run and its folder."""
        return digest(self._identity() | point_identity(self.lr, self.wd) | {"seed": self.seed})

    @property
    def family_id(self) -> str:
        """Return 12 hex digits shared by all runs that differ only in lr, wd and seed."""
        return digest(self._identity())

    def _identity(self) -> dict[str, object]:
        return {k: v for k, v in identity(self).items() if k not in ("lr", "wd", "seed")}

    @property
    def canonical(self) -> "RunSpec":
        """Return a run that stands for all of its kind where time and memory are measured."""
        return self.model_copy(update={"strategy": StrategySpec(s=None)}).with_point(1.0, 0.0, 0)

    def with_point(self, lr: float, wd: float, seed: int) -> "RunSpec":
        """Return the run of the same family at another point and seed."""
        return self.model_copy(update={"lr": lr, "wd": wd, "seed": seed})


def point_identity(lr: float, wd: float) -> dict[str, object]:
    """Return how a point (lr, wd) enters an id."""
    return {"log2_lr": log2(lr), "log2_wd": log2(wd)}


Seeds = Annotated[tuple[Annotated[int, Field(ge=0, le=MAX_SEED)], ...], Field(min_length=1, strict=False)]
