"""RunSpec: everything that changes the numbers of a run, and the run id made from it.

A spec is resolved: it holds numbers, not names, and every default. Nothing about machines is in it
(devices, partitions, worker counts live in a launch profile), so where a run trains never changes its id.
"""

import math
import re
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from ettsweep.schema import Fraction, Frozen, NonNegative, OmitAt, Positive, PositiveFloat, digest, expect, identity

MAX_SEED = 2**31 - 1

LOG2_DIGITS = 9
"""Decimals kept of log2(lr) and log2(wd) in an id: maps between strategies round in the last bits."""


class VitSpec(Frozen):
    """Pre-norm Vision Transformer: no class token, no biases but the head's, mean pooling."""

    kind: Literal["vit"] = "vit"
    width: Positive
    depth: Positive
    heads: Positive
    mlp_ratio: Positive = 4
    patch_size: Positive
    image_size: Positive
    channels: Positive = 3
    classes: Annotated[int, Field(ge=2)]
    ln_eps: PositiveFloat = 1e-6

    @model_validator(mode="after")
    def _divisible(self) -> Self:
        wrong = [
            *indivisible("width", self.width, "heads", self.heads),
            *indivisible("image_size", self.image_size, "patch_size", self.patch_size),
        ]
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


class EncDecSpec(Frozen):
    """Pre-norm encoder-decoder Transformer for text: no biases, one word embedding, tied to the head.

    Attributes:
        depth: blocks of the encoder, and as many of the decoder.
        vocabulary: n_vocab, all tokens of the model, special ones included.
        tokens: T, the length of source and target, padding included.
        dropout: after each embedding and on each residual branch.
        attention_dropout: of attention weights.
    """

    kind: Literal["encdec"] = "encdec"
    width: Positive
    depth: Positive
    heads: Positive
    mlp_ratio: Positive = 4
    vocabulary: Annotated[int, Field(ge=9)]
    tokens: Annotated[int, Field(ge=4)]
    ln_eps: PositiveFloat = 1e-5
    dropout: Fraction = 0.1
    attention_dropout: Fraction = 0.1

    @model_validator(mode="after")
    def _divisible(self) -> Self:
        if wrong := list(indivisible("width", self.width, "heads", self.heads)):
            raise ValueError("; ".join(wrong))
        return self


def indivisible(what: str, value: int, by: str, divisor: int) -> Iterator[str]:
    """Yield a message with the nearest legal values where `divisor` does not divide `value`."""
    if value % divisor:
        below = value - value % divisor
        nearest = ", ".join(str(v) for v in (below, below + divisor) if v > 0)
        yield f"{what} {value} is not divisible by {by} {divisor}; nearest {what}: {nearest}"


class DigitsTask(Frozen):
    """Scikit-learn's 8 x 8 digits, split once and for all into training and validation images."""

    kind: Literal["digits"] = "digits"
    train_size: Annotated[int, Field(ge=1, le=1796)] = 797
    split_seed: Annotated[int, Field(ge=0)] = 0
    label_smoothing: Fraction = 0.0


Rgb = Annotated[tuple[float, float, float], Field(strict=False)]


RAND_AUGMENT = re.compile(r"|rand(-(m|n|mmax|inc)\d+|-(mstd|p)\d+(\.\d+)?|-t[a-z0-9]+)*")

RandAugment = Annotated[
    str,
    expect(
        "RandAugment in timm's words, such as rand-m9-mstd0.5-inc1, or nothing,",
        lambda value: isinstance(value, str) and RAND_AUGMENT.fullmatch(value) is not None,
    ),
    BeforeValidator(lambda value: "" if value is None else value),  # `--set task.rand_augment=` is nothing
]


