"""The files that `--input` names, and the units of work that they are cut into: what one process tokenises at a time.

A unit has pieces: ranges of bytes or rows of a file, which own the documents that start in them, so that all pieces
together have each document once.
"""

import gzip
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob, has_magic
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ettsweep.errors import DataMissingError, FailedError, InputError, first_line
from ettsweep.tasks.text.manifest import Documents

FileKind = Literal["text", "JSON lines", "parquet", "arrow"]

SUFFIXES: dict[str, FileKind] = {
    ".txt": "text",
    ".jsonl": "JSON lines",
    ".ndjson": "JSON lines",
    ".json": "JSON lines",
    ".parquet": "parquet",
}

KNOWN = ".txt, .jsonl (or .ndjson, .json) and .parquet, the first two also as .gz"

HUB = "hfds/"


@dataclass(frozen=True)
class TextFile:
    """A file; `packed` with gzip."""

    path: str
    kind: FileKind
    packed: bool = False


def find_files(inputs: Iterable[str]) -> list[TextFile]:
    """Return the files that inputs name, each once, in the order of the inputs and of names in folders.

    An input is a file, a folder, a glob, a folder of `datasets.save_to_disk`, or hfds/OWNER/NAME[:split].

    Raises:
        DataMissingError: there is no such thing.
        InputError: it is of no known kind.
    """
    found, wrong = list[TextFile](), list[str]()
    for text in inputs:
        try:
            found += _named(text)
        except InputError as error:
            wrong.append(str(error))
    if wrong:
        raise InputError.of(wrong)
    return list(dict.fromkeys(found))


def _named(text: str) -> list[TextFile]:
    if text.startswith(HUB):
        return _arrow_files(text, None, "")
    path = Path(text).expanduser()
    if path.is_dir():
        return _arrow_files(text, path, "") if _is_saved(path) else _folder(path)
    if path.exists():
        return [_file(path)]
    folder, colon, split = text.rpartition(":")
    if colon and _is_saved(Path(folder).expanduser()):
        return _arrow_files(text, Path(folder).expanduser(), split)
    if has_magic(text):
        names = sorted(glob(str(path), recursive=True))  # noqa: PTH207 (a pattern may be absolute)
        files = [Path(name) for name in names if not Path(name).is_dir()]
        if not files:
            raise DataMissingError(f"--input {text}: no file fits")
        return [_file(one) for one in files]
    raise DataMissingError(f"--input {text}: does not exist")


def _file(path: Path) -> TextFile:
    name = path.name.lower()
    packed = name.endswith(".gz")
    kind = SUFFIXES.get(Path(name.removesuffix(".gz")).suffix)
    if kind is None or (packed and kind == "parquet"):
        raise InputError(f"--input {path}: its name ends in none of {KNOWN}")
    return TextFile(str(path.resolve()), kind, packed)


def _folder(path: Path) -> list[TextFile]:
    try:
        names = sorted(one.name for one in path.iterdir() if one.is_file() and not one.name.startswith("."))
    except OSError as error:
        raise DataMissingError(f"--input {path}: {error.strerror}") from None
    files = [path / name for name in names if Path(name.lower().removesuffix(".gz")).suffix in SUFFIXES]
    if not files:
        holds = ", ".join(sorted(one.name + "/" * one.is_dir() for one in path.iterdir())[:6]) or "nothing"
        raise DataMissingError(
            f"--input {path}: no text in this folder, which holds {holds}; read are {KNOWN}; "
            f"'{path}/**/*.txt' looks deeper"
        )
    return [_file(one) for one in files]


def _is_saved(path: Path) -> bool:
    """Say whether a folder is what `datasets.save_to_disk` makes."""
    return (path / "dataset_dict.json").is_file() or all(
        (path / name).is_file() for name in ("state.json", "dataset_info.json")
    )


