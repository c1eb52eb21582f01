"""Tails: what was added to a file since it was last read, and whether it was replaced or rewritten instead."""

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
"""A file that was changed so recently may change again without a new time or size, so that it is looked at again."""


@dataclass
class Tail:
    """A file that grows: each call gives the bytes that are new, and says whether they start again at its beginning.

    A file is read anew if it is another one, became shorter, or no longer has what was read: loggers rewrite files.
    """

    offset: int = 0
    _identity: tuple[int, int] = (0, 0)
    _stamp: tuple[object, ...] = ()
    _marks: tuple[bytes, bytes] = (b"", b"")
    _path: Path = field(default_factory=Path)

    def read(self, path: Path, most: int) -> tuple[bool, bytes]:
        """Return whether reading starts again, and the new bytes, but not more than some number.

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
        """Return the first bytes of the file and the last ones that were read."""
        start = max(0, self.offset - 64)
        return os.pread(descriptor, min(self.offset, FINGERPRINT_BYTES), 0), os.pread(
            descriptor, self.offset - start, start
        )


@dataclass
class Whole:
    """A file that is rewritten as a whole: each call gives its content, if that has changed."""

    _stamp: tuple[object, ...] = ()
    _digest: bytes = b""

    def read(self, path: Path) -> bytes | None:
        """Return the content; None if it is as it was.

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
    """Makes lines of bytes that come in pieces: without ends, colours and a byte order mark.

    A carriage return ends a line too: a progress bar that overwrites itself is several lines. The last one waits for
    its end.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._is_first = True

    def of(self, data: bytes, *, final: bool = False) -> list[str]:
        """Return the lines that are whole with some more bytes; with `final`, the last one is whole as it is."""
        *lines, self._rest = _ENDS.split(self._rest + data)
        if final or len(self._rest) > MAX_LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        texts = [COLOURS.sub("", line.decode("utf-8", "replace")) for line in lines if line]
        if texts and self._is_first:
            texts[0] = texts[0].removeprefix("\ufeff")
            self._is_first = False
        return texts