class ImageTask(Frozen):
    """Classification of a set of images that lies on disk; where it lies is not part of the spec.

    The augmentation is timm's. The defaults are those of the paper's ImageNet recipe.

    Attributes:
        crop: `resized` is a random resized crop of at least `crop_scale_min` of the area; `padded` pads by an eighth
            of the image size and crops.
        flip: probability of a horizontal flip.
        rand_augment: timm's words for RandAugment; empty for none.
        random_erasing: probability that a rectangle becomes noise.
        mixup, cutmix: their Beta parameters, 0 for none; `mixup_switch` the probability of CutMix where both are on.
        mixup_chunk: images that share one draw of them; they are mixed with each other.
        resize: short side before the centre crop of an evaluation.
        mean, std: of each channel, for normalisation.
        train_size, val_size: number of images; the data that are found must have as many.
    """

    kind: str
    label_smoothing: Fraction = 0.1
    rand_augment: RandAugment = "rand-m9-mstd0.5-inc1"
    random_erasing: Fraction = 0.25
    mixup: NonNegative = 0.8
    cutmix: NonNegative = 1.0
    mixup_switch: Annotated[float, Field(ge=0, le=1)] = 0.5
    resize: Positive = 256
    mixup_chunk: Annotated[int, Field(ge=2, multiple_of=2), OmitAt(128)] = 128
    crop: Annotated[Literal["resized", "padded"], OmitAt("resized")] = "resized"
    crop_scale_min: Annotated[float, Field(gt=0, le=1), OmitAt(0.08)] = 0.08
    flip: Annotated[float, Field(ge=0, le=1), OmitAt(0.5)] = 0.5
    mean: Annotated[Rgb, OmitAt((0.485, 0.456, 0.406))] = (0.485, 0.456, 0.406)
    std: Annotated[Rgb, OmitAt((0.229, 0.224, 0.225))] = (0.229, 0.224, 0.225)
    train_size: Annotated[int, Field(ge=1), OmitAt(1_281_167)] = 1_281_167
    val_size: Annotated[int, Field(ge=1), OmitAt(50_000)] = 50_000


class ImageNetTask(ImageTask):
    """ImageNet-1k with the paper's augmentation; any other set of images with `train_size` and `val_size`."""

    kind: Literal["imagenet"] = "imagenet"


class CifarTask(ImageTask):
    """What CIFAR-10 and CIFAR-100 share: small images, padded crops and flips."""

    label_smoothing: Fraction = 0.0
    rand_augment: RandAugment = ""
    random_erasing: Fraction = 0.0
    mixup: NonNegative = 0.0
    cutmix: NonNegative = 0.0
    resize: Positive = 32
    crop: Literal["resized", "padded"] = "padded"
    train_size: Annotated[int, Field(ge=1)] = 50_000
    val_size: Annotated[int, Field(ge=1)] = 10_000


class Cifar10Task(CifarTask):
    """CIFAR-10: ten classes of 32 x 32 images."""

    kind: Literal["cifar10"] = "cifar10"
    mean: Rgb = (0.4914, 0.4822, 0.4465)
    std: Rgb = (0.2470, 0.2435, 0.2616)


class Cifar100Task(CifarTask):
    """CIFAR-100: a hundred classes of 32 x 32 images."""

    kind: Literal["cifar100"] = "cifar100"
    mean: Rgb = (0.5071, 0.4865, 0.4409)
    std: Rgb = (0.2673, 0.2564, 0.2762)


CorpusDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]


class DenoisingTask(Frozen):
    """Span denoising: what a text was, from what a corruption has left of it (BART's text infilling).

    Attributes:
        mask_ratio: share of the words that spans are drawn for; they overlap, so less is removed.
        span_mean: mean of the Poisson distribution of span lengths, in words.
        permute_sentences: whether the sentences of a corrupted text change places.
        val_blocks: validation texts that are measured, at most; they are spread evenly over all.
        corpus: 12 hex digits of the tokenised text; the planner fills in those of the data at hand.
    """

    kind: str
    mask_ratio: Annotated[float, Field(ge=0, le=1)] = 0.3
    span_mean: Annotated[float, Field(ge=0.01, le=1000)] = 3.0
    permute_sentences: bool = True
    val_blocks: Positive = 5000
    corpus: CorpusDigest | None = None


class PydocTask(DenoisingTask):
    """The English documentation that comes with Python (`pydoc_data.topics`)."""

    kind: Literal["pydoc"] = "pydoc"


class TextTask(DenoisingTask):
    """Any text that `ettsweep data text` has tokenised; where it lies is not part of the spec."""

    kind: Literal["text"] = "text"