def _arrow_files(text: str, folder: Path | None, split: str) -> list[TextFile]:
    """Return the files that `datasets` keeps the rows of a data set in; None is for one of the hub."""
    try:
        import datasets
    except ImportError:
        raise DataMissingError(f"--input {text}: reading it needs datasets: pip install 'ettsweep[text]'") from None
    try:
        if folder is None:
            name, _, of_hub = text.removeprefix(HUB).partition(":")
            table = datasets.load_dataset(name, split=of_hub or "train", keep_in_memory=False)
        else:
            table = datasets.load_from_disk(str(folder), keep_in_memory=False)
    except Exception as error:  # of the network, of the hub, of pyarrow: each has its own
        told = f"{type(error).__name__}: {first_line(error)}"
        raise DataMissingError(f"--input {text}: cannot be opened as a data set ({told})") from error
    if isinstance(table, datasets.DatasetDict):
        splits = list(table)
        split = split or ("train" if "train" in splits else splits[0] if len(splits) == 1 else "")
        if split not in splits:
            what = f"no split {split!r}" if split else "several splits"
            raise InputError(f"--input {text}: has {what}; name one: {', '.join(f'{folder}:{s}' for s in splits)}")
        table = table[split]
    elif split:
        raise InputError(f"--input {text}: has no splits; {folder} is all of it")
    files = [TextFile(str(Path(one["filename"]).resolve()), "arrow") for one in table.cache_files]
    if not files or sum(_arrow_rows(one.path) for one in files) != len(table):
        raise DataMissingError(f"--input {text}: its rows are not all in files of its own; save it with save_to_disk")
    return files


def _arrow_rows(path: str) -> int:
    with arrow_reader(path) as reader:
        return sum(batch.num_rows for batch in reader)


@contextmanager
def arrow_reader(path: str) -> Iterator[Any]:
    """Give what reads the batches of an Arrow file."""
    import pyarrow as pa

    with pa.memory_map(path) as file, pa.ipc.open_stream(file) as reader:
        yield reader


