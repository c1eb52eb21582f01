"""Tokenise text on all cores into a corpus: `ettsweep data text`.

The input is cut into units, which processes tokenise independently. A finished unit is known again by what it was made
of and how, so that a command that was killed goes on where it was. The manifest, written last, makes a corpus of them.
"""

import fcntl
import hashlib
import math
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

from pydantic import ValidationError

from ettsweep.errors import DataMissingError, EttsweepError, FailedError, InputError, StoppedError, StorageError
from ettsweep.files import storage_errors, write_atomic
from ettsweep.schema import canonical
from ettsweep.tasks.text.corpus import add_documents, mark_verified
from ettsweep.tasks.text.files import HUB, How, Unit, cut, find_sources, read_documents
from ettsweep.tasks.text.manifest import (
    LONG,
    MANIFEST,
    PARTS,
    SHARDS,
    TOKENIZER,
    VERSION,
    Documents,
    Manifest,
    Part,
    Settings,
    ShardRecord,
    UnitRecord,
    add_up,
    begun,
    corpus_digest,
    is_own,
    not_own,
    read_manifest,
    sha256_of,
)
from ettsweep.tasks.text.shards import ShardWriter
from ettsweep.tasks.text.tokenizer import (
    LEAST_BPE,
    SPLITTER_VERSION,
    Tokenizer,
    TooFewPairsError,
    read_tokenizer,
    read_tokenizer_file,
    train_bpe,
)
from ettsweep.vocabulary import vocabulary_size

P = ParamSpec("P")
T = TypeVar("T")

HASHES = 2**64
"""How many hashes a document may have."""

SMALL = 64 * 2**20
"""Bytes of input that are read once more beforehand: all that is wrong is found before anything is written."""

SAMPLE = 64 * 2**20
"""Characters that a byte-pair encoding is trained on."""

SAMPLED_UNITS = 1024
"""Units that they come from at most."""

AT_ONCE = 2**18
"""Characters that are encoded at once."""


class Order(NamedTuple):
    """What is asked for.

    Attributes:
        tokenizer: folder of its files; None trains one of `bpe_tokens`.
        val_fraction: share of the documents that validate, chosen by a hash of their text.
        shard_mib: text that a process works on at a time.
        workers: processes; all cores by default.
    """

    inputs: tuple[str, ...]
    out: Path
    tokenizer: Path | None = None
    bpe_tokens: int | None = None
    val_fraction: float = 0.005
    text_field: str = "text"
    documents: Documents = "blank-line"
    shard_mib: float = 32.0
    workers: int | None = None

    @property
    def how(self) -> How:
        """Return what a document is."""
        return How(self.text_field, self.documents)


class Outcome(NamedTuple):
    """A corpus, and what it took.

    Attributes:
        made, kept: units that were tokenised, and that were there already.
        tokens: of the former.
        workers: processes.
        wall_s: time of all.
        text_files: whether the input has any, beside tables and JSON lines.
        replaced: digest of another corpus that was there before.
    """

    manifest: Manifest
    made: int
    kept: int
    tokens: int
    workers: int
    wall_s: float
    text_files: bool
    replaced: str | None


def tokenise(order: Order) -> Outcome:
    """Make a corpus, or what is missing of it.

    Raises:
        InputError: an option or the text is not as it must be; the message says what would work.
        DataMissingError: there is no text, or none to validate on.
        FailedError: a file is broken.
        StorageError: the folder cannot be written.
        StoppedError: Ctrl-C.
    """
    try:
        return _tokenise(order)
    except KeyboardInterrupt:
        raise StoppedError("interrupted; the same command goes on from what is finished") from None


