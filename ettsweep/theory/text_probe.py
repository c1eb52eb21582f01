"""Check functions for models of text: encoder-decoders, and decoders of any architecture.

Shapes: B batch, T tokens, K outputs of one position, the vocabulary.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ettsweep.console import format_count
from ettsweep.theory.kernels import Kernels, encdec_kernels, gpt_kernels
from ettsweep.theory.layers import rms
from ettsweep.theory.probe import DRAWS, SAMPLES, Checkable, LayerCheck, LayerMeasurement, Probe
from ettsweep.token_ids import FIRST_BPE, PAD
from ettsweep.trainer.models.encdec import EncDec
from ettsweep.trainer.models.encdec_spec import EncDecSpec
from ettsweep.trainer.models.registry import dims
from ettsweep.trainer.tasks.task import Batch

TOKENS = 8
VOCABULARY = 2048


def _small(model: Any, depth: int | None, *, max_depth: int) -> Any:
    """Return the model with few tokens, a small vocabulary and no dropout; width, heads and M stay."""
    return model.model_copy(
        update={
            "depth": depth or min(model.depth, max_depth),
            "tokens": min(model.tokens, TOKENS),
            "vocabulary": min(model.vocabulary, VOCABULARY),
            "dropout": 0.0,
            "attention_dropout": 0.0,
        }
    )


def _about(model: Any, blocks: str) -> str:
    return f"{blocks}, {SAMPLES} texts of {model.tokens} tokens of a vocabulary of {model.vocabulary}"


def _probe(model: Any, generator: torch.Generator, *, texts: int) -> Probe:
    """Draw random texts to read, and targets.

    Tokens repeat within a text, and targets are disjoint from the tokens that are read.
    """
    # No special tokens: predicted kernels are those of texts without [pad].
    order = FIRST_BPE + torch.randperm(model.vocabulary - FIRST_BPE, generator=generator)
    # A third of the vocabulary is read, a third predicted; the rest takes part in neither.
    token_count = min(2 * model.tokens, len(order) // 3)
    read_K, trained_K = order[:token_count], order[token_count : 2 * token_count]

    def draw(token_ids_K: Tensor) -> Tensor:
        return token_ids_K[torch.randint(len(token_ids_K), (SAMPLES, model.tokens), generator=generator)]

    read, target_BT = [draw(read_K) for _ in range(texts)], draw(trained_K)
    read_BT = read[-1] if dims(model).tied_head else None
    batch = Batch((*read, target_BT), target_BT)
    return Probe(model, batch, order[token_count:], torch.unique(target_BT), read_BT)


def _mean_loss(summed: Tensor, batch: Batch) -> Tensor:
    """Return the mean loss per token; the network returns the sum."""
    return summed / batch.targets.numel()


def _logits(network: Any, inputs: tuple[Tensor, ...]) -> Tensor:
    logits_BTK: Tensor = network.logits(*inputs[:-1])  # the last are the targets
    return logits_BTK


# --- exact properties -------------------------------------------------------------------------------------------------


def _text_properties(network: Any, batch: Batch, decoder: str) -> Iterator[LayerMeasurement]:
    """Yield the embedding of [pad], the loss, and the effect of a later token on earlier outputs of `decoder`."""
    *source, previous_BT, target_BT = batch.inputs
    others = torch.cat((network.we[:PAD], network.we[PAD + 1 :]))
    yield LayerCheck.PAD_ROW, "we", rms(network.we[PAD]) / rms(others)
    # Targets that end in [pad], which the loss leaves out.
    padded_BT = torch.cat((target_BT[:, :-1], torch.full_like(target_BT[:, -1:], PAD)), 1)
    logits_BTK = network.logits(*source, previous_BT).double()
    cross_entropy = F.cross_entropy(logits_BTK.flatten(0, 1), padded_BT.flatten(), ignore_index=PAD, reduction="sum")
    yield LayerCheck.LOSS, "forward", (network(*source, previous_BT, padded_BT) / cross_entropy).item()
    if previous_BT.shape[1] > 1:  # a single token has no earlier ones
        other_BT = torch.cat((previous_BT[:, :-1], target_BT[:, -1:]), 1)  # a token that no position reads yet
        moved_BTK = network.logits(*source, other_BT) - network.logits(*source, previous_BT)
        yield LayerCheck.CAUSALITY, decoder, rms(moved_BTK[:, :-1]) / rms(moved_BTK[:, -1])


def _encdec_properties(network: EncDec, batch: Batch) -> Iterator[LayerMeasurement]:
    """Yield those of all texts, and the effect of [pad] in the source."""
    yield from _text_properties(network, batch, "decoder")
    source_BT, previous_BT, _ = batch.inputs
    if source_BT.shape[1] > 1:  # without a single token the source would be empty
        right_BTK = network.logits(source_BT[:, :-1], previous_BT)
        padded_BT = torch.cat((source_BT[:, :-1], torch.full_like(source_BT[:, -1:], PAD)), 1)
        padded_BTK = network.logits(padded_BT, previous_BT)
        yield LayerCheck.PADDING, "encoder and decoder", rms(padded_BTK - right_BTK) / rms(right_BTK)


def _stems(network: EncDec, batch: Batch) -> dict[str, Tensor]:
    """Return the embedded tokens before LayerNorm by stage, (B, T, D)."""
    source_BT, previous_BT, _ = batch.inputs
    encoder_BTD = network.we[source_BT] + network.encoder_pe
    return {"encoder.stem": encoder_BTD, "decoder.stem": network.we[previous_BT] + network.decoder_pe}


# --- architectures ----------------------------------------------------------------------------------------------------


def _encdec_kernels(models: Sequence[EncDecSpec], s: float | None, batch: Batch) -> list[Kernels]:
    """Return the kernels of each model; a recursion for each, since C_G depend on the width."""
    source_BT, previous_BT, _ = (tokens.numpy() for tokens in batch.inputs)
    return [encdec_kernels(model, dims(model), s, source_BT, previous_BT, draws=DRAWS) for model in models]


def _gpt_kernels(models: Sequence[Any], s: float | None, batch: Batch) -> list[Kernels]:
    """Return the kernels of each model's plain twin."""
    previous_BT = batch.inputs[0].numpy()
    return [gpt_kernels(model, dims(model), s, previous_BT, draws=DRAWS) for model in models]


ENCODER_DECODER = Checkable(
    small=partial(_small, max_depth=4),
    about=lambda model: _about(model, f"{model.depth} + {model.depth} blocks"),
    probe=partial(_probe, texts=2),
    logits=_logits,
    loss=_mean_loss,
    kernels=_encdec_kernels,
    stems=_stems,
    properties=_encdec_properties,
    is_causal=lambda attention: attention.startswith("decoder") and attention.endswith(".attention"),
)

DECODER = Checkable(
    small=partial(_small, max_depth=8),
    about=lambda model: _about(model, format_count(model.depth, "block")),
    probe=partial(_probe, texts=1),
    logits=_logits,
    loss=_mean_loss,
    kernels=_gpt_kernels,
    properties=partial(_text_properties, decoder="blocks"),
    is_causal=lambda attention: True,
)