@contextmanager
def readable(file: TextFile) -> Iterator[None]:
    """Turn what goes wrong in reading into an error that names the file."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FailedError(f"{file.path}: cannot be unpacked ({error}): truncated, or no gzip") from None
    except (OSError, ValueError) as error:  # pyarrow's errors are one or the other
        told = getattr(error, "strerror", None) or first_line(error)
        what = f"as {file.kind} " if file.kind in ("parquet", "arrow") else ""
        raise DataMissingError(f"{file.path}: cannot be read {what}({told})") from None


# --- units ------------------------------------------------------------------------------------------------------------

MAX_DOCUMENT = 128 * 2**20
"""Bytes of a document, which is held in memory as a whole."""


class DocumentRule(NamedTuple):
    """What a document is: the field of JSON lines and tables, and the rule for text files."""

    text_field: str = "text"
    documents: Documents = "blank-line"


@dataclass(frozen=True)
class Piece:
    """A range of bytes of a text or JSON-lines file, to its end where `stop` is -1, or of rows of a table.

    Attributes:
        size: in bytes, about.
        identity: path, size and time of the file, by which it is known again.
    """

    file: TextFile
    start: int
    stop: int
    size: int
    identity: tuple[str, int, int]

    @property
    def end(self) -> float:
        return self.stop if self.stop >= 0 else math.inf


class Unit(NamedTuple):
    """What one process works on at a time: a piece of a large file, or some small files."""

    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)

    @property
    def identity(self) -> list[object]:
        """Return what it is known again by."""
        return [[piece.identity, piece.start, piece.stop] for piece in self.pieces]


def cut(files: Sequence[TextFile], rule: DocumentRule, size: int) -> list[Unit]:
    """Cut files into units of about so many bytes; small files share one.

    Raises:
        DataMissingError: a file cannot be read.
        InputError: a table has no such field, or a document is too large.
    """
    return list(_together((piece for file in files for piece in _pieces(file, rule, size)), size))


def _pieces(file: TextFile, rule: DocumentRule, size: int) -> list[Piece]:
    with readable(file):
        with Path(file.path).open("rb") as opened:
            info = os.fstat(opened.fileno())
        if file.kind in ("parquet", "arrow"):
            ranges = list(_row_ranges(file, rule, size))
        elif file.packed or (file.kind == "text" and rule.documents == "file"):
            if not file.packed:
                check_size(file, 0, info.st_size)
            ranges = [(0, -1, info.st_size)]
        else:
            ranges = [(low, high, high - low) for low, high in _equal(0, info.st_size, math.ceil(info.st_size / size))]
    identity = (file.path, info.st_size, info.st_mtime_ns)
    return [Piece(file, start, stop, length, identity) for start, stop, length in ranges]


def _equal(start: int, length: int, count: int) -> list[tuple[int, int]]:
    """Return the ends of equal parts of a range, one at least."""
    count = max(1, count)
    return list(pairwise(start + length * k // count for k in range(count + 1)))


def _row_ranges(file: TextFile, rule: DocumentRule, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield ranges of rows with their bytes: of whole groups, and of parts of one that is too large."""
    groups = _parquet_groups if file.kind == "parquet" else _arrow_batches
    start, rows, length = 0, 0, 0
    for more_rows, more_length in chain(groups(file.path, rule.text_field), [(0, size + 1)]):
        if rows and length + more_length > size:
            parts = _equal(start, rows, min(math.ceil(length / size), rows))
            yield from ((low, high, length // len(parts)) for low, high in parts)
            start, rows, length = start + rows, 0, 0
        rows, length = rows + more_rows, length + more_length


def _parquet_groups(path: str, name: str) -> Iterator[tuple[int, int]]:
    """Yield rows and bytes of each row group, after a look at the column."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        _check_column(path, file.schema_arrow, name)
        data = file.metadata
        columns = [k for k in range(data.num_columns) if data.schema.column(k).path == name]
        for k in range(data.num_row_groups):
            group = data.row_group(k)
            yield group.num_rows, sum(group.column(c).total_uncompressed_size for c in columns)


def _arrow_batches(path: str, name: str) -> Iterator[tuple[int, int]]:
    """Yield rows and bytes of each batch, after a look at the column."""
    with arrow_reader(path) as reader:
        _check_column(path, reader.schema, name)
        for batch in reader:
            yield batch.num_rows, batch.column(name).nbytes


def _check_column(path: str, schema: Any, name: str) -> None:
    import pyarrow as pa

    def is_text(kind: Any) -> bool:
        return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))

    if name not in schema.names:
        raise InputError(f"{path}: {no_field(name, [f.name for f in schema if is_text(f.type)] or schema.names)}")
    if not is_text(schema.field(name).type):
        raise InputError(f"{path}: field {name!r} is no text but {schema.field(name).type}")


def _together(found: Iterable[Piece], size: int) -> Iterator[Unit]:
    """Put small neighbours into one unit.

    Some names end a unit early. So a new file among thousands changes the units around it, not all that follow.
    """
    unit, length = list[Piece](), 0
    for piece in found:
        early = length >= size / 4 and zlib.crc32(Path(piece.file.path).name.encode()) % 8 == 0
        if unit and (early or length + piece.size > size):
            yield Unit(tuple(unit))
            unit, length = [], 0
        unit.append(piece)
        length += piece.size
    if unit:
        yield Unit(tuple(unit))


def check_size(file: TextFile, start: int, size: int) -> None:
    """Check that a document, or what was read of it, can be held in memory.

    Raises:
        InputError: it cannot.
    """
    if size > MAX_DOCUMENT:
        mode = "; --documents blank-line or line makes smaller ones of a text file" if file.kind == "text" else ""
        mib = MAX_DOCUMENT // 2**20
        raise InputError(f"{file.path}: the document that begins at byte {start} has more than {mib} MiB{mode}")


def no_field(name: str, there: Sequence[str]) -> str:
    """Say that there is no such field, and what there is."""
    cure = f"; --text-field {there[0]}?" if there else ""
    return f"no field {name!r}, it has {', '.join(there) or 'none'}{cure}"