class StrategySpec(Frozen):
    """Scaling strategy: `s` in [0, 1] (0 neural tangent, 1 maximal update), or None for standard."""

    s: Annotated[float, Field(ge=0, le=1)] | None
    mlp_factor: Literal["ignore", "include"] = "ignore"

    @model_validator(mode="before")
    @classmethod
    def _standard_has_no_factors(cls, data: object) -> object:
        """Make one run of what trains alike: M enters no factor of the standard strategy."""
        standard = isinstance(data, dict) and data.get("s", 0.0) is None and data.get("mlp_factor") == "include"
        return {**data, "mlp_factor": "ignore"} if standard and isinstance(data, dict) else data


class AdamWSpec(Frozen):
    """AdamW of eq:AdamW1 .. eq:AdamW4. `decay_pe`: whether positional embeddings decay."""

    kind: Literal["adamw"] = "adamw"
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    eps: PositiveFloat = 1e-8
    clip_norm: PositiveFloat | None = None
    decay_pe: bool = True


class SgdSpec(Frozen):
    """Stochastic gradient descent; decay shrinks all groups alike, as AdamW's does."""

    kind: Literal["sgd"] = "sgd"
    momentum: Fraction = 0.0
    clip_norm: PositiveFloat | None = None
    decay_pe: bool = True


class ScheduleSpec(Frozen):
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


class SpikeSpec(Frozen):
    """Thresholds of the two spike detectors (training/spikes.py)."""

    window_steps: Annotated[int, Field(ge=2)] = 128
    sigmas: PositiveFloat = 6.0
    merge_steps: Positive = 10
    window_evals: Annotated[int, Field(ge=2)] = 5
    eval_sigmas: PositiveFloat = 5.0
    accuracy_drop: PositiveFloat = 0.01
    accuracy_recovered: NonNegative = 0.005
    loss_rise: PositiveFloat = 0.05
    loss_recovered: NonNegative = 0.025


def _by_kind(default: str | None) -> BeforeValidator:
    """Accept `sgd` for `{kind: sgd}`, and fill in the default kind."""

    def fill(value: object) -> object:
        if isinstance(value, str):
            return {"kind": value}
        if isinstance(value, dict) and "kind" not in value and default is not None:
            return {"kind": default, **value}
        return value

    return BeforeValidator(fill)


# A union over `kind` grows by one member per architecture, data set or optimizer.
ImageSetTask = DigitsTask | ImageNetTask | Cifar10Task | Cifar100Task
CorpusTask = PydocTask | TextTask
ModelSpec = Annotated[VitSpec | EncDecSpec, Field(discriminator="kind"), _by_kind("vit")]
TaskSpec = Annotated[ImageSetTask | CorpusTask, Field(discriminator="kind"), _by_kind(None)]
OptimizerSpec = Annotated[AdamWSpec | SgdSpec, Field(discriminator="kind"), _by_kind("adamw")]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]


class Recipe(Frozen):
    """What all runs of a family train: model, task and everything but strategy, lr, wd and seed."""

    model: ModelSpec
    task: TaskSpec
    optimizer: OptimizerSpec = AdamWSpec()
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
    def run_id(self) -> str:
        """Return 12 hex digits that name the run and its folder."""
        return digest(self._identity() | point_identity(self.lr, self.wd) | {"seed": self.seed})

    @property
    def family_id(self) -> str:
        """Return 12 hex digits shared by all runs that differ only in lr, wd and seed."""
        return digest(self._identity())

    def _identity(self) -> dict[str, object]:
        return {k: v for k, v in identity(self).items() if k not in ("lr", "wd", "seed")}

    def at(self, lr: float, wd: float, seed: int) -> "RunSpec":
        """Return the run of the same family at another point and seed."""
        return self.model_copy(update={"lr": lr, "wd": wd, "seed": seed})


def log2(value: float) -> float | None:
    """Return log2 rounded as ids and tables hold it, and None for 0."""
    return round(math.log2(value), LOG2_DIGITS) + 0.0 if value > 0 else None


def point_identity(lr: float, wd: float) -> dict[str, object]:
    """Return how a point (lr, wd) enters an id."""
    return {"log2_lr": log2(lr), "log2_wd": log2(wd)}
