"""Tokenise text on all cores into a corpus: `ettsweep data text`.

The input is cut into units, which processes tokenise independently. A finished unit is known again by what it was made
of and how, so that a command that was killed goes on where it was. The manifest, written last, makes a corpus of them.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from ettsweep.errors import InputError, StoppedError, TooFewPairsError
from ettsweep.files import sha256_of, write_atomic
from ettsweep.output import progress
from ettsweep.pool import Pool, open_pool
from ettsweep.processes import cores
from ettsweep.schema import digest
from ettsweep.tasks.data import SIDES, Side
from ettsweep.tasks.preparation import in_parts, result
from ettsweep.tasks.text.corpus import add_documents
from ettsweep.tasks.text.manifest import VERSION, Manifest, Settings, ShardRecord, UnitRecord, add_up, corpus_digest
from ettsweep.tasks.text.preparation.documents import document_hash, read_documents, split
from ettsweep.tasks.text.preparation.folder import TRAINED, check_folder, corpus_folder, corpus_there, finish
from ettsweep.tasks.text.preparation.inputs import DocumentRule, Unit, cut, find_files
from ettsweep.tasks.text.preparation.request import CorpusRequest, Tokenised, check_request
from ettsweep.tasks.text.shards import ShardWriter
from ettsweep.tasks.text.tokenizer import SPLITTER_VERSION, Tokenizer, read_tokenizer, read_tokenizer_file, train_bpe

AT_ONCE = 2**18
"""Characters that are encoded at once."""

SAMPLE = 64 * 2**20
"""Characters that a byte-pair encoding is trained on."""

SAMPLED_UNITS = 1024
"""Units that they come from at most."""


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


def tokenise(request: CorpusRequest, agree: Callable[[Manifest], None] = lambda _: None) -> Tokenised:
    """Make a corpus, or what is missing of it.

    Another corpus that is there is only replaced after `agree` was given it; what that raises keeps it, and the parts
    that are finished.

    Raises:
        InputError: an option or the text is not as it must be; the message says what would work.
        DataMissingError: there is no text, or none to validate on.
        FailedError: a file is broken.
        StorageError: the folder cannot be written.
        StoppedError: Ctrl-C.
    """
    try:
        return _tokenise(request, agree)
    except KeyboardInterrupt:
        raise StoppedError("interrupted; the same command goes on from what is finished") from None


def _tokenise(request: CorpusRequest, agree: Callable[[Manifest], None]) -> Tokenised:
    start_s = time.monotonic()
    check_request(request)
    check_folder(request.out)
    units = cut(find_files(request.inputs), request.rule, request.shard_bytes)
    tokenizer = read_tokenizer(request.tokenizer) if request.tokenizer else None
    val_below = split(request, units)
    workers = min(request.workers or cores(), len(units))
    with corpus_folder(request.out) as shards:
        with (
            open_pool(workers, "spawn", _prepare, workers) as pool,  # the tokenizers library starts threads
            progress("tokenising", sum(unit.size for unit in units), "bytes") as advance,
        ):
            path = tokenizer_file(shards, request, units, tokenizer, pool)
            work = Work(shards, path, request.rule, val_below, request.shard_bytes)
            done = in_parts(
                pool,
                partial(tokenise_unit, work),
                units,
                lambda unit: unit.size,
                advance,
                lambda: sum(work.record(unit).exists() for unit in units),
            )
        records = [record for record, _ in done]
        manifest = _manifest(request, val_below, cached_tokenizer(path), records)
        before = corpus_there(request.out)
        replaced = before if before and before.digest != manifest.digest else None
        if replaced:
            agree(replaced)
        finish(request.out, manifest, path, records)
    made = [record for record, fresh in done if fresh]
    tokens = sum(counts.tokens for record in made for shard in record.shards for counts in (shard.train, shard.val))
    return Tokenised(
        manifest,
        made=len(made),
        kept=len(done) - len(made),
        tokens=tokens,
        workers=workers,
        wall_s=time.monotonic() - start_s,
        text_files=any(piece.file.kind == "text" for unit in units for piece in unit.pieces),
        replaced=replaced.digest if replaced else None,
    )


def _prepare(workers: int) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = str(workers)  # of the one that trains an encoding


def _manifest(request: CorpusRequest, val_below: int, tokenizer: Tokenizer, records: Sequence[UnitRecord]) -> Manifest:
    shards = tuple(shard for record in records for shard in record.shards)
    return Manifest(
        version=VERSION,
        digest=corpus_digest(tokenizer.sha256, tokenizer.n_vocab, (shard.sha256 for shard in shards)),
        n_vocab=tokenizer.n_vocab,
        bpe_tokens=tokenizer.bpe_tokens,
        tokenizer_sha256=tokenizer.sha256,
        inputs=request.sources,
        settings=Settings(
            text_field=request.text_field,
            documents=request.documents,
            val_fraction=request.val_fraction,
            val_below=val_below,
            shard_mib=request.shard_mib,
        ),
        train=add_up(shard.train for shard in shards),
        val=add_up(shard.val for shard in shards),
        skipped=sum(record.skipped for record in records),
        shards=shards,
    )


# --- the tokenizer ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def cached_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a file, which a process reads once."""
    return read_tokenizer_file(path)


def tokenizer_file(
    shards: Path, request: CorpusRequest, units: Sequence[Unit], given: Tokenizer | None, pool: Pool
) -> Path:
    """Return the file that processes read the tokenizer from: the one that was given, or one trained on the text."""
    what = [VERSION, request.bpe_tokens, SAMPLE, list(request.rule), [unit.identity for unit in units]]
    path = shards / f"{TRAINED}{given.sha256[:24] if given else digest(what, 24)}.json"
    if given and not path.exists():
        write_atomic(path, given.to_json())
    elif request.bpe_tokens and not path.exists():
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
            shards.append(_write_shard(path, len(shards), writer))
            writer = ShardWriter(tokenizer.n_vocab)
        add_documents(writer, tokenizer, documents)
    if writer.text_bytes:
        shards.append(_write_shard(path, len(shards), writer))
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


def _write_shard(record: Path, number: int, writer: ShardWriter) -> ShardRecord:
    path, data = record.with_name(f"{record.stem}-{number}.bin"), writer.pack()
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
