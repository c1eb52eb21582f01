"""Tokenise text into a corpus on all cores: `ettsweep data text`.

One process reads the documents and groups them into shards; a pool of processes tokenises the shards. The name of a
shard is a hash of its documents and of the tokenizer, so a command that was killed can be started again: it reads the
text again, which is quick, and tokenises only the shards that are missing. The manifest, which is written last, turns
the shards into a corpus.
"""

import hashlib
import heapq
import math
import os
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from ettsweep.console import format_count, progress
from ettsweep.errors import DataMissingError, EttsweepError, FailedError, InputError, StoppedError, TooFewPairsError
from ettsweep.files import expand_home, sha256_of, write_atomic
from ettsweep.process_pool import Pool, open_pool
from ettsweep.processes import cores
from ettsweep.schema import digest
from ettsweep.token_ids import LEAST_BPE
from ettsweep.trainer.tasks.data_location import SIDES, Side
from ettsweep.trainer.tasks.text.corpus import add_documents
from ettsweep.trainer.tasks.text.corpus_folder import (
    TOKENIZER_PREFIX,
    check_folder,
    existing_manifest,
    finish_corpus,
    lock_corpus_folder,
)
from ettsweep.trainer.tasks.text.corpus_manifest import (
    BLOCK_TOKENS,
    VERSION,
    DocumentUnit,
    Manifest,
    Settings,
    ShardRecord,
    corpus_digest,
    sum_counts,
)
from ettsweep.trainer.tasks.text.documents import HUB_PREFIX, Source, document_hash, find_sources, read_documents
from ettsweep.trainer.tasks.text.shards import ShardWriter
from ettsweep.trainer.tasks.text.tokenizer import (
    SPLITTER_VERSION,
    Tokenizer,
    read_tokenizer,
    read_tokenizer_file,
    train_bpe,
)

HASH_COUNT = 2**64
"""Number of values of `document_hash`."""

PRECHECK_BYTES = 64 * 2**20
"""Bytes of text that are read before any shard is written, so that errors in a small input are reported at once."""

BPE_SAMPLE_BYTES = 64 * 2**20
"""Bytes of text that a byte-pair encoding is trained on, at most."""

ENCODE_BATCH_BYTES = 2**18
"""Bytes of text in one call of the encoder."""

MAX_SHARD_MIB = 64
"""A shard is the unit that a killed command loses, and each process holds one in memory."""


class CorpusRequest(NamedTuple):
    """The options of `ettsweep data text`.

    Attributes:
        inputs: files, folders, globs or data sets of the hub; see `documents.find_sources`.
        out: folder of the corpus.
        tokenizer: folder with the files of a tokenizer; None trains one of `bpe_tokens` tokens on the text.
        val_fraction: share of the documents for validation.
        text_field: column of tables, or key of JSON lines, that holds the text.
        documents: what counts as a document in a text file.
        shard_mib: largest size of a shard's text, in MiB.
        workers: processes that tokenise; None for one per core.
    """

    inputs: tuple[str, ...]
    out: Path
    tokenizer: Path | None = None
    bpe_tokens: int | None = None
    val_fraction: float = 0.005
    text_field: str = "text"
    documents: DocumentUnit = "blank-line"
    shard_mib: float = 16.0
    workers: int | None = None

    @property
    def absolute_inputs(self) -> tuple[str, ...]:
        """The inputs as absolute paths; names on the hub stay as they are, and bytes that are not UTF-8 are escaped."""
        paths = (
            text if text.startswith(HUB_PREFIX) else str(Path(expand_home(text)).absolute()) for text in self.inputs
        )
        return tuple(path.encode(errors="backslashreplace").decode() for path in paths)

    @property
    def val_below(self) -> int:
        """Documents whose hash is below this are for validation, unless that leaves one side empty."""
        return max(1, round(self.val_fraction * HASH_COUNT))

    def read(self, sources: Iterable[Source]) -> Iterator[str]:
        """Yield the documents of all sources, one source after the other; some may be empty."""
        for source in sources:
            yield from read_documents(source, self.text_field, self.documents)


