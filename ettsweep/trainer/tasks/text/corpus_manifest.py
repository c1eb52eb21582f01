"""The manifest of a tokenised corpus: its content, its inputs and its settings. Imports neither torch nor numpy.

A corpus is a folder with `manifest.json`, `tokenizer.json`, and a folder DIGEST that `datasets.load_from_disk` reads.
"""

from pathlib import Path
from typing import Annotated, Literal, NoReturn

from pydantic import Field, ValidationError

from ettsweep.errors import CorruptError, DataMissingError
from ettsweep.files import loads
from ettsweep.schema import StrictModel, problems
from ettsweep.trainer.tasks.data_location import Side
from ettsweep.trainer.tasks.text.text_task import CorpusDigest

VERSION = 2
"""Version of the format on disk."""

BLOCK_TOKENS = 512
"""Tokens of a block, without [start] and [end], in the paper's models. Statistics of a corpus are for this size; longer
sentences are cut."""

MANIFEST, TOKENIZER, CACHE = "manifest.json", "tokenizer.json", ".ettsweep-cache"

DocumentUnit = Literal["blank-line", "line", "file"]
"""Documents of a text file: paragraphs between blank lines, lines, or the whole file."""

Count = Annotated[int, Field(ge=0)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Counts(StrictModel):
    """Content of one side of a corpus.

    Attributes:
        text_bytes: size of the documents in UTF-8.
        long_sentences: number of sentences of more than 512 tokens.
        blocks: number of blocks of at most 512 tokens.
    """

    documents: Annotated[int, Field(ge=1)]
    sentences: Count
    tokens: Count
    text_bytes: Count
    long_sentences: Count
    blocks: Count


class Shard(StrictModel):
    """An arrow file in the folder of its side: name and size in bytes."""

    side: Side
    name: Annotated[str, Field(pattern=r"^data-\d{5}-of-\d{5}\.arrow$")]
    size: Count


class Settings(StrictModel):
    """Settings of a corpus, besides the names of its inputs.

    Attributes:
        tokenizer: checksum of the given one, or size of the one trained on the text.
        val_fraction: requested share of the documents for validation.
        files: digest of paths, sizes and modification times of the input.
    """

    text_field: str
    documents: DocumentUnit
    tokenizer: str
    val_fraction: Annotated[float, Field(gt=0, lt=1)]
    files: str


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
    shards: tuple[Shard, ...]


def is_corpus(folder: Path) -> bool:
    """Return `True` if a folder holds tokenised text, finished or not."""
    return any((folder / name).exists() for name in (MANIFEST, CACHE))


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of a corpus.

    Raises:
        DataMissingError: there is no corpus, or it is not finished.
        CorruptError: the manifest cannot be read, is of another version, or was edited.
    """
    path = folder / MANIFEST
    try:
        data = path.read_bytes()
        value = loads(data)
    except OSError as error:
        _raise_missing(folder, error)
    except ValueError as error:
        raise CorruptError(f"{path}: not valid JSON: {error}; {RETOKENISE_HINT}") from None
    version = value.get("version") if isinstance(value, dict) else None
    if version != VERSION:  # before validation: another version has other fields
        raise CorruptError(f"{path}: has version {version!r}, this ettsweep reads version {VERSION}; {RETOKENISE_HINT}")
    try:
        return Manifest.model_validate_json(data)
    except ValidationError as error:
        raise CorruptError("; ".join(problems(error, str(path)))) from None


RETOKENISE_HINT = "create it again with `ettsweep data text`"


def _raise_missing(folder: Path, error: OSError) -> NoReturn:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise DataMissingError(f"{folder / MANIFEST}: cannot be read ({error.strerror})")
    if (folder / CACHE).is_dir():
        raise DataMissingError(f"{folder}: tokenisation is not finished: run the same `ettsweep data text` again")
    problem = f"is not tokenised text: it has no {MANIFEST}" if folder.exists() else "does not exist"
    raise DataMissingError(f"{folder} {problem}; `ettsweep data text --input FILES --out DIR` creates one")
