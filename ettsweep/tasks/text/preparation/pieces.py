"""Pieces of text files: a range of bytes or rows, which owns the documents that start in it.

All pieces together have each document once. What is wrong with a file is said with its name, and with the line.
"""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Literal, NamedTuple

from ettsweep.errors import DataMissingError, FailedError, InputError, first_line
from ettsweep.tasks.text.manifest import Documents

FileKind = Literal["text", "JSON lines", "parquet", "arrow"]

MAX_DOCUMENT = 128 * 2**20
"""Bytes of a document, which is held in memory as a whole."""


class DocumentRule(NamedTuple):
    """What a document is: the field of JSON lines and tables, and the rule for text files."""

    text_field: str = "text"
    documents: Documents = "blank-line"


@dataclass(frozen=True)
class TextFile:
    """A file; `packed` with gzip."""

    path: str
    kind: FileKind
    packed: bool = False


@dataclass(frozen=True)
class Piece:
    """A range of bytes of a text or JSON-lines file, or of rows of a table.

    Attributes:
        size: in bytes, about.
        identity: path, size and time of the file, by which it is known again.
    """

    file: TextFile
    start: int
    stop: int
    size: int
    identity: tuple[str, int, int]


@contextmanager
def opened(file: TextFile) -> Iterator[IO[bytes]]:
    """Give the content of a file, unpacked."""
    how: Any = gzip.open if file.packed else open
    with how(file.path, "rb") as stream:
        yield stream


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


def line_of(file: TextFile, position: int) -> str:
    """Return file and line of a byte."""
    with opened(file) as stream:
        line, left = 1, position
        while left > 0 and (data := stream.read(min(left, 2**20))):
            line += data.count(b"\n")
            left -= len(data)
    return f"{file.path}:{line}"


def check_size(file: TextFile, start: int, size: int) -> None:
    """Check that a document, or what was read of it, can be held in memory.

    Raises:
        InputError: it cannot.
    """
    if size <= MAX_DOCUMENT:
        return
    mode = "" if file.kind != "text" else "; --documents blank-line or line makes smaller ones of a text file"
    raise InputError(
        f"{file.path}: the document that begins at byte {start} has more than {MAX_DOCUMENT // 2**20} MiB{mode}"
    )


def no_field(name: str, there: Sequence[str]) -> str:
    """Say that there is no such field, and what there is."""
    cure = f"; --text-field {there[0]}?" if there else ""
    return f"no field {name!r}, it has {', '.join(there) or 'none'}{cure}"