class CorpusOutcome(NamedTuple):
    """A corpus, and the work that it took.

    Attributes:
        new_shards, reused_shards: number of shards that were tokenised now, and that an earlier command had finished.
        tokens: number of tokens in the shards that were tokenised now.
        has_text_files: whether the input has plain text files, not only tables and JSON lines.
        replaced: digest of the corpus that was in the folder before; None if there was none, or the same.
    """

    manifest: Manifest
    new_shards: int
    reused_shards: int
    tokens: int
    workers: int
    wall_s: float
    has_text_files: bool
    replaced: str | None


def check_request(request: CorpusRequest) -> None:
    """Check the options of a request; all problems are reported at once.

    Raises:
        InputError: an option is missing, out of range, or contradicts another one.
    """
    problems = []
    if (request.tokenizer is None) == (request.bpe_tokens is None):
        problems.append(
            "no tokenizer, or two: give either --tokenizer DIR (GPT-2's files, for GPT-2's vocabulary of 50265) or "
            "--bpe-tokens N (trains one on this text)"
        )
    if request.bpe_tokens is not None and request.bpe_tokens < LEAST_BPE:
        problems.append(f"--bpe-tokens: at least {LEAST_BPE} are needed, one for each byte, got {request.bpe_tokens}")
    if not 0 < request.val_fraction < 1:
        problems.append(f"--val-fraction: expected a number between 0 and 1, got {request.val_fraction}")
    if not 0 < request.shard_mib <= MAX_SHARD_MIB:
        problems.append(f"--shard-mib: expected a number above 0 and up to {MAX_SHARD_MIB}, got {request.shard_mib}")
    if not request.inputs:
        problems.append("no text given; pass --input FILES")
    if problems:
        raise InputError.of(problems)


def tokenise(request: CorpusRequest, confirm_replace: Callable[[Manifest], None] = lambda _: None) -> CorpusOutcome:
    """Tokenise text into a corpus; shards that an earlier command has finished are reused.

    If the folder holds another corpus, `confirm_replace` is called with its manifest before it is replaced. If it
    raises, the old corpus stays, and so do the finished shards of the new one.

    Raises:
        InputError: an option is invalid, or the text has no such field; the message says what would work.
        DataMissingError: there is no text, or too little to train and validate on.
        FailedError: an input file is broken, or a process was killed.
        StorageError: the folder cannot be written.
        StoppedError: the user pressed Ctrl-C; finished shards are kept.
    """
    start_s = time.monotonic()
    check_request(request)
    # Before any text is read, which may take long.
    check_folder(request.out)
    inputs = find_unique_sources(request.inputs)
    sources = [source for input_sources in inputs for source in input_sources]
    requested_tokenizer = read_tokenizer(request.tokenizer) if request.tokenizer else None
    val_below, sample = split_threshold_and_sample(request, sources)
    workers = request.workers or cores()
    with lock_corpus_folder(request.out) as shards:
        # "spawn": the tokenizers library starts threads, and a fork of a process with threads can deadlock.
        with open_pool(workers, "spawn", _limit_threads, workers) as pool:
            path = write_tokenizer_file(shards, request, requested_tokenizer, sample, pool)
            sample.clear()  # up to 64 MiB that nothing needs any more
            tokenizer = read_tokenizer_file(path)
            records, new_records, skipped = _make_shards(request, inputs, path, tokenizer, val_below, pool, workers)
        manifest = Manifest(
            version=VERSION,
            digest=corpus_digest(tokenizer.sha256, tokenizer.n_vocab, (shard.sha256 for shard in records)),
            n_vocab=tokenizer.n_vocab,
            bpe_tokens=tokenizer.bpe_tokens,
            tokenizer_sha256=tokenizer.sha256,
            inputs=request.absolute_inputs,
            settings=Settings(
                text_field=request.text_field,
                documents=request.documents,
                val_fraction=request.val_fraction,
                val_below=val_below,
                shard_mib=request.shard_mib,
            ),
            train=sum_counts(shard.train for shard in records),
            val=sum_counts(shard.val for shard in records),
            skipped=skipped,
            shards=tuple(records),
        )
        # Only now, when all shards are finished: whatever the answer is, they are kept.
        existing = existing_manifest(request.out)
        replaced = existing if existing and existing.digest != manifest.digest else None
        if replaced:
            confirm_replace(replaced)
        finish_corpus(request.out, manifest, path)
    return CorpusOutcome(
        manifest,
        new_shards=len(new_records),
        reused_shards=len(records) - len(new_records),
        tokens=sum(shard.train.tokens + shard.val.tokens for shard in new_records),
        # Processes without a shard to tokenise did no work.
        workers=min(workers, max(1, len(new_records))),
        wall_s=time.monotonic() - start_s,
        has_text_files=any(source.kind == "text" for source in sources),
        replaced=replaced.digest if replaced else None,
    )


