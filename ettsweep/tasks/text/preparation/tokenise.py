"""Tokenise text on all cores into a corpus: `ettsweep data text`.

The input is cut into units, which processes tokenise independently. A finished unit is known again by what it was made
of and how, so that a command that was killed goes on where it was. The manifest, written last, makes a corpus of them.
"""

import os
import time
from collections.abc import Sequence
from concurrent.futures import as_completed
from pathlib import Path

from ettsweep.errors import EttsweepError, StoppedError
from ettsweep.output import Advance, progress
from ettsweep.pool import Pool, open_pool
from ettsweep.processes import cores
from ettsweep.tasks.text.manifest import VERSION, Manifest, Settings, UnitRecord, add_up, corpus_digest
from ettsweep.tasks.text.preparation.documents import split
from ettsweep.tasks.text.preparation.folder import check_folder, corpus_folder, digest_there, finish
from ettsweep.tasks.text.preparation.inputs import HUB, find_files
from ettsweep.tasks.text.preparation.request import CorpusRequest, Outcome, check_request
from ettsweep.tasks.text.preparation.units import Unit, cut
from ettsweep.tasks.text.preparation.work import Work, cached_tokenizer, result, tokenise_unit, tokenizer_file
from ettsweep.tasks.text.tokenizer import Tokenizer, read_tokenizer


def tokenise(request: CorpusRequest) -> Outcome:
    """Make a corpus, or what is missing of it.

    Raises:
        InputError: an option or the text is not as it must be; the message says what would work.
        DataMissingError: there is no text, or none to validate on.
        FailedError: a file is broken.
        StorageError: the folder cannot be written.
        StoppedError: Ctrl-C.
    """
    try:
        return _tokenise(request)
    except KeyboardInterrupt:
        raise StoppedError("interrupted; the same command goes on from what is finished") from None


def _tokenise(request: CorpusRequest) -> Outcome:
    start_s = time.monotonic()
    check_request(request)
    check_folder(request.out)
    units = cut(find_files(request.inputs), request.rule, request.shard_bytes)
    tokenizer = read_tokenizer(request.tokenizer) if request.tokenizer else None
    val_below = split(request, units)
    workers = min(request.workers or cores(), len(units))
    with (
        corpus_folder(request.out) as shards,
        open_pool(workers, "spawn", _prepare, workers) as pool,  # the tokenizers library starts threads
        progress("tokenising", sum(unit.size for unit in units), "bytes") as advance,
    ):
        path = tokenizer_file(shards, request, units, tokenizer, pool)
        work = Work(shards, path, request.rule, val_below, request.shard_bytes)
        done = _run(pool, work, units, advance)
        records = [record for record, _ in done]
        manifest = _manifest(request, val_below, cached_tokenizer(path), records)
        replaced = digest_there(request.out)
        finish(request.out, manifest, path, records)
    made = [record for record, fresh in done if fresh]
    tokens = sum(counts.tokens for record in made for shard in record.shards for counts in (shard.train, shard.val))
    return Outcome(
        manifest,
        made=len(made),
        kept=len(done) - len(made),
        tokens=tokens,
        workers=workers,
        wall_s=time.monotonic() - start_s,
        text_files=any(piece.file.kind == "text" for unit in units for piece in unit.pieces),
        replaced=replaced if replaced != manifest.digest else None,
    )


def _prepare(workers: int) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = str(workers)  # of the one that trains an encoding


def _run(pool: Pool, work: Work, units: Sequence[Unit], advance: Advance) -> list[tuple[UnitRecord, bool]]:
    """Return the records of all units, and which were made now."""

    def kept() -> str:
        count = sum(work.record(unit).exists() for unit in units)
        return f"{count} of {len(units)} parts are finished and kept: the same command goes on from there"

    try:
        jobs = {pool.submit(tokenise_unit, work, unit): unit for unit in units}
        for job in as_completed(jobs):
            result(job)
            advance(jobs[job].size)
    except KeyboardInterrupt:
        raise StoppedError(f"interrupted; {kept()}") from None
    except EttsweepError as error:
        raise type(error)(f"{error}\n{kept()}") from None
    return [job.result() for job in jobs]


def _manifest(request: CorpusRequest, val_below: int, tokenizer: Tokenizer, records: Sequence[UnitRecord]) -> Manifest:
    shards = tuple(shard for record in records for shard in record.shards)
    return Manifest(
        version=VERSION,
        digest=corpus_digest(tokenizer.sha256, tokenizer.n_vocab, (shard.sha256 for shard in shards)),
        n_vocab=tokenizer.n_vocab,
        bpe_tokens=tokenizer.bpe_tokens,
        tokenizer_sha256=tokenizer.sha256,
        inputs=tuple(
            text if text.startswith(HUB) else str(Path(text).expanduser().absolute()) for text in request.inputs
        ),
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
