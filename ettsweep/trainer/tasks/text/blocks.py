"""Documents as arrays of tokens, cut into blocks of whole sentences or into windows of consecutive tokens."""

# T tokens of a block, S sentences of a block

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ettsweep.errors import InputError
from ettsweep.token_ids import START

Ints = NDArray[np.int64]


class Texts(NamedTuple):
    """Documents one after the other, in arrow's layout of two columns of lists: no copies of a file.

    Attributes:
        tokens: token ids of the model, of all documents.
        token_offsets: first token of each document, and the number of all [documents + 1].
        ends: end of each sentence, in tokens from the start of its document.
        sentence_offsets: first sentence of each document, and the number of all [documents + 1].
    """

    tokens: NDArray[Any]
    token_offsets: NDArray[np.int32]
    ends: NDArray[np.uint32]
    sentence_offsets: NDArray[np.int32]


def token_type(n_vocab: int) -> Any:
    """Return the dtype of tokens on disk: two bytes if the vocabulary allows, else four."""
    return np.dtype("<u2") if n_vocab <= 2**16 else np.dtype("<u4")


# --- blocks -----------------------------------------------------------------------------------------------------------


class TextBlock(NamedTuple):
    """Consecutive sentences of one document, one text for a model.

    Attributes:
        tokens_T: token ids, without [start] and [end].
        lengths_S: number of tokens of each sentence; they add up to T.
    """

    tokens_T: NDArray[np.int64]
    lengths_S: NDArray[np.int64]


class TextBlocks:
    """All blocks of one side of a corpus, in the order of the corpus; the index takes four bytes of memory a block.

    Raises:
        InputError: `block_tokens` is below 1.
    """

    def __init__(self, parts: Sequence[Texts], block_tokens: int) -> None:
        if block_tokens < 1:
            raise InputError(f"blocks of {block_tokens} tokens are not possible: at least 1 is needed")
        self._parts = parts
        starts = [block_starts(texts, block_tokens) for texts in parts]
        # Number of blocks before each part; the last entry is the number of all.
        self._first = np.cumsum([0, *map(len, starts)])
        # For each part, the first token of each of its blocks, and its number of tokens: one entry more than blocks.
        # So block `index` of part `p` begins at entry `index + p`.
        edges = [np.append(part, np.int32(len(texts.tokens))) for part, texts in zip(starts, parts, strict=True)]
        self._edges = np.concatenate([np.zeros(0, np.int32), *edges])

    def __len__(self) -> int:
        return int(self._first[-1])

    def sizes(self, indices: Ints) -> Ints:
        """Return the number of tokens of each of these blocks."""
        # One extra edge for each part before the block's own.
        start = indices + np.searchsorted(self._first, indices, side="right") - 1
        sizes: Ints = (self._edges[start + 1] - self._edges[start]).astype(np.int64)
        return sizes

    def block(self, index: int) -> TextBlock:
        """Return a block by its index.

        Raises:
            IndexError: the index is out of range.
        """
        if not 0 <= index < len(self):
            raise IndexError(index)
        part = int(self._first.searchsorted(index, "right")) - 1
        texts = self._parts[part]
        # Types stay (int32, then uint32), or numpy would convert all in each call.
        edges = self._edges[index + part : index + part + 2]
        start, end = edges
        document = int(texts.token_offsets.searchsorted(start, "right")) - 1
        first, last = texts.sentence_offsets[document : document + 2]
        ends = texts.ends[first:last]
        begin, until = (edges - texts.token_offsets[document]).astype(np.uint32)
        inner = ends[ends.searchsorted(begin, "right") : ends.searchsorted(until, "left")]
        bounds: Ints = np.array([begin, *inner, until], np.int64)
        return TextBlock(texts.tokens[start:end].astype(np.int64), np.diff(bounds))


