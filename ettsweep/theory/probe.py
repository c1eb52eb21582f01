"""What a scaling is checked on: a model of some width with few tokens, and one small batch for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor

from ettsweep.errors import InputError
from ettsweep.runs.spec import ModelSpec
from ettsweep.seeding import derive_seed
from ettsweep.theory.kernels import Kernels
from ettsweep.theory.measurement import Layer
from ettsweep.trainer.models.registry import architecture
from ettsweep.trainer.tasks.task import Batch

SAMPLES = 4

Found = tuple[Layer, str, float]
"""What a layer was asked, the place that answers, and the number."""

DRAWS = 64
"""Samples of each attention for the predictions: their errors are then far below those of the measurements."""


@dataclass(frozen=True)
class Probe:
    """A batch, the same in all steps of training and for all that is measured.

    Attributes:
        model: what it is for.
        batch: of SAMPLES samples.
        quiet_K: outputs whose kernels are compared with theory; of a tied head, the tokens that nobody reads: the
            others have a contact term.
        trained_K: outputs that the batch trains, whose change is compared with theory: the labels or target tokens. In
            all others there is only what these do to them, which falls with the width.
        read_BT: of a tied head, the tokens that the outputs are made from, one for each position.
    """

    model: ModelSpec
    batch: Batch
    quiet_K: Tensor
    trained_K: Tensor
    read_BT: Tensor | None = None


@dataclass(frozen=True)
class Checkable:
    """What a check must know of an architecture: its entry's `check`.

    Functions are given a model, unless another argument is named.

    Attributes:
        small: returns it with few tokens, without dropout, and of another depth if one is given.
        about: says how deep it is and what a sample is: `2 blocks, 4 images of 4 patches`.
        probe: returns a batch that a given generator draws.
        logits: of a network, given its inputs: (B, K), or (B, T, K) for text.
        loss: the mean over a batch, given what the network returns in training.
        kernels: of several models that differ in width alone, given s and the batch.
        ln_eps: of its LayerNorms.
        stems: of a network, what the LayerNorms of its stems are given, by stage; none if stems have none.
        leaks: of a network, how its outputs change with what they must not depend on.
    """

    small: Callable[[Any, int | None], ModelSpec]
    about: Callable[[Any], str]
    probe: Callable[[Any, torch.Generator], Probe]
    logits: Callable[[Any, tuple[Tensor, ...]], Tensor]
    loss: Callable[[Tensor, Batch], Tensor]
    kernels: Callable[[Sequence[Any], float | None, Batch], list[Kernels]]
    ln_eps: Callable[[Any], float]
    stems: Callable[[Any, Batch], dict[str, Tensor]] = lambda network, batch: {}
    leaks: Callable[[Any, Batch], list[Found]] = lambda network, batch: []


def checkable(model: ModelSpec) -> Checkable:
    """Return what there is to know of a model's architecture.

    Raises:
        InputError: its entry says nothing.
    """
    name = architecture(model).check
    if name is None:
        raise InputError(f"check-scaling knows no theory of {model.kind} models")
    entry: Checkable = resolve_name(name)
    return entry


def small_model(model: ModelSpec, depth: int | None) -> ModelSpec:
    """Return the model with few tokens and without dropout, of another depth if one is given."""
    return checkable(model).small(model, depth)


def make_probe(model: ModelSpec) -> Probe:
    """Return a batch for a model; for models that differ in width alone, the same one."""
    return checkable(model).probe(model, torch.Generator().manual_seed(derive_seed(0, "check-scaling")))
