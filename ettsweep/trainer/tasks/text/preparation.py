"""Tokenise text into a corpus on all cores: `ettsweep data text`.

Each process loads a portion of the text with `datasets`, tokenises a unit of it with `map`, and writes the tokens into
a file whose name is a hash of the input and of the tokenizer. A killed command can start again, and tokenises the
missing units. At the end all units are split into training and validation text and saved with `save_to_disk`. Last
comes the manifest, which completes the corpus, and the cache beside it is removed.
"""

import fcntl
import json
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ettsweep.console import format_count, progress
from ettsweep.errors import (
    DataMissingError,
    EttsweepError,
    FailedError,
    InputError,
    StoppedError,
    StorageError,
    TooFewPairsError,
)
from ettsweep.files import naming_option, storage_errors, write_atomic
from ettsweep.process_pool import open_pool
from ettsweep.processes import cores
from ettsweep.schema import digest
from ettsweep.token_ids import LEAST_BPE
from ettsweep.trainer.tasks.data_location import SIDES
from ettsweep.trainer.tasks.text.blocks import Texts, block_starts, token_type
from ettsweep.trainer.tasks.text.corpus import corpus_digest, encode_texts, read_arrow, verify
from ettsweep.trainer.tasks.text.corpus_manifest import (
    BLOCK_TOKENS,
    MANIFEST,
    TOKENIZER,
    VERSION,
    Counts,
    Manifest,
    Settings,
    Shard,
    read_manifest,
)
from ettsweep.trainer.tasks.text.inputs import (
    CorpusRequest,
    Portion,
    documents_of,
    fault,
    find_portions,
    import_datasets,
    load,
)
from ettsweep.trainer.tasks.text.tokenizer import Tokenizer, read_tokenizer, token_bytes, train_bpe

if TYPE_CHECKING:
    import pyarrow as pa

SAMPLE_BYTES = 64 * 2**20
"""Most bytes of text to train a byte-pair encoding on."""

SAMPLE_PORTIONS = 64
"""Most portions of the sample, which are loaded beforehand."""

ENCODE_BATCH_BYTES = 2**18
"""Approximate bytes of text in one call of the encoder."""


class CorpusOutcome(NamedTuple):
    """A corpus, and its cost.

    Attributes:
        new_units, kept_units: number of units tokenised now, and by an earlier command.
        moved: whether a document was moved to an otherwise empty side.
        has_text_files: whether the input has plain text files, not only tables and JSON lines.
    """

    manifest: Manifest
    new_units: int = 0
    kept_units: int = 0
    workers: int = 1
    wall_s: float = 0.0
    moved: bool = False
    has_text_files: bool = False


