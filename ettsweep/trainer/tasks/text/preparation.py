"""Tokenise text on all cores into a corpus: `ettsweep data text`.

One process reads the documents and cuts them into parts, which others tokenise. A part is known again by its documents
and by how they become tokens, so that a command that was killed reads the text again, which is quick, and tokenises
what it had not. The manifest, written last, makes a corpus of the parts.
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

from ettsweep.console import count, progress
from ettsweep.errors import DataMissingError, EttsweepError, FailedError, InputError, StoppedError, TooFewPairsError
from ettsweep.files import sha256_of, write_atomic
from ettsweep.process_pool import Pool, open_pool
from ettsweep.processes import cores
from ettsweep.schema import digest
from ettsweep.token_ids import LEAST_BPE
from ettsweep.trainer.tasks.data_location import SIDES, Side
from ettsweep.trainer.tasks.text.corpus import add_documents
from ettsweep.trainer.tasks.text.corpus_folder import TRAINED, check_folder, corpus_folder, corpus_there, finish
from ettsweep.trainer.tasks.text.corpus_manifest import (
    LONG,
    VERSION,
    Documents,
    Manifest,
    Settings,
    ShardRecord,
    add_up,
    corpus_digest,
)
from ettsweep.trainer.tasks.text.documents import HUB, Source, document_hash, find_sources, read_documents
from ettsweep.trainer.tasks.text.shards import ShardWriter
from ettsweep.trainer.tasks.text.tokenizer import (
    SPLITTER_VERSION,
    Tokenizer,
    read_tokenizer,
    read_tokenizer_file,
    train_bpe,
)

HASHES = 2**64
"""How many hashes a document may have."""

SMALL = 64 * 2**20
"""Bytes of text that are read once more beforehand: what is wrong in a small input is said before any is written."""

SAMPLE = 64 * 2**20
"""Bytes of text that a byte-pair encoding is trained on."""

AT_ONCE = 2**18
"""Bytes of text that are encoded at once."""

MAX_SHARD_MIB = 64


class CorpusRequest(NamedTuple):
    """What is asked for: `tokenizer` is a folder of its files, None trains one of `bpe_tokens`."""

    inputs: tuple[str, ...]
    out: Path
    tokenizer: Path | None = None
    bpe_tokens: int | None = None
    val_fraction: float = 0.005
    text_field: str = "text"
    documents: Documents = "blank-line"
    shard_mib: float = 16.0
    workers: int | None = None

    @property
    def absolute_inputs(self) -> tuple[str, ...]:
        """The inputs, so that they hold in any folder."""
        return tuple(text if text.startswith(HUB) else str(Path(text).expanduser().absolute()) for text in self.inputs)

    @property
    def val_below(self) -> int:
        """Below which hash a document validates, if there are enough of them."""
        return max(1, round(self.val_fraction * HASHES))

    def read(self, sources: Iterable[Source]) -> Iterator[str]:
        for source in sources:
            yield from read_documents(source, self.text_field, self.documents)


class Tokenised(NamedTuple):
    """A corpus, and what it took.

    Attributes:
        made, kept: parts that were tokenised, and that were there already.
        tokens: of the former.
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


def check_request(request: CorpusRequest) -> None:
    """Check the options, and that they go together.

    Raises:
        InputError: they do not go together.
    """
    wrong = []
    if (request.tokenizer is None) == (request.bpe_tokens is None):
        wrong.append(
            "say which tokenizer, with one of --tokenizer DIR (GPT-2's files, for GPT-2's vocabulary of 50265) and "
            "--bpe-tokens N (trains one on this text)"
        )
    if request.bpe_tokens is not None and request.bpe_tokens < LEAST_BPE:
        wrong.append(f"--bpe-tokens: {LEAST_BPE} at least are needed, one for each byte, got {request.bpe_tokens}")
    if not 0 < request.val_fraction < 1:
        wrong.append(f"--val-fraction: a number between 0 and 1 is expected, got {request.val_fraction}")
    if not 0 < request.shard_mib <= MAX_SHARD_MIB:
        wrong.append(f"--shard-mib: a number above 0 and up to {MAX_SHARD_MIB} is expected, got {request.shard_mib}")
    if not request.inputs:
        wrong.append("say what text, with --input FILES")
    if wrong:
        raise InputError.of(wrong)


