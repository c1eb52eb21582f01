"""A unit becomes shards; a finished one is known again by what it was made of and how."""

import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import ValidationError

from ettsweep.errors import FailedError
from ettsweep.files import sha256_of, write_atomic
from ettsweep.pool import BrokenProcessPool
from ettsweep.schema import digest
from ettsweep.tasks.sides import SIDES, Side
from ettsweep.tasks.text.corpus import add_documents
from ettsweep.tasks.text.manifest import VERSION, ShardRecord, UnitRecord
from ettsweep.tasks.text.preparation.documents import document_hash, read_documents
from ettsweep.tasks.text.preparation.pieces import DocumentRule
from ettsweep.tasks.text.preparation.units import Unit
from ettsweep.tasks.text.shards import ShardWriter
from ettsweep.tasks.text.tokenizer import SPLITTER_VERSION, Tokenizer, read_tokenizer_file

T = TypeVar("T")

AT_ONCE = 2**18
"""Characters that are encoded at once."""


class Work(NamedTuple):
    """What all units have in common."""

    shards: Path
    tokenizer: Path
    rule: DocumentRule
    val_below: int
    shard_bytes: int


@lru_cache(maxsize=1)
def cached_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a file, which a process reads once."""
    return read_tokenizer_file(path)


def unit_key(unit: Unit, work: Work) -> str:
    """Return what names a unit: all that its shards depend on."""
    made_by = [VERSION, SPLITTER_VERSION, cached_tokenizer(work.tokenizer).sha256, list(work.rule)]
    return digest([made_by, work.val_below, work.shard_bytes, unit.identity], 24)


def tokenise_unit(work: Work, key: str, unit: Unit) -> tuple[UnitRecord, bool]:
    """Return the record of a unit and whether it had to be tokenised; the record is its last file."""
    path = work.shards / f"{key}.json"
    record = _finished(path)
    if record is not None:
        return record, False
    tokenizer = cached_tokenizer(work.tokenizer)
    writer, shards, skipped = ShardWriter(tokenizer.n_vocab), list[ShardRecord](), 0
    for batch in _batches(read_documents(unit, work.rule), min(AT_ONCE, work.shard_bytes)):
        documents: list[tuple[str, Side]] = [
            (text, "val" if document_hash(text) < work.val_below else "train") for text in batch if text
        ]
        skipped += len(batch) - len(documents)
        if writer.text_bytes >= 2 * work.shard_bytes:  # a packed file is one unit, of any size
            shards.append(_write_shard(work.shards / f"{key}-{len(shards)}.bin", writer))
        add_documents(writer, tokenizer, documents)
    if writer.text_bytes:
        shards.append(_write_shard(work.shards / f"{key}-{len(shards)}.bin", writer))
    record = UnitRecord(key=key, shards=tuple(shards), skipped=skipped)
    write_atomic(path, record.model_dump_json())
    return record, True


def _batches(documents: Iterable[str], size: int) -> Iterator[list[str]]:
    """Yield lists of documents of about so many characters, which are encoded at once."""
    batch, characters = list[str](), 0
    for text in documents:
        batch.append(text)
        characters += len(text)
        if characters >= size:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _write_shard(path: Path, writer: ShardWriter) -> ShardRecord:
    data = writer.pack()
    write_atomic(path, data)
    train, val = (writer.counts(side) for side in SIDES)
    writer.clear()
    return ShardRecord(name=path.name, size=len(data), sha256=hashlib.sha256(data).hexdigest(), train=train, val=val)


def _finished(path: Path) -> UnitRecord | None:
    """Return the record of a unit that is there and whole, to the last byte."""
    try:
        record = UnitRecord.model_validate_json(path.read_bytes())
        whole = all(sha256_of(path.with_name(shard.name)) == shard.sha256 for shard in record.shards)
    except (OSError, ValidationError):
        return None
    return record if whole else None


def result(job: Future[T]) -> T:
    """Return what a process was asked for.

    Raises:
        FailedError: it was killed.
    """
    try:
        return job.result()
    except BrokenProcessPool:
        raise FailedError("a process was killed, perhaps for lack of memory: try fewer --workers") from None
