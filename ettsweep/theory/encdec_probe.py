"""Check functions for encoder-decoders.

Shapes: B batch, T tokens, K outputs of one position, the vocabulary.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ettsweep.theory.forward_pass import rms
from ettsweep.theory.kernels import Kernels, encdec_kernels
from ettsweep.theory.measurement import LayerCheck
from ettsweep.theory.probe import DRAWS, Checkable, LayerMeasurement, Probe
from ettsweep.theory.text_probe import (
    about_texts,
    draw_tokens,
    later_token_change,
    loss_ratio,
    mean_loss,
    pad_row,
    small_model,
)
from ettsweep.token_ids import PAD
from ettsweep.trainer.models.encdec import EncDec
from ettsweep.trainer.models.encdec_spec import EncDecSpec, dims
from ettsweep.trainer.tasks.task import Batch

DEPTH = 4
"""Blocks of encoder and of decoder, unless --depth is given."""


def _small(model: EncDecSpec, depth: int | None) -> EncDecSpec:
    return small_model(model, depth or min(model.depth, DEPTH))


def _about(model: EncDecSpec) -> str:
    return f"{model.depth} + {model.depth} blocks, {about_texts(model)}"


def _probe(model: EncDecSpec, generator: torch.Generator) -> Probe:
    """Draw random tokens. Tokens repeat within a text, and targets are disjoint from the tokens that are read."""
    (source_BT, previous_BT, target_BT), unread_K = draw_tokens(model, generator, texts=2)
    batch = Batch((source_BT, previous_BT, target_BT), target_BT)
    return Probe(model, batch, unread_K, torch.unique(target_BT), previous_BT)


def _logits(network: EncDec, inputs: tuple[Tensor, ...]) -> Tensor:
    source_BT, previous_BT, _ = inputs
    return network.logits(source_BT, previous_BT)


def _kernels(models: Sequence[EncDecSpec], s: float | None, batch: Batch) -> list[Kernels]:
    """Return the kernels of each model; a recursion for each, since C_G depend on the width."""
    source_BT, previous_BT, _ = (tokens.numpy() for tokens in batch.inputs)
    return [encdec_kernels(model, dims(model), s, source_BT, previous_BT, draws=DRAWS) for model in models]


def _stems(network: EncDec, batch: Batch) -> dict[str, Tensor]:
    """Return the embedded tokens before LayerNorm by stage, (B, T, D)."""
    source_BT, previous_BT, _ = batch.inputs
    encoder_BTD = network.we[source_BT] + network.encoder_pe
    return {"encoder.stem": encoder_BTD, "decoder.stem": network.we[previous_BT] + network.decoder_pe}


def _properties(network: EncDec, batch: Batch) -> list[LayerMeasurement]:
    """Measure the embedding of [pad], the loss, and what outputs must not depend on."""
    source_BT, previous_BT, target_BT = batch.inputs
    return [
        pad_row(network.we),
        loss_ratio(network, (source_BT, previous_BT), target_BT),
        *later_token_change(partial(network.logits, source_BT), previous_BT, target_BT, "decoder"),
        *_padding_change(network, source_BT, previous_BT),
    ]


def _padding_change(network: EncDec, source_BT: Tensor, previous_BT: Tensor) -> list[LayerMeasurement]:
    """Measure the effect of [pad] in the source, which must be 0; without a single token the source would be empty."""
    if source_BT.shape[1] == 1:
        return []
    right_BTK = network.logits(source_BT[:, :-1], previous_BT)
    padded_BT = torch.cat((source_BT[:, :-1], torch.full_like(source_BT[:, -1:], PAD)), 1)
    padded_BTK = network.logits(padded_BT, previous_BT)
    return [(LayerCheck.PADDING, "encoder and decoder", rms(padded_BTK - right_BTK) / rms(right_BTK))]


def _is_causal(attention: str) -> bool:
    return attention.startswith("decoder") and attention.endswith(".attention")


CHECKABLE = Checkable(_small, _about, _probe, _logits, mean_loss, _kernels, _stems, _properties, _is_causal)
