"""Stream the documents of text files, JSON lines, parquet files and data sets of Hugging Face's `datasets`.

`datasets` resolves names on the hub and reads folders of `save_to_disk`, as a stream: nothing is copied into its cache.
Other files are opened by Python and pyarrow, for the readers of `datasets` fall short: those for lines cannot say which
line or byte is wrong, the one for JSON demands one type per field, and the one for parquet holds whole row groups in
memory and hangs at the exit of a process that has not read all of them (pyarrow 26).
"""

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from glob import escape, glob, has_magic
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Literal, NamedTuple

from ettsweep.errors import (
    DataMissingError,
    EttsweepError,
    FailedError,
    InputError,
    PackageMissingError,
    error_line,
    short_message,
)
from ettsweep.extras import missing_text
from ettsweep.files import expand_home
from ettsweep.trainer.tasks.text.corpus_manifest import DocumentUnit

SUFFIXES: dict[str, Literal["text", "JSON lines", "parquet"]] = {
    ".txt": "text",
    ".jsonl": "JSON lines",
    ".ndjson": "JSON lines",
    ".json": "JSON lines",
    ".parquet": "parquet",
}

SUPPORTED_SUFFIXES = ".txt, .jsonl (or .ndjson, .json) and .parquet, the first two also as .gz"

HUB_PREFIX = "hfds/"

MAX_DOCUMENT_BYTES = 128 * 2**20
"""Largest document, in bytes: a document is held in memory, also by the process that tokenises it."""

ROWS_PER_BATCH = 256
"""Rows of a table that are held in memory at once."""


def is_text_file(name: str) -> bool:
    """Return `True` if text can be read from a file of this name."""
    return Path(name.lower().removesuffix(".gz")).suffix in SUFFIXES


class Source(NamedTuple):
    """A file to read, or a split of a data set on the hub.

    Attributes:
        path: path of the file; hf://... for a parquet file on the hub; for `kind` hub, the name of the data set.
        split: only for `kind` hub.
    """

    path: str
    kind: Literal["text", "JSON lines", "parquet", "arrow", "hub"]
    split: str = "train"

    @property
    def size(self) -> int | None:
        """Size in bytes of an uncompressed text file, for progress bars; None for any other source."""
        is_plain_text = self.kind in ("text", "JSON lines") and not self.path.lower().endswith(".gz")
        return Path(self.path).stat().st_size if is_plain_text else None


def document_hash(text: bytes) -> int:
    """Return a 64-bit hash of a document: it decides on which side the document is, and names shards."""
    return int.from_bytes(blake2b(text, digest_size=8).digest())


# --- resolving --input ------------------------------------------------------------------------------------------------


def find_sources(text: str) -> list[Source]:
    """Return the sources that a value of --input names, files sorted by name.

    An input is a file, a folder, a glob, a folder of `datasets.save_to_disk`, optionally with :SPLIT, or
    hfds/OWNER/NAME[:SPLIT] for a data set on the hub.

    Raises:
        DataMissingError: it does not exist, has no text, or cannot be opened.
        InputError: the format of a file is not supported, or there is no such split.
    """
    if text.startswith(HUB_PREFIX):
        name, _, split = text.removeprefix(HUB_PREFIX).partition(":")
        return _hub_sources(name, split or "train")
    path = Path(expand_home(text))
    if path.is_dir():
        return _saved_sources(text, path, "") if _is_saved_data_set(path) else _folder_sources(path)
    if path.exists():
        return [_file_source(path)]
    # Only now: the name of a file or folder may contain a colon.
    name, colon, split = str(path).rpartition(":")
    if colon and _is_saved_data_set(Path(name)):
        return _saved_sources(text, Path(name), split)
    if not has_magic(text):
        raise DataMissingError(f"--input {text}: does not exist")
    names = sorted(glob(str(path), recursive=True))  # noqa: PTH207 (a pattern may be absolute)
    files = [Path(name) for name in names if not Path(name).is_dir()]
    if not files:
        raise DataMissingError(f"--input {text}: no file matches")
    return [_file_source(file) for file in files]


def _file_source(path: Path) -> Source:
    name = path.name.lower()
    kind = SUFFIXES.get(Path(name.removesuffix(".gz")).suffix)
    if kind is None or name.endswith(".parquet.gz"):
        raise InputError(f"--input {path}: unsupported format; supported are {SUPPORTED_SUFFIXES}")
    # Resolved, so that a file that two inputs name is recognised as the same.
    return Source(str(path.resolve()), kind)


def _folder_sources(path: Path) -> list[Source]:
    try:
        entries = sorted(path.iterdir())
    except OSError as error:
        raise DataMissingError(f"--input {path}: {error.strerror}") from None
    files = [file for file in entries if file.is_file() and not file.name.startswith(".")]
    files = [file for file in files if is_text_file(file.name)]
    if not files:
        contents = ", ".join(file.name + "/" * file.is_dir() for file in entries[:6]) or "nothing"
        raise DataMissingError(
            f"--input {path}: no text in this folder, which holds {contents}; supported are {SUPPORTED_SUFFIXES}; "
            f"'{path}/**/*.txt' includes subfolders"
        )
    return [_file_source(file) for file in files]