def _tokenise(order: Order) -> Outcome:
    start_s = time.monotonic()
    _check_options(order)
    units = cut(find_sources(order.inputs), order.how, round(order.shard_mib * 2**20))
    tokenizer = read_tokenizer(order.tokenizer) if order.tokenizer else None
    val_below = _split(order, units)
    workers = min(order.workers or len(os.sched_getaffinity(0)), len(units))
    with _folder(order.out) as shards, _pool(workers) as pool, _progress(units) as advance:
        path = _tokenizer_file(shards, order, units, tokenizer, pool)
        job = Job(shards, path, order.how, val_below, round(order.shard_mib * 2**20))
        keys = [_key(unit, job) for unit in units]
        done = _run(pool, job, dict(zip(keys, units, strict=True)), advance)
        records = [done[key][0] for key in keys]
        manifest = _manifest(order, val_below, _cached_tokenizer(path), records)
        replaced = _digest_there(order.out)
        _finish(order.out, manifest, path, records)
    made = [record for record, fresh in done.values() if fresh]
    tokens = sum(counts.tokens for record in made for shard in record.shards for counts in (shard.train, shard.val))
    return Outcome(
        manifest,
        made=len(made),
        kept=len(done) - len(made),
        tokens=tokens,
        workers=workers,
        wall_s=time.monotonic() - start_s,
        text_files=any(piece.source.kind == "text" for unit in units for piece in unit.pieces),
        replaced=replaced if replaced != manifest.digest else None,
    )


def _check_options(order: Order) -> None:
    wrong = []
    if (order.tokenizer is None) == (order.bpe_tokens is None):
        wrong.append(
            "say which tokenizer, with one of --tokenizer DIR (GPT-2's files, for GPT-2's vocabulary of 50265) and "
            "--bpe-tokens N (trains one on this text)"
        )
    if order.bpe_tokens is not None and order.bpe_tokens < LEAST_BPE:
        wrong.append(f"--bpe-tokens: {LEAST_BPE} at least are needed, one for each byte, got {order.bpe_tokens}")
    if not 0 < order.val_fraction < 1:
        wrong.append(f"--val-fraction: a number between 0 and 1 is expected, got {order.val_fraction}")
    if not 0 < order.shard_mib <= 1024:
        wrong.append(f"--shard-mib: a number above 0 and up to 1024 is expected, got {order.shard_mib}")
    if not order.inputs:
        wrong.append("say what text, with --input FILES")
    if wrong:
        raise InputError.of(wrong)
    _check_out(order.out)


# --- which documents validate -----------------------------------------------------------------------------------------


def document_hash(text: str) -> int:
    """Return what decides on which side of the split a document is: the same for the same text."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


def _split(order: Order, units: Sequence[Unit]) -> int:
    """Return below which hash a document validates, so that at least one does and one does not.

    A large input is read until one of each kind is found, which is soon; a small one to its end, so that all that is
    wrong with it is found before anything is written.

    Raises:
        DataMissingError: there is no text, or a single document.
    """
    below = _below(order.val_fraction)
    lowest, highest = HASHES, -1
    small = sum(unit.size * (4 if unit.pieces[0].source.packed else 1) for unit in units) <= SMALL
    for text in chain.from_iterable(read_documents(unit, order.how) for unit in units):
        if text:
            number = document_hash(text)
            lowest, highest = min(lowest, number), max(highest, number)
            if lowest < below <= highest and not small:
                break
    if lowest >= highest:
        raise _too_few(highest >= 0, order, units)
    return min(max(below, lowest + 1), highest)


def _below(val_fraction: float) -> int:
    return max(1, round(val_fraction * HASHES))


def _too_few(one: bool, order: Order, units: Sequence[Unit]) -> DataMissingError:
    files = list(dict.fromkeys(piece.source.path for unit in units for piece in unit.pieces))
    where = files[0] if len(files) == 1 else f"the {len(files)} files of --input"
    if not one:
        return DataMissingError(f"{where}: no text in {'it' if len(files) == 1 else 'them'}")
    other = "line" if order.documents == "blank-line" else "blank-line or line"
    return DataMissingError(
        f"{where}: one document only, or the same again and again, cannot both train and validate; more text is "
        f"needed, or --documents {other}, which makes more documents of a text file"
    )


# --- the folder -------------------------------------------------------------------------------------------------------


def _check_out(out: Path) -> None:
    """Check that a folder may become a corpus.

    Raises:
        InputError: something else is there.
        StorageError: it cannot be written.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: is a file; a folder is expected")
    if out.is_dir() and (others := not_own(out)):
        names = ", ".join(others[:6])
        raise InputError(f"--out {out}: is not empty, and no tokenised text (it holds {names}); name a new folder")
    above = out
    while not above.exists():
        above = above.parent
    if not os.access(above, os.W_OK | os.X_OK):
        raise StorageError(f"--out {out}: {above} cannot be written; choose another folder")