def tokenise(request: CorpusRequest, agree: Callable[[Manifest], None] = lambda _: None) -> Tokenised:
    """Make a corpus, or what is missing of it.

    Another corpus that is there is only replaced after `agree` was given it; what that raises keeps it, and the parts
    that are finished.

    Raises:
        InputError: an option or the text is not as it must be; the message says what would work.
        DataMissingError: there is no text, or none to validate on.
        FailedError: a file is broken.
        StorageError: the folder cannot be written.
        StoppedError: Ctrl-C, once there may be something to keep.
    """
    start_s = time.monotonic()
    check_request(request)
    check_folder(request.out)
    inputs = find_all(request.inputs)
    sources = [source for found in inputs for source in found]
    given = read_tokenizer(request.tokenizer) if request.tokenizer else None
    val_below, sample = survey(request, sources)
    workers = request.workers or cores()
    with corpus_folder(request.out) as shards:
        with open_pool(workers, "spawn", _prepare, workers) as pool:  # the tokenizers library starts threads
            path = tokenizer_file(shards, request, given, sample, pool)
            sample.clear()
            tokenizer = read_tokenizer_file(path)
            records, made, skipped = _make_parts(request, inputs, path, tokenizer, val_below, pool, workers)
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
            train=add_up(shard.train for shard in records),
            val=add_up(shard.val for shard in records),
            skipped=skipped,
            shards=tuple(records),
        )
        before = corpus_there(request.out)
        replaced = before if before and before.digest != manifest.digest else None
        if replaced:
            agree(replaced)
        finish(request.out, manifest, path)
    return Tokenised(
        manifest,
        made=len(made),
        kept=len(records) - len(made),
        tokens=sum(shard.train.tokens + shard.val.tokens for shard in made),
        workers=min(workers, max(1, len(made))),
        wall_s=time.monotonic() - start_s,
        text_files=any(source.kind == "text" for source in sources),
        replaced=replaced.digest if replaced else None,
    )


def find_all(inputs: Sequence[str]) -> list[list[Source]]:
    """Return the sources of each input; one that was there before is left out."""
    found, seen, wrong = list[list[Source]](), set[Source](), list[str]()
    for text in inputs:
        try:
            found.append([source for source in find_sources(text) if source not in seen])
            seen.update(found[-1])
        except InputError as error:
            wrong.append(str(error))
    if wrong:
        raise InputError.of(wrong)
    return found


def survey(request: CorpusRequest, sources: Sequence[Source]) -> tuple[int, list[str]]:
    """Return below which hash a document validates, so that at least one does and one does not, and a sample.

    The sample are documents from all over the input that an encoding is trained on, some 64 MiB of it: those of the
    highest hashes, in their order. Without one to train, a large input is only read until each side has a document.

    Raises:
        DataMissingError: there is no text, or a single document.
    """
    lowest, highest, read, sampled = HASHES, -1, 0, 0
    sample = list[tuple[int, str]]()
    for text in request.read(sources):
        if not text:
            continue
        data = text.encode()
        number = document_hash(data)
        lowest, highest, read = min(lowest, number), max(highest, number), read + len(data)
        if request.bpe_tokens:
            heapq.heappush(sample, (number, text))
            sampled += len(data)
            while sampled > SAMPLE and len(sample) > 1:
                sampled -= len(heapq.heappop(sample)[1].encode())
        elif read > SMALL and lowest < request.val_below <= highest:
            break
    if lowest < highest:
        return min(max(request.val_below, lowest + 1), highest), [text[:SAMPLE] for _, text in sorted(sample)]
    one = len(sources) == 1
    where = sources[0].path if one else f"the {len(sources)} files of --input"
    if highest < 0:
        raise DataMissingError(f"{where}: no text in {'it' if one else 'them'}")
    other = "line" if request.documents == "blank-line" else "blank-line or line"
    raise DataMissingError(
        f"{where}: one document only, or the same again and again, cannot both train and validate; more text is "
        f"needed, or --documents {other}, which makes more documents of a text file"
    )


# --- in processes of their own ----------------------------------------------------------------------------------------


def _prepare(workers: int) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = str(workers)  # of the one that trains an encoding


