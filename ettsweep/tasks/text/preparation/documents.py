"""The documents of the input, read as a stream or a few rows at a time, and which of them validate."""

import gzip
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain, dropwhile
from typing import IO, Any

from ettsweep.errors import DataMissingError, FailedError, InputError
from ettsweep.tasks.text.manifest import Documents
from ettsweep.tasks.text.preparation.inputs import (
    MAX_DOCUMENT,
    DocumentRule,
    Piece,
    TextFile,
    Unit,
    arrow_reader,
    check_size,
    no_field,
    readable,
)
from ettsweep.tasks.text.preparation.request import HASHES, CorpusRequest


def read_documents(unit: Unit, rule: DocumentRule) -> Iterator[str]:
    """Yield the documents that start in a unit, without white space at their ends; some may be empty.

    Raises:
        DataMissingError: a file cannot be read.
        FailedError: it is not UTF-8, no JSON, or broken; file and line or byte are said.
        InputError: a line has no such field.
    """
    for piece in unit.pieces:
        with readable(piece.file):
            for text in _READERS[piece.file.kind](piece, rule):
                yield text.strip()


# --- text files and JSON lines ----------------------------------------------------------------------------------------


def _text(piece: Piece, rule: DocumentRule) -> Iterator[str]:
    for _, text in _decoded(piece, rule.documents):
        yield text.replace("\r\n", "\n")


def _json_lines(piece: Piece, rule: DocumentRule) -> Iterator[str]:
    for start, line in _decoded(piece, "line"):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            told = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
            raise FailedError(
                f"{_line_of(piece.file, start)}: no valid JSON ({told}); one object a line is expected"
            ) from None
        yield _field(value, rule.text_field, piece.file, start)


def _field(value: Any, name: str, file: TextFile, start: int) -> str:
    if not isinstance(value, dict):
        raise FailedError(f"{_line_of(file, start)}: one JSON object a line is expected, got {type(value).__name__}")
    if name not in value:
        texts = [key for key, one in value.items() if isinstance(one, str)]
        raise InputError(f"{_line_of(file, start)}: {no_field(name, texts or list(value))}")
    text = value[name]
    if text is None:
        return ""
    if not isinstance(text, str):
        raise InputError(f"{_line_of(file, start)}: field {name!r} is no text but {type(text).__name__}")
    return text.encode("utf-8", "replace").decode() if not text.isascii() else text  # halves of surrogate pairs


def _opened(file: TextFile) -> IO[bytes]:
    """Return the content of a file, unpacked."""
    how: Any = gzip.open if file.packed else open
    stream: IO[bytes] = how(file.path, "rb")
    return stream


def _line_of(file: TextFile, position: int) -> str:
    with _opened(file) as stream:
        line, left = 1, position
        while left > 0 and (data := stream.read(min(left, 2**20))):
            line += data.count(b"\n")
            left -= len(data)
    return f"{file.path}:{line}"


def _decoded(piece: Piece, documents: Documents) -> Iterator[tuple[int, str]]:
    """Yield place and content of the documents that start in a piece of a file that is no table."""
    with _opened(piece.file) as stream:
        match documents:
            case "line":
                found = _lines(stream, _first_line(stream, piece), piece.end)
            case "blank-line":
                found = _paragraphs(stream, piece)
            case "file":
                found = iter([(0, stream.read(MAX_DOCUMENT + 1))])
        for start, data in found:
            check_size(piece.file, start, len(data))
            try:
                text = data.decode("utf-8-sig" if start == 0 else "utf-8")
            except UnicodeDecodeError as error:
                raise FailedError(
                    f"{piece.file.path}: not UTF-8 at byte {start + error.start}; "
                    "`iconv -f ENCODING -t UTF-8` converts files"
                ) from None
            yield start, text


def _lines(stream: IO[bytes], position: int, end: float = math.inf) -> Iterator[tuple[int, bytes]]:
    """Yield place and content of the lines from `position`, where one starts, that start before `end`."""
    stream.seek(position)
    while position < end and (line := stream.readline(MAX_DOCUMENT + 1)):
        yield position, line
        position += len(line)


