"""What a scaling is checked on: a model of some width with few tokens, and one small batch for it.

B batch, T tokens, C channels, R rows and columns of patches, K outputs of one position.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ettsweep.seeding import derive_seed
from ettsweep.spec import EncDecSpec, ModelSpec, VitSpec
from ettsweep.tasks.base import Batch
from ettsweep.vocabulary import FIRST_BPE

SAMPLES = 4
PATCHES_A_SIDE, TEXT_TOKENS = 3, 8
VOCABULARY = 2048
ENCDEC_DEPTH = 4
"""Blocks of encoder and decoder, unless --depth says otherwise."""


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
    """

    model: ModelSpec
    batch: Batch
    quiet_K: Tensor
    trained_K: Tensor


def small_model(model: ModelSpec, depth: int | None) -> ModelSpec:
    """Return the model with few tokens and without dropout, of another depth if one is given.

    Width, heads, M, patch size and classes stay. Text has a small vocabulary.
    """
    if isinstance(model, VitSpec):
        side = min(model.image_size // model.patch_size, PATCHES_A_SIDE)
        return model.model_copy(update={"depth": depth or model.depth, "image_size": side * model.patch_size})
    assert isinstance(model, EncDecSpec)
    return model.model_copy(
        update={
            "depth": depth or min(model.depth, ENCDEC_DEPTH),
            "tokens": min(model.tokens, TEXT_TOKENS),
            "vocabulary": min(model.vocabulary, VOCABULARY),
            "dropout": 0.0,
            "attention_dropout": 0.0,
        }
    )


def make_probe(model: ModelSpec) -> Probe:
    """Return a batch for a model; for models that differ in width alone, the same one."""
    generator = torch.Generator().manual_seed(derive_seed(0, "check-scaling"))
    if isinstance(model, EncDecSpec):
        return _text(model, generator)
    assert isinstance(model, VitSpec)
    return _images(model, generator)


def _images(model: VitSpec, generator: torch.Generator) -> Probe:
    """Return images that are alike in part: what all patches share, those of a place, those of an image, and noise."""
    side, size = model.image_size // model.patch_size, model.patch_size
    images_BCRHRW = torch.zeros(SAMPLES, model.channels, side, size, side, size)
    for samples, places in ((1, 1), (1, side), (SAMPLES, 1), (SAMPLES, side)):
        shape = (samples, model.channels, places, size, places, size)
        images_BCRHRW += torch.randn(shape, generator=generator) / 2
    images_BCHW = images_BCRHRW.reshape(SAMPLES, model.channels, model.image_size, model.image_size)
    labels_B = torch.randint(model.classes, (SAMPLES,), generator=generator)
    return Probe(model, Batch((images_BCHW,), labels_B), torch.arange(model.classes), torch.unique(labels_B))


def _text(model: EncDecSpec, generator: torch.Generator) -> Probe:
    """Return random tokens, some of them several times; what is to be predicted is never read."""
    order = FIRST_BPE + torch.randperm(model.vocabulary - FIRST_BPE, generator=generator)
    words = min(2 * model.tokens, len(order) // 3)
    read_K, trained_K = order[:words], order[words : 2 * words]

    def draw(words_K: Tensor) -> Tensor:
        return words_K[torch.randint(len(words_K), (SAMPLES, model.tokens), generator=generator)]

    source_BT, previous_BT, target_BT = draw(read_K), draw(read_K), draw(trained_K)
    return Probe(model, Batch((source_BT, previous_BT, target_BT), target_BT), order[words:], torch.unique(target_BT))
