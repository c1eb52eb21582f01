"""The format of shards, files of tokenised documents for training and validation, and the cutting into blocks."""

from bisect import bisect_right
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ettsweep.trainer.tasks.data_location import SIDES, Side
from ettsweep.trainer.tasks.text.corpus_manifest import BLOCK_TOKENS, Counts

Ends = NDArray[np.uint32]
Ints = NDArray[np.int64]
Tokens = NDArray[np.uint16] | NDArray[np.uint32]


class Texts(NamedTuple):
    """Concatenated documents.

    Attributes:
        document_ends: number of sentences up to the end of each document.
        sentence_ends: number of tokens up to the end of each sentence.
        tokens: token ids of the model.
    """

    document_ends: Ends
    sentence_ends: Ends
    tokens: Tokens


class Shards(Protocol):
    """The documents of one side of a corpus, shard by shard."""

    def __len__(self) -> int: ...

    def __getitem__(self, shard: int, /) -> Texts: ...


def token_type(n_vocab: int) -> Any:
    """Return the dtype of tokens on disk: two bytes if the vocabulary allows, else four."""
    return np.dtype("<u2") if n_vocab <= 2**16 else np.dtype("<u4")


def shard_size(n_vocab: int, train: Counts, val: Counts) -> int:
    """Return the size in bytes of a shard with this content."""
    return sum(kind.itemsize * length for kind, length in _array_layout(n_vocab, train, val))


def unpack(shard: Any, side: Side, n_vocab: int, train: Counts, val: Counts) -> Texts:
    """Return one side of a shard as views of its memory: nothing is copied."""
    arrays, start = [], 0
    for kind, length in _array_layout(n_vocab, train, val):
        arrays.append(np.ndarray((length,), kind, shard, start))
        start += kind.itemsize * length
    k = SIDES.index(side)
    return Texts(arrays[2 * k], arrays[2 * k + 1], arrays[4 + k])


def _array_layout(n_vocab: int, *sides: Counts) -> list[tuple[Any, int]]:
    """Return dtype and length of the arrays of a shard, in order.

    First document and sentence ends of training, then those of validation, then the tokens of both. Ends come first, so
    that arrays of four bytes stay aligned.
    """
    ends = [(np.dtype("<u4"), length) for side in sides for length in (side.documents, side.sentences)]
    return ends + [(token_type(n_vocab), side.tokens) for side in sides]


class ShardWriter:
    """Collects tokenised documents and packs them into a shard."""

    def __init__(self, n_vocab: int) -> None:
        self._n_vocab = n_vocab
        self.text_bytes = 0
        self._documents: dict[Side, list[tuple[NDArray[np.uint32], Tokens, int]]] = {side: [] for side in SIDES}

    def add(self, side: Side, lengths: NDArray[np.uint32], tokens: NDArray[np.uint32], text_bytes: int) -> None:
        """Add a document, given the length of each sentence and the tokens of all; neither may be empty."""
        assert tokens.max() < self._n_vocab  # else it would wrap around in two bytes
        self._documents[side].append((lengths, tokens.astype(token_type(self._n_vocab)), text_bytes))
        self.text_bytes += text_bytes

    def texts(self, side: Side) -> Texts:
        """Return the documents of one side that were added so far."""
        lengths = [lengths for lengths, _, _ in self._documents[side]]
        tokens = [tokens for _, tokens, _ in self._documents[side]]
        return Texts(
            np.cumsum([len(document_lengths) for document_lengths in lengths], dtype=np.uint32),
            # The empty arrays give the dtype to a side without documents.
            np.cumsum(np.concatenate([np.zeros(0, np.uint32), *lengths]), dtype=np.uint32),
            np.concatenate([np.zeros(0, token_type(self._n_vocab)), *tokens]),
        )

    def counts(self, side: Side) -> Counts:
        """Return the content of one side, as the manifest records it."""
        texts = self.texts(side)
        return Counts(
            documents=len(texts.document_ends),
            sentences=len(texts.sentence_ends),
            tokens=len(texts.tokens),
            text_bytes=sum(text_bytes for _, _, text_bytes in self._documents[side]),
            long_sentences=int((np.diff(texts.sentence_ends, prepend=np.uint32(0)) > BLOCK_TOKENS).sum()),
            blocks=len(block_starts(texts, BLOCK_TOKENS)),
        )

    def pack(self) -> bytes:
        """Return the content of the shard's file; the counterpart of `unpack`."""
        texts = [self.texts(side) for side in SIDES]  # the order of `_array_layout`
        ends = [
            array.astype("<u4").tobytes()
            for side_texts in texts
            for array in (side_texts.document_ends, side_texts.sentence_ends)
        ]
        return b"".join(ends + [side_texts.tokens.tobytes() for side_texts in texts])


# --- blocks -----------------------------------------------------------------------------------------------------------


def block_starts(texts: Texts, block_tokens: int) -> NDArray[np.uint32]:
    """Return the position of the first token of each block, in order.

    A block has as many whole sentences of one document as fit into `block_tokens`. A sentence that is longer is cut
    into pieces of `block_tokens`; its last, shorter piece shares a block with the sentences that follow.
    """
    if not len(texts.tokens):
        return np.zeros(0, np.uint32)
    ends, document_ends = texts.sentence_ends.astype(np.int64), texts.document_ends.astype(np.int64)
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
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
    return np.sort(starts[_first_sentences(starts, ends, first, document_ends, block_tokens)]).astype(np.uint32)


VECTORISE_FROM = 64
"""With more documents left than this, one array operation for the next block of each is faster than a loop."""


def _first_sentences(starts: Ints, ends: Ints, first: Ints, last: Ints, block_tokens: int) -> Ints:
    """Return the index of the sentence that begins each block, in no order.

    `starts` and `ends` bound each sentence, in tokens; `first` and `last` bound each document, in sentences. Both are
    half-open.
    """
    vectorised = list[Ints]()
    while len(first) > VECTORISE_FROM:
        # Each pass finds the next block of all documents that have one.
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