def _first_line(stream: IO[bytes], piece: Piece) -> int:
    """Return the place of the first line that starts in a piece, or later."""
    if piece.start > 0:
        stream.seek(piece.start - 1)
        while (part := stream.readline(2**20)) and not part.endswith(b"\n"):
            pass
    return stream.tell()


def _paragraphs(stream: IO[bytes], piece: Piece) -> Iterator[tuple[int, bytes]]:
    """Yield place and content of what stands between blank lines and starts in a piece."""
    first = _first_line(stream, piece)
    lines = _lines(stream, first)
    if first > 0 and not _after_blank(stream, first):  # in what another piece owns
        lines = dropwhile(lambda line: line[0] < piece.end and not line[1].isspace(), lines)
    start, held, length = first, list[bytes](), 0
    for position, line in lines:
        if line.isspace():
            if held:
                yield start, b"".join(held)
            held, length = [], 0
            continue
        if not held:
            if position >= piece.end:
                return
            start = position
        held.append(line)
        length += len(line)
        check_size(piece.file, start, length)
    if held:
        yield start, b"".join(held)


def _after_blank(stream: IO[bytes], position: int) -> bool:
    """Say whether the line before the one at `position` is blank."""
    end = position - 1
    while end > 0:
        start = max(0, end - 4096)
        stream.seek(start)
        _, newline, rest = stream.read(end - start).rpartition(b"\n")
        if newline or rest.strip():
            return not rest.strip()
        end = start
    return True


# --- tables -----------------------------------------------------------------------------------------------------------

ROWS = 256
"""Rows of a table that are in memory at once."""


def _parquet(piece: Piece, rule: DocumentRule) -> Iterator[str]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(piece.file.path, pre_buffer=False, buffer_size=2**20) as file:
        start = 0
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if start < piece.stop and start + rows > piece.start:
                batches = file.iter_batches(ROWS, row_groups=[group], columns=[rule.text_field], use_threads=False)
                yield from _rows(batches, start, piece, rule.text_field)
            start += rows


def _arrow(piece: Piece, rule: DocumentRule) -> Iterator[str]:
    with arrow_reader(piece.file.path) as reader:
        yield from _rows(reader, 0, piece, rule.text_field)


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

# --- the split --------------------------------------------------------------------------------------------------------

SMALL = 64 * 2**20
"""Bytes of input that are read once more beforehand: all that is wrong is found before anything is written."""


def document_hash(text: str) -> int:
    """Return what decides on which side of the split a document is: the same for the same text."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


def split(request: CorpusRequest, units: Sequence[Unit]) -> int:
    """Return below which hash a document validates, so that at least one does and one does not.

    A large input is read until one of each kind is found, which is soon; a small one to its end.

    Raises:
        DataMissingError: there is no text, or a single document.
    """
    lowest, highest = HASHES, -1
    small = sum(unit.size * (4 if unit.pieces[0].file.packed else 1) for unit in units) <= SMALL
    for text in chain.from_iterable(read_documents(unit, request.rule) for unit in units):
        if text:
            number = document_hash(text)
            lowest, highest = min(lowest, number), max(highest, number)
            if lowest < request.val_below <= highest and not small:
                break
    if lowest < highest:
        return min(max(request.val_below, lowest + 1), highest)
    files = list(dict.fromkeys(piece.file.path for unit in units for piece in unit.pieces))
    where = files[0] if len(files) == 1 else f"the {len(files)} files of --input"
    if highest < 0:
        raise DataMissingError(f"{where}: no text in {'it' if len(files) == 1 else 'them'}")
    other = "line" if request.documents == "blank-line" else "blank-line or line"
    raise DataMissingError(
        f"{where}: one document only, or the same again and again, cannot both train and validate; more text is "
        f"needed, or --documents {other}, which makes more documents of a text file"
    )
