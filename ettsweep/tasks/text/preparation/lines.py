"""Documents of text files and of JSON lines, read as a stream."""

import json
from collections.abc import Iterable, Iterator
from typing import IO, Any

from ettsweep.errors import FailedError, InputError
from ettsweep.tasks.text.preparation.pieces import (
    MAX_DOCUMENT,
    DocumentRule,
    Piece,
    TextFile,
    check_size,
    line_of,
    no_field,
    opened,
)


def read_text(piece: Piece, rule: DocumentRule) -> Iterator[str]:
    """Yield the documents of a piece of a text file."""
    with opened(piece.file) as stream:
        match rule.documents:
            case "line":
                found: Iterable[tuple[int, bytes]] = _lines(stream, piece)
            case "blank-line":
                found = _paragraphs(stream, piece)
            case "file":
                found = [(0, stream.read(MAX_DOCUMENT + 1))]
        for start, data in found:
            check_size(piece.file, start, len(data))
            yield _decoded(piece.file, start, data).replace("\r\n", "\n")


def read_json_lines(piece: Piece, rule: DocumentRule) -> Iterator[str]:
    """Yield the documents of a piece of JSON lines."""
    with opened(piece.file) as stream:
        for start, data in _lines(stream, piece):
            line = _decoded(piece.file, start, data)
            if not line or line.isspace():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                told = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
                raise FailedError(
                    f"{line_of(piece.file, start)}: no valid JSON ({told}); one object a line is expected"
                ) from None
            yield _field(value, rule.text_field, piece.file, start)


def _field(value: Any, name: str, file: TextFile, start: int) -> str:
    if not isinstance(value, dict):
        raise FailedError(f"{line_of(file, start)}: one JSON object a line is expected, got {type(value).__name__}")
    if name not in value:
        texts = [key for key, one in value.items() if isinstance(one, str)]
        raise InputError(f"{line_of(file, start)}: {no_field(name, texts or list(value))}")
    text = value[name]
    if text is None:
        return ""
    if not isinstance(text, str):
        raise InputError(f"{line_of(file, start)}: field {name!r} is no text but {type(text).__name__}")
    return text.encode("utf-8", "replace").decode() if not text.isascii() else text  # halves of surrogate pairs


def _lines(stream: IO[bytes], piece: Piece) -> Iterator[tuple[int, bytes]]:
    """Yield place and content of the lines that start in a piece."""
    position = _first_line(stream, piece)
    while piece.stop < 0 or position < piece.stop:
        line = stream.readline(MAX_DOCUMENT + 1)
        if not line:
            return
        check_size(piece.file, position, len(line))
        yield position, line
        position += len(line)


def _first_line(stream: IO[bytes], piece: Piece) -> int:
    """Go to the first line that starts in a piece; return its place."""
    if piece.start == 0:
        return 0
    stream.seek(piece.start - 1)
    position = piece.start - 1
    while line := stream.readline(2**20):
        position += len(line)
        if line.endswith(b"\n"):
            break
    return position


def _paragraphs(stream: IO[bytes], piece: Piece) -> Iterator[tuple[int, bytes]]:
    """Yield place and content of what stands between blank lines and starts in a piece."""
    position = _first_line(stream, piece)
    inside = position > 0 and not _after_blank(stream, position)  # in what another piece owns
    start, held = position, list[bytes]()
    length = 0
    while line := stream.readline(MAX_DOCUMENT + 1):
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
            check_size(piece.file, start, length)
        elif 0 <= piece.stop <= position:
            return
        position += len(line)
    if held:
        yield start, b"".join(held)


def _after_blank(stream: IO[bytes], position: int) -> bool:
    """Say whether the line before the one at `position` is blank; the stream stays where it is."""
    end = position - 1
    try:
        while end > 0:
            start = max(0, end - 4096)
            stream.seek(start)
            before = stream.read(end - start)
            for byte in reversed(before):
                if byte == ord("\n"):
                    return True
                if not bytes((byte,)).isspace():
                    return False
            end = start
        return True
    finally:
        stream.seek(position)


def _decoded(file: TextFile, start: int, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig" if start == 0 else "utf-8")
    except UnicodeDecodeError as error:
        raise FailedError(
            f"{file.path}: not UTF-8 at byte {start + error.start}; `iconv -f ENCODING -t UTF-8` converts files"
        ) from None
