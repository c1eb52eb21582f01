"""Units of work: what one process tokenises at a time.

A unit has pieces: ranges of bytes or rows of a file, which own the documents that start in them, so that all pieces
together have each document once.
"""

import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from ettsweep.errors import InputError
from ettsweep.tasks.text.manifest import Documents
from ettsweep.tasks.text.preparation.inputs import TextFile, arrow_reader, readable

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
    """Cut files into units of about so many bytes; small files share one."""
    return list(_together((piece for file in files for piece in _pieces(file, rule, size)), size))


def _pieces(file: TextFile, rule: DocumentRule, size: int) -> list[Piece]:
    with readable(file):
        info = Path(file.path).stat()
        with Path(file.path).open("rb"):
            pass
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


def _equal(start: int, length: int, count: int) -> Iterator[tuple[int, int]]:
    """Yield the ends of equal parts of a range, one at least."""
    count = max(1, count)
    return pairwise(start + length * k // count for k in range(count + 1))


def _row_ranges(file: TextFile, rule: DocumentRule, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield ranges of rows with their bytes: of whole groups, and of parts of one that is too large."""
    groups = _parquet_groups if file.kind == "parquet" else _arrow_batches
    start, rows, length = 0, 0, 0
    for more_rows, more_length in groups(file.path, rule.text_field):
        if rows and length + more_length > size:
            yield start, start + rows, length
            start, rows, length = start + rows, 0, 0
        rows, length = rows + more_rows, length + more_length
        if length > size:
            count = min(math.ceil(length / size), rows)
            yield from ((low, high, length // count) for low, high in _equal(start, rows, count))
            start, rows, length = start + rows, 0, 0
    if rows:
        yield start, start + rows, length


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
    """Check that a document, or what was read of it, can be held in memory."""
    if size > MAX_DOCUMENT:
        mode = "; --documents blank-line or line makes smaller ones of a text file" if file.kind == "text" else ""
        mib = MAX_DOCUMENT // 2**20
        raise InputError(f"{file.path}: the document that begins at byte {start} has more than {mib} MiB{mode}")


def no_field(name: str, there: Sequence[str]) -> str:
    """Say that there is no such field, and what there is."""
    cure = f"; --text-field {there[0]}?" if there else ""
    return f"no field {name!r}, it has {', '.join(there) or 'none'}{cure}"
