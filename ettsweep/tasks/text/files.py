"""Documents in text, JSON-lines and parquet files and in data sets of `datasets`, read as a stream, piece by piece.

A piece is a range of bytes or rows; it owns the documents that start in it, so that all pieces together have each once.
"""

import gzip
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob, has_magic
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from ettsweep.errors import DataMissingError, FailedError, InputError
from ettsweep.tasks.text.manifest import Documents

Kind = Literal["text", "JSON lines", "parquet", "arrow"]

SUFFIXES: dict[str, Kind] = {
    ".txt": "text",
    ".jsonl": "JSON lines",
    ".ndjson": "JSON lines",
    ".json": "JSON lines",
    ".parquet": "parquet",
}

KNOWN = ".txt, .jsonl (or .ndjson, .json) and .parquet, the first two also as .gz"

MAX_DOCUMENT = 128 * 2**20
"""Bytes of a document, which is held in memory as a whole."""

ROWS = 256
"""Rows of a table that are in memory at once."""

HUB = "hfds/"


class How(NamedTuple):
    """What a document is: the field of JSON lines and tables, and the rule for text files."""

    text_field: str = "text"
    documents: Documents = "blank-line"


@dataclass(frozen=True)
class Source:
    """A file; `packed` with gzip."""

    path: str
    kind: Kind
    packed: bool = False


@dataclass(frozen=True)
class Piece:
    """A range of bytes of a text or JSON-lines file, or of rows of a table.

    Attributes:
        size: in bytes, about.
        identity: path, size and time of the file, by which it is known again.
    """

    source: Source
    start: int
    stop: int
    size: int
    identity: tuple[str, int, int]


class Unit(NamedTuple):
    """What one process works on at a time: a piece of a large file, or some small files."""

    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """Return the bytes of its pieces."""
        return sum(piece.size for piece in self.pieces)


# --- what an input names ----------------------------------------------------------------------------------------------


def find_sources(inputs: Iterable[str]) -> list[Source]:
    """Return the files that inputs name, each once, in the order of the inputs and of names in folders.

    Args:
        inputs: a file, a folder, a glob, a folder of `datasets.save_to_disk`, or hfds/OWNER/NAME[:split].

    Raises:
        DataMissingError: there is no such thing.
        InputError: it is of no known kind.
    """
    found, wrong = list[Source](), list[str]()
    for text in inputs:
        try:
            found += _sources(text)
        except InputError as error:
            wrong.append(str(error))
    if wrong:
        raise InputError.of(wrong)
    return list(dict.fromkeys(found))


def _sources(text: str) -> list[Source]:
    if text.startswith(HUB):
        return _arrow_files(text, None)
    path = Path(text).expanduser()
    if path.is_dir():
        return _arrow_files(text, path) if _is_saved(path) else _folder(path)
    if path.exists():
        return [_file(path)]
    folder, colon, _ = text.rpartition(":")
    if colon and _is_saved(Path(folder).expanduser()):
        return _arrow_files(text, Path(folder).expanduser())
    if has_magic(text):
        names = sorted(glob(str(path), recursive=True))  # noqa: PTH207 (a pattern may be absolute)
        files = [Path(name) for name in names if not Path(name).is_dir()]
        if not files:
            raise DataMissingError(f"--input {text}: no file fits")
        return [_file(one) for one in files]
    raise DataMissingError(f"--input {text}: does not exist")


def _file(path: Path) -> Source:
    name = path.name.lower()
    packed = name.endswith(".gz")
    kind = SUFFIXES.get(Path(name.removesuffix(".gz")).suffix)
    if kind is None or (packed and kind == "parquet"):
        raise InputError(f"--input {path}: its name ends in none of {KNOWN}")
    return Source(str(path.resolve()), kind, packed)


def _folder(path: Path) -> list[Source]:
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


