"""Span denoising: a model reads what a corruption has left of a text, and writes the text.

B texts of a batch, S tokens of the source, T tokens of the target; a text alone has T tokens in S sentences.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ettsweep.errors import DataMissingError, InputError
from ettsweep.runs.spec import TextModel
from ettsweep.seeding import derive_seed
from ettsweep.token_ids import END, PAD, START, mask_id
from ettsweep.trainer.tasks.registry import bound
from ettsweep.trainer.tasks.task import Batch, BatchShare, LoaderSettings, global_batches, used
from ettsweep.trainer.tasks.text.corpus import Corpus, TextBlock, TextBlocks, open_corpus
from ettsweep.trainer.tasks.text.pydoc import pydoc_corpus
from ettsweep.trainer.tasks.text.text_data import text_folder
from ettsweep.trainer.tasks.text.text_task import DenoisingTask, PydocTask
from ettsweep.trainer.tasks.text.tokenizer import word_starts

Ids = NDArray[np.int64]

ENDS = 2
"""Tokens around each text: [start] and [end]."""

VALIDATION_SLICE = 32

KEPT = 2000
"""Validation texts of a process that are corrupted once and for all; more are made again for each evaluation."""


class Text(NamedTuple):
    """What is corrupted.

    Attributes:
        tokens_T: without [start] and [end].
        lengths_S: tokens of each sentence.
        starts_T: whether a token begins a word; the first of a sentence does.
    """

    tokens_T: Ids
    lengths_S: Ids
    starts_T: NDArray[np.bool_]


def with_words(block: TextBlock, corpus: Corpus) -> Text:
    starts_T = word_starts(block.tokens_T, corpus.leads_with_space, corpus.is_space)
    starts_T[np.cumsum(block.lengths_S)[:-1]] = True
    return Text(*block, starts_T)


def permuted(text: Text, rng: np.random.Generator) -> tuple[Ids, NDArray[np.bool_]]:
    """Return the tokens with their sentences in a random order, and which of them begin a word."""
    stops = np.cumsum(text.lengths_S)
    order = rng.permutation(len(stops))
    positions = np.concatenate([np.arange(stops[k] - text.lengths_S[k], stops[k]) for k in order])
    return text.tokens_T[positions], text.starts_T[positions]


def span_lengths(budget: int, mean: float, rng: np.random.Generator) -> Ids:
    """Draw lengths of spans, in words, until they sum to `budget`; the last is cut so that they do."""
    lengths: Ids = rng.poisson(mean, budget)
    while lengths.sum() < budget:
        lengths = np.concatenate([lengths, rng.poisson(mean, budget)])
    sums = np.cumsum(lengths)
    last = int(np.searchsorted(sums, budget))
    lengths = lengths[: last + 1].astype(np.int64)
    lengths[-1] -= sums[last] - budget
    return lengths


def infill(tokens: Ids, starts: NDArray[np.bool_], lengths: Ids, mask: int, rng: np.random.Generator) -> Ids:
    """Replace spans that begin at distinct random words by one mask each; `starts` says which tokens begin a word.

    Lengths are in words, each at least 1, and no more of them than words. Spans may overlap, and then a mask inside
    another span goes with it; none reaches beyond the end.
    """
    word_positions = np.flatnonzero(starts)
    word_indices = rng.permutation(len(word_positions))[: len(lengths)]
    first = word_positions[word_indices]
    stops = np.append(word_positions, len(tokens))[np.minimum(word_indices + lengths, len(word_positions))]
    inside = np.zeros(len(tokens) + 1, dtype=np.int64)
    np.add.at(inside, first + 1, 1)
    np.add.at(inside, stops, -1)
    masked: Ids = tokens.copy()
    masked[first] = mask
    infilled: Ids = masked[np.cumsum(inside[:-1]) == 0]
    return infilled


def insert(tokens: Ids, count: int, mask: int, rng: np.random.Generator) -> Ids:
    """Put `count` masks between the tokens, before the first and after the last included."""
    result = np.full(len(tokens) + count, mask, dtype=np.int64)
    token_positions = rng.permutation(len(result))[count:]
    result[np.sort(token_positions)] = tokens
    return result


def corrupt(text: Text, spec: DenoisingTask, mask: int, at_most: int, rng: np.random.Generator) -> Ids:
    """Return what is left of a text: sentences permuted, spans infilled, as BART's released code does it.

    Spans are drawn until their words are `mask_ratio` of all; those of length 0 become masks without a word, which are
    left out where a source of `at_most` tokens has no room for them.
    """
    if spec.permute_sentences:
        tokens, starts = permuted(text, rng)
    else:
        tokens, starts = text.tokens_T, text.starts_T
    budget = math.ceil(round(spec.mask_ratio * int(starts.sum()), 9))
    if budget == 0:
        return tokens
    lengths = span_lengths(budget, spec.span_mean, rng)
    spans = lengths[lengths > 0]
    infilled = infill(tokens, starts, spans, mask, rng)
    return insert(infilled, min(len(lengths) - len(spans), at_most - len(infilled)), mask, rng)


def padded(texts: Sequence[Ids], length: int) -> Ids:
    """Return texts between [start] and [end], padded to a length, (B, length)."""
    rows = np.full((len(texts), length), PAD, dtype=np.int64)
    for row, text in zip(rows, texts, strict=True):
        row[0] = START
        row[1 : len(text) + 1] = text
        row[len(text) + 1] = END
    return rows


def shifted(target_BT: Ids) -> Ids:
    """Return what the decoder reads: the target one step later, after [end], as BART has it."""
    previous_BT = np.roll(target_BT, 1, axis=1)
    previous_BT[:, 0] = END
    previous_BT[target_BT == PAD] = PAD
    return previous_BT


class Denoising:
    """The task of a run: texts in an order from (seed, epoch), each corrupted from (seed, epoch, its number)."""

    def __init__(
        self, spec: DenoisingTask, model: TextModel, corpus: Corpus, seed: int, device: torch.device, share: BatchShare
    ) -> None:
        self._spec, self._seed, self._device, self._share = spec, seed, device, share
        self._tokens, self._mask = model.tokens, mask_id(model.vocabulary)
        self._corpus = corpus
        self._train = corpus.blocks("train", model.tokens - ENDS)
        self._validation = corpus.blocks("val", model.tokens - ENDS)
        count = min(len(self._validation), spec.val_blocks)
        spread_indices = np.arange(count) * len(self._validation) // count
        self._measured = [spread_indices[list(positions)] for positions in share.validation(count, VALIDATION_SLICE)]
        self.fingerprint = corpus.digest
        self._used = used(len(self._train), spec.samples)
        self.steps_per_epoch = len(self._used) // share.batch_size
        if not self.steps_per_epoch:
            raise DataMissingError(
                f"task {spec.kind}: batch_size {share.batch_size} is more than the {len(self._used)} training texts "
                f"of up to {model.tokens - ENDS} tokens; --set batch_size={max(1, len(self._used))} or less"
            )

    def batches(self, first_step: int) -> Iterator[Batch]:
        for epoch, batch_B in global_batches(self._used, self._share.batch_size, self._seed, first_step):
            target_lengths = self._train.sizes(batch_B) + ENDS
            for positions in self._share.slices:
                chosen = slice(positions.start, positions.stop)
                share = float(target_lengths[chosen].sum() / target_lengths.sum())
                yield self._batch(self._train, batch_B[chosen], (self._seed, "corruption", epoch), share)

    def validation(self) -> Iterator[Batch]:
        """Yield this process's validation texts, in slices; every run sees the same ones, spread over all."""
        return iter(self._kept if sum(map(len, self._measured)) <= KEPT else self._slices())

    @cached_property
    def _kept(self) -> list[Batch]:
        return list(self._slices())

    def _slices(self) -> Iterator[Batch]:
        for indices in self._measured:
            yield self._batch(self._validation, indices, (0, "validation corruption"), 1.0)

    def _batch(self, blocks: TextBlocks, indices: Ids, key: tuple[int, str, *tuple[int, ...]], share: float) -> Batch:
        """Return texts, corrupted and whole; each has a generator of its own."""
        texts = [with_words(blocks.block(int(k)), self._corpus) for k in indices]
        sources = [
            corrupt(text, self._spec, self._mask, self._tokens - ENDS, np.random.default_rng(derive_seed(*key, int(k))))
            for text, k in zip(texts, indices, strict=True)
        ]
        target_BT = padded([text.tokens_T for text in texts], self._tokens)
        arrays = padded(sources, self._tokens), shifted(target_BT), target_BT
        inputs = tuple(self._on_device(torch.from_numpy(array)) for array in arrays)
        return Batch(inputs, inputs[-1], share)

    def _on_device(self, tensor: Tensor) -> Tensor:
        if self._device.type != "cuda":
            return tensor.to(self._device)
        return tensor.pin_memory().to(self._device, non_blocking=True)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the mean cross-entropy per target token, nats; the model gives the sum."""
        return outputs / _tokens(batch)

    def measure(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return (sum of cross-entropies, target tokens) of a validation slice."""
        return torch.stack([outputs.double(), _tokens(batch).double()])

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        """Return val_loss in nats and val_bits in bits, per target token."""
        loss, tokens = sums
        return {"val_loss": loss / tokens, "val_bits": loss / tokens / math.log(2)}


def _tokens(batch: Batch) -> Tensor:
    return (batch.targets != PAD).sum()


def load_denoising(
    task: DenoisingTask, model: TextModel, seed: int, device: torch.device, share: BatchShare, loading: LoaderSettings
) -> Denoising:
    """Return the task of a run, which must be bound to a text.

    Raises:
        InputError: the run is bound to no text.
        DataMissingError: the text is not there.
        CorruptError: it was changed since it was tokenised.
    """
    if task.corpus is None:
        local_corpus = bound(task, loading.data).corpus
        raise InputError(f"task.corpus is missing: any text would do for this run; the one at hand is {local_corpus}")
    is_pydoc = isinstance(task, PydocTask)
    corpus = pydoc_corpus(model.vocabulary) if is_pydoc else open_corpus(text_folder(loading.data))
    return Denoising(task, model, corpus, seed, device, share)