def tokenizer_file(
    shards: Path, request: CorpusRequest, given: Tokenizer | None, sample: Sequence[str], pool: Pool
) -> Path:
    """Return the file that processes read the tokenizer from: the one that was given, or one trained on the sample."""
    texts = hashlib.sha256(b"".join(document_hash(text.encode()).to_bytes(8) for text in sample))
    name = given.sha256[:24] if given else digest([VERSION, request.bpe_tokens, texts.hexdigest()], 24)
    path = shards / f"{TRAINED}{name}.json"
    if given and not path.exists():
        write_atomic(path, given.to_json())
    elif request.bpe_tokens and not path.exists():
        try:
            with _processes_alive():
                pool.submit(_train, path, request.bpe_tokens, sample).result()
        except TooFewPairsError as error:
            raise InputError(f"--bpe-tokens: {error}") from None
    return path


def _train(path: Path, bpe_tokens: int, sample: Sequence[str]) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    try:
        write_atomic(path, train_bpe(sample, bpe_tokens).to_json())
    finally:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"


@contextmanager
def _processes_alive() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool:
        raise FailedError("a process was killed, perhaps for lack of memory: try fewer --workers") from None


class Part(NamedTuple):
    """Documents that are tokenised together, in UTF-8, each with its side; `name` is made of them."""

    name: str
    documents: list[tuple[bytes, Side]]
    size: int


