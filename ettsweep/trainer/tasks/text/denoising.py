"""Span denoising (BART's text infilling): the encoder reads a corrupted text, the decoder predicts the original.

B texts of a batch, S tokens of the source, T tokens of the target; of a single text, T tokens and S sentences.
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
from ettsweep.seeding import derive_seed
from ettsweep.token_ids import END, PAD, START, mask_id
from ettsweep.trainer.specs import TextModel
from ettsweep.trainer.tasks.registry import bind_to_data
from ettsweep.trainer.tasks.task import Batch, BatchShare, LoaderSettings, global_batches, select_training_samples
from ettsweep.trainer.tasks.text.corpus import Corpus, TextBlock, TextBlocks, open_corpus
from ettsweep.trainer.tasks.text.pydoc import pydoc_corpus
from ettsweep.trainer.tasks.text.text_data import text_folder
from ettsweep.trainer.tasks.text.text_task import DenoisingTask, PydocTask
from ettsweep.trainer.tasks.text.tokenizer import word_starts

Ids = NDArray[np.int64]

BOUNDARY_TOKENS = 2
"""Tokens around each text: [start] and [end]."""

VALIDATION_SLICE = 32
"""Texts of one validation batch. The corruption of a text does not depend on it."""

MAX_CACHED_TEXTS = 2000
"""Up to this many validation texts of a process stay on the device; more are corrupted again at each evaluation."""


class WordMarkedText(NamedTuple):
    """A text before corruption.

    Attributes:
        tokens_T: token ids, without [start] and [end].
        lengths_S: number of tokens of each sentence.
        starts_T: mask of the tokens that start a word; the first token of a sentence always does.
    """

    tokens_T: Ids
    lengths_S: Ids
    starts_T: NDArray[np.bool_]


def mark_words(block: TextBlock, corpus: Corpus) -> WordMarkedText:
    """Return the text of a block, with the tokens marked that start a word."""
    starts_T = word_starts(block.tokens_T, corpus.leads_with_space, corpus.is_space)
    starts_T[np.cumsum(block.lengths_S)[:-1]] = True
    return WordMarkedText(*block, starts_T)


def permute_sentences(text: WordMarkedText, rng: np.random.Generator) -> tuple[Ids, NDArray[np.bool_]]:
    """Return the tokens [T] with the sentences in random order, and the mask of those that start a word [T]."""
    stops = np.cumsum(text.lengths_S)
    order = rng.permutation(len(stops))
    positions = np.concatenate([np.arange(stops[k] - text.lengths_S[k], stops[k]) for k in order])
    return text.tokens_T[positions], text.starts_T[positions]


def draw_span_lengths(budget: int, mean: float, rng: np.random.Generator) -> Ids:
    """Draw span lengths, in words, from Poisson(mean) until they sum to `budget`; the last one is shortened to fit."""
    lengths: Ids = rng.poisson(mean, budget)
    # Lengths may be 0, so `budget` of them need not be enough.
    while lengths.sum() < budget:
        lengths = np.concatenate([lengths, rng.poisson(mean, budget)])
    sums = np.cumsum(lengths)
    last = int(np.searchsorted(sums, budget))
    lengths = lengths[: last + 1].astype(np.int64)
    # Shortened, so that the sum is exactly the budget.
    lengths[-1] -= sums[last] - budget
    return lengths


def infill_spans(tokens: Ids, starts: NDArray[np.bool_], lengths: Ids, mask: int, rng: np.random.Generator) -> Ids:
    """Replace each span by one mask; spans start at distinct random words.

    Spans may overlap: a mask inside another span is removed with it. A span that reaches beyond the text is cut.

    Args:
        tokens: token ids [T].
        starts: mask of the tokens that start a word [T].
        lengths: span lengths in words, each at least 1; no more spans than words.
        mask: id of the mask token.
        rng: draws the first word of each span.
    """
    word_positions = np.flatnonzero(starts)
    # Without replacement: no two spans begin at the same word.
    word_indices = rng.permutation(len(word_positions))[: len(lengths)]
    first = word_positions[word_indices]
    stops = np.append(word_positions, len(tokens))[np.minimum(word_indices + lengths, len(word_positions))]
    # The cumulative sum of `inside` counts, for each token, the spans that cover it; a span's first token becomes its
    # mask, so counting starts at the second.
    inside = np.zeros(len(tokens) + 1, dtype=np.int64)
    np.add.at(inside, first + 1, 1)
    np.add.at(inside, stops, -1)
    masked: Ids = tokens.copy()
    masked[first] = mask
    infilled: Ids = masked[np.cumsum(inside[:-1]) == 0]
    return infilled


def insert_masks(tokens: Ids, count: int, mask: int, rng: np.random.Generator) -> Ids:
    """Insert `count` masks at random positions, before the first and after the last token included."""
    result = np.full(len(tokens) + count, mask, dtype=np.int64)
    token_positions = rng.permutation(len(result))[count:]
    # Sorted, so that the tokens keep their order.
    result[np.sort(token_positions)] = tokens
    return result


def corrupt(text: WordMarkedText, spec: DenoisingTask, mask: int, max_tokens: int, rng: np.random.Generator) -> Ids:
    """Return the corrupted tokens of a text: sentences permuted, spans replaced by masks, as in BART's released code.

    Spans are drawn until their words are `mask_ratio` of all words. A span of length 0 becomes an inserted mask, as
    long as the result has at most `max_tokens` tokens.
    """
    if spec.permute_sentences:
        tokens, starts = permute_sentences(text, rng)
    else:
        tokens, starts = text.tokens_T, text.starts_T
    # Rounded first: a product such as 0.07 * 100 = 7.000000000000001 would ask for one word too many.
    budget = math.ceil(round(spec.mask_ratio * int(starts.sum()), 9))
    if budget == 0:
        return tokens
    lengths = draw_span_lengths(budget, spec.span_mean, rng)
    spans = lengths[lengths > 0]
    infilled = infill_spans(tokens, starts, spans, mask, rng)
    return insert_masks(infilled, min(len(lengths) - len(spans), max_tokens - len(infilled)), mask, rng)


def pad_texts(texts: Sequence[Ids], length: int) -> Ids:
    """Return texts [B, length], each between [start] and [end] and padded with [pad]."""
    rows = np.full((len(texts), length), PAD, dtype=np.int64)
    for row, text in zip(rows, texts, strict=True):
        row[0] = START
        row[1 : len(text) + 1] = text
        row[len(text) + 1] = END
    return rows


def decoder_inputs(target_BT: Ids) -> Ids:
    """Return the decoder's input [B, T]: the target shifted right by one, with [end] in front, as in BART."""
    previous_BT = np.roll(target_BT, 1, axis=1)
    previous_BT[:, 0] = END
    # The last [end] moved onto the first [pad]: the loss ignores this position.
    previous_BT[target_BT == PAD] = PAD
    return previous_BT


