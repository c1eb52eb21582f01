"""What check functions of all models of text share: random tokens, the loss, and exact properties.

Shapes: B batch, T tokens, K outputs of one position, the vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ettsweep.theory.forward_pass import rms
from ettsweep.theory.measurement import LayerCheck
from ettsweep.theory.probe import SAMPLES, LayerMeasurement
from ettsweep.token_ids import FIRST_BPE, PAD
from ettsweep.trainer.specs import TextModel
from ettsweep.trainer.tasks.task import Batch

TOKENS = 8
VOCABULARY = 2048


class _Copied(TextModel, Protocol):
    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self: ...


AnyTextModel = TypeVar("AnyTextModel", bound=_Copied)


def small_model(model: AnyTextModel, depth: int) -> AnyTextModel:
    """Return the model with few tokens, a small vocabulary and no dropout; width, heads and M stay."""
    return model.model_copy(
        update={
            "depth": depth,
            "tokens": min(model.tokens, TOKENS),
            "vocabulary": min(model.vocabulary, VOCABULARY),
            "dropout": 0.0,
            "attention_dropout": 0.0,
        }
    )


def about_texts(model: TextModel) -> str:
    """Return which texts a check draws, for people."""
    return f"{SAMPLES} texts of {model.tokens} tokens of a vocabulary of {model.vocabulary}"


def draw_tokens(model: TextModel, generator: torch.Generator, *, texts: int) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return that many texts to read and the targets, (B, T) each, and all tokens that are not read, (K,).

    Tokens repeat within a text, and targets are disjoint from the tokens that are read.
    """
    # No special tokens: predicted kernels are those of texts without [pad].
    order = FIRST_BPE + torch.randperm(model.vocabulary - FIRST_BPE, generator=generator)
    # A third of the vocabulary is read, a third predicted; the rest takes part in neither.
    token_count = min(2 * model.tokens, len(order) // 3)
    read_K, trained_K = order[:token_count], order[token_count : 2 * token_count]

    def draw(token_ids_K: Tensor) -> Tensor:
        return token_ids_K[torch.randint(len(token_ids_K), (SAMPLES, model.tokens), generator=generator)]

    return (*(draw(read_K) for _ in range(texts)), draw(trained_K)), order[token_count:]


def mean_loss(summed: Tensor, batch: Batch) -> Tensor:
    """Return the mean loss per token; the network returns the sum."""
    return summed / batch.targets.numel()


def pad_row(embedding: Tensor) -> LayerMeasurement:
    """Measure the rms of the embedding of [pad], relative to that of the other tokens."""
    others = torch.cat((embedding[:PAD], embedding[PAD + 1 :]))
    return LayerCheck.PAD_ROW, "we", rms(embedding[PAD]) / rms(others)


def loss_ratio(network: Any, read: tuple[Tensor, ...], target_BT: Tensor) -> LayerMeasurement:
    """Measure the loss of a forward pass relative to the cross-entropy of the logits, for targets that end in [pad]."""
    padded_BT = torch.cat((target_BT[:, :-1], torch.full_like(target_BT[:, -1:], PAD)), 1)
    logits_BTK = network.logits(*read).double()
    cross_entropy = F.cross_entropy(logits_BTK.flatten(0, 1), padded_BT.flatten(), ignore_index=PAD, reduction="sum")
    return LayerCheck.LOSS, "forward", (network(*read, padded_BT) / cross_entropy).item()


def later_token_change(
    logits: Callable[[Tensor], Tensor], previous_BT: Tensor, target_BT: Tensor, location: str
) -> Iterator[LayerMeasurement]:
    """Yield the effect of the last token on earlier outputs, which must be 0; a single token has no earlier ones."""
    if previous_BT.shape[1] > 1:
        other_BT = torch.cat((previous_BT[:, :-1], target_BT[:, -1:]), 1)  # a token that no position reads yet
        moved_BTK = logits(other_BT) - logits(previous_BT)
        yield LayerCheck.CAUSALITY, location, rms(moved_BTK[:, :-1]) / rms(moved_BTK[:, -1])