def find_unique_sources(inputs: Sequence[str]) -> list[list[Source]]:
    """Return the sources of each input, without those that an earlier input has named.

    Raises:
        DataMissingError: an input does not exist or has no text.
        InputError: inputs have an unsupported format; all of them are named.
    """
    sources_by_input, earlier_sources, problems = list[list[Source]](), set[Source](), list[str]()
    for text in inputs:
        try:
            sources_by_input.append([source for source in find_sources(text) if source not in earlier_sources])
            earlier_sources.update(sources_by_input[-1])
        except InputError as error:
            problems.append(str(error))
    if problems:
        raise InputError.of(problems)
    return sources_by_input


def split_threshold_and_sample(request: CorpusRequest, sources: Sequence[Source]) -> tuple[int, list[str]]:
    """Return the hash below which a document is for validation, and a sample of the text to train an encoding on.

    The threshold is `request.val_below`, moved as little as needed so that both sides have a document. The sample is
    random and at most 64 MiB: the documents with the highest hashes, sorted by hash. It is empty unless an encoding is
    to be trained; a large input is then only read until both sides have a document.

    Raises:
        DataMissingError: there is no text, or only one distinct document.
    """
    lowest, highest, bytes_read, sample_bytes = HASH_COUNT, -1, 0, 0
    sample = list[tuple[int, str]]()
    for text in request.read(sources):
        if not text:
            continue
        data = text.encode()
        text_hash = document_hash(data)
        lowest, highest, bytes_read = min(lowest, text_hash), max(highest, text_hash), bytes_read + len(data)
        if request.bpe_tokens:
            heapq.heappush(sample, (text_hash, text))
            sample_bytes += len(data)
            # The heap drops the lowest hash first: what stays is a random sample that no order of files changes.
            while sample_bytes > BPE_SAMPLE_BYTES and len(sample) > 1:
                sample_bytes -= len(heapq.heappop(sample)[1].encode())
        elif bytes_read > PRECHECK_BYTES and lowest < request.val_below <= highest:
            break
    if lowest < highest:
        # The lowest hash is always below the threshold, the highest never. One document may be larger than the sample.
        return min(max(request.val_below, lowest + 1), highest), [text[:BPE_SAMPLE_BYTES] for _, text in sorted(sample)]
    is_single = len(sources) == 1
    location = sources[0].path if is_single else f"the {len(sources)} files of --input"
    if highest < 0:
        raise DataMissingError(f"{location}: {'has' if is_single else 'have'} no text")
    finer_unit = "line" if request.documents == "blank-line" else "blank-line or line"
    raise DataMissingError(
        f"{location}: only one distinct document, which cannot be for both training and validation; give more text, "
        f"or --documents {finer_unit}, which splits a text file into more documents"
    )


# --- tokenising in a pool of processes --------------------------------------------------------------------------------


def _limit_threads(workers: int) -> None:
    # One process per core already: threads of the encoder on top would only compete with each other.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = str(workers)  # for the process that trains an encoding, while the others idle


