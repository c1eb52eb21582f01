"""Check functions for decoder-only Transformers.

Shapes: B batch, T tokens, K outputs of one position, the vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

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
from ettsweep.trainer.models.gpt import Gpt
from ettsweep.trainer.models.gpt_spec import GptSpec, dims
from ettsweep.trainer.tasks.task import Batch

DEPTH = 8
"""Blocks, unless --depth is given."""


def _small(model: GptSpec, depth: int | None) -> GptSpec:
    return small_model(model, depth or min(model.depth, DEPTH))


def _about(model: GptSpec) -> str:
    return f"{format_count(model.depth, 'block')}, {about_texts(model)}"


def _probe(model: GptSpec, generator: torch.Generator) -> Probe:
    """Draw random tokens. Tokens repeat within a text, and targets are disjoint from the tokens that are read."""
    (previous_BT, target_BT), unread_K = draw_tokens(model, generator, texts=1)
    read_BT = previous_BT if model.head == "tied" else None
    return Probe(model, Batch((previous_BT, target_BT), target_BT), unread_K, torch.unique(target_BT), read_BT)


def _logits(network: Gpt, inputs: tuple[Tensor, ...]) -> Tensor:
    return network.logits(inputs[0])


def _kernels(models: Sequence[GptSpec], s: float | None, batch: Batch) -> list[Kernels]:
    """Return the kernels of each model; a recursion for each, since C_G depend on the width."""
    previous_BT = batch.inputs[0].numpy()
    return [gpt_kernels(model, dims(model), s, previous_BT, draws=DRAWS) for model in models]


def _properties(network: Gpt, batch: Batch) -> list[LayerMeasurement]:
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
