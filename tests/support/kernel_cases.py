"""Families of small models that differ in their width, what they are called with, and what is predicted for them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from ettsweep.strategies.factors import Group, init_std
from ettsweep.theory import kernels
from ettsweep.theory.kernels import Kernels, encdec_kernels, gpt_kernels, vit_kernels
from ettsweep.trainer.models.encdec_spec import EncDecSpec
from ettsweep.trainer.models.gpt_spec import GptSpec
from ettsweep.trainer.models.registry import dims
from ettsweep.trainer.models.vit_spec import VitSpec
from ettsweep.trainer.specs import ModelSpec
from support.deviations import Array
from support.ensembles import Ensemble, Inputs, Pass, array, drawn, kernel

HEADS = 4
N_PATCH = 6
"""Numbers of a patch, which is one pixel: an image of 2 x 2 pixels has four tokens."""
CLASSES = 32
OUTPUTS = 4
"""Components of the logits that tangent kernels are averaged over."""

SOURCE = torch.tensor([[5, 6, 7], [5, 8, 8]])
PREVIOUS = torch.tensor([[9, 6], [11, 9]])
UNREAD = list(range(12, 40))
"""The tokens of the vocabulary that neither the encoder nor the decoder reads."""


def patches(tokens: int = 4) -> Array:
    """Return patches of two samples, (2, T, N_PATCH), correlated between tokens and between samples."""
    generator = torch.Generator().manual_seed(0)
    of_all, of_token, own_part = (torch.randn(b, t, N_PATCH, generator=generator) for b, t in ((1, 1), (1, 4), (2, 4)))
    return array((0.7 * of_all + 0.7 * of_token + 0.5 * own_part)[:, :tokens])


def images(patches_BTX: Array) -> Inputs:
    B, T, X = patches_BTX.shape
    side = math.isqrt(T)
    return (torch.tensor(patches_BTX, dtype=torch.float32).mT.reshape(B, X, side, side),)


def input_kernel(patches_BTX: Array) -> Array:
    flat_PX = patches_BTX.reshape(-1, patches_BTX.shape[-1])
    product: Array = flat_PX @ flat_PX.T / patches_BTX.shape[-1]
    return product


def vit(width: int, tokens: int = 4, depth: int = 1, ln_eps: float = 1e-6) -> VitSpec:
    sizes = {"patch_size": 1, "image_size": math.isqrt(tokens), "channels": N_PATCH, "classes": CLASSES}
    return VitSpec(width=width, depth=depth, heads=HEADS, ln_eps=ln_eps, **sizes)


def encdec(width: int, tokens: int = 4) -> EncDecSpec:
    sizes = {"depth": 1, "vocabulary": UNREAD[-1] + 1, "tokens": tokens}
    return EncDecSpec(width=width, heads=HEADS, dropout=0.0, attention_dropout=0.0, **sizes)


def gpt(width: int, head: Literal["tied", "untied"] = "tied", tokens: int = 4) -> GptSpec:
    sizes = {"depth": 1, "vocabulary": UNREAD[-1] + 1, "tokens": tokens}
    return GptSpec(width=width, heads=HEADS, head=head, **sizes)


def same_position(samples: int, tokens: int) -> Array:
    return np.tile(np.eye(tokens), (samples, samples))


@dataclass(frozen=True)
class Kind:
    """An architecture of small models.

    Attributes:
        spec: (width, depth) -> a model.
        inputs: what it is called with.
        words: tokens that are embedded at each stem of a model of text, by the stem's stage.
        head: parameter that makes its outputs.
    """

    spec: Callable[[int, int], ModelSpec]
    inputs: Inputs
    words: Mapping[str, Tensor]
    head: str = "we"


def predicted_kernels(model: ModelSpec, s: float | None, draws: int) -> Kernels:
    """Return what is predicted for the inputs of a kind."""
    if isinstance(model, VitSpec):
        return vit_kernels(model, dims(model), s, input_kernel(patches()), 2, draws=draws)
    if isinstance(model, EncDecSpec):
        return encdec_kernels(model, dims(model), s, SOURCE.numpy(), PREVIOUS.numpy(), draws=draws)
    assert isinstance(model, GptSpec)
    return gpt_kernels(model, dims(model), s, SOURCE.numpy(), draws=draws)


WORDS = {"encoder.words": SOURCE, "decoder.words": PREVIOUS}

KINDS = {
    "vit": Kind(lambda width, depth: vit(width, depth=depth), images(patches()), {}, "head"),
    "encdec": Kind(lambda width, depth: encdec(width), (SOURCE, PREVIOUS), WORDS),
    "gpt": Kind(lambda width, depth: gpt(width), (SOURCE,), {"stem": SOURCE}),
    "untied gpt": Kind(lambda width, depth: gpt(width, "untied"), (SOURCE,), {"stem": SOURCE}, "head"),
}


@dataclass(frozen=True)
class Case:
    """Models that differ in their width alone.

    Attributes:
        kind: of the models, in `KINDS`.
        s: the strategy's.
        networks: how many are drawn, by width.
        depth: blocks of a Vision Transformer; models of text have one.
        variances: C_G that some groups have instead of the package's.
        draws: samples of attention for predictions, so many that their errors are below those of measurements.
        resolution: largest standard error of a limit; 3.5 of them would be seen.
        signal: groups whose mean tangent kernel is far enough from its limit for the power of n to be fitted.
    """

    kind: str
    s: float | None
    networks: dict[int, int]
    depth: int = 1
    variances: dict[Group, float] = field(default_factory=dict)
    draws: int = 1024
    resolution: float = math.inf
    signal: tuple[Group, ...] = ()

    @property
    def language(self) -> bool:
        return bool(KINDS[self.kind].words)

    def spec(self, width: int) -> ModelSpec:
        return KINDS[self.kind].spec(width, self.depth)

    @property
    def inputs(self) -> Inputs:
        return KINDS[self.kind].inputs

    @property
    def read(self) -> Tensor:
        """Tokens that outputs are made at, and whose embeddings a tied head has, (B, T)."""
        return self.inputs[-1]

    @property
    def outputs(self) -> list[int]:
        """Components of the logits that do not depend on the tokens that are read."""
        return UNREAD if self.language else list(range(CLASSES))

    def predicted(self, width: int) -> Kernels:
        spec, package = self.spec(width), kernels.group_variances
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernels, "group_variances", lambda dims, s: package(dims, s) | self.variances)
            return predicted_kernels(spec, self.s, self.draws)

    def ensemble(self, width: int) -> Ensemble:
        spec = self.spec(width)
        # Seeds of their own at each width: the first values that a seed draws are the same at all of them.
        ensemble = drawn(spec, self.s, self.networks[width], first_seed=1000 * width)
        for group, values in ensemble.parts():
            if group in self.variances:
                fan_in = width * (spec.mlp_ratio if group is Group.X else 1)
                values *= math.sqrt(self.variances[group] / fan_in) / init_std(group, dims(spec), self.s)
        return ensemble

    def controls(self, ensemble: Ensemble, observed: Pass) -> Array:
        """Return what networks differ in most, (N, Y), less its mean: the stems' kernels, the sizes of head vectors."""
        if not self.language:
            stem_PP = input_kernel(patches()) + 0.02**2 * same_position(2, 4)
            size = (ensemble.values["head"] ** 2).sum(-1) * ensemble.spec.width ** (self.s or 0.0) - 1
            return np.concatenate((upper(kernel(observed.streams["stem"]) - stem_PP), array(size[:, :OUTPUTS])), 1)
        variance = 0.02**2 if self.s is None else 1.0
        head, of_head = KINDS[self.kind].head, variance
        if head == "head":
            of_head = init_std(Group.HEAD, dims(ensemble.spec), self.s) ** 2
        size = (ensemble.values[head][:, UNREAD] ** 2).mean(-1) / of_head - 1
        values = [array(size[:, :OUTPUTS])]
        for name, ids in KINDS[self.kind].words.items():
            same_word = np.equal.outer(ids.flatten(), ids.flatten())
            words_PP = variance * same_word + 0.02**2 * same_position(*ids.shape)
            values.append(upper(kernel(observed.streams[name]) - words_PP) / variance)
        return np.concatenate(values, 1)


def upper(kernels_NPP: Array) -> Array:
    rows, columns = np.triu_indices(kernels_NPP.shape[-1])
    return kernels_NPP[:, rows, columns]
