"""Check functions for decoder-only Transformers of any architecture.

Shapes: B batch, T tokens, K outputs of one position, the vocabulary.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ettsweep.console import format_count
from ettsweep.theory.kernels import Kernels, gpt_kernels
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
from ettsweep.trainer.models.registry import dims
from ettsweep.trainer.specs import ModelSpec
from ettsweep.trainer.tasks.task import Batch

DEPTH = 8
"""Blocks, unless --depth is given."""


class Decoder(Protocol):
    """The module of a decoder: its word embedding, and the logits of all tokens, (B, T, V)."""

    we: nn.Parameter

    def logits(self, previous_BT: Tensor) -> Tensor: ...


def _small(model: Any, depth: int | None) -> ModelSpec:
    small: ModelSpec = small_model(model, depth or min(model.depth, DEPTH))
    return small


def _about(model: Any) -> str:
    return f"{format_count(model.depth, 'block')}, {about_texts(model)}"


def _probe(model: Any, generator: torch.Generator) -> Probe:
    """Draw random tokens. Tokens repeat within a text, and targets are disjoint from the tokens that are read."""
    (previous_BT, target_BT), unread_K = draw_tokens(model, generator, texts=1)
    read_BT = previous_BT if dims(model).tied_head else None
    return Probe(model, Batch((previous_BT, target_BT), target_BT), unread_K, torch.unique(target_BT), read_BT)


def _logits(network: Decoder, inputs: tuple[Tensor, ...]) -> Tensor:
    return network.logits(inputs[0])


def _kernels(models: Sequence[Any], s: float | None, batch: Batch) -> list[Kernels]:
    """Return the kernels of each model's plain twin; a recursion for each, since C_G depend on the width."""
    previous_BT = batch.inputs[0].numpy()
    return [gpt_kernels(model, dims(model), s, previous_BT, draws=DRAWS) for model in models]


def _properties(network: Decoder, batch: Batch) -> list[LayerMeasurement]:
    """Measure the embedding of [pad], the loss, and what outputs must not depend on."""
    previous_BT, target_BT = batch.inputs
    return [
        pad_row(network.we),
        loss_ratio(network, (previous_BT,), target_BT),
        *later_token_change(network.logits, previous_BT, target_BT, "blocks"),
    ]


CHECKABLE = Checkable(
    _small, _about, _probe, _logits, mean_loss, _kernels, properties=_properties, is_causal=lambda _: True
)