def write_tokenizer_file(
    shards: Path, request: CorpusRequest, requested_tokenizer: Tokenizer | None, sample: Sequence[str], pool: Pool
) -> Path:
    """Write the file that the processes read the tokenizer from, unless it exists, and return its path.

    It is the requested tokenizer, or one that is trained on the sample. The name depends on its content alone.

    Raises:
        InputError: the sample is too short for the number of tokens.
        FailedError: the process that trains was killed.
    """
    # The sample determines the encoding, so the same command finds the one that an earlier call has trained.
    sample_hash = hashlib.sha256(b"".join(document_hash(text.encode()).to_bytes(8) for text in sample))
    name = (
        requested_tokenizer.sha256[:24]
        if requested_tokenizer
        else digest([VERSION, request.bpe_tokens, sample_hash.hexdigest()], 24)
    )
    path = shards / f"{TOKENIZER_PREFIX}{name}.json"
    if requested_tokenizer and not path.exists():
        write_atomic(path, requested_tokenizer.to_json())
    elif request.bpe_tokens and not path.exists():
        try:
            with _killed_worker_error():
                pool.submit(_train_tokenizer, path, request.bpe_tokens, sample).result()
        except TooFewPairsError as error:
            raise InputError(f"--bpe-tokens: {error}") from None
    return path


def _train_tokenizer(path: Path, bpe_tokens: int, sample: Sequence[str]) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    try:
        write_atomic(path, train_bpe(sample, bpe_tokens).to_json())
    finally:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"


@contextmanager
def _killed_worker_error() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool:
        raise FailedError("a process was killed, perhaps for lack of memory: try fewer --workers") from None


class ShardDocuments(NamedTuple):
    """The documents of one shard.

    Attributes:
        name: hex digits of a hash of the documents.
        documents: in UTF-8, each with its side.
        size: their bytes in total.
    """

    name: str
    documents: list[tuple[bytes, Side]]
    size: int