def _is_saved_data_set(path: Path) -> bool:
    # The files of `datasets.save_to_disk`: of several splits, or of a single one.
    names = ("state.json", "dataset_info.json")
    return (path / "dataset_dict.json").is_file() or all((path / name).is_file() for name in names)


def _hub_sources(name: str, split: str) -> list[Source]:
    datasets = _import_datasets(f"{HUB_PREFIX}{name}")
    try:
        builder = datasets.load_dataset_builder(name)
        files = {str(key): [str(file) for file in paths] for key, paths in (builder.config.data_files or {}).items()}
    except Exception as error:  # network, hub and file system raise errors of many types
        raise DataMissingError(
            f"--input {HUB_PREFIX}{name}: cannot be opened as a data set ({error_line(error)})"
        ) from error
    if files and split not in files:
        names = ", ".join(f"{HUB_PREFIX}{name}:{key}" for key in files)
        raise InputError(f"--input {HUB_PREFIX}{name}: has no split {split!r}; choose one: {names}")
    if builder.name == "parquet":  # read by pyarrow, for the reason at the top of this module
        return [Source(file, "parquet") for file in files[split]]
    return [Source(name, "hub", split)]


def _saved_sources(text: str, folder: Path, split: str) -> list[Source]:
    datasets = _import_datasets(text)
    try:
        table = datasets.load_from_disk(str(folder), keep_in_memory=False)
    except Exception as error:  # pyarrow and fsspec raise errors of many types
        raise DataMissingError(f"--input {text}: cannot be opened as a data set ({error_line(error)})") from error
    if isinstance(table, datasets.DatasetDict):
        splits = list(table)
        split = split or ("train" if "train" in splits else splits[0] if len(splits) == 1 else "")
        if split not in splits:
            problem = f"no split {split!r}" if split else "several splits"
            names = ", ".join(f"{folder}:{name}" for name in splits)
            raise InputError(f"--input {text}: has {problem}; choose one: {names}")
        table = table[split]
    elif split:
        raise InputError(f"--input {text}: has no splits; use {folder} without one")
    return [Source(str(Path(file["filename"]).resolve()), "arrow") for file in table.cache_files]


def _import_datasets(text: str) -> ModuleType:
    try:
        import datasets
    except ImportError:
        raise PackageMissingError(missing_text(f"--input {text}: reading it", "datasets")) from None
    # Ours shows the progress of all sources.
    datasets.disable_progress_bars()
    datasets.config.TORCH_AVAILABLE = False  # streams would import torch: half a gigabyte of memory, and seconds
    return datasets  # type: ignore[no-any-return]


# --- reading ----------------------------------------------------------------------------------------------------------


def read_documents(source: Source, text_field: str, documents: DocumentUnit) -> Iterator[str]:
    """Yield the documents of a source, stripped of white space at both ends; some may be empty.

    Args:
        source: what to read.
        text_field: column of a table, or key of JSON lines, that holds the text.
        documents: what counts as a document in a text file.

    Raises:
        DataMissingError: a file cannot be read.
        FailedError: it is not UTF-8, not JSON, or truncated; the message names file and line or byte.
        InputError: a line or table has no such field, or a document is too large.
    """
    with _named_read_errors(source):
        texts: Iterator[str]
        match source.kind:
            case "text":
                texts = (text.replace("\r\n", "\n") for _, text in _read_text_documents(source, documents))
            case "JSON lines":
                texts = _read_json_lines(source, text_field)
            case "parquet":
                texts = _read_parquet(source, text_field)
            case _:
                texts = _read_data_set(source, text_field)
        for text in texts:
            yield text.strip()


@contextmanager
def _named_read_errors(source: Source) -> Iterator[None]:
    """Turn errors of reading and unpacking into ours, which name the source."""
    try:
        yield
    except EttsweepError:
        raise
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FailedError(f"{source.path}: cannot be unpacked ({error}): truncated, or not gzip") from None
    except Exception as error:
        remote = source.kind == "hub" or "://" in source.path
        if not remote and not isinstance(error, OSError | ValueError):  # pyarrow's errors are one or the other
            raise
        kind = "" if source.kind in ("text", "JSON lines") else f"as {source.kind} "
        reason = getattr(error, "strerror", None) or short_message(error)
        raise DataMissingError(f"{source.path}: cannot be read {kind}({reason})") from None