def block_starts(texts: Texts, block_tokens: int) -> NDArray[np.int32]:
    """Return the position of the first token of each block, in order.

    A block has as many whole sentences of one document as fit into `block_tokens`. A longer sentence is cut into pieces
    of `block_tokens`; its last, shorter piece shares a block with the next sentences.
    """
    if not len(texts.tokens):
        return np.zeros(0, np.int32)
    document_ends = texts.sentence_offsets[1:].astype(np.int64)
    ends: Ints = np.repeat(texts.token_offsets[:-1].astype(np.int64), np.diff(texts.sentence_offsets))
    ends += texts.ends
    starts: Ints = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    lengths = ends - starts
    if lengths.max() > block_tokens:
        # A long sentence always begins a block, since it fits into none with the sentence before it. So it can be cut
        # into pieces beforehand, which are sentences from here on.
        # Rounded up.
        pieces = -(-lengths // block_tokens)
        piece_ends = np.cumsum(pieces)
        piece_numbers = np.arange(piece_ends[-1]) - np.repeat(piece_ends - pieces, pieces)
        starts = np.repeat(starts, pieces) + piece_numbers * block_tokens
        ends = np.minimum(starts + block_tokens, np.repeat(ends, pieces))
        # From sentences to pieces: a document ends with the last piece of its last sentence.
        document_ends = piece_ends[document_ends - 1]
    first = np.concatenate((np.zeros(1, np.int64), document_ends[:-1]))
    return np.sort(starts[_first_sentences(starts, ends, first, document_ends, block_tokens)]).astype(np.int32)


VECTORISE_FROM = 64
"""Documents left from which on one array operation for the next block of each is faster than a loop."""


def _first_sentences(starts: Ints, ends: Ints, first: Ints, last: Ints, block_tokens: int) -> Ints:
    """Return the index of the sentence that begins each block, in no order.

    `starts` and `ends` bound each sentence, in tokens; `first` and `last` bound each document, in sentences. Both are
    half-open.
    """
    vectorised = list[Ints]()
    while len(first) > VECTORISE_FROM:
        # Each pass finds the next block of every document.
        vectorised.append(first)
        first = np.searchsorted(ends, starts[first] + block_tokens, side="right")
        # Documents without a further sentence drop out.
        first, last = first[first < last], last[first < last]
    remaining = list[int]()
    for sentence, stop in zip(first.tolist(), last.tolist(), strict=True):
        begin, upto = int(starts[sentence]), ends[sentence:stop].tolist()
        at = 0
        while at < len(upto):
            remaining.append(sentence + at)
            # No block has more sentences than tokens, which bounds the search.
            at = bisect_right(upto, begin + block_tokens, at, min(at + block_tokens, len(upto)))
            begin = upto[at - 1]
    return np.concatenate([*vectorised, np.array(remaining, np.int64)])


# --- windows ----------------------------------------------------------------------------------------------------------


class TokenWindows:
    """All windows of one side of a corpus, for models that predict the next token; four bytes of memory a document.

    The documents are one stream, with [start] before each. A window has `tokens` tokens and the one after them, the
    first of the next window; the rest at the end is dropped.
    """

    def __init__(self, parts: Sequence[Texts], tokens: int) -> None:
        self._parts, self._tokens = parts, tokens
        # By part, the place of each document's [start] in the stream of that part.
        self._starts = [
            texts.token_offsets[:-1] + np.arange(len(texts.token_offsets) - 1, dtype=np.int32) for texts in parts
        ]
        lengths = [len(texts.tokens) + len(starts) for texts, starts in zip(parts, self._starts, strict=True)]
        self._first = np.cumsum([0, *lengths])

    def __len__(self) -> int:
        return max(0, int(self._first[-1]) - 1) // self._tokens

    def window(self, index: int) -> Ints:
        """Return the tokens of a window and the one after them, [tokens + 1].

        Raises:
            IndexError: the index is out of range.
        """
        if not 0 <= index < len(self):
            raise IndexError(index)
        begin = index * self._tokens
        end = begin + self._tokens + 1
        part = int(self._first.searchsorted(begin, "right")) - 1
        pieces = list[Ints]()
        while begin < end:  # it may reach into further parts
            first, until = int(self._first[part]), min(end, int(self._first[part + 1]))
            pieces.append(self._stream(part, begin - first, until - first))
            begin, part = until, part + 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _stream(self, part: int, begin: int, end: int) -> Ints:
        starts = self._starts[part]
        # `begin` and `end` as int32, or numpy would convert all starts in each call.
        before, until = starts.searchsorted(np.array([begin, end], np.int32))
        stream = np.full(end - begin, START, np.int64)
        is_token = np.ones(end - begin, np.bool_)
        is_token[starts[before:until] - np.int32(begin)] = False
        stream[is_token] = self._parts[part].tokens[begin - before : end - until]
        return stream