def group_into_shards(texts: Iterable[str], val_below: int, size: int) -> Iterator[ShardDocuments]:
    """Group documents into shards of at most `size` bytes; a document that is larger makes a shard of its own.

    Boundaries are content-defined: whether a shard ends after a document depends on the hash of this document and on
    the bytes before it in the shard. So a new file among thousands changes the shards around it, not all that follow,
    and the others are reused.
    """
    documents, length, name = list[tuple[bytes, Side]](), 0, hashlib.sha256()
    for text in texts:
        data = text.encode()
        text_hash = document_hash(data)
        if documents and length + len(data) > size:
            yield ShardDocuments(name.hexdigest(), documents, length)
            documents, length, name = [], 0, hashlib.sha256()
        # By hash, not by position: a document keeps its side when other documents are added.
        documents.append((data, "val" if text_hash < val_below else "train"))
        length += len(data)
        name.update(text_hash.to_bytes(8) + len(data).to_bytes(8))
        # A boundary about every size / 2 bytes beyond the first quarter, whatever the length of documents is.
        if length >= size / 4 and text_hash % (size // (2 * len(data)) + 1) == 0:
            yield ShardDocuments(name.hexdigest(), documents, length)
            documents, length, name = [], 0, hashlib.sha256()
    if documents:
        yield ShardDocuments(name.hexdigest(), documents, length)


def _make_shards(
    request: CorpusRequest,
    inputs: Iterable[Iterable[Source]],
    path: Path,
    tokenizer: Tokenizer,
    val_below: int,
    pool: Pool,
    workers: int,
) -> tuple[list[ShardRecord], list[ShardRecord], int]:
    """Return the records of all shards, the records of those tokenised now, and the number of empty documents.

    The message of an error says how many shards are finished, since the next command reuses them.
    """
    size = round(request.shard_mib * 2**20)
    # All that the content of a shard depends on, beside its documents: part of its file name.
    recipe = [VERSION, SPLITTER_VERSION, tokenizer.sha256, val_below]
    finished = list[ShardRecord | Future[ShardRecord]]()
    paths, busy, skipped = list[Path](), set[Future[ShardRecord]](), 0
    sizes = [source.size for sources in inputs for source in sources]

    def non_empty_texts(sources: Iterable[Source]) -> Iterator[str]:
        nonlocal skipped
        for text in request.read(sources):
            if text:
                yield text
            else:
                skipped += 1

    def resume_hint() -> str:
        pool.end()  # else the workers might finish more shards than are counted
        finished_shards = sum(record.exists() for record in paths)
        verb = "is" if finished_shards == 1 else "are"
        return (
            f"{format_count(finished_shards, 'shard')} {verb} finished and kept: run the same command again to continue"
        )

    # The total is unknown if a source is compressed or remote.
    with progress("tokenising", None if None in sizes else sum(filter(None, sizes)), "bytes") as advance:
        try:
            with _killed_worker_error():
                # Each input is cut separately, so that one more --input moves no boundaries in the others.
                for group in chain.from_iterable(
                    group_into_shards(non_empty_texts(sources), val_below, size) for sources in inputs
                ):
                    record = path.with_name(f"{digest([recipe, group.name], 24)}.json")
                    paths.append(record)
                    advance(group.size)
                    if (existing := _read_finished_shard(record)) is not None:
                        finished.append(existing)
                        continue
                    while len(busy) > workers:  # the documents of each submitted shard are held in memory
                        done_jobs, busy = wait(busy, return_when=FIRST_COMPLETED)
                        for job in done_jobs:
                            job.result()
                    busy.add(job := pool.submit(write_shard, record, path, group.documents))
                    finished.append(job)
                new_records = [job.result() for job in finished if isinstance(job, Future)]
        except KeyboardInterrupt:
            raise StoppedError(f"interrupted; {resume_hint()}") from None
        except EttsweepError as error:
            wait(busy)  # so that the shards in work are finished, and counted
            raise type(error)(f"{error}\n{resume_hint()}") from None
    return [job.result() if isinstance(job, Future) else job for job in finished], new_records, skipped


def write_shard(record: Path, tokenizer: Path, documents: Sequence[tuple[bytes, Side]]) -> ShardRecord:
    """Tokenise documents into a shard next to `record`, and return what was written to `record`.

    The record is written after the shard, so that a shard with a record is complete.
    """
    encoding = _cached_tokenizer(tokenizer)
    writer, batch, size = ShardWriter(encoding.n_vocab), list[tuple[str, Side]](), 0
    for data, side in documents:
        batch.append((data.decode(), side))
        size += len(data)
        if size >= ENCODE_BATCH_BYTES:
            add_documents(writer, encoding, batch)
            batch, size = [], 0
    if batch:
        add_documents(writer, encoding, batch)
    path, packed = record.with_name(f"{record.stem}-0.bin"), writer.pack()
    write_atomic(path, packed)
    train, val = (writer.counts(side) for side in SIDES)
    sha256 = hashlib.sha256(packed).hexdigest()
    shard = ShardRecord(name=path.name, size=len(packed), sha256=sha256, train=train, val=val)
    write_atomic(record, shard.model_dump_json())
    return shard


# Read once per process, not once per shard.
@lru_cache(maxsize=1)
def _cached_tokenizer(path: Path) -> Tokenizer:
    return read_tokenizer_file(path)


def _read_finished_shard(record: Path) -> ShardRecord | None:
    """Return the record of a shard if its checksum is right, else None."""
    try:
        shard = ShardRecord.model_validate_json(record.read_bytes())
        # A record does not prove that its shard is intact: disks fail, and files are edited.
        is_intact = sha256_of(record.with_name(shard.name)) == shard.sha256
    except (OSError, ValidationError):
        return None
    return shard if is_intact else None


# --- messages ---------------------------------------------------------------------------------------------------------


def differing_options(request: CorpusRequest, existing: Manifest) -> str:
    """Return the options of an existing corpus that differ from a request, as on the command line; empty if none does.

    Raises:
        DataMissingError: the files of the requested tokenizer are missing.
        InputError: the requested tokenizer is not a byte-level BPE.
    """
    differences = []
    if request.absolute_inputs != existing.inputs:
        differences += [f"--input {text}" for text in existing.inputs]
    if request.tokenizer is None and request.bpe_tokens != existing.bpe_tokens:
        differences.append(f"a tokenizer of {existing.bpe_tokens} tokens")
    elif request.tokenizer and read_tokenizer(request.tokenizer).sha256 != existing.tokenizer_sha256:
        differences.append(f"another tokenizer, of {existing.bpe_tokens} tokens")
    for name in ("val_fraction", "text_field", "documents", "shard_mib"):
        if getattr(request, name) != (value := getattr(existing.settings, name)):
            differences.append(f"--{name.replace('_', '-')} {value}")
    return " ".join(differences)


def corpus_rows(manifest: Manifest) -> list[dict[str, str | int]]:
    """Return a row of counts for the training and for the validation side of a corpus."""
    rows = []
    for side_name, counts in (("training", manifest.train), ("validation", manifest.val)):
        row: dict[str, str | int] = {"part": side_name, "documents": counts.documents, "sentences": counts.sentences}
        row |= {"tokens": counts.tokens, f"blocks_{BLOCK_TOKENS}": counts.blocks, "text_bytes": counts.text_bytes}
        rows.append(row)
    return rows


MIN_VAL_BLOCKS = 32
"""With fewer validation blocks than this, the summary recommends a larger share."""


def corpus_summary(request: CorpusRequest, outcome: CorpusOutcome) -> str:
    """Return lines on the work done, on properties of the corpus that matter for training, and on the next command."""
    manifest = outcome.manifest
    if outcome.new_shards:
        rate = f"{outcome.tokens:,} tokens in {outcome.wall_s:.1f} s: {outcome.tokens / outcome.wall_s:,.0f} tokens/s"
        lines = [f"{rate} on {outcome.workers} {'process' if outcome.workers == 1 else 'processes'}"]
        if outcome.reused_shards:
            lines.append(
                f"{outcome.reused_shards} of {outcome.new_shards + outcome.reused_shards} shards were finished before"
            )
    else:
        lines = ["the corpus was complete already"]
    if manifest.settings.val_below != request.val_below:
        lines.append(
            f"few documents: --val-fraction {request.val_fraction} would leave one side empty, so one document was "
            "moved to it"
        )
    if manifest.skipped:
        verb = "was" if manifest.skipped == 1 else "were"
        lines.append(f"{format_count(manifest.skipped, 'document')} without text {verb} left out")
    if long := manifest.train.long_sentences + manifest.val.long_sentences:
        lines.append(
            f"{long} sentences have more than {BLOCK_TOKENS} tokens; blocks of that size cut them"
            if long > 1
            else f"1 sentence has more than {BLOCK_TOKENS} tokens; blocks of that size cut it"
        )
    if (mean := manifest.train.tokens / manifest.train.blocks) < BLOCK_TOKENS / 2:
        line = f"documents are short: blocks of up to {BLOCK_TOKENS} tokens have {mean:.0f} on average, "
        line += "the rest is padding"
        if (tokens := _fitting_block_tokens(mean)) < BLOCK_TOKENS:
            line += f"; --set model.tokens={tokens} has less padding"
        if outcome.has_text_files and request.documents != "file":
            line += "; if each text file is one document: --documents file"
        lines.append(line)
    if (blocks := manifest.val.blocks) < MIN_VAL_BLOCKS:
        lines.append(
            f"validation has {format_count(blocks, 'block')} of up to {BLOCK_TOKENS} tokens, "
            "too few for a precise val_loss: use a larger --val-fraction"
        )
    if outcome.replaced:
        lines.append(
            f"replaces corpus {outcome.replaced}: runs that were trained on it cannot resume; another --out keeps both"
        )
    lines.append(f"{request.out}: corpus {manifest.digest}, vocabulary {manifest.n_vocab}")
    options = f"--data {shlex.quote(str(request.out))} --set model.vocabulary={manifest.n_vocab}"
    lines.append(f"next: `ettsweep grid --model gpt2 {options}`, or another model of text")
    return "\n".join(lines)


def _fitting_block_tokens(mean_tokens: float) -> int:
    """Return a block size, a power of two, in which most documents of this mean length fit."""
    return 1 << max(4, math.ceil(math.log2(2 * mean_tokens)))
