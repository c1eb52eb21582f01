"""Tokenised text with random access to blocks of whole sentences, from memory-mapped shards or in memory."""

# T tokens of a block, S sentences of a block, N tokens of the vocabulary

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ettsweep.errors import CorruptError, EttsweepError, InputError
from ettsweep.files import cache_folder, sha256_of, write_atomic
from ettsweep.processes import cores
from ettsweep.trainer.tasks.data_location import SIDES, Side
from ettsweep.trainer.tasks.text.corpus_manifest import (
    RETOKENISE_HINT,
    SHARDS,
    TOKENIZER,
    Manifest,
    corpus_digest,
    read_manifest,
)
from ettsweep.trainer.tasks.text.shards import Shards, ShardWriter, Texts, block_starts, shard_size, unpack
from ettsweep.trainer.tasks.text.tokenizer import Tokenizer, read_tokenizer_file, split_sentences, word_tables
from ettsweep.trainer.tasks.text.windows import TokenWindows

OPEN_SHARDS = 256
"""Shards that a process keeps open at once: each holds a file descriptor, and these are limited."""


class TextBlock(NamedTuple):
    """Consecutive sentences of one document: what a model reads as one text.

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

    def __init__(self, shards: Shards, block_tokens: int) -> None:
        if block_tokens < 1:
            raise InputError(f"blocks of {block_tokens} tokens are not possible: at least 1 is needed")
        self._shards = shards
        edges = [np.zeros(0, np.uint32)]
        # Number of blocks before each shard; the last entry is the number of all.
        self._first = np.zeros(len(shards) + 1, np.int64)
        for shard in range(len(shards)):
            texts = shards[shard]
            starts = block_starts(texts, block_tokens)
            edges += [starts, np.array([len(texts.tokens)], np.uint32)]
            self._first[shard + 1] = self._first[shard] + len(starts)
        # For each shard, the first token of each of its blocks, and its number of tokens: one entry more than blocks.
        # So block `index` of shard `s` begins at entry `index + s`.
        self._edges = np.concatenate(edges)

    def __len__(self) -> int:
        return int(self._first[-1])

    def sizes(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of tokens of each of these blocks."""
        # One extra edge for each shard before the block's own.
        start = indices + np.searchsorted(self._first, indices, side="right") - 1
        sizes: NDArray[np.int64] = (self._edges[start + 1] - self._edges[start]).astype(np.int64)
        return sizes

    def block(self, index: int) -> TextBlock:
        """Return a block by its index.

        Raises:
            IndexError: the index is out of range.
            CorruptError: the file of its shard cannot be read any more.
        """
        if not 0 <= index < len(self):
            raise IndexError(index)
        shard = int(np.searchsorted(self._first, index, side="right")) - 1
        texts = self._shards[shard]
        start, end = self._edges[index + shard : index + shard + 2]
        # `start` and `end` keep the type of the ends (uint32): else numpy would convert all ends in each call.
        first = int(np.searchsorted(texts.sentence_ends, start, side="right"))
        last = int(np.searchsorted(texts.sentence_ends, end, side="left"))
        edges = np.array([start, *texts.sentence_ends[first:last], end], np.int64)
        return TextBlock(texts.tokens[start:end].astype(np.int64), np.diff(edges))


class Corpus:
    """Tokenised text.

    Attributes:
        n_vocab: size of the model's vocabulary, special tokens included.
        digest: 12 hex digits that identify the tokens and their order.
        tokenizer: the tokenizer that produced the tokens.
        leads_with_space, is_space: masks over the vocabulary [N], for `tokenizer.word_starts`.
    """

    def __init__(self, tokenizer: Tokenizer, digest: str, sides: Callable[[Side], Shards]) -> None:
        self.n_vocab = tokenizer.n_vocab
        self.digest = digest
        self.tokenizer = tokenizer
        self.leads_with_space, self.is_space = word_tables(tokenizer)
        self._sides = sides

    def blocks(self, side: Side, block_tokens: int) -> TextBlocks:
        """Return the training or validation text in blocks of at most `block_tokens` tokens."""
        return TextBlocks(self._sides(side), block_tokens)

    def windows(self, side: Side, tokens: int) -> TokenWindows:
        """Return the training or validation text in windows of `tokens` tokens."""
        return TokenWindows(self._sides(side), tokens)