def cut(texts: Iterable[str], val_below: int, size: int) -> Iterator[Part]:
    """Yield parts of at most so many bytes, or of one document that has more.

    Where a part ends depends on its last document and how much stands before it. So a new file among thousands changes
    the parts around it, not all that follow.
    """
    documents, length, name = list[tuple[bytes, Side]](), 0, hashlib.sha256()
    for text in texts:
        data = text.encode()
        number = document_hash(data)
        if documents and length + len(data) > size:
            yield Part(name.hexdigest(), documents, length)
            documents, length, name = [], 0, hashlib.sha256()
        documents.append((data, "val" if number < val_below else "train"))
        length += len(data)
        name.update(number.to_bytes(8) + len(data).to_bytes(8))
        if length >= size / 4 and number % (size // (2 * len(data)) + 1) == 0:
            yield Part(name.hexdigest(), documents, length)
            documents, length, name = [], 0, hashlib.sha256()
    if documents:
        yield Part(name.hexdigest(), documents, length)


def _make_parts(
    request: CorpusRequest,
    inputs: Iterable[Iterable[Source]],
    path: Path,
    tokenizer: Tokenizer,
    val_below: int,
    pool: Pool,
    workers: int,
) -> tuple[list[ShardRecord], list[ShardRecord], int]:
    """Return all shards, those of them that had to be made, and the number of documents without text.

    Whatever stops the work says how many parts are finished.
    """
    size = round(request.shard_mib * 2**20)
    recipe = [VERSION, SPLITTER_VERSION, tokenizer.sha256, val_below]
    finished = list[ShardRecord | Future[ShardRecord]]()
    paths, busy, skipped = list[Path](), set[Future[ShardRecord]](), 0
    sizes = [source.size for sources in inputs for source in sources]

    def texts(sources: Iterable[Source]) -> Iterator[str]:
        nonlocal skipped
        for text in request.read(sources):
            if text:
                yield text
            else:
                skipped += 1

    def kept() -> str:
        pool.end()  # else they might finish more than is counted
        parts = count(sum(record.exists() for record in paths), "part")
        return f"{parts} {'is' if parts == '1 part' else 'are'} finished and kept: the same command goes on from there"

    with progress("tokenising", None if None in sizes else sum(filter(None, sizes)), "bytes") as advance:
        try:
            with _processes_alive():
                for part in chain.from_iterable(cut(texts(sources), val_below, size) for sources in inputs):
                    record = path.with_name(f"{digest([recipe, part.name], 24)}.json")
                    paths.append(record)
                    advance(part.size)
                    if (there := _finished(record)) is not None:
                        finished.append(there)
                        continue
                    while len(busy) > workers:  # each of them waits in memory
                        done, busy = wait(busy, return_when=FIRST_COMPLETED)
                        for job in done:
                            job.result()
                    busy.add(job := pool.submit(tokenise_part, record, path, part.documents))
                    finished.append(job)
                made = [job.result() for job in finished if isinstance(job, Future)]
        except KeyboardInterrupt:
            raise StoppedError(f"interrupted; {kept()}") from None
        except EttsweepError as error:
            wait(busy)
            raise type(error)(f"{error}\n{kept()}") from None
    return [job.result() if isinstance(job, Future) else job for job in finished], made, skipped


def tokenise_part(record: Path, tokenizer: Path, documents: Sequence[tuple[bytes, Side]]) -> ShardRecord:
    """Write a shard of documents, and then its record, the last file of a finished part."""
    encoding = _cached_tokenizer(tokenizer)
    writer, batch, size = ShardWriter(encoding.n_vocab), list[tuple[str, Side]](), 0
    for data, side in documents:
        batch.append((data.decode(), side))
        size += len(data)
        if size >= AT_ONCE:
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


@lru_cache(maxsize=1)
def _cached_tokenizer(path: Path) -> Tokenizer:
    return read_tokenizer_file(path)


def _finished(record: Path) -> ShardRecord | None:
    """Return the shard of a part that is there and whole, to the last byte."""
    try:
        shard = ShardRecord.model_validate_json(record.read_bytes())
        whole = sha256_of(record.with_name(shard.name)) == shard.sha256
    except (OSError, ValidationError):
        return None
    return shard if whole else None


# --- what is said of it -----------------------------------------------------------------------------------------------


def made_otherwise(request: CorpusRequest, there: Manifest) -> str:
    """Return the options that a corpus was made with where they differ from those of a request; nothing where none do.

    Raises:
        DataMissingError, InputError: the tokenizer cannot be read.
    """
    told = []
    if request.absolute_inputs != there.inputs:
        told += [f"--input {text}" for text in there.inputs]
    if request.tokenizer is None and request.bpe_tokens != there.bpe_tokens:
        told.append(f"a tokenizer of {there.bpe_tokens} tokens")
    elif request.tokenizer and read_tokenizer(request.tokenizer).sha256 != there.tokenizer_sha256:
        told.append(f"another tokenizer, of {there.bpe_tokens} tokens")
    for name in ("val_fraction", "text_field", "documents", "shard_mib"):
        if getattr(request, name) != (value := getattr(there.settings, name)):
            told.append(f"--{name.replace('_', '-')} {value}")
    return " ".join(told)


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


def corpus_summary(request: CorpusRequest, outcome: Tokenised) -> str:
    """Return what was done, what is worth knowing of the corpus, and what comes next."""
    manifest = outcome.manifest
    if outcome.made:
        rate = f"{outcome.tokens:,} tokens in {outcome.wall_s:.1f} s: {outcome.tokens / outcome.wall_s:,.0f} tokens/s"
        lines = [f"{rate} on {outcome.workers} {'process' if outcome.workers == 1 else 'processes'}"]
        if outcome.kept:
            lines.append(f"{outcome.kept} of {outcome.made + outcome.kept} parts were there already")
    else:
        lines = ["all of it was there already"]
    if manifest.settings.val_below != request.val_below:
        lines.append(
            f"few documents: with --val-fraction {request.val_fraction} one side would be empty, so the document "
            "nearest to it was taken"
        )
    if manifest.skipped:
        were = "was" if manifest.skipped == 1 else "were"
        lines.append(f"{count(manifest.skipped, 'document')} without text {were} left out")
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
        if outcome.text_files and request.documents != "file":
            told += "; where a text file is one document: --documents file"
        lines.append(told)
    if (blocks := manifest.val.blocks) < FEW_BLOCKS:
        lines.append(
            f"validation has {count(blocks, 'block')} of up to {LONG} tokens, few to judge by: "
            "a larger --val-fraction has more"
        )
    if outcome.replaced:
        lines.append(
            f"replaces corpus {outcome.replaced}: runs made for it cannot go on without it; another --out keeps both"
        )
    lines.append(f"{request.out}: corpus {manifest.digest}, vocabulary {manifest.n_vocab}")
    lines.append(f"next: `ettsweep init --data {shlex.quote(str(request.out))}` writes a grid file for it")
    return "\n".join(lines)


def _roomy(mean: float) -> int:
    """Return a length of the model in which documents of so many tokens on average mostly fit: a power of two."""
    return 1 << max(4, math.ceil(math.log2(2 * mean)))
