"""Tokenised text, in memory or in memory-mapped arrow files."""

# N tokens of the vocabulary

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ettsweep.errors import CorruptError, EttsweepError, short_message
from ettsweep.schema import digest
from ettsweep.trainer.tasks.data_location import SIDES, Side
from ettsweep.trainer.tasks.text.blocks import TextBlocks, Texts, TokenWindows, token_type
from ettsweep.trainer.tasks.text.corpus_manifest import RETOKENISE_HINT, TOKENIZER, Manifest, read_manifest
from ettsweep.trainer.tasks.text.tokenizer import Tokenizer, read_tokenizer, split_sentences, word_tables

Sides = Mapping[Side, Sequence[Texts]]


class Corpus:
    """Tokenised text.

    Attributes:
        n_vocab: size of the model's vocabulary, special tokens included.
        digest: 12 hex digits that identify the tokens and their order.
        tokenizer: the tokenizer that produced the tokens.
        leads_with_space, is_space: masks over the vocabulary [N], for `tokenizer.word_starts`.
    """

    def __init__(self, tokenizer: Tokenizer, digest: str, sides: Sides) -> None:
        self.n_vocab = tokenizer.n_vocab
        self.digest = digest
        self.tokenizer = tokenizer
        self.leads_with_space, self.is_space = word_tables(tokenizer)
        self._sides = sides

    def blocks(self, side: Side, block_tokens: int) -> TextBlocks:
        """Return the training or validation text in blocks of at most `block_tokens` tokens."""
        return TextBlocks(self._sides[side], block_tokens)

    def windows(self, side: Side, tokens: int) -> TokenWindows:
        """Return the training or validation text in windows of `tokens` tokens."""
        return TokenWindows(self._sides[side], tokens)


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> Texts:
    """Tokenise documents in one call of the encoder; an empty one has no sentence and no token."""
    sentences = [split_sentences(text) for text in texts]
    tokens, lengths = tokenizer.encode([sentence for document in sentences for sentence in document])
    sentence_offsets = np.cumsum([0, *map(len, sentences)], dtype=np.int32)
    ends = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    token_offsets = ends[sentence_offsets]
    ends_in_document = ends[1:] - np.repeat(token_offsets[:-1], np.diff(sentence_offsets))
    return Texts(
        tokens.astype(token_type(tokenizer.n_vocab)),
        token_offsets.astype(np.int32),
        ends_in_document.astype(np.uint32),
        sentence_offsets,
    )


def corpus_digest(tokenizer: Tokenizer, sides: Sides, on_bytes_read: Callable[[int], None] | None = None) -> str:
    """Return the 12 hex digits that identify a corpus, however its documents are spread over files."""
    checksums = list[str]()
    for side in SIDES:
        hashes = [hashlib.sha256() for _ in Texts._fields]
        for texts in sides[side]:
            arrays = (texts.tokens, np.diff(texts.token_offsets), texts.ends, np.diff(texts.sentence_offsets))
            for running, array in zip(hashes, arrays, strict=True):
                running.update(np.ascontiguousarray(array).data)
            if on_bytes_read:
                on_bytes_read(sum(array.nbytes for array in arrays))
        checksums += [running.hexdigest() for running in hashes]
    return digest([tokenizer.sha256, tokenizer.n_vocab, checksums])


def corpus_from_texts(documents: Sequence[str], tokenizer: Tokenizer, is_val: Sequence[bool]) -> Corpus:
    """Return a corpus in memory, with the tokens that `ettsweep data text` would write.

    Args:
        documents: texts, none of them empty or white space only.
        tokenizer: encodes the texts.
        is_val: whether each document is for validation.
    """
    pairs = list(zip(documents, is_val, strict=True))
    # Stripped, as in a corpus on disk.
    sides: Sides = {
        side: [encode_texts(tokenizer, [text.strip() for text, val in pairs if val is (side == "val")])]
        for side in SIDES
    }
    return Corpus(tokenizer, corpus_digest(tokenizer, sides), sides)


# --- on disk ----------------------------------------------------------------------------------------------------------


def open_corpus(folder: Path) -> Corpus:
    """Open a corpus of `ettsweep data text`, comparing sizes of its files; `verify` reads them.

    Raises:
        DataMissingError: there is no corpus, or it is not finished.
        CorruptError: files of tokens or the tokenizer were changed after tokenisation.
    """
    manifest = read_manifest(folder)
    return Corpus(read_corpus_tokenizer(folder, manifest), manifest.digest, read_sides(folder, manifest))


def read_corpus_tokenizer(folder: Path, manifest: Manifest) -> Tokenizer:
    """Return the tokenizer in the folder of a corpus.

    Raises:
        CorruptError: it is missing, or not the tokenizer of the text.
    """
    path = folder / TOKENIZER
    try:
        tokenizer = read_tokenizer(path)
    except (EttsweepError, OSError) as error:
        raise CorruptError(f"{path}: is not the tokenizer of this text: {error}; {RETOKENISE_HINT}") from None
    if tokenizer.sha256 != manifest.tokenizer_sha256:
        raise CorruptError(
            f"{path}: is not the tokenizer of this text (it has {tokenizer.bpe_tokens} byte-pair tokens, that one has "
            f"{manifest.bpe_tokens}); restore that one, or {RETOKENISE_HINT}"
        )
    return tokenizer


def read_sides(folder: Path, manifest: Manifest) -> Sides:
    """Return the documents of both sides, after a check of the sizes of their files.

    Raises:
        CorruptError: files are missing, of another size, or no arrow files.
    """
    sides: dict[Side, list[Texts]] = {side: [] for side in SIDES}
    for shard in manifest.shards:
        path = folder / manifest.digest / shard.side / shard.name
        try:
            if (size := path.stat().st_size) != shard.size:
                raise CorruptError(f"{path}: has {size} bytes, {shard.size} were written; {REPAIR_HINT}")
            sides[shard.side] += read_arrow(path)
        except (OSError, ValueError, KeyError) as error:  # pyarrow's own errors are one of these
            reason = getattr(error, "strerror", None) or short_message(error)
            raise CorruptError(f"{path}: cannot be read ({reason}); {REPAIR_HINT}") from None
    return sides


def read_arrow(path: Path) -> list[Texts]:
    """Return the documents of an arrow file as views of its memory, one `Texts` for each of its batches."""
    import pyarrow as pa  # reads files of `datasets`, whose import takes seconds and 100 MiB

    table = pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
    columns = zip(table["tokens"].chunks, table["ends"].chunks, strict=True)
    lists = [(tokens.values, tokens.offsets, ends.values, ends.offsets) for tokens, ends in columns]
    return [Texts(*(array.to_numpy() for array in arrays)) for arrays in lists]


REPAIR_HINT = "run the same `ettsweep data text` again to repair it"


def verify(folder: Path, manifest: Manifest, on_bytes_read: Callable[[int], None] | None = None) -> None:
    """Compare the content of all files with the manifest's digest.

    Raises:
        CorruptError: they were changed after tokenisation.
    """
    tokenizer, sides = read_corpus_tokenizer(folder, manifest), read_sides(folder, manifest)
    if corpus_digest(tokenizer, sides, on_bytes_read) != manifest.digest:
        raise CorruptError(f"{folder / manifest.digest}: was changed after tokenisation; {REPAIR_HINT}")