@contextmanager
def _folder(out: Path) -> Iterator[Path]:
    """Give the folder for shards, for this command alone; nothing that is of no use stays behind.

    Raises:
        StorageError: another command is at work there.
    """
    with storage_errors(out):
        made = [folder for folder in (out, *out.parents) if not folder.exists()]
        shards = out / SHARDS
        shards.mkdir(parents=True, exist_ok=True)
        lock = os.open(out, os.O_RDONLY)
    try:
        with suppress(OSError):  # not all file systems have locks on folders
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StorageError(f"{out}: another `ettsweep data text` is writing there") from None
        try:
            yield shards
        finally:
            _sweep(out)
            _remove_unused(shards, [shards, *made])
    finally:
        os.close(lock)


def _sweep(out: Path) -> None:
    """Remove what a process that was killed had begun to write."""
    for folder in (out, out / SHARDS):
        for path in folder.glob(".*.tmp"):
            if begun(path) in (MANIFEST, TOKENIZER) or is_own(path):
                path.unlink(missing_ok=True)


def _remove_unused(shards: Path, folders: Iterable[Path]) -> None:
    """Remove the folders of a command that has finished no unit."""
    if any(not (path.name.startswith(TRAINED) and is_own(path)) for path in shards.iterdir()):
        return
    for path in shards.iterdir():
        path.unlink()
    with suppress(OSError):  # something else is in them
        for folder in folders:
            folder.rmdir()


TRAINED = "tokenizer-"
"""Beginning of the name of the file that processes read the tokenizer from."""


# --- the tokenizer ----------------------------------------------------------------------------------------------------


def _tokenizer_file(
    shards: Path, order: Order, units: Sequence[Unit], tokenizer: Tokenizer | None, pool: ProcessPoolExecutor
) -> Path:
    """Return the file that processes read the tokenizer from, after training it where need be."""
    if tokenizer is not None:
        path = shards / f"{TRAINED}{tokenizer.sha256[:24]}.json"
        if not path.exists():
            write_atomic(path, tokenizer.to_json())
        return path
    assert order.bpe_tokens is not None
    what = [VERSION, order.bpe_tokens, SAMPLE, list(order.how), [_identity(unit) for unit in units]]
    path = shards / f"{TRAINED}{_digest(what)}.json"
    if not path.exists():
        try:
            _result(_submit(pool, _train, path, order.bpe_tokens, order.how, units))
        except TooFewPairsError as error:
            raise InputError(f"--bpe-tokens: {error}") from None
    return path