def check_request(request: CorpusRequest) -> None:
    """Check the options of a request, and report all problems at once.

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
    if not request.inputs:
        problems.append("no text given; pass --input FILES")
    if problems:
        raise InputError.of(problems)


def tokenise(
    request: CorpusRequest, confirm_replace: Callable[[Manifest, Settings], None] = lambda _, __: None
) -> CorpusOutcome:
    """Tokenise text into a corpus, keeping finished units of an earlier command.

    If the folder holds a corpus of other settings or files, `confirm_replace` is called with its manifest and the new
    settings. If it raises, the old corpus stays.

    Raises:
        InputError: an option is invalid, or the text has no such field; the message says what would work.
        DataMissingError: there is no text, or too little to train and validate on.
        FailedError: an input file is broken, or a process was killed.
        StorageError: the folder cannot be written.
        StoppedError: the user pressed Ctrl-C; finished units are kept.
    """
    start_s = time.monotonic()
    check_request(request)
    given = read_tokenizer(request.tokenizer) if request.tokenizer else None
    with locked_folder(request):
        portions = find_portions(request)
        settings = Settings(
            text_field=request.text_field,
            documents=request.documents,
            tokenizer=given.sha256 if given else f"trained, {request.bpe_tokens}",
            val_fraction=request.val_fraction,
            files=digest([portion.key for portion in portions]),
        )
        if existing := existing_manifest(request.out):
            if existing.settings != settings:
                confirm_replace(existing, settings)
            elif _is_whole(request.out):
                return CorpusOutcome(existing)
        file = _write_tokenizer(given, settings, request, portions)
        tokenizer = read_tokenizer(file)
        units = find_units(request, portions, tokenizer)
        missing = [unit for unit in units if not unit.path.exists()]
        workers = max(1, min(request.workers or cores(), len(missing)))
        tokenise_units(units, missing, workers, request, file)
        try:
            manifest, moved = save_corpus(request, settings, [unit.path for unit in units], tokenizer)
        except DataMissingError:
            shutil.rmtree(request.cache / UNITS)  # finished, and no longer needed
            raise
        shutil.rmtree(request.cache, ignore_errors=True)
    return CorpusOutcome(
        manifest,
        new_units=len(missing),
        kept_units=len(units) - len(missing),
        workers=workers,
        wall_s=time.monotonic() - start_s,
        moved=moved,
        has_text_files=any(portion.kind == "text" for portion in portions),
    )


def _is_whole(out: Path) -> bool:
    try:
        verify(out, read_manifest(out))
    except EttsweepError:
        return False
    return True


# --- the folder -------------------------------------------------------------------------------------------------------

UNITS = "units"
"""Folder in the cache for the tokens of finished units."""

_DIGEST = re.compile(r"[0-9a-f]{12}")


def existing_manifest(out: Path) -> Manifest | None:
    """Return the manifest of the finished corpus in a folder; None if there is none, or it is unreadable."""
    try:
        return read_manifest(out)
    except EttsweepError:
        return None


@contextmanager
def locked_folder(request: CorpusRequest) -> Iterator[None]:
    """Create and lock the output folder and its cache; remove the cache at exit unless it has finished units.

    Raises:
        InputError: it is a file, or a folder of something else.
        StorageError: it cannot be written, or another command is writing there.
    """
    out, cache = request.out, request.cache
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: expected a folder, got a file")
    if out.is_dir() and any(out.iterdir()) and not cache.is_dir() and not existing_manifest(out):
        held = ", ".join(sorted(path.name for path in out.iterdir())[:6])
        raise InputError(f"--out {out}: is not empty and not tokenised text (it holds {held}); choose a new folder")
    with naming_option("--out", out), storage_errors(out):
        # Inner folders first, in order of removal.
        new_folders = [folder for folder in (out, *out.parents) if not folder.exists()]
        cache.mkdir(parents=True, exist_ok=True)
        lock = os.open(out, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems cannot lock folders, and do not notice two commands
            try:
                # The lock ends with the process, even if it is killed.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StorageError(f"{out}: another `ettsweep data text` is writing there") from None
        try:
            yield
        finally:
            if not any((cache / UNITS).glob("*.arrow")):
                shutil.rmtree(cache, ignore_errors=True)
                with suppress(OSError):  # there is a corpus
                    for folder in new_folders:
                        folder.rmdir()
    finally:
        os.close(lock)


# --- the tokenizer ----------------------------------------------------------------------------------------------------


def document_hash(text: str) -> int:
    """Return a 64-bit hash of a document, which decides its side."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


def val_below(request: CorpusRequest) -> int:
    """Return the hash below which documents are for validation, unless that leaves one side empty."""
    return max(1, round(request.val_fraction * 2**64))


def _write_tokenizer(
    given: Tokenizer | None, settings: Settings, request: CorpusRequest, portions: Sequence[Portion]
) -> Path:
    """Write the given tokenizer, or train one on a sample unless an earlier command did; return its file."""
    path = request.cache / f"tokenizer-{digest([VERSION, settings.model_dump()])}.json"
    if given:
        write_atomic(path, given.to_json())
    elif request.bpe_tokens and not path.exists():
        try:
            write_atomic(path, train_bpe(draw_sample(request, portions), request.bpe_tokens).to_json())
        except TooFewPairsError as error:
            raise InputError(f"--bpe-tokens: {error}") from None
    return path


