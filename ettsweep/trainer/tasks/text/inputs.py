"""Find the text that --input names, and load it with `datasets`.

JSON lines are loaded as lines and parsed here: the JSON reader of `datasets` turns a number into text if a field
changes its type, and demands the same fields in all lines.
"""

import json
import os
import re
import threading
from collections.abc import Sequence
from glob import escape, glob
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ettsweep.errors import DataMissingError, EttsweepError, FailedError, InputError, StorageError, error_line
from ettsweep.extras import check_installed
from ettsweep.files import DISK_FULL, DISK_FULL_MESSAGE, expand_home
from ettsweep.schema import digest
from ettsweep.trainer.tasks.text.corpus_manifest import CACHE, DocumentUnit

if TYPE_CHECKING:
    import datasets

Kind = Literal["text", "json", "csv", "parquet", "arrow"]

KINDS: dict[str, Kind] = {
    ".txt": "text",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
}

COMPRESSED = (".gz", ".bz2", ".xz", ".zst")

SUPPORTED_FILES = f".txt, .jsonl (or .ndjson, .json) and .csv, also with {', '.join(COMPRESSED)}; and .parquet"

HUB_PREFIX = "hfds/"

_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")

HUB_FORMATS = ("text", "json", "csv", "parquet", "arrow")
"""Formats of data sets with text; none runs their code."""

UNIT_BYTES = 16 * 2**20
"""Text that one process tokenises at a time, and a kill loses."""

MAX_UNITS = 500
"""Most units, each an open file at the end; more text makes them larger."""


class CorpusRequest(NamedTuple):
    """The options of `ettsweep data text`.

    Attributes:
        inputs: files, folders, globs or data sets; see `find_portions`.
        out: folder of the corpus.
        tokenizer: folder with the files of a tokenizer; None trains one of `bpe_tokens` tokens on the text.
        val_fraction: share of the documents for validation.
        text_field: column of tables, or key of JSON lines, that holds the text.
        documents: kind of documents in a text file.
        workers: processes that tokenise; None for one per core.
    """

    inputs: tuple[str, ...]
    out: Path
    tokenizer: Path | None = None
    bpe_tokens: int | None = None
    val_fraction: float = 0.005
    text_field: str = "text"
    documents: DocumentUnit = "blank-line"
    workers: int | None = None

    @property
    def cache(self) -> Path:
        """Folder for work to keep if the command ends early."""
        return self.out / CACHE


class Portion(NamedTuple):
    """Files that are loaded together.

    Attributes:
        kind: format of the files; `json` are JSON lines.
        paths: absolute paths; several only of text and JSON lines.
        units: number of parts that its documents are tokenised in.
        key: digest of paths, sizes and modification times.
    """

    kind: Kind
    paths: tuple[str, ...]
    units: int
    key: str


def import_datasets() -> Any:
    """Return the package `datasets`, silenced.

    Raises:
        PackageMissingError: it is not installed.
    """
    check_installed("data text", "datasets")
    import datasets

    datasets.disable_progress_bars()  # our bar shows all progress
    # Else an ended process reports a leaked semaphore.
    datasets.utils.tqdm.set_lock(threading.RLock())
    datasets.utils.logging.set_verbosity(datasets.utils.logging.CRITICAL)  # errors are raised, too
    return datasets


# --- finding ----------------------------------------------------------------------------------------------------------