# --- in memory --------------------------------------------------------------------------------------------------------


def corpus_from_texts(documents: Sequence[str], tokenizer: Tokenizer, is_val: Sequence[bool]) -> Corpus:
    """Return a corpus in memory, with the tokens that `ettsweep data text` would write.

    Args:
        documents: texts, none of them empty or white space only.
        tokenizer: encodes the texts.
        is_val: whether each document is for validation.
    """
    writer = ShardWriter(tokenizer.n_vocab)
    for text, val in zip(documents, is_val, strict=True):
        # Stripped, as `read_documents` does.
        add_documents(writer, tokenizer, [(text.strip(), "val" if val else "train")])
    digest = corpus_digest(tokenizer.sha256, tokenizer.n_vocab, [hashlib.sha256(writer.pack()).hexdigest()])
    sides = {side: [writer.texts(side)] for side in SIDES}
    return Corpus(tokenizer, digest, sides.__getitem__)


def add_documents(writer: ShardWriter, tokenizer: Tokenizer, documents: Sequence[tuple[str, Side]]) -> None:
    """Tokenise documents in one call of the encoder, and add each to its side of the shard."""
    sentences = [split_sentences(text) for text, _ in documents]
    tokens, lengths = tokenizer.encode([sentence for document in sentences for sentence in document])
    ends = np.cumsum([0, *map(len, sentences)])
    token_ends = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    for (text, side), first, last in zip(documents, ends[:-1], ends[1:], strict=True):
        span = slice(int(token_ends[first]), int(token_ends[last]))
        writer.add(side, lengths[first:last], tokens[span], len(text.encode()))


# --- on disk ----------------------------------------------------------------------------------------------------------


class _ShardFiles:
    """Memory-mapped shard files of one side; at most `OPEN_SHARDS` of them are open at once."""

    def __init__(self, folder: Path, manifest: Manifest, side: Side) -> None:
        self._shards, self._n_vocab, self._side = folder / SHARDS, manifest.n_vocab, side
        self._records = [record for record in manifest.shards if record.counts(side).documents]
        # Per instance, since a cache on the method would keep every corpus alive.
        self._open_cached = lru_cache(OPEN_SHARDS)(self._open)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, shard: int, /) -> Texts:
        return self._open_cached(shard)

    def _open(self, shard: int) -> Texts:
        # Shards without documents of this side were left out: indices are not those of the manifest.
        record = self._records[shard]
        path = self._shards / record.name
        try:
            data = np.memmap(path, np.uint8, "r", shape=(record.size,))
        except (OSError, ValueError) as error:
            # Sizes and checksums were compared when the corpus was opened: the file has changed since.
            raise CorruptError(f"{path}: cannot be read any more ({error})") from None
        return unpack(data, self._side, self._n_vocab, record.train, record.val)


def open_corpus(folder: Path) -> Corpus:
    """Open a corpus that `ettsweep data text` has written.

    Sizes of shards are compared with the manifest each time, checksums the first time that this user opens the files.

    Raises:
        DataMissingError: there is no corpus, or it is not finished.
        CorruptError: shards or tokenizer were changed after tokenisation.
    """
    # The cheap checks come first: manifest, tokenizer, sizes, checksums.
    manifest = read_manifest(folder)
    tokenizer = read_corpus_tokenizer(folder, manifest)
    verify_shards(folder, manifest)
    return Corpus(tokenizer, manifest.digest, lambda side: _ShardFiles(folder, manifest, side))


