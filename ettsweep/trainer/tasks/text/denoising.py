"""Span denoising (BART's text infilling): the encoder reads a corrupted text, the decoder predicts the original.

B texts of a batch, S tokens of the source, T tokens of the target; of a single text, T tokens and S sentences.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ettsweep.seeding import derive_seed
from ettsweep.token_ids import END, PAD, START, mask_id
from ettsweep.trainer.specs import TextModel
from ettsweep.trainer.tasks.task import BatchShare, LoaderSettings
from ettsweep.trainer.tasks.text.blocks import TextBlock, TextBlocks
from ettsweep.trainer.tasks.text.corpus import Corpus
from ettsweep.trainer.tasks.text.language import Ids, LanguageTask, load_corpus
from ettsweep.trainer.tasks.text.text_task import DenoisingTask
from ettsweep.trainer.tasks.text.tokenizer import word_starts

BOUNDARY_TOKENS = 2
"""Tokens around each text: [start] and [end]."""


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
    # Shortened: the sum is exactly the budget.
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
    # Sorted: the tokens keep their order.
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
    # Rounded first: 0.07 * 100 = 7.000000000000001 would be one word too many.
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


class Denoising(LanguageTask):
    """The task of a run that denoises text. The corruption of a text depends on (seed, epoch, index)."""

    def __init__(
        self, spec: DenoisingTask, model: TextModel, corpus: Corpus, seed: int, device: torch.device, share: BatchShare
    ) -> None:
        self._spec = spec
        self._tokens, self._mask = model.tokens, mask_id(model.vocabulary)
        self._corpus = corpus
        text_tokens = model.tokens - BOUNDARY_TOKENS
        self._train, self._validation = (corpus.blocks(side, text_tokens) for side in ("train", "val"))
        super().__init__(spec, corpus, self._train, self._validation, text_tokens, seed, device, share)

    def target_lengths(self, indices: Ids) -> Ids:
        return self._train.sizes(indices) + BOUNDARY_TOKENS

    def training_inputs(self, indices: Ids, epoch: int) -> tuple[Ids, ...]:
        return self._inputs(self._train, indices, (self._seed, "corruption", epoch))

    def validation_inputs(self, indices: Ids) -> tuple[Ids, ...]:
        return self._inputs(self._validation, indices, (0, "validation corruption"))

    def _inputs(self, blocks: TextBlocks, indices: Ids, key: tuple[int, str, *tuple[int, ...]]) -> tuple[Ids, ...]:
        """Return source, decoder input and target, each [B, T]; each text has its own random generator."""
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
        # All of full length: a change of shapes would recompile the model.
        return pad_texts(sources, self._tokens), decoder_inputs(target_BT), target_BT


def load_denoising(
    task: DenoisingTask, model: TextModel, seed: int, device: torch.device, share: BatchShare, loading: LoaderSettings
) -> Denoising:
    """Return the task of a run; see `load_corpus` for what it raises."""
    return Denoising(task, model, load_corpus(task, model, loading), seed, device, share)
