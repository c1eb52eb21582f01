"""Schemas of what a Transformer is trained with: model, task, schedule, precision."""

from collections.abc import Iterator
from typing import Annotated, Literal, Protocol, Self, runtime_checkable

from pydantic import Field, model_validator

from ettsweep.schema import NonNegative, Positive, StrictModel

Precision = Literal["fp32", "tf32", "bf16", "fp16"]


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


def indivisible_problems(name: str, value: int, by: str, divisor: int) -> Iterator[str]:
    """Yield an error message with the nearest valid values if `divisor` does not divide `value`."""
    if value % divisor:
        below = value - value % divisor
        nearest = ", ".join(str(v) for v in (below, below + divisor) if v > 0)
        yield f"{name} {value} is not divisible by {by} {divisor}; nearest {name}: {nearest}"


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


STEPS_FIELD_OF = {
    "epochs": "total_steps",
    "warmup_epochs": "warmup_steps",
    "eval_every_epochs": "eval_every",
    "stop_epoch": "stop_step",
}
"""Schedule fields in epochs, which may be fractions, and the fields in steps that they are converted to."""

EPOCH_KEYS = [("schedule", name) for name in STEPS_FIELD_OF]
"""Their keys, which the schema does not know, for its hints on misspelt keys."""