def draw_sample(request: CorpusRequest, portions: Sequence[Portion]) -> list[str]:
    """Return documents from all over the text, some `SAMPLE_BYTES` of them, without those for validation."""
    chosen = portions[:: -(-len(portions) // SAMPLE_PORTIONS)]
    sample = list[str]()
    for portion in chosen:
        try:
            data = load(portion, request)
            step = -(-data.data.nbytes // (SAMPLE_BYTES // len(chosen))) or 1
            for rows in data.select(range(0, len(data), step)).iter(100):
                (values,) = rows.values()
                sample += [text[:SAMPLE_BYTES] for text in documents_of(values, portion.kind, request.text_field)]
        except Exception as error:
            raise fault(portion, request, error) from None
    return [text for text in sample if document_hash(text) >= val_below(request)] or sample


# --- tokenising -------------------------------------------------------------------------------------------------------


class Unit(NamedTuple):
    """The documents to tokenise at a time: one of `portion.units` parts of a portion.

    Attributes:
        path: file for its tokens. It has no bytes if there are fewer documents than parts.
    """

    portion: Portion
    number: int
    path: Path


def find_units(request: CorpusRequest, portions: Sequence[Portion], tokenizer: Tokenizer) -> list[Unit]:
    """Return all units, in the order of the text; names of files hash everything that decides their content."""
    units = []
    for portion in portions:
        recipe = [VERSION, tokenizer.sha256, request.text_field, request.documents, portion.key, portion.units]
        name = digest(recipe, 24)
        units += [Unit(portion, k, request.cache / UNITS / f"{name}-{k:04}.arrow") for k in range(portion.units)]
    return units


def tokenise_units(
    units: Sequence[Unit], missing: Sequence[Unit], workers: int, request: CorpusRequest, tokenizer: Path
) -> None:
    """Tokenise the missing units, each in a process, and remove files of `datasets` for finished portions.

    Errors state how many units are finished, since the next command keeps them.
    """
    left = Counter(unit.portion.key for unit in missing)
    try:
        with progress("tokenising", len(missing)) as advance:

            def finish(unit: Unit) -> None:
                advance(1)
                left[unit.portion.key] -= 1
                if not left[unit.portion.key]:
                    shutil.rmtree(request.cache / unit.portion.key, ignore_errors=True)

            if workers == 1:  # in this process: another one would first load `datasets`, which takes seconds
                for unit in missing:
                    tokenise_unit(unit, request, tokenizer)
                    finish(unit)
                return
            # "spawn": pyarrow and tokenizers start threads, and a fork of a process with threads can deadlock.
            with open_pool(workers, "spawn", _limit_threads) as pool:
                jobs = {pool.submit(tokenise_unit, unit, request, tokenizer): unit for unit in missing}
                for job in as_completed(jobs):
                    job.result()
                    finish(jobs[job])
    except KeyboardInterrupt:
        raise StoppedError(f"interrupted{_kept(units, '; ')}") from None
    except BrokenProcessPool:
        problem = "a process was killed, perhaps for lack of memory: try fewer --workers"
        raise FailedError(f"{problem}{_kept(units)}") from None
    except EttsweepError as error:
        raise type(error)(f"{error}{_kept(units)}") from None


def _kept(units: Sequence[Unit], before: str = "\n") -> str:
    count = sum(unit.path.exists() for unit in units)
    parts = f"{count} of {format_count(len(units), 'part')} {'is' if count == 1 else 'are'} finished and kept"
    return f"{before}{parts}: run the same command again to continue" if count else ""


def _limit_threads() -> None:
    # One process per core already: further threads of the encoder would only compete.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def tokenise_unit(unit: Unit, request: CorpusRequest, tokenizer: Path) -> None:
    """Tokenise the documents of a unit into its file, which appears in one rename."""
    datasets = import_datasets()
    encoding, portion = _cached_tokenizer(tokenizer), unit.portion

    def encode(table: "pa.Table") -> "pa.Table":
        import pyarrow as pa

        texts = documents_of(table.column(0).to_pylist(), portion.kind, request.text_field)
        tokens, token_offsets, ends, sentence_offsets = encode_texts(encoding, texts)
        return pa.table(
            {
                # None: left out when the corpus is saved.
                "hash": pa.array([document_hash(text) if text else None for text in texts], pa.uint64()),
                "tokens": pa.ListArray.from_arrays(token_offsets, tokens),
                "ends": pa.ListArray.from_arrays(sentence_offsets, ends),
            }
        )

    try:
        unit.path.parent.mkdir(exist_ok=True)
        data = load(portion, request)
        if len(data):
            data = data.shard(portion.units, unit.number, contiguous=True)
        if not len(data):
            unit.path.touch()
            return
        features = {"hash": datasets.Value("uint64")}
        features["tokens"] = datasets.List(datasets.Value(str(token_type(encoding.n_vocab))))
        features["ends"] = datasets.List(datasets.Value("uint32"))
        data.with_format("arrow").map(
            encode,
            batched=True,
            batch_size=min(1000, len(data) * ENCODE_BATCH_BYTES // (data.data.nbytes or 1) + 1),
            remove_columns=data.column_names,
            features=datasets.Features(features),
            cache_file_name=str(unit.path),
            new_fingerprint=unit.path.stem,
        )
    except Exception as error:
        raise fault(portion, request, error) from None


# Read once per process, not once per unit.
@lru_cache(maxsize=1)
def _cached_tokenizer(path: Path) -> Tokenizer:
    return read_tokenizer(path)


# --- the corpus -------------------------------------------------------------------------------------------------------


def save_corpus(
    request: CorpusRequest, settings: Settings, files: Sequence[Path], tokenizer: Tokenizer
) -> tuple[Manifest, bool]:
    """Split the tokens of all units into both sides, and make them the corpus of the folder in one rename.

    Returns:
        Its manifest, and whether a document was moved to an otherwise empty side.
    """
    datasets = import_datasets()
    import pyarrow as pa
    from pyarrow import compute

    out, saved = request.out, request.cache / "corpus"
    rows = datasets.concatenate_datasets(
        [datasets.Dataset.from_file(str(path)) for path in files if path.stat().st_size]
        or [datasets.Dataset.from_dict({"hash": pa.array([], pa.uint64())})]
    ).with_format("arrow")
    threshold = split_threshold(request, rows.data["hash"])
    is_val = {"train": compute.greater_equal, "val": compute.less}
    with storage_errors(out):
        shutil.rmtree(saved, ignore_errors=True)
        for side in SIDES:
            chosen = rows.filter(
                lambda hashes, side=side: is_val[side](hashes, pa.scalar(threshold, pa.uint64())).fill_null(False),
                input_columns="hash",
                batched=True,
            )
            chosen.with_format(None).remove_columns("hash").save_to_disk(saved / side)
        (saved / "dataset_dict.json").write_text(json.dumps({"splits": SIDES}), encoding="utf-8")
        paths = {side: sorted((saved / side).glob("*.arrow")) for side in SIDES}
        sides = {side: [texts for path in paths[side] for texts in read_arrow(path)] for side in SIDES}
        manifest = Manifest(
            version=VERSION,
            digest=corpus_digest(tokenizer, sides),
            n_vocab=tokenizer.n_vocab,
            bpe_tokens=tokenizer.bpe_tokens,
            tokenizer_sha256=tokenizer.sha256,
            inputs=tuple(text.encode(errors="backslashreplace").decode() for text in request.inputs),
            settings=settings,
            train=count(sides["train"], tokenizer),
            val=count(sides["val"], tokenizer),
            skipped=rows.data["hash"].null_count,
            shards=tuple(
                Shard(side=side, name=path.name, size=path.stat().st_size) for side in SIDES for path in paths[side]
            ),
        )
        shutil.rmtree(out / manifest.digest, ignore_errors=True)  # a damaged one
        saved.rename(out / manifest.digest)
        text = tokenizer.to_json().encode()
        if not (out / TOKENIZER).is_file() or (out / TOKENIZER).read_bytes() != text:
            (out / MANIFEST).unlink(missing_ok=True)  # a manifest must never be beside another tokenizer
            write_atomic(out / TOKENIZER, text)
        write_atomic(out / MANIFEST, manifest.model_dump_json(indent=1))
        # After the manifest: until then, the folder holds the earlier corpus.
        for path in out.iterdir():
            is_corpus = _DIGEST.fullmatch(path.name) and (path / "dataset_dict.json").is_file()
            if is_corpus and path.name != manifest.digest:
                shutil.rmtree(path, ignore_errors=True)
    return manifest, threshold != val_below(request)


def split_threshold(request: CorpusRequest, hashes: "pa.ChunkedArray") -> int:
    """Return the hash below which a document is for validation.

    It is `val_below(request)`, moved just enough for both sides to have a document.

    Raises:
        DataMissingError: there is no text, or only one distinct document.
    """
    from pyarrow import compute

    lowest, highest = compute.min_max(hashes).as_py().values()
    if lowest is None:
        raise DataMissingError(f"{', '.join(request.inputs)}: it contains no text")
    if lowest == highest:
        finer_unit = "line" if request.documents == "blank-line" else "blank-line or line"
        raise DataMissingError(
            f"{', '.join(request.inputs)}: only one distinct document, which cannot be for both training and "
            f"validation; give more text, or --documents {finer_unit}, which splits a text file into more documents"
        )
    # The lowest hash is always below the threshold, the highest never.
    threshold: int = min(max(val_below(request), lowest + 1), highest)
    return threshold


def count(side: Sequence[Texts], tokenizer: Tokenizer) -> Counts:
    """Return the content of a side, as the manifest records it."""
    sizes = token_bytes(tokenizer)

    def long_sentences(texts: Texts) -> int:
        lengths = np.diff(texts.ends.astype(np.int64), prepend=0)
        first = texts.sentence_offsets[:-1]
        lengths[first] = texts.ends[first]  # ends count from the start of their document
        return int((lengths > BLOCK_TOKENS).sum())

    return Counts(
        documents=sum(len(texts.token_offsets) - 1 for texts in side),
        sentences=sum(len(texts.ends) for texts in side),
        tokens=sum(len(texts.tokens) for texts in side),
        text_bytes=sum(int(sizes[texts.tokens].sum()) for texts in side),
        long_sentences=sum(map(long_sentences, side)),
        blocks=sum(len(block_starts(texts, BLOCK_TOKENS)) for texts in side),
    )