def _train(path: Path, bpe_tokens: int, how: How, units: Sequence[Unit]) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    try:
        write_atomic(path, train_bpe(_sample(how, units), bpe_tokens).to_json())
    finally:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _sample(how: How, units: Sequence[Unit]) -> Iterator[str]:
    """Yield the beginning of units that are evenly spread, some 64 million characters of all."""
    count = min(len(units), SAMPLED_UNITS)
    for k in range(count):
        left = SAMPLE // count
        for text in read_documents(units[k * len(units) // count], how):
            yield text[:left]
            left -= len(text)
            if left <= 0:
                break


@lru_cache(maxsize=1)
def _cached_tokenizer(path: Path) -> Tokenizer:
    return read_tokenizer_file(path)


# --- units ------------------------------------------------------------------------------------------------------------


class Job(NamedTuple):
    """What all units have in common."""

    shards: Path
    tokenizer: Path
    how: How
    val_below: int
    shard_bytes: int


def _identity(unit: Unit) -> list[object]:
    return [[piece.identity, piece.start, piece.stop] for piece in unit.pieces]


def _key(unit: Unit, job: Job) -> str:
    """Return what names a unit: all that its shards depend on."""
    made_by = [VERSION, SPLITTER_VERSION, _cached_tokenizer(job.tokenizer).sha256, list(job.how)]
    return _digest([made_by, job.val_below, job.shard_bytes, _identity(unit)])


def _digest(value: object) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:24]


def _unit(job: Job, key: str, unit: Unit) -> tuple[UnitRecord, bool]:
    """Return the record of a unit and whether it had to be tokenised; the record is its last file."""
    path = job.shards / f"{key}.json"
    record = _finished(path)
    if record is not None:
        return record, False
    tokenizer = _cached_tokenizer(job.tokenizer)
    writer, shards, skipped = ShardWriter(tokenizer.n_vocab), list[ShardRecord](), 0
    for batch in _batches(read_documents(unit, job.how), min(AT_ONCE, job.shard_bytes)):
        documents: list[tuple[str, Part]] = [
            (text, "val" if document_hash(text) < job.val_below else "train") for text in batch if text
        ]
        skipped += len(batch) - len(documents)
        if writer.text_bytes >= 2 * job.shard_bytes:  # a packed file is one unit, of any size
            shards.append(_write_shard(job.shards / f"{key}-{len(shards)}.bin", writer))
        add_documents(writer, tokenizer, documents)
    if writer.text_bytes:
        shards.append(_write_shard(job.shards / f"{key}-{len(shards)}.bin", writer))
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
    train, val = (writer.counts(part) for part in PARTS)
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


# --- processes --------------------------------------------------------------------------------------------------------


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Give processes; whatever ends the body, they are gone after it."""
    # Not forked: the tokenizers library starts threads, and threads do not survive a fork.
    to_pipes = signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # work may be on its way to processes that are gone
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_start, initargs=(workers,))
    try:
        yield pool
    except BaseException:
        with _no_interrupts():
            for process in active_children():
                process.terminate()
            pool.shutdown(cancel_futures=True)
        raise
    else:
        pool.shutdown()
    finally:
        signal.signal(signal.SIGPIPE, to_pipes)


def _start(workers: int) -> None:
    """Prepare a process of the pool: it ends with the one that started it, even if that was killed."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = str(workers)  # of the one that trains an encoding
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back; processes that are started meanwhile never see it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _submit(pool: ProcessPoolExecutor, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> Future[T]:
    with _no_interrupts():
        return pool.submit(work, *arguments, **named)


def _result(job: Future[T]) -> T:
    try:
        return job.result()
    except BrokenProcessPool:
        raise FailedError("a process was killed, perhaps for lack of memory: try fewer --workers") from None


def _run(
    pool: ProcessPoolExecutor, job: Job, units: dict[str, Unit], advance: Callable[[int], None]
) -> dict[str, tuple[UnitRecord, bool]]:
    """Return the records of all units, and which were made now."""
    done = dict[str, tuple[UnitRecord, bool]]()

    def kept() -> str:
        count = sum((job.shards / f"{key}.json").exists() for key in units)
        return f"{count} of {len(units)} parts are finished and kept: the same command goes on from there"

    try:
        jobs = {_submit(pool, _unit, job, key, unit): key for key, unit in units.items()}
        for one in as_completed(jobs):
            key = jobs[one]
            done[key] = _result(one)
            advance(units[key].size)
    except KeyboardInterrupt:
        raise StoppedError(f"interrupted; {kept()}") from None
    except EttsweepError as error:
        raise type(error)(f"{error}\n{kept()}") from None
    return done


@contextmanager
def _progress(units: Sequence[Unit]) -> Iterator[Callable[[int], None]]:
    """Give a function that is told of bytes that are done, and shows it to a person."""
    if not sys.stderr.isatty():
        yield lambda size: None
        return
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (*Progress.get_default_columns()[:-1], DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("tokenising", total=sum(unit.size for unit in units))
        yield lambda size: progress.update(bar, advance=size)


# --- the end ----------------------------------------------------------------------------------------------------------


def _manifest(order: Order, val_below: int, tokenizer: Tokenizer, records: Sequence[UnitRecord]) -> Manifest:
    shards = tuple(shard for record in records for shard in record.shards)
    return Manifest(
        version=VERSION,
        digest=corpus_digest(tokenizer.sha256, tokenizer.n_vocab, (shard.sha256 for shard in shards)),
        n_vocab=tokenizer.n_vocab,
        bpe_tokens=tokenizer.bpe_tokens,
        tokenizer_sha256=tokenizer.sha256,
        inputs=tuple(
            text if text.startswith(HUB) else str(Path(text).expanduser().absolute()) for text in order.inputs
        ),
        settings=Settings(
            text_field=order.text_field,
            documents=order.documents,
            val_fraction=order.val_fraction,
            val_below=val_below,
            shard_mib=order.shard_mib,
        ),
        train=add_up(shard.train for shard in shards),
        val=add_up(shard.val for shard in shards),
        skipped=sum(record.skipped for record in records),
        shards=shards,
    )


def _digest_there(out: Path) -> str | None:
    """Return the digest of the finished corpus in a folder."""
    try:
        return read_manifest(out).digest
    except EttsweepError:
        return None


def _finish(out: Path, manifest: Manifest, tokenizer: Path, records: Sequence[UnitRecord]) -> None:
    """Make a corpus of finished shards, and remove those of an earlier one that it does not have."""
    own, text = out / TOKENIZER, tokenizer.read_bytes()
    if not own.is_file() or own.read_bytes() != text:
        (out / MANIFEST).unlink(missing_ok=True)  # at no instant does it stand beside a tokenizer that is not its own
        write_atomic(own, text)
    write_atomic(out / MANIFEST, manifest.model_dump_json(indent=1))
    keep = {tokenizer.name, *(shard.name for shard in manifest.shards), *(f"{one.key}.json" for one in records)}
    for path in (out / SHARDS).iterdir():
        if path.name not in keep and is_own(path):
            path.unlink()
    mark_verified(out, manifest)  # each shard was made or compared just now


# --- what is said of it -----------------------------------------------------------------------------------------------


def corpus_rows(manifest: Manifest) -> list[dict[str, str | int]]:
    """Return a row on each part of a corpus."""
    rows = []
    for what, counts in (("training", manifest.train), ("validation", manifest.val)):
        row: dict[str, str | int] = {"part": what, "documents": counts.documents, "sentences": counts.sentences}
        row |= {"tokens": counts.tokens, f"blocks_{LONG}": counts.blocks, "text_bytes": counts.text_bytes}
        rows.append(row)
    return rows


FEW_BLOCKS = 32
"""Blocks of validation below which that is said."""

GPT2 = 50257
"""Byte-pair tokens of GPT-2, whose vocabulary bart-large and r2c2 have."""


def corpus_summary(order: Order, outcome: Outcome) -> str:
    """Return what was done, what is worth knowing of the corpus, and what comes next."""
    manifest = outcome.manifest
    if outcome.made:
        rate = f"{outcome.tokens:,} tokens in {outcome.wall_s:.1f} s: {outcome.tokens / outcome.wall_s:,.0f} tokens/s"
        lines = [f"{rate} on {outcome.workers} {'process' if outcome.workers == 1 else 'processes'}"]
        if outcome.kept:
            lines.append(f"{outcome.kept} of {outcome.made + outcome.kept} parts were there already")
    else:
        lines = ["all of it was there already"]
    if manifest.settings.val_below != _below(order.val_fraction):
        lines.append(
            f"few documents: with --val-fraction {order.val_fraction} one side would be empty, so the document "
            "nearest to it was taken"
        )
    if manifest.skipped:
        lines.append(
            f"{manifest.skipped} documents without text were left out"
            if manifest.skipped > 1
            else "1 document without text was left out"
        )
    if long := manifest.train.long_sentences + manifest.val.long_sentences:
        lines.append(
            f"{long} sentences have more than {LONG} tokens; blocks of that size cut them"
            if long > 1
            else f"1 sentence has more than {LONG} tokens; blocks of that size cut it"
        )
    if (mean := manifest.train.tokens / manifest.train.blocks) < LONG / 2:
        told = f"documents are short: blocks of up to {LONG} tokens have {mean:.0f} on average, the rest is [pad]"
        if (tokens := _roomy(mean)) < LONG:
            told += f"; --set model.tokens={tokens} has less of it"
        if outcome.text_files and order.documents != "file":
            told += "; where a text file is one document: --documents file"
        lines.append(told)
    if (blocks := manifest.val.blocks) < FEW_BLOCKS:
        lines.append(
            f"validation has {blocks} {'block' if blocks == 1 else 'blocks'} of up to {LONG} tokens, few to judge by: "
            "a larger --val-fraction has more"
        )
    if outcome.replaced:
        lines.append(
            f"replaces corpus {outcome.replaced}: runs made for it cannot go on without it; another --out keeps both"
        )
    lines.append(f"{order.out}: corpus {manifest.digest}, vocabulary {manifest.n_vocab}")
    other = "" if manifest.n_vocab == vocabulary_size(GPT2) else f" --set model.vocabulary={manifest.n_vocab}"
    lines.append(f"next: `ettsweep grid --model bart-large --data {shlex.quote(str(order.out))}{other}`")
    return "\n".join(lines)


def _roomy(mean: float) -> int:
    """Return a length of the model in which documents of so many tokens on average mostly fit: a power of two."""
    return 1 << max(4, math.ceil(math.log2(2 * mean)))