class Denoising:
    """The task of a run on text.

    The order of the texts depends on (seed, epoch), the corruption of a text on (seed, epoch, index). Validation texts
    and their corruption are the same for all runs.

    Raises:
        DataMissingError: the corpus has fewer training texts than a batch.
    """

    def __init__(
        self, spec: DenoisingTask, model: TextModel, corpus: Corpus, seed: int, device: torch.device, share: BatchShare
    ) -> None:
        self._spec, self._seed, self._device, self._share = spec, seed, device, share
        self._tokens, self._mask = model.tokens, mask_id(model.vocabulary)
        self._corpus = corpus
        self._train = corpus.blocks("train", model.tokens - BOUNDARY_TOKENS)
        self._validation = corpus.blocks("val", model.tokens - BOUNDARY_TOKENS)
        count = min(len(self._validation), spec.val_blocks)
        # Evenly spread over the corpus: the first documents alone may all be of one kind.
        spread_indices = np.arange(count) * len(self._validation) // count
        self._validation_slices = [
            spread_indices[list(positions)] for positions in share.validation(count, VALIDATION_SLICE)
        ]
        self.fingerprint = corpus.digest
        self._training_samples = select_training_samples(len(self._train), spec.samples)
        self.steps_per_epoch = len(self._training_samples) // share.batch_size
        if not self.steps_per_epoch:
            texts = len(self._training_samples)
            raise DataMissingError(
                f"task {spec.kind}: batch_size {share.batch_size} is more than the {texts} training texts "
                f"of up to {model.tokens - BOUNDARY_TOKENS} tokens; --set batch_size={max(1, texts)} or less"
            )

    def batches(self, first_step: int) -> Iterator[Batch]:
        for epoch, batch_B in global_batches(self._training_samples, self._share.batch_size, self._seed, first_step):
            target_lengths = self._train.sizes(batch_B) + BOUNDARY_TOKENS
            for positions in self._share.slices:
                chosen = slice(positions.start, positions.stop)
                share = float(target_lengths[chosen].sum() / target_lengths.sum())
                # By tokens, not by texts: `loss` is a mean over the tokens of a micro-batch, and the weighted sum of
                # micro-batches must be the mean over the tokens of the global batch.
                yield self._make_batch(self._train, batch_B[chosen], (self._seed, "corruption", epoch), share)

    def validation(self) -> Iterator[Batch]:
        """Yield this process's validation texts in slices; every run sees the same texts."""
        return iter(
            self._cached_validation
            if sum(map(len, self._validation_slices)) <= MAX_CACHED_TEXTS
            else self._make_validation()
        )

    @cached_property
    def _cached_validation(self) -> list[Batch]:
        return list(self._make_validation())

    def _make_validation(self) -> Iterator[Batch]:
        for indices in self._validation_slices:
            yield self._make_batch(self._validation, indices, (0, "validation corruption"), 1.0)

    def _make_batch(
        self, blocks: TextBlocks, indices: Ids, key: tuple[int, str, *tuple[int, ...]], share: float
    ) -> Batch:
        """Return a batch of (source, decoder input, target), each [B, T]; each text has its own random generator."""
        texts = [mark_words(blocks.block(int(k)), self._corpus) for k in indices]
        sources = [
            corrupt(
                text,
                self._spec,
                self._mask,
                self._tokens - BOUNDARY_TOKENS,
                np.random.default_rng(derive_seed(*key, int(k))),
            )
            for text, k in zip(texts, indices, strict=True)
        ]
        target_BT = pad_texts([text.tokens_T for text in texts], self._tokens)
        # All of the full length, so that shapes never change: a change would recompile the model.
        arrays = pad_texts(sources, self._tokens), decoder_inputs(target_BT), target_BT
        inputs = tuple(self._on_device(torch.from_numpy(array)) for array in arrays)
        return Batch(inputs, inputs[-1], share)

    def _on_device(self, tensor: Tensor) -> Tensor:
        if self._device.type != "cuda":
            return tensor.to(self._device)
        return tensor.pin_memory().to(self._device, non_blocking=True)  # pinned, else the copy would block

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the mean cross-entropy per target token, in nats; `outputs` is the sum over the batch."""
        return outputs / _count_target_tokens(batch)

    def measure(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return float64 (sum of cross-entropies, number of target tokens) of a validation slice."""
        return torch.stack([outputs.double(), _count_target_tokens(batch).double()])

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        """Return val_loss (nats per target token) and val_bits (bits per target token)."""
        loss, tokens = sums
        return {"val_loss": loss / tokens, "val_bits": loss / tokens / math.log(2)}


def _count_target_tokens(batch: Batch) -> Tensor:
    return (batch.targets != PAD).sum()


def load_denoising(
    task: DenoisingTask, model: TextModel, seed: int, device: torch.device, share: BatchShare, loading: LoaderSettings
) -> Denoising:
    """Return the task of a run on text; `task.corpus` must name the corpus that the run is bound to.

    Raises:
        InputError: `task.corpus` is missing.
        DataMissingError: there is no such text.
        CorruptError: the corpus was changed after tokenisation.
    """
    if task.corpus is None:
        local_corpus = bind_to_data(task, loading.data).corpus
        raise InputError(
            f"task.corpus is missing, so the run could train on any text; the text at hand is {local_corpus}"
        )
    is_pydoc = isinstance(task, PydocTask)
    corpus = pydoc_corpus(model.vocabulary) if is_pydoc else open_corpus(text_folder(loading.data))
    return Denoising(task, model, corpus, seed, device, share)