def read_corpus_tokenizer(folder: Path, manifest: Manifest) -> Tokenizer:
    """Return the tokenizer in the folder of a corpus.

    Raises:
        CorruptError: it is missing, or it is not the one that the shards were made with.
    """
    path = folder / TOKENIZER
    try:
        tokenizer = read_tokenizer_file(path)
    except (OSError, InputError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CorruptError(f"{path}: is not the tokenizer of these shards: {reason}; {RETOKENISE_HINT}") from None
    if (tokenizer.sha256, tokenizer.n_vocab) != (manifest.tokenizer_sha256, manifest.n_vocab):
        raise CorruptError(
            f"{path}: is not the tokenizer that the shards were made with (it has {tokenizer.bpe_tokens} byte-pair "
            f"tokens, theirs had {manifest.bpe_tokens}); put that one back, or {RETOKENISE_HINT}"
        )
    return tokenizer


def verify_shards(
    folder: Path, manifest: Manifest, *, force: bool = False, on_bytes_read: Callable[[int], None] | None = None
) -> None:
    """Compare sizes and checksums of all shards with the manifest.

    Files that have passed before are not read again for their checksums, unless `force`. `on_bytes_read` is called with
    the size in bytes of each shard after its checksum was computed.

    Raises:
        CorruptError: shards were changed after tokenisation; the first ten are named.
    """
    problems = list[str]()
    for record in manifest.shards:
        path = folder / SHARDS / record.name
        try:
            stat = path.stat()
        except OSError as error:
            problems.append(f"{path}: {error.strerror}")
            continue
        # Also against the counts: with edited ones, `unpack` would read beyond the file.
        if stat.st_size != record.size or shard_size(manifest.n_vocab, record.train, record.val) != record.size:
            problems.append(f"{path}: has {stat.st_size} bytes, {record.size} were written")
    _raise_if_changed(problems)  # before all shards are read for their checksums
    stamp = verification_stamp(folder, manifest)
    if not force and stamp is not None and stamp.exists():
        return
    with ThreadPoolExecutor(min(16, cores())) as pool:  # hashing releases the GIL
        mismatches = pool.map(
            lambda record: _checksum_problem(folder / SHARDS / record.name, record.sha256), manifest.shards
        )
        for record, problem in zip(manifest.shards, mismatches, strict=True):
            problems += [problem] if problem else []
            if on_bytes_read is not None:
                on_bytes_read(record.size)
    _raise_if_changed(problems)
    mark_verified(stamp)


def _checksum_problem(path: Path, sha256: str) -> str | None:
    try:
        is_unchanged = sha256_of(path) == sha256
    except OSError as error:
        return f"{path}: cannot be read ({error.strerror})"
    return None if is_unchanged else f"{path}: was changed after tokenisation (its checksum differs)"


def _raise_if_changed(problems: Sequence[str]) -> None:
    if problems:
        omitted = [f"and {len(problems) - 10} more"] if len(problems) > 10 else []
        raise CorruptError(
            "; ".join([*problems[:10], *omitted, "run the same `ettsweep data text` again: it repairs only these"])
        )


def verification_stamp(folder: Path, manifest: Manifest) -> Path | None:
    """Return the cache file that marks these shards as verified; None if a shard or the cache is missing.

    Its name depends on path, size, modification time and inode of each shard, so any change makes it another one.
    """
    try:
        paths = [(folder / SHARDS / record.name).resolve() for record in manifest.shards]
        path_stats = [(path, path.stat()) for path in paths]
        identities = [(str(path), stat.st_size, stat.st_mtime_ns, stat.st_ino) for path, stat in path_stats]
        name = hashlib.sha256(repr((manifest.digest, identities)).encode()).hexdigest()[:24]
        return cache_folder() / f"text-{name}.verified"
    except (OSError, RuntimeError):
        return None


def mark_verified(stamp: Path | None) -> None:
    """Record that the shards of this stamp were verified; ignored if the cache cannot be written."""
    if stamp is not None:
        with contextlib.suppress(OSError, EttsweepError):  # without a cache, checksums are compared each time
            stamp.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(stamp, "")