def _arrow_files(text: str, folder: Path | None) -> list[Source]:
    """Return the files that `datasets` keeps the rows of a data set in; None is for one of the hub.

    Raises:
        DataMissingError: it cannot be opened.
        InputError: it has more than one split, and none is named.
    """
    try:
        import datasets
    except ImportError:
        raise DataMissingError(f"--input {text}: reading it needs datasets: pip install 'ettsweep[text]'") from None
    try:
        if folder is None:
            name, _, split = text.removeprefix(HUB).partition(":")
            table = datasets.load_dataset(name, split=split or "train", keep_in_memory=False)
        else:
            split = "" if Path(text).expanduser().is_dir() else text.rpartition(":")[2]
            table = datasets.load_from_disk(str(folder), keep_in_memory=False)
    except Exception as error:  # of the network, of the hub, of pyarrow: each has its own
        told = (str(error).splitlines() or [""])[0]
        raise DataMissingError(
            f"--input {text}: cannot be opened as a data set ({type(error).__name__}: {told})"
        ) from error
    if isinstance(table, datasets.DatasetDict):
        splits = list(table)
        split = split or ("train" if "train" in splits else splits[0] if len(splits) == 1 else "")
        if split not in splits:
            what = f"no split {split!r}" if split else "several splits"
            raise InputError(f"--input {text}: has {what}; name one: {', '.join(f'{folder}:{s}' for s in splits)}")
        table = table[split]
    elif split and folder is not None:
        raise InputError(f"--input {text}: has no splits; {folder} is all of it")
    files = [Source(str(Path(one["filename"]).resolve()), "arrow") for one in table.cache_files]
    if not files or sum(rows for one in files for rows, _ in _arrow_batches(one.path, None)) != len(table):
        raise DataMissingError(f"--input {text}: its rows are not all in files of its own; save it with save_to_disk")
    return files


# --- cutting ----------------------------------------------------------------------------------------------------------


def cut(sources: Sequence[Source], how: How, size: int) -> list[Unit]:
    """Cut files into units of about so many bytes; small files share one.

    Raises:
        DataMissingError: a file cannot be read.
        InputError: a table has no such field, or a document is too large.
    """
    return list(_together((piece for source in sources for piece in _pieces(source, how, size)), size))


