"""Check functions for encoder-decoders.

Shapes: B batch, T tokens, K outputs of one position, the vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ettsweep.theory.forward_pass import rms
from ettsweep.theory.kernels import Kernels, encdec_kernels
from ettsweep.theory.measurement import LayerCheck
from ettsweep.theory.probe import DRAWS, SAMPLES, Checkable, LayerMeasurement, Probe
from ettsweep.token_ids import FIRST_BPE, PAD
from ettsweep.trainer.models.encdec import EncDec
from ettsweep.trainer.models.encdec_spec import EncDecSpec, dims
from ettsweep.trainer.tasks.task import Batch

TOKENS = 8
VOCABULARY = 2048
DEPTH = 4
"""Blocks of encoder and of decoder, unless --depth is given."""


def _small(model: EncDecSpec, depth: int | None) -> EncDecSpec:
    """Return the model with few tokens, a small vocabulary and no dropout; width, heads and M stay."""
    return model.model_copy(
        update={
            "depth": depth or min(model.depth, DEPTH),
            "tokens": min(model.tokens, TOKENS),
            "vocabulary": min(model.vocabulary, VOCABULARY),
            "dropout": 0.0,
            "attention_dropout": 0.0,
        }
    )


def _about(model: EncDecSpec) -> str:
    texts = f"{SAMPLES} texts of {model.tokens} tokens of a vocabulary of {model.vocabulary}"
    return f"{model.depth} + {model.depth} blocks, {texts}"


def _probe(model: EncDecSpec, generator: torch.Generator) -> Probe:
    """Draw random tokens. Tokens repeat within a text, and targets are disjoint from the tokens that are read."""
    # No special tokens: predicted kernels are those of texts without [pad].
    order = FIRST_BPE + torch.randperm(model.vocabulary - FIRST_BPE, generator=generator)
    # A third of the vocabulary is read, a third predicted; the rest takes part in neither.
    token_count = min(2 * model.tokens, len(order) // 3)
    read_K, trained_K = order[:token_count], order[token_count : 2 * token_count]

    def draw(token_ids_K: Tensor) -> Tensor:
        return token_ids_K[torch.randint(len(token_ids_K), (SAMPLES, model.tokens), generator=generator)]

    source_BT, previous_BT, target_BT = draw(read_K), draw(read_K), draw(trained_K)
    batch = Batch((source_BT, previous_BT, target_BT), target_BT)
    return Probe(model, batch, order[token_count:], torch.unique(target_BT), previous_BT)


def _logits(network: EncDec, inputs: tuple[Tensor, ...]) -> Tensor:
    source_BT, previous_BT, _ = inputs
    return network.logits(source_BT, previous_BT)


def _loss(summed: Tensor, batch: Batch) -> Tensor:
    """Return the mean loss per token; the network returns the sum."""
    return summed / batch.targets.numel()


def _kernels(models: Sequence[EncDecSpec], s: float | None, batch: Batch) -> list[Kernels]:
    """Return the kernels of each model; a recursion for each, since C_G depend on the width."""
    source_BT, previous_BT, _ = (tokens.numpy() for tokens in batch.inputs)
    return [encdec_kernels(model, dims(model), s, source_BT, previous_BT, draws=DRAWS) for model in models]


def _ln_eps(model: EncDecSpec) -> float:
    return model.ln_eps


def _stems(network: EncDec, batch: Batch) -> dict[str, Tensor]:
    """Return the embedded tokens before LayerNorm by stage, (B, T, D)."""
    source_BT, previous_BT, _ = batch.inputs
    encoder_BTD = network.we[source_BT] + network.encoder_pe
    return {"encoder.stem": encoder_BTD, "decoder.stem": network.we[previous_BT] + network.decoder_pe}


def _properties(network: EncDec, batch: Batch) -> list[LayerMeasurement]:
    """Measure the embedding of [pad], the loss, and what outputs must not depend on."""
    others = torch.cat((network.we[:PAD], network.we[PAD + 1 :]))
    return [
        (LayerCheck.PAD_ROW, "we", rms(network.we[PAD]) / rms(others)),
        (LayerCheck.LOSS, "forward", _loss_ratio(network, batch)),
        *_leaks(network, batch),
    ]


def _loss_ratio(network: EncDec, batch: Batch) -> float:
    """Return the loss of a forward pass relative to the cross-entropy of the logits, for targets that end in [pad]."""
    source_BT, previous_BT, target_BT = batch.inputs
    padded_BT = torch.cat((target_BT[:, :-1], torch.full_like(target_BT[:, -1:], PAD)), 1)
    logits_BTK = network.logits(source_BT, previous_BT).double()
    cross_entropy = F.cross_entropy(logits_BTK.flatten(0, 1), padded_BT.flatten(), ignore_index=PAD, reduction="sum")
    loss: Tensor = network(source_BT, previous_BT, padded_BT)
    return (loss / cross_entropy).item()


def _leaks(network: EncDec, batch: Batch) -> list[LayerMeasurement]:
    """Measure what must be 0: the effect of the decoder's last token on earlier outputs, and of [pad] in the source."""
    source_BT, previous_BT, target_BT = batch.inputs
    # A single token has no earlier outputs, and the source without it would be empty.
    if source_BT.shape[1] == 1:
        return []
    other_BT = torch.cat((previous_BT[:, :-1], target_BT[:, -1:]), 1)  # a token that no position reads yet
    moved_BTK = network.logits(source_BT, other_BT) - network.logits(source_BT, previous_BT)
    right_BTK = network.logits(source_BT[:, :-1], previous_BT)
    padded_BT = torch.cat((source_BT[:, :-1], torch.full_like(source_BT[:, -1:], PAD)), 1)
    padded_BTK = network.logits(padded_BT, previous_BT)
    return [
        (LayerCheck.CAUSALITY, "decoder", rms(moved_BTK[:, :-1]) / rms(moved_BTK[:, -1])),
        (LayerCheck.PADDING, "encoder and decoder", rms(padded_BTK - right_BTK) / rms(right_BTK)),
    ]


CHECKABLE = Checkable(_small, _about, _probe, _logits, _loss, _kernels, _ln_eps, _stems, _properties)
