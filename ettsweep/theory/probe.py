"""The small models and batches that `check-scaling` trains and measures, and the exact properties of layers."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pkgutil import resolve_name
from typing import Any, Self

import torch
from torch import Tensor

from ettsweep.errors import InputError
from ettsweep.seeding import derive_seed
from ettsweep.theory.kernels import Kernels
from ettsweep.trainer.models.registry import architecture
from ettsweep.trainer.specs import ModelSpec
from ettsweep.trainer.tasks.task import Batch

SAMPLES = 4
"""Samples of a batch; `measure.SAMPLE_SIGNS` has a column for each."""


class LayerCheck(StrEnum):
    """A property of a layer, or of all of them, that holds at every width, exactly but for rounding.

    Values are the names of rows in tables and check.json. Rounding uses up a tenth of the tolerance at most. The
    smallest faults that must show: a norm that keeps the mean leaves about 1/sqrt(n); the tanh GELU differs by 2e-4 at
    the variance 2/5 of image models' preactivations, and by 3e-6 in text models of width 16.

    Attributes:
        words: for people.
        exact: the right value.
        tolerance: largest distance of a measured value from it.
    """

    words: str
    exact: float
    tolerance: float

    def __new__(cls, name: str, words: str, exact: float, tolerance: float) -> Self:
        """Make a member from its row below."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.words, member.exact, member.tolerance = words, exact, tolerance
        return member

    MEAN = "mean after LayerNorm", "the mean of tokens after LayerNorm, relative to their rms,", 0.0, 1e-4
    VARIANCE = "variance after LayerNorm", "the variance of tokens after LayerNorm, over what it should be,", 1.0, 1e-4
    LAYER_NORM_EPS = "eps of LayerNorm", "the eps of LayerNorm, over the model's,", 1.0, 1e-4
    WEIGHT = "weight", "the weight in the residual stream", 1.0, 1e-4
    BLOCK_REMAINDER = (
        "rest of a block",
        "the part of the residual stream that input and branches do not explain",
        0.0,
        1e-4,
    )
    LOGITS = "scale of logits", "the scale of the logits, over 1/sqrt(C),", 1.0, 1e-3
    ATTENTION_REMAINDER = (
        "rest of attention",
        "the part of attention's output that masked softmax does not explain",
        0.0,
        1e-4,
    )
    ACTIVATION = "activation", "the difference from the GELU, relative to it,", 0.0, 1e-6
    CAUSALITY = "later token", "the change of outputs by a later token, relative to its own,", 0.0, 1e-5
    PADDING = "padding", "the change of outputs by [pad] after the source, relative to them,", 0.0, 1e-5
    PAD_ROW = "[pad] row", "the initial rms of the [pad] row, over that of the other rows,", 0.0, 0.0
    LOSS = "loss", "the loss, over the cross-entropy of the logits,", 1.0, 1e-5
    OPTIMIZER_EPS = "eps of the optimizer", "the eps of the optimizer, over the one that it is given,", 1.0, 1e-4
    GRADIENT = "gradient", "the share of networks in which a gradient arrives", 1.0, 0.0

    def is_right(self, value: float) -> bool:
        """Return True if a measured value is exact up to rounding; False for nan."""
        return abs(value - self.exact) <= self.tolerance


LayerMeasurement = tuple[LayerCheck, str, float]
"""Property, location in the network, and measured value."""

DRAWS = 64
"""Samples of each attention for predictions: enough for errors far below those of the measurements."""


@dataclass(frozen=True)
class Probe:
    """The batch for all training steps and all measurements of one model.

    Attributes:
        model: the model it fits.
        batch: `SAMPLES` samples.
        unread_K: outputs whose kernels are compared with theory. With a tied head, only tokens that no position reads,
            since the others have a contact term.
        trained_K: outputs whose change in training is compared with theory: labels or target tokens. The other outputs
            change only indirectly, by an amount that falls with the width.
        read_BT: token that the decoder reads at each position; None unless the head is tied.
    """

    model: ModelSpec
    batch: Batch
    unread_K: Tensor
    trained_K: Tensor
    read_BT: Tensor | None = None


@dataclass(frozen=True)
class Checkable:
    """The functions that a check needs for one architecture; `Architecture.check` names it.

    A model has a field `ln_eps`. Stacks of blocks are `nn.ModuleList`s of the network itself, whose blocks have their
    branches as children, in the order in which they are called: parameters are named `stack.number.branch.weight`, and
    stages of `kernels` after stack, number and branch. In stages, the number is that of the call.

    Attributes:
        small: (model, depth) -> the model with few tokens and no dropout, and with that depth unless None.
        about: model -> its depth and samples in words, such as `2 blocks, 4 images of 4 patches`.
        probe: (model, generator) -> a random batch.
        logits: (network, inputs) -> (B, K), or (B, T, K) for text.
        loss: (output of the network in training, batch) -> mean loss.
        kernels: (models that differ only in width, s, batch) -> predicted kernels of each.
        stems: (network, batch) -> inputs of the stems' LayerNorms by stage; empty if stems have none.
        properties: (network, batch) -> exact properties that only models of this architecture have.
        is_causal: name of an attention -> whether its tokens attend only to themselves and earlier ones.
    """

    small: Callable[[Any, int | None], ModelSpec]
    about: Callable[[Any], str]
    probe: Callable[[Any, torch.Generator], Probe]
    logits: Callable[[Any, tuple[Tensor, ...]], Tensor]
    loss: Callable[[Tensor, Batch], Tensor]
    kernels: Callable[[Sequence[Any], float | None, Batch], list[Kernels]]
    stems: Callable[[Any, Batch], dict[str, Tensor]] = lambda network, batch: {}
    properties: Callable[[Any, Batch], Iterable[LayerMeasurement]] = lambda network, batch: ()
    is_causal: Callable[[str], bool] = lambda attention: False


def load_checkable(model: ModelSpec) -> Checkable:
    """Import the check functions of a model's architecture.

    Raises:
        InputError: the architecture cannot be checked.
    """
    name = architecture(model).check
    if name is None:
        raise InputError(f"check-scaling does not support {model.kind} models: there is no theory for them")
    entry: Checkable = resolve_name(name)
    return entry


def small_model(model: ModelSpec, depth: int | None) -> ModelSpec:
    """Return the model with few tokens and no dropout, and with that depth unless None."""
    return load_checkable(model).small(model, depth)


def make_probe(model: ModelSpec) -> Probe:
    """Return a random batch for a model, the same for models that differ only in width."""
    # A constant seed: networks of all seeds see the same batch, which predictions are computed for.
    return load_checkable(model).probe(model, torch.Generator().manual_seed(derive_seed(0, "check-scaling")))
