"""Tails of files: text added since the last read, or a note that the file was replaced or rewritten."""

import errno
import hashlib
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from ettsweep.console import COLOURS
from ettsweep.readers.found_files import open_found

FINGERPRINT_BYTES = 1024
SETTLED_S = 2.0
"""Read a file again within this time after a change: another change may keep time and size."""


@dataclass
class Tail:
    """A growing file: each call returns new bytes, and whether they start at its beginning.

    It reads a file again if it was replaced, became shorter, or changed before the end: loggers rewrite files.
    """

    offset: int = 0
    _identity: tuple[int, int] = (0, 0)
    _stamp: tuple[object, ...] = ()
    _marks: tuple[bytes, bytes] = (b"", b"")
    _path: Path = field(default_factory=Path)

    def read(self, path: Path, most: int) -> tuple[bool, bytes]:
        """Return whether reading starts again, and new bytes up to a limit.

        Raises:
            OSError: it cannot be read, see `open_found`.
        """
        with os.fdopen(open_found(path), "rb") as file:
            status = os.fstat(file.fileno())
            stamp = (str(path), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            if stamp == self._stamp:
                return False, b""
            self._stamp = stamp if status.st_mtime < time.time() - SETTLED_S else ()
            identity = (status.st_dev, status.st_ino)
            begins = bool(self._identity) and identity == self._identity and path == self._path
            same = begins and status.st_size >= self.offset and self._marks == self._marks_of(file.fileno())
            restarted = not same and self._identity != (0, 0)
            if not same:
                self.offset, self._identity, self._path = 0, identity, path
            file.seek(self.offset)
            data = file.read(most)
            self.offset += len(data)
            if len(data) == most:
                self._stamp = ()  # there is more
            self._marks = self._marks_of(file.fileno())
            return restarted, data

    def _marks_of(self, descriptor: int) -> tuple[bytes, bytes]:
        """Return the first bytes of the file and the last read ones."""
        start = max(0, self.offset - 64)
        return os.pread(descriptor, min(self.offset, FINGERPRINT_BYTES), 0), os.pread(
            descriptor, self.offset - start, start
        )


@dataclass
class Whole:
    """A rewritten file: each call returns its content, if it has changed."""

    _stamp: tuple[object, ...] = ()
    _digest: bytes = b""

    def read(self, path: Path) -> bytes | None:
        """Return the content; None if unchanged.

        Raises:
            OSError: it cannot be read, see `open_found`, or is too large.
        """
        with os.fdopen(open_found(path), "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_size > MAX_WHOLE_BYTES:
                raise OSError(errno.EFBIG, f"it is larger than {MAX_WHOLE_BYTES >> 20} MiB", str(path))
            stamp = (str(path), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            if stamp == self._stamp:
                return None
            data = file.read()
        self._stamp = stamp if status.st_mtime < time.time() - SETTLED_S else ()
        digest = hashlib.sha256(os.fsencode(path) + b"\0" + data).digest()
        changed, self._digest = digest != self._digest, digest
        return data if changed else None


MAX_WHOLE_BYTES = 2**26

_ENDS = re.compile(rb"\r\n|[\n\r\x08]+")
MAX_LINE_BYTES = 2**22


class Lines:
    """Makes lines, without ends, colours and a byte order mark, from pieces of bytes.

    A carriage return also ends a line: a progress bar that overwrites itself is several lines. The last line waits for
    its end.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._is_first = True

    def of(self, data: bytes, *, final: bool = False) -> list[str]:
        """Return the lines that more bytes complete; with `final`, also the last one."""
        *lines, self._rest = _ENDS.split(self._rest + data)
        if final or len(self._rest) > MAX_LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        texts = [COLOURS.sub("", line.decode("utf-8", "replace")) for line in lines if line]
        if texts and self._is_first:
            texts[0] = texts[0].removeprefix("\ufeff")
            self._is_first = False
        return texts
