"""Digests of files: of all contents, or of both ends of large data; those of large files are cached."""

import contextlib
import glob
import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from ettsweep.errors import DataMissingError, EttsweepError
from ettsweep.files import cache_folder, dumps, read_json, write_atomic

DIGEST_DIGITS = 12
"""Hex digits of a digest of code or data in a spec."""

SAMPLE_BYTES = 2**20
"""Bytes at each end of a large file that its digest covers."""

SETTLED_S = 2.0
"""A file changed so recently may change again without a new time."""


def file_digest(path: Path, *, whole: bool = True) -> bytes:
    """Return a digest of a file's content, or of both ends of a large one unless `whole`.

    Raises:
        OSError: it cannot be read.
    """
    status = path.stat()
    stamp = (status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)
    read = _whole_digest if whole and status.st_size > 2 * SAMPLE_BYTES else _sample
    return read(path, *stamp)


def data_digest(names: Iterable[str], folder: Path, *, whole: bool = False) -> str:
    """Return a digest of files of data: their names, sizes and contents, of large ones both ends.

    Args:
        names: paths, or patterns, relative to the folder or not.
        folder: of the grid file.
        whole: whether to read large files whole.

    Raises:
        DataMissingError: one is missing.
    """
    digest, at = hashlib.sha256(), "data"
    try:
        for name in names:
            at = f"data: {name}"
            for path in named_data(folder, name):
                for file in sorted(_files_of(path)):
                    size = file.stat().st_size
                    digest.update(f"{file.relative_to(path.parent)}\0{size}\0".encode(errors="surrogateescape"))
                    digest.update(file_digest(file, whole=whole))
    except OSError as error:
        raise DataMissingError(f"{at}: cannot be read ({error.strerror})") from None
    return digest.hexdigest()[:DIGEST_DIGITS]


def named_data(folder: Path, name: str) -> list[Path]:
    """Return the files and folders of data that match a path or pattern relative to a folder.

    Raises:
        DataMissingError: there is none.
    """
    path = folder / name
    if path.exists():
        return [path]
    if any("**" in part and part != "**" for part in Path(name).parts):
        raise DataMissingError(f"data: {name!r} is not a pattern: ** stands for whole folders")
    # Unlike pathlib, it enters links, as data folders are in a copy of a project.
    names = glob.iglob(name, root_dir=folder, recursive=True, include_hidden=True)  # noqa: PTH207
    found = [] if Path(name).is_absolute() else sorted(folder / each for each in names)
    if not found:
        raise DataMissingError(f"data: there is no {path}")
    return found


def _files_of(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    else:
        yield from (Path(parent, name) for parent, _, names in os.walk(path, followlinks=True) for name in names)


@cache
def _sample(path: Path, size: int, mtime_ns: int, inode: int, ctime_ns: int) -> bytes:
    """Return a digest of a file's content, or of both ends of a large one. All but the path is for the cache."""
    with path.open("rb") as file:
        if size <= 2 * SAMPLE_BYTES:
            return hashlib.file_digest(file, "sha256").digest()
        ends = file.read(SAMPLE_BYTES)
        file.seek(-SAMPLE_BYTES, os.SEEK_END)
        return hashlib.sha256(ends + file.read()).digest()


@cache
def _whole_digest(path: Path, size: int, mtime_ns: int, inode: int, ctime_ns: int) -> bytes:
    """Return a digest of all of a large file's content, cached for the user until the file changes."""
    # Copies can set back the time of modification, but not that of the last change.
    stamp = f"{path.resolve()}\0{size}\0{mtime_ns}\0{inode}\0{ctime_ns}"
    key = hashlib.sha256(stamp.encode(errors="surrogateescape")).hexdigest()
    is_settled = time.time() - max(mtime_ns, ctime_ns) / 1e9 > SETTLED_S
    kept = cache_folder() / "data" / f"{key[:32]}.json"
    with contextlib.suppress(OSError, EttsweepError, ValueError):
        if is_settled and isinstance(text := read_json(kept).get("sha256"), str):
            return bytes.fromhex(text)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    if is_settled:
        with contextlib.suppress(OSError, EttsweepError):  # a full disk, or no home: it is read each time
            kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(kept, dumps({"sha256": digest.hex()}))
    return digest
