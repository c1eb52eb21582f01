"""The manifest of a tokenised corpus: its content, its inputs and its settings. Imports neither torch nor numpy.

A corpus is a folder with `manifest.json`, `tokenizer.json` and `shards/`, written by `ettsweep data text`.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, NoReturn

from pydantic import Field, ValidationError

from ettsweep.errors import CorruptError, DataMissingError
from ettsweep.files import loads
from ettsweep.schema import StrictModel, digest, problems
from ettsweep.trainer.tasks.data_location import SIDES, Side
from ettsweep.trainer.tasks.text.text_task import CorpusDigest

VERSION = 1
"""Version of the format on disk."""

BLOCK_TOKENS = 512
"""Tokens of a block, without [start] and [end], in the paper's models. Statistics of a corpus are for this size; longer
sentences are cut."""

MANIFEST, TOKENIZER, SHARDS = "manifest.json", "tokenizer.json", "shards"

DocumentUnit = Literal["blank-line", "line", "file"]
"""What counts as a document in a text file: a paragraph between blank lines, a line, or the whole file."""

Count = Annotated[int, Field(ge=0)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Counts(StrictModel):
    """Content of one side of a corpus or of a shard.

    Attributes:
        text_bytes: size of the documents in UTF-8.
        long_sentences: number of sentences of more than 512 tokens.
        blocks: number of blocks of at most 512 tokens.
    """

    documents: Count = 0
    sentences: Count = 0
    tokens: Count = 0
    text_bytes: Count = 0
    long_sentences: Count = 0
    blocks: Count = 0


class ShardRecord(StrictModel):
    """A file in `shards/`: name, size in bytes, checksum, and content of both sides."""

    name: Annotated[str, Field(pattern=r"^[0-9a-f]{24}-\d+\.bin$")]
    size: Count
    sha256: Sha256
    train: Counts
    val: Counts

    def counts(self, side: Side) -> Counts:
        return self.train if side == "train" else self.val


class Settings(StrictModel):
    """Options that a corpus was made with, beside its inputs and its tokenizer.

    Attributes:
        val_fraction: requested share of the documents for validation.
        val_below: documents with a 64-bit hash below this are for validation. It is `val_fraction` of 2^64, unless one
            side of a small corpus would have no document then.
    """

    text_field: str
    documents: DocumentUnit
    val_fraction: Annotated[float, Field(gt=0, lt=1)]
    val_below: Annotated[int, Field(gt=0)]
    shard_mib: Annotated[float, Field(gt=0)]


class Manifest(StrictModel):
    """The content of `manifest.json`.

    Attributes:
        digest: 12 hex digits that identify the tokens and their order; independent of paths, times and processes.
        n_vocab: size of the model's vocabulary, special tokens included.
        bpe_tokens: number of ids of the byte-pair encoding.
        tokenizer_sha256: checksum of vocabulary and merges (`Tokenizer.sha256`).
        skipped: number of documents left out because they are white space only.
    """

    version: int
    digest: CorpusDigest
    n_vocab: Annotated[int, Field(ge=9)]
    bpe_tokens: Annotated[int, Field(ge=1)]
    tokenizer_sha256: Sha256
    inputs: tuple[str, ...]
    settings: Settings
    train: Counts
    val: Counts
    skipped: Count
    shards: tuple[ShardRecord, ...]

    def counts(self, side: Side) -> Counts:
        return self.train if side == "train" else self.val


def corpus_digest(tokenizer_sha256: str, n_vocab: int, shards: Iterable[str]) -> str:
    """Return the 12 hex digits that identify a corpus; `shards` are the checksums of its shards, in order."""
    return digest([tokenizer_sha256, n_vocab, list(shards)])


def sum_counts(counts: Iterable[Counts]) -> Counts:
    """Return the sum of counts, field by field."""
    rows = [entry.model_dump() for entry in counts]
    return Counts(**{name: sum(row[name] for row in rows) for name in Counts.model_fields})


def is_corpus(folder: Path) -> bool:
    """Return `True` if a folder holds tokenised text, finished or not."""
    return (folder / MANIFEST).is_file() or (folder / SHARDS).is_dir()


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of a corpus.

    Raises:
        DataMissingError: there is no corpus, it is not finished, or one side has no documents.
        CorruptError: the manifest cannot be read, is of another version, or was edited.
    """
    path = folder / MANIFEST
    try:
        data = path.read_bytes()
    except OSError as error:
        _raise_missing(folder, error)
    _check_version(path, data)  # before validation: another version has other fields
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        raise CorruptError("; ".join(problems(error, str(path)))) from None
    expected_digest = corpus_digest(
        manifest.tokenizer_sha256, manifest.n_vocab, (shard.sha256 for shard in manifest.shards)
    )
    if expected_digest != manifest.digest or any(
        manifest.counts(side) != sum_counts(shard.counts(side) for shard in manifest.shards) for side in SIDES
    ):
        raise CorruptError(f"{path}: was edited: its digest or counts are not those of its shards; {RETOKENISE_HINT}")
    empty_sides = [
        side_name
        for side_name, side in (("training", manifest.train), ("validation", manifest.val))
        if not side.documents
    ]
    if empty_sides:
        raise DataMissingError(f"{folder}: has no {' and no '.join(empty_sides)} document; {RETOKENISE_HINT}")
    return manifest


RETOKENISE_HINT = "create it again with `ettsweep data text`"


def _raise_missing(folder: Path, error: OSError) -> NoReturn:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise DataMissingError(f"{folder / MANIFEST}: cannot be read ({error.strerror})")
    if (folder / SHARDS).is_dir():
        raise DataMissingError(f"{folder}: tokenisation is not finished: run the same `ettsweep data text` again")
    problem = f"is not tokenised text: it has no {MANIFEST}" if folder.exists() else "does not exist"
    raise DataMissingError(f"{folder} {problem}; `ettsweep data text --input FILES --out DIR` creates one")


def _check_version(path: Path, data: bytes) -> None:
    try:
        value = loads(data)
    except ValueError as error:
        raise CorruptError(f"{path}: no valid JSON: {error}; {RETOKENISE_HINT}") from None
    version = value.get("version") if isinstance(value, dict) else None
    if version != VERSION:
        raise CorruptError(f"{path}: has version {version!r}, this ettsweep reads version {VERSION}; {RETOKENISE_HINT}")