def _read_text_documents(source: Source, documents: DocumentUnit) -> Iterator[tuple[int, str]]:
    """Yield the documents of a text file or of JSON lines, each with the number of its last line."""
    opener: Any = gzip.open if source.path.lower().endswith(".gz") else open
    with opener(source.path, "rb") as stream:
        for line, start, data in _split_documents(stream, documents):
            if len(data) > MAX_DOCUMENT_BYTES:
                hint = "; --documents blank-line or line makes smaller ones of a text file"
                raise InputError(
                    f"{source.path}: the document at byte {start} has more than {MAX_DOCUMENT_BYTES // 2**20} MiB"
                    f"{hint if source.kind == 'text' else ''}"
                )
            try:
                # A byte order mark is dropped at the start of a file; elsewhere it is a character of the text.
                text = data.decode("utf-8-sig" if start == 0 else "utf-8")
            except UnicodeDecodeError as error:
                raise FailedError(
                    f"{source.path}: not UTF-8 at byte {start + error.start}; "
                    "`iconv -f ENCODING -t UTF-8` converts files"
                ) from None
            yield line, text


def _split_documents(stream: IO[bytes], documents: DocumentUnit) -> Iterator[tuple[int, int, bytes]]:
    """Yield last line, first byte and content of each document, cut off beyond `MAX_DOCUMENT_BYTES`."""
    if documents == "file":
        # One byte more than allowed, which tells the caller that the document is too large.
        yield 1, 0, stream.read(MAX_DOCUMENT_BYTES + 1)
        return
    line, start, end, lines = 0, 0, 0, list[bytes]()
    while data := stream.readline(MAX_DOCUMENT_BYTES + 1):
        line += 1
        blank = data.isspace()
        if not blank:
            start = start if lines else end
            lines.append(data)
        end += len(data)
        # Also when too much is collected: a file without blank lines must not fill the memory.
        if lines and (blank or documents == "line" or end - start > MAX_DOCUMENT_BYTES):
            yield line, start, b"".join(lines)
            lines = []
    if lines:
        yield line, start, b"".join(lines)


def _read_json_lines(source: Source, text_field: str) -> Iterator[str]:
    for line, data in _read_text_documents(source, "line"):
        location = f"{source.path}:{line}"
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
            raise FailedError(f"{location}: no valid JSON ({reason}); one object a line is expected") from None
        if not isinstance(value, dict):
            raise FailedError(f"{location}: one JSON object a line is expected, got {type(value).__name__}")
        if text_field not in value:
            texts = [key for key, item in value.items() if isinstance(item, str)]
            raise InputError(f"{location}: {_missing_field_message(text_field, texts or list(value))}")
        text = _check_text(value[text_field], text_field, location)
        yield text if text.isascii() else text.encode("utf-8", "replace").decode()  # UTF-8 has no lone surrogates


def _read_parquet(source: Source, text_field: str) -> Iterator[str]:
    import fsspec
    import pyarrow.parquet as pq

    opener: Any = fsspec.open if "://" in source.path else open
    # With a buffer, pyarrow reads a column in pieces, not a whole row group at once.
    with opener(source.path, "rb") as stream, pq.ParquetFile(stream, pre_buffer=False, buffer_size=2**20) as file:
        _check_column(source.path, text_field, {field.name: str(field.type) for field in file.schema_arrow})
        for batch in file.iter_batches(ROWS_PER_BATCH, columns=[text_field], use_threads=False):
            for text in batch.column(text_field).to_pylist():
                yield text or ""


def _read_data_set(source: Source, text_field: str) -> Iterator[str]:
    """Yield the text of the rows of a data set that `datasets` streams."""
    name, files = (source.path, None) if source.kind == "hub" else ("arrow", escape(source.path))
    data = _import_datasets(name).load_dataset(name, data_files=files, split=source.split, streaming=True)
    if data.features is None:  # unknown before a row is read; types stay unknown, and each value is checked
        columns = dict.fromkeys(next(iter(data), {text_field: ""}), "string")
    else:
        columns = {column: str(getattr(feature, "dtype", feature)) for column, feature in data.features.items()}
    _check_column(source.path, text_field, columns)
    for batch in data.select_columns([text_field]).iter(ROWS_PER_BATCH):
        for text in batch[text_field]:
            yield _check_text(text, text_field, source.path)


def _check_column(location: str, name: str, columns: dict[str, str]) -> None:
    """Check that a table has a text column of this name; `columns` maps the names of all columns to their types."""
    texts = [column for column, kind in columns.items() if kind in ("string", "large_string", "string_view")]
    if name not in columns:
        raise InputError(f"{location}: {_missing_field_message(name, texts or list(columns))}")
    if name not in texts:
        raise InputError(f"{location}: field {name!r} is not text but {columns[name]}")


def _check_text(text: object, name: str, location: str) -> str:
    if text is not None and not isinstance(text, str):
        raise InputError(f"{location}: field {name!r} is not text but {type(text).__name__}")
    return text or ""


def _missing_field_message(name: str, fields: Sequence[str]) -> str:
    hint = f"; --text-field {fields[0]}?" if fields else ""
    return f"no field {name!r}, it has {', '.join(fields) or 'none'}{hint}"
