"""Units of work: what one process tokenises at a time."""

import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from ettsweep.tasks.text.preparation.pieces import DocumentRule, Piece, TextFile, check_size, readable
from ettsweep.tasks.text.preparation.tables import arrow_batches, parquet_groups


class Unit(NamedTuple):
    """What one process works on at a time: a piece of a large file, or some small files."""

    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """Return the bytes of its pieces."""
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
        info = Path(file.path).stat()
        with Path(file.path).open("rb"):
            pass
        identity = (file.path, info.st_size, info.st_mtime_ns)
        if file.kind in ("parquet", "arrow"):
            ranges = list(_row_ranges(file, rule, size))
        elif file.packed or (file.kind == "text" and rule.documents == "file"):
            if not file.packed:
                check_size(file, 0, info.st_size)
            ranges = [(0, -1, info.st_size)]
        else:
            count = max(1, math.ceil(info.st_size / size))
            edges = [info.st_size * k // count for k in range(count + 1)]
            ranges = [(low, high, high - low) for low, high in pairwise(edges)]
    return [Piece(file, start, stop, length, identity) for start, stop, length in ranges]


def _row_ranges(file: TextFile, rule: DocumentRule, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield ranges of rows with their bytes: of whole groups, and of parts of one that is too large."""
    groups = parquet_groups if file.kind == "parquet" else arrow_batches
    start, rows, length = 0, 0, 0
    for more_rows, more_length in groups(file.path, rule.text_field):
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
