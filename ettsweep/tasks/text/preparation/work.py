"""What processes do: one may train the tokenizer; each makes shards of units, and knows those that are finished."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import ValidationError

from ettsweep.errors import FailedError, InputError, TooFewPairsError
from ettsweep.files import sha256_of, write_atomic
from ettsweep.pool import BrokenProcessPool, Pool
from ettsweep.schema import digest
from ettsweep.tasks.data import SIDES, Side
from ettsweep.tasks.text.corpus import add_documents
from ettsweep.tasks.text.manifest import VERSION, ShardRecord, UnitRecord
from ettsweep.tasks.text.preparation.documents import document_hash, read_documents
from ettsweep.tasks.text.preparation.folder import TRAINED
from ettsweep.tasks.text.preparation.request import CorpusRequest
from ettsweep.tasks.text.preparation.units import DocumentRule, Unit
from ettsweep.tasks.text.shards import ShardWriter
from ettsweep.tasks.text.tokenizer import SPLITTER_VERSION, Tokenizer, read_tokenizer_file, train_bpe

T = TypeVar("T")

AT_ONCE = 2**18
"""Characters that are encoded at once."""

SAMPLE = 64 * 2**20
"""Characters that a byte-pair encoding is trained on."""

SAMPLED_UNITS = 1024
"""Units that they come from at most."""


def result(job: Future[T]) -> T:
    """Return what a process was asked for.

    Raises:
        FailedError: it was killed.
    """
    try:
        return job.result()
    except BrokenProcessPool:
        raise FailedError("a process was killed, perhaps for lack of memory: try fewer --workers") from None


# --- the tokenizer ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def cached_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a file, which a process reads once."""
    return read_tokenizer_file(path)


def tokenizer_file(
    shards: Path, request: CorpusRequest, units: Sequence[Unit], given: Tokenizer | None, pool: Pool
) -> Path:
    """Return the file that processes read the tokenizer from: the one that was given, or one trained on the text."""
    if given is not None:
        path = shards / f"{TRAINED}{given.sha256[:24]}.json"
        if not path.exists():
            write_atomic(path, given.to_json())
        return path
    assert request.bpe_tokens is not None
    what = [VERSION, request.bpe_tokens, SAMPLE, list(request.rule), [unit.identity for unit in units]]
    path = shards / f"{TRAINED}{digest(what, 24)}.json"
    if not path.exists():
        try:
            result(pool.submit(_train, path, request.bpe_tokens, request.rule, units))
        except TooFewPairsError as error:
            raise InputError(f"--bpe-tokens: {error}") from None
    return path


def _train(path: Path, bpe_tokens: int, rule: DocumentRule, units: Sequence[Unit]) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    try:
        write_atomic(path, train_bpe(_sample(rule, units), bpe_tokens).to_json())
    finally:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _sample(rule: DocumentRule, units: Sequence[Unit]) -> Iterator[str]:
    """Yield the beginning of units that are evenly spread, some 64 million characters of all."""
    count = min(len(units), SAMPLED_UNITS)
    for k in range(count):
        left = SAMPLE // count
        for text in read_documents(units[k * len(units) // count], rule):
            yield text[:left]
            left -= len(text)
            if left <= 0:
                break


# --- shards -----------------------------------------------------------------------------------------------------------


class Work(NamedTuple):
    """What all units have in common."""

    shards: Path
    tokenizer: Path
    rule: DocumentRule
    val_below: int
    shard_bytes: int

    def record(self, unit: Unit) -> Path:
        """Return the last file of a finished unit, named by all that its shards depend on."""
        made_by = [VERSION, SPLITTER_VERSION, cached_tokenizer(self.tokenizer).sha256, list(self.rule)]
        return self.shards / f"{digest([made_by, self.val_below, self.shard_bytes, unit.identity], 24)}.json"


def tokenise_unit(work: Work, unit: Unit) -> tuple[UnitRecord, bool]:
    """Return the record of a unit and whether it had to be tokenised."""
    path = work.record(unit)
    if (record := _finished(path)) is not None:
        return record, False
    tokenizer = cached_tokenizer(work.tokenizer)
    writer, shards, skipped = ShardWriter(tokenizer.n_vocab), list[ShardRecord](), 0
    for batch in _batches(read_documents(unit, work.rule), min(AT_ONCE, work.shard_bytes)):
        documents: list[tuple[str, Side]] = [
            (text, "val" if document_hash(text) < work.val_below else "train") for text in batch if text
        ]
        skipped += len(batch) - len(documents)
        if writer.text_bytes >= 2 * work.shard_bytes:  # a packed file is one unit, of any size
            shards.append(_write_shard(path.with_name(f"{path.stem}-{len(shards)}.bin"), writer))
            writer = ShardWriter(tokenizer.n_vocab)
        add_documents(writer, tokenizer, documents)
    if writer.text_bytes:
        shards.append(_write_shard(path.with_name(f"{path.stem}-{len(shards)}.bin"), writer))
    record = UnitRecord(key=path.stem, shards=tuple(shards), skipped=skipped)
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
    return ShardRecord(name=path.name, size=len(data), sha256=hashlib.sha256(data).hexdigest(), train=train, val=val)


def _finished(path: Path) -> UnitRecord | None:
    """Return the record of a unit that is there and whole, to the last byte."""
    try:
        record = UnitRecord.model_validate_json(path.read_bytes())
        whole = all(sha256_of(path.with_name(shard.name)) == shard.sha256 for shard in record.shards)
    except (OSError, ValidationError):
        return None
    return record if whole else None