def _pieces(source: Source, how: How, size: int) -> list[Piece]:
    with _readable(source):
        info = Path(source.path).stat()
        with Path(source.path).open("rb"):
            pass
        identity = (source.path, info.st_size, info.st_mtime_ns)
        if source.kind in ("parquet", "arrow"):
            ranges = list(_row_ranges(source, how, size))
        elif source.packed or (source.kind == "text" and how.documents == "file"):
            if not source.packed and info.st_size > MAX_DOCUMENT:
                raise _too_large(source, 0)
            ranges = [(0, -1, info.st_size)]
        else:
            count = max(1, math.ceil(info.st_size / size))
            edges = [info.st_size * k // count for k in range(count + 1)]
            ranges = [(low, high, high - low) for low, high in pairwise(edges)]
    return [Piece(source, start, stop, length, identity) for start, stop, length in ranges]


def _row_ranges(source: Source, how: How, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield ranges of rows with their bytes: of whole groups, and of parts of one that is too large."""
    groups = _parquet_groups if source.kind == "parquet" else _arrow_batches
    start, rows, length = 0, 0, 0
    for more_rows, more_length in groups(source.path, how.text_field):
        if rows and length + more_length > size:
            yield start, start + rows, length
            start, rows, length = start + rows, 0, 0
        rows, length = rows + more_rows, length + more_length
        if length > size:
            count = min(math.ceil(length / size), rows)
            edges = [start + rows * k // count for k in range(count + 1)]
            yield from ((low, high, length // count) for low, high in pairwise(edges))
            start, rows, length = start + rows, 0, 0
    if rows:
        yield start, start + rows, length


def _together(pieces: Iterable[Piece], size: int) -> Iterator[Unit]:
    """Put small neighbours into one unit.

    Some names end a unit early. So a new file among thousands changes the units around it, not all that follow.
    """
    unit, length = list[Piece](), 0
    for piece in pieces:
        early = length >= size / 4 and zlib.crc32(Path(piece.source.path).name.encode()) % 8 == 0
        if unit and (early or length + piece.size > size):
            yield Unit(tuple(unit))
            unit, length = [], 0
        unit.append(piece)
        length += piece.size
    if unit:
        yield Unit(tuple(unit))


# --- reading ----------------------------------------------------------------------------------------------------------


def read_documents(unit: Unit, how: How) -> Iterator[str]:
    """Yield the documents that start in a unit, without white space at their ends; some may be empty.

    Raises:
        DataMissingError: a file cannot be read.
        FailedError: it is not UTF-8, no JSON, or broken; file and line or byte are said.
        InputError: a line has no such field.
    """
    for piece in unit.pieces:
        with _readable(piece.source):
            for text in _READERS[piece.source.kind](piece, how):
                yield text.strip()


def _text(piece: Piece, how: How) -> Iterator[str]:
    with _opened(piece.source) as file:
        match how.documents:
            case "line":
                found: Iterable[tuple[int, bytes]] = _lines(file, piece)
            case "blank-line":
                found = _paragraphs(file, piece)
            case "file":
                found = [(0, file.read(MAX_DOCUMENT + 1))]
        for start, data in found:
            if len(data) > MAX_DOCUMENT:
                raise _too_large(piece.source, start)
            yield _decoded(piece.source, start, data).replace("\r\n", "\n")


def _json_lines(piece: Piece, how: How) -> Iterator[str]:
    with _opened(piece.source) as file:
        for start, data in _lines(file, piece):
            line = _decoded(piece.source, start, data)
            if not line or line.isspace():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                told = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
                raise FailedError(
                    f"{_at(piece.source, start)}: no valid JSON ({told}); one object a line is expected"
                ) from None
            yield _field(value, how.text_field, piece.source, start)


def _field(value: Any, name: str, source: Source, start: int) -> str:
    if not isinstance(value, dict):
        raise FailedError(f"{_at(source, start)}: one JSON object a line is expected, got {type(value).__name__}")
    if name not in value:
        texts = [key for key, one in value.items() if isinstance(one, str)]
        raise InputError(f"{_at(source, start)}: {_no_field(name, texts or list(value))}")
    text = value[name]
    if text is None:
        return ""
    if not isinstance(text, str):
        raise InputError(f"{_at(source, start)}: field {name!r} is no text but {type(text).__name__}")
    return text.encode("utf-8", "replace").decode() if not text.isascii() else text  # halves of surrogate pairs


def _no_field(name: str, there: Sequence[str]) -> str:
    cure = f"; --text-field {there[0]}?" if there else ""
    return f"no field {name!r}, it has {', '.join(there) or 'none'}{cure}"


def _lines(file: IO[bytes], piece: Piece) -> Iterator[tuple[int, bytes]]:
    """Yield place and content of the lines that start in a piece."""
    position = _first_line(file, piece)
    while piece.stop < 0 or position < piece.stop:
        line = file.readline(MAX_DOCUMENT + 1)
        if not line:
            return
        if len(line) > MAX_DOCUMENT:
            raise _too_large(piece.source, position)
        yield position, line
        position += len(line)


def _first_line(file: IO[bytes], piece: Piece) -> int:
    """Go to the first line that starts in a piece; return its place."""
    if piece.start == 0:
        return 0
    file.seek(piece.start - 1)
    position = piece.start - 1
    while line := file.readline(2**20):
        position += len(line)
        if line.endswith(b"\n"):
            break
    return position


def _paragraphs(file: IO[bytes], piece: Piece) -> Iterator[tuple[int, bytes]]:
    """Yield place and content of what stands between blank lines and starts in a piece."""
    position = _first_line(file, piece)
    inside = position > 0 and not _after_blank(file, position)  # in what another piece owns
    start, held = position, list[bytes]()
    length = 0
    while line := file.readline(MAX_DOCUMENT + 1):
        if line.isspace():
            if held:
                yield start, b"".join(held)
            held, length, inside = [], 0, False
        elif not inside:
            if not held:
                start = position
                if 0 <= piece.stop <= start:
                    return
            held.append(line)
            length += len(line)
            if length > MAX_DOCUMENT:
                raise _too_large(piece.source, start)
        elif 0 <= piece.stop <= position:
            return
        position += len(line)
    if held:
        yield start, b"".join(held)


def _after_blank(file: IO[bytes], position: int) -> bool:
    """Say whether the line before the one at `position` is blank; the file stays where it is."""
    end = position - 1
    try:
        while end > 0:
            start = max(0, end - 4096)
            file.seek(start)
            before = file.read(end - start)
            for byte in reversed(before):
                if byte == ord("\n"):
                    return True
                if not bytes((byte,)).isspace():
                    return False
            end = start
        return True
    finally:
        file.seek(position)


def _decoded(source: Source, start: int, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig" if start == 0 else "utf-8")
    except UnicodeDecodeError as error:
        raise FailedError(
            f"{source.path}: not UTF-8 at byte {start + error.start}; `iconv -f ENCODING -t UTF-8` converts files"
        ) from None


def _parquet(piece: Piece, how: How) -> Iterator[str]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(piece.source.path, pre_buffer=False, buffer_size=2**20) as file:
        start = 0
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if start < piece.stop and start + rows > piece.start:
                batches = file.iter_batches(ROWS, row_groups=[group], columns=[how.text_field], use_threads=False)
                yield from _rows(batches, start, piece, how.text_field)
            start += rows


def _arrow(piece: Piece, how: How) -> Iterator[str]:
    with _arrow_reader(piece.source.path) as reader:
        yield from _rows(reader, 0, piece, how.text_field)


def _rows(batches: Iterable[Any], start: int, piece: Piece, name: str) -> Iterator[str]:
    """Yield the texts of a piece; the first batch begins at row `start`."""
    for batch in batches:
        low, high = max(0, piece.start - start), min(batch.num_rows, piece.stop - start)
        column = batch.column(name)
        for first in range(low, high, ROWS):
            for text in column.slice(first, min(ROWS, high - first)).to_pylist():
                yield text or ""
        start += batch.num_rows
        if start >= piece.stop:
            return


_READERS = {"text": _text, "JSON lines": _json_lines, "parquet": _parquet, "arrow": _arrow}


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


def _arrow_batches(path: str, name: str | None) -> Iterator[tuple[int, int]]:
    """Yield rows and bytes of each batch, after a look at the column; None for rows alone."""
    with _arrow_reader(path) as reader:
        if name is not None:
            _check_column(path, reader.schema, name)
        for batch in reader:
            yield batch.num_rows, 0 if name is None else batch.column(name).nbytes


@contextmanager
def _arrow_reader(path: str) -> Iterator[Any]:
    import pyarrow as pa

    with pa.memory_map(path) as file, pa.ipc.open_stream(file) as reader:
        yield reader


def _check_column(path: str, schema: Any, name: str) -> None:
    import pyarrow as pa

    def is_text(kind: Any) -> bool:
        return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))

    if name not in schema.names:
        raise InputError(f"{path}: {_no_field(name, [f.name for f in schema if is_text(f.type)] or schema.names)}")
    if not is_text(schema.field(name).type):
        raise InputError(f"{path}: field {name!r} is no text but {schema.field(name).type}")


# --- helpers ----------------------------------------------------------------------------------------------------------


@contextmanager
def _opened(source: Source) -> Iterator[IO[bytes]]:
    opened: Any = gzip.open if source.packed else open
    with opened(source.path, "rb") as file:
        yield file


@contextmanager
def _readable(source: Source) -> Iterator[None]:
    """Turn what goes wrong in reading into an error that names the file."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FailedError(f"{source.path}: cannot be unpacked ({error}): truncated, or no gzip") from None
    except (OSError, ValueError) as error:  # pyarrow's errors are one or the other
        told = getattr(error, "strerror", None) or (str(error).splitlines() or [type(error).__name__])[0]
        what = f"as {source.kind} " if source.kind in ("parquet", "arrow") else ""
        raise DataMissingError(f"{source.path}: cannot be read {what}({told})") from None


def _at(source: Source, position: int) -> str:
    """Return file and line of a byte."""
    with _opened(source) as file:
        line, left = 1, position
        while left > 0 and (data := file.read(min(left, 2**20))):
            line += data.count(b"\n")
            left -= len(data)
    return f"{source.path}:{line}"


def _too_large(source: Source, start: int) -> InputError:
    mode = "" if source.kind != "text" else "; --documents blank-line or line makes smaller ones of a text file"
    return InputError(
        f"{source.path}: the document that begins at byte {start} has more than {MAX_DOCUMENT // 2**20} MiB{mode}"
    )
