"""Check functions for Vision Transformers.

Shapes: B batch, C channels, R rows and columns of patches, H and W height and width, P patches, X numbers of a patch, K
classes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ettsweep.console import format_count
from ettsweep.theory.kernels import Kernels, kernels_at_width, vit_kernels
from ettsweep.theory.probe import DRAWS, SAMPLES, Checkable, Probe
from ettsweep.trainer.models.vit import Vit, patchify
from ettsweep.trainer.models.vit_spec import VitSpec, dims, patches
from ettsweep.trainer.tasks.task import Batch, Classification

PATCHES_A_SIDE = 3
"""Patches along a side of the images that are checked: 9 tokens at most."""


def _small(model: VitSpec, depth: int | None) -> VitSpec:
    """Return the model with small images; width, heads, M, patch size and classes stay."""
    side = min(model.image_size // model.patch_size, PATCHES_A_SIDE)
    return model.model_copy(update={"depth": depth or model.depth, "image_size": side * model.patch_size})


def _about(model: VitSpec) -> str:
    return f"{format_count(model.depth, 'block')}, {SAMPLES} images of {patches(model)} patches"


def _probe(model: VitSpec, generator: torch.Generator) -> Probe:
    """Draw correlated images: a sum of noise shared by all patches, by position, by image, and by none.

    Correlations of all sizes make kernels between tokens and between samples sensitive to faults.
    """
    side, size = model.image_size // model.patch_size, model.patch_size
    images_BCRHRW = torch.zeros(SAMPLES, model.channels, side, size, side, size)
    for samples, positions in ((1, 1), (1, side), (SAMPLES, 1), (SAMPLES, side)):
        shape = (samples, model.channels, positions, size, positions, size)
        # Four terms of variance 1/4: pixels have variance 1.
        images_BCRHRW += torch.randn(shape, generator=generator) / 2
    images_BCHW = images_BCRHRW.reshape(SAMPLES, model.channels, model.image_size, model.image_size)
    labels_B = torch.randint(model.classes, (SAMPLES,), generator=generator)
    return Probe(model, Batch((images_BCHW,), labels_B), torch.arange(model.classes), torch.unique(labels_B))


def _logits(network: Vit, inputs: tuple[Tensor, ...]) -> Tensor:
    logits_BK: Tensor = network(*inputs)
    return logits_BK


def _kernels(models: Sequence[VitSpec], s: float | None, batch: Batch) -> list[Kernels]:
    """Return the kernels of each model; the recursion does not depend on the width and runs once."""
    *narrower, widest = models
    inputs_PX = patchify(batch.inputs[0], widest.patch_size).flatten(0, 1).double().numpy()
    inputs_PP = inputs_PX @ inputs_PX.T / inputs_PX.shape[1]
    kernels = vit_kernels(widest, dims(widest), s, inputs_PP, SAMPLES, draws=DRAWS)
    return [*(kernels_at_width(kernels, dims(model), s) for model in narrower), kernels]


CHECKABLE = Checkable(_small, _about, _probe, _logits, Classification(label_smoothing=0.0).loss, _kernels)