def find_portions(request: CorpusRequest) -> list[Portion]:
    """Return the text that values of --input name, each file once; files of a folder or pattern sorted by name.

    An input is a file, a folder, a glob, a folder of `datasets.save_to_disk`, optionally with :SPLIT, or
    hfds/OWNER/NAME[:SPLIT] for a data set of the hub, which is downloaded into the cache.

    Raises:
        DataMissingError: an input does not exist, has no text, or cannot be opened.
        InputError: the format of a file is not supported.
    """
    # A dictionary, since two inputs may name a file.
    stats = {(kind, path): path.stat() for text in request.inputs for kind, path in _find(text, request.cache)}
    unit_bytes = max(UNIT_BYTES, sum(stat.st_size for stat in stats.values()) // MAX_UNITS)
    groups, group_bytes = list[tuple[Kind, list[Path]]](), list[int]()
    for (kind, path), stat in stats.items():
        # Of tables, each file is loaded alone: `datasets` would give all the column types of the first.
        if not groups or groups[-1][0] != kind or kind not in ("text", "json") or group_bytes[-1] >= unit_bytes:
            groups.append((kind, []))
            group_bytes.append(0)
        groups[-1][1].append(path)
        group_bytes[-1] += stat.st_size * (4 if path.name.lower().endswith(COMPRESSED) else 1)
    return [
        Portion(
            kind,
            tuple(map(str, paths)),
            units=-(-size // unit_bytes) or 1,  # rounded up
            key=digest([(str(path), *_version(stats[kind, path], path, request)) for path in paths], 24),
        )
        for (kind, paths), size in zip(groups, group_bytes, strict=True)
    ]


def _version(stat: os.stat_result, path: Path, request: CorpusRequest) -> tuple[int, ...]:
    # Downloads have new times, but each revision of the hub has its own path.
    is_downloaded = path.is_relative_to(request.cache.resolve())
    return (stat.st_size,) if is_downloaded else (stat.st_size, stat.st_mtime_ns)


def _find(text: str, cache: Path) -> list[tuple[Kind, Path]]:
    path = Path(expand_home(text))
    if text.startswith(HUB_PREFIX):
        name, _, split = text.removeprefix(HUB_PREFIX).partition(":")
        return _data_set_files(text, name, split, cache)
    # The name of a file or folder may contain a colon.
    name, _, split = (str(path), "", "") if path.exists() else str(path).rpartition(":")
    if name and any((Path(name) / file).is_file() for file in ("dataset_dict.json", "state.json")):
        return _data_set_files(text, name, split, None)
    if path.is_dir():
        paths = [file for file in sorted(path.iterdir()) if _kind(file) and not file.name.startswith(".")]
    else:
        paths = [path] if path.exists() else [Path(name) for name in sorted(glob(str(path), recursive=True))]  # noqa: PTH207 (a pattern may be absolute)
    files = [(_kind(file), file.resolve()) for file in paths if file.is_file()]
    if not files:
        problem = f"no text in this folder ('{text}/**/*.txt' includes subfolders)" if path.is_dir() else "no such file"
        raise DataMissingError(f"--input {text}: {problem}; supported are {SUPPORTED_FILES}")
    found = [(kind, file) for kind, file in files if kind]
    if len(found) < len(files):
        other = next(file for kind, file in files if not kind)
        raise InputError(f"--input {other}: unsupported format; supported are {SUPPORTED_FILES}")
    return found


def _kind(path: Path) -> Kind | None:
    name = path.name.lower()
    plain = name.removesuffix(next((end for end in COMPRESSED if name.endswith(end)), ""))
    kind = KINDS.get(Path(plain).suffix)
    return None if kind == "parquet" and plain != name else kind


def _data_set_files(text: str, name: str, split: str, cache: Path | None) -> list[tuple[Kind, Path]]:
    """Return the arrow files of a folder of `save_to_disk`, or, given a cache, of a data set of the hub."""
    datasets = import_datasets()
    if cache and not _HUB_NAME.fullmatch(name):
        raise InputError(f"--input {text}: expected {HUB_PREFIX}OWNER/NAME or {HUB_PREFIX}OWNER/NAME:SPLIT")
    try:
        if cache:
            builder = datasets.load_dataset_builder(name, cache_dir=str(cache))
            if builder.name not in HUB_FORMATS:
                raise InputError(f"--input {text}: is {builder.name}; supported are {', '.join(HUB_FORMATS)}")
            builder.download_and_prepare()
            data = builder.as_dataset(split or "train")
        else:
            data = datasets.load_from_disk(name, keep_in_memory=False)
            if isinstance(data, datasets.DatasetDict):
                data = data[split or "train"]
            elif split:
                raise InputError(f"--input {text}: has no splits; use {name} without one")
    except InputError:
        raise
    except Exception as error:  # network, hub and file system raise errors of many types
        raise DataMissingError(f"--input {text}: cannot be opened as a data set ({error_line(error)})") from error
    return [("arrow", Path(file["filename"]).resolve()) for file in data.cache_files]


# --- loading ----------------------------------------------------------------------------------------------------------

ROWS_AS: dict[DocumentUnit, str] = {"blank-line": "paragraph", "line": "line", "file": "document"}
"""Names in `datasets` for documents of a text file."""


def load(portion: Portion, request: CorpusRequest) -> "datasets.Dataset":
    """Return a data set of one column, text or JSON lines, from the cache if it was loaded before.

    Raises:
        InputError: there is no such column, or it is not text.
        Exception: any, for a damaged file; see `fault`.
    """
    datasets = import_datasets()
    field, builder, options = request.text_field, portion.kind, dict[str, Any]()
    if portion.kind in ("text", "json"):
        field, builder = "text", "text"
        options["sample_by"] = "line" if portion.kind == "json" else ROWS_AS[request.documents]
        options["features"] = datasets.Features({"text": datasets.Value("string")})  # else no text is an error
        options["chunksize"] = 2**20
    elif portion.kind == "csv":
        options = {"usecols": [field], "converters": {field: str}, "keep_default_na": False}  # as it stands there
    elif portion.kind == "parquet":
        options["columns"] = [field]
    else:
        data = datasets.Dataset.from_file(portion.paths[0])
    if portion.kind != "arrow":
        # Its own folder, removed once its text is tokenised.
        cache = str(request.cache / portion.key)
        files = [escape(path) for path in portion.paths]
        loader = datasets.load_dataset_builder(builder, data_files=files, cache_dir=cache, **options)
        loader.download_and_prepare()
        if not loader.info.splits["train"].num_examples:  # `datasets` would refuse it
            text = datasets.Features({field: datasets.Value("string")})
            return datasets.Dataset.from_dict({field: []}, features=text)
        data = loader.as_dataset("train")
    types = {name: str(getattr(feature, "dtype", feature)) for name, feature in data.features.items()}
    if field not in types:
        raise InputError(_missing_field(field, [name for name, kind in types.items() if "string" in kind]))
    if types[field] not in ("string", "large_string"):
        raise InputError(f"field {field!r} is not text but {types[field]}")
    return data.select_columns([field])


def documents_of(values: Sequence[str | None], kind: Kind, text_field: str) -> list[str]:
    """Return the documents of loaded rows, stripped; some may be empty.

    Raises:
        FailedError: a line is not JSON.
        InputError: a line has no such field, or it is not text.
    """
    values = [value and value.removeprefix("\ufeff") for value in values]  # a byte order mark, at the start of a file
    if kind == "json":
        values = [_json_text(line, text_field) for line in values if line and line.strip()]
    return [(text or "").strip() for text in values]


def _json_text(line: str, text_field: str) -> str | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise FailedError(f"not valid JSON ({reason}) in {line[:60]!r}; one object a line is expected") from None
    if not isinstance(value, dict):
        raise FailedError(f"one JSON object a line is expected, got {type(value).__name__}")
    if text_field not in value:
        texts = [key for key, item in value.items() if isinstance(item, str)]
        raise InputError(_missing_field(text_field, texts or list(value)))
    text = value[text_field]
    if text is not None and not isinstance(text, str):
        raise InputError(f"field {text_field!r} is not text but {type(text).__name__} in {line[:60]!r}")
    return text and text.encode("utf-8", "replace").decode()  # UTF-8 has no lone surrogates


def _missing_field(name: str, fields: Sequence[str]) -> str:
    hint = f"; --text-field {fields[0]}?" if fields else ""
    return f"no field {name!r}, it has {', '.join(fields) or 'none'}{hint}"


def fault(portion: Portion, request: CorpusRequest, error: Exception) -> EttsweepError:
    """Return an error that names the unreadable file, and why; of several, each is read again."""
    path = portion.paths[0]
    for path in portion.paths if len(portion.paths) > 1 else ():
        try:
            for rows in load(portion._replace(paths=(path,)), request).iter(1000):
                documents_of(rows["text"], portion.kind, request.text_field)
        except Exception as own:
            error = own
            break
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error  # `datasets` says less than the cause
    if isinstance(cause, EttsweepError):
        return type(cause)(f"{path}: {cause}")
    if isinstance(cause, OSError) and cause.errno in DISK_FULL:
        return StorageError(f"{request.out}: {DISK_FULL_MESSAGE}")
    if isinstance(cause, UnicodeDecodeError):
        return FailedError(f"{path}: not UTF-8; `iconv -f ENCODING -t UTF-8` converts files")
    return FailedError(f"{path}: cannot be read as {portion.kind} ({error_line(cause)})")
