"""Schemas of a Transformer's training: model, task, schedule, precision."""

import math
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self, runtime_checkable

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from ettsweep.schema import Fraction, NonNegative, OmitFromIdAt, Positive, StrictModel, without_omitted

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
    """A model that reads and predicts sequences of at most `tokens` tokens.

    With `reads_source` it predicts a target from another text, the source; otherwise each token from those before it.
    """

    reads_source: ClassVar[bool]

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


DEFAULT_DECAY_SHARE = 0.2
"""Default share of a `wsd` run that decays: enough according to Hagele et al. (arXiv 2405.18392)."""


class ScheduleSpec(StrictModel):
    """Linear warmup over `warmup_steps`, then decay to `lr_min`, or to `floor` times the peak, at `total_steps`.

    `stop_step` ends the run early without changing the learning-rate curve. The model is evaluated every `eval_every`
    steps and at the end.

    Attributes:
        decay: `cosine` or `linear` begin after the warmup; `wsd` (warmup, stable, decay) stays at the peak first.
        floor: last learning rate as a share of the peak, which is the same at all points; `lr_min` is absolute.
        decay_share: of `wsd`: share of `total_steps` that decays; None for the others.
        decay_shape: of `wsd`: falls linearly, or as 1 - sqrt(share of the decay that is done).
    """

    total_steps: Positive
    warmup_steps: Annotated[int, Field(ge=0)]
    decay: Literal["cosine", "linear", "wsd"] = "cosine"
    lr_min: NonNegative = 0.0
    eval_every: Positive
    stop_step: Positive | None = None
    floor: Annotated[Fraction, OmitFromIdAt(0.0)] = 0.0
    decay_share: Annotated[Annotated[float, Field(gt=0, le=1)] | None, OmitFromIdAt(None)] = None
    decay_shape: Annotated[Literal["linear", "sqrt"], OmitFromIdAt("linear")] = "linear"

    @model_serializer(mode="wrap")
    def _as_before(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out newer fields at the values that older specs imply."""
        return without_omitted(self, serialise(self))

    @model_validator(mode="before")
    @classmethod
    def _completed(cls, data: object) -> object:
        """Fill in derived fields: equal runs must have one id."""
        if not isinstance(data, dict):
            return data
        data = dict(data)
        if data.get("stop_step") == data.get("total_steps"):
            data.pop("stop_step", None)
        if data.get("decay") == "wsd" and data.get("decay_share") is None:
            data["decay_share"] = DEFAULT_DECAY_SHARE
        return data

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.warmup_steps >= self.total_steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} must be below total_steps {self.total_steps}")
        if self.stop_step is not None and self.stop_step > self.total_steps:
            raise ValueError(f"stop_step {self.stop_step} is beyond total_steps {self.total_steps}")
        if self.floor and self.lr_min:
            raise ValueError(f"floor {self.floor:g} and lr_min {self.lr_min:g} both state where lr ends; give one")
        if self.decay != "wsd" and (self.decay_share is not None or self.decay_shape != "linear"):
            name = "decay_shape" if self.decay_share is None else "decay_share"
            raise ValueError(
                f"{name} is of decay: wsd, which has a plateau; decay {self.decay} begins after the warmup"
            )
        after_warmup = self.total_steps - self.warmup_steps
        if self.decay_steps > after_warmup:
            at_most = math.floor(after_warmup / self.total_steps * 1000) / 1000
            raise ValueError(
                f"decay_share {self.decay_share:g} is a decay of {self.decay_steps} steps, and the run has "
                f"{after_warmup} after its warmup; give at most {at_most:g}"
            )
        return self

    @property
    def last_step(self) -> int:
        """Number of optimizer steps of the run."""
        return self.total_steps if self.stop_step is None else self.stop_step

    @property
    def decay_steps(self) -> int:
        """Number of steps that decay: all after the warmup, unless there is a plateau."""
        if self.decay_share is None:
            return self.total_steps - self.warmup_steps
        return max(1, round(self.decay_share * self.total_steps))

    @property
    def plateau_end(self) -> int:
        """Last step at the peak."""
        return self.total_steps - self.decay_steps


STEPS_FIELD_OF = {
    "epochs": "total_steps",
    "warmup_epochs": "warmup_steps",
    "eval_every_epochs": "eval_every",
    "stop_epoch": "stop_step",
}
"""Schedule fields in epochs, which may be fractions, and the fields in steps that they are converted to."""

EPOCH_KEYS = [("schedule", name) for name in STEPS_FIELD_OF]
"""Their keys, for hints on misspelt keys of the schema."""
