"""The folder that becomes a corpus, held by one command alone; nothing that is of no use stays behind."""

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ettsweep.errors import StorageError
from ettsweep.files import storage_errors
from ettsweep.tasks.text.manifest import MANIFEST, SHARDS, TOKENIZER, begun, is_own

TRAINED = "tokenizer-"
"""Beginning of the name of the file that processes read the tokenizer from."""


@contextmanager
def corpus_folder(out: Path) -> Iterator[Path]:
    """Give the folder for shards, for this command alone; nothing that is of no use stays behind.

    Raises:
        StorageError: another command is at work there.
    """
    with storage_errors(out):
        made = [folder for folder in (out, *out.parents) if not folder.exists()]
        shards = out / SHARDS
        shards.mkdir(parents=True, exist_ok=True)
        lock = os.open(out, os.O_RDONLY)
    try:
        with suppress(OSError):  # not all file systems have locks on folders
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StorageError(f"{out}: another `ettsweep data text` is writing there") from None
        try:
            yield shards
        finally:
            _sweep(out)
            _remove_unused(shards, [shards, *made])
    finally:
        os.close(lock)


def _sweep(out: Path) -> None:
    """Remove what a process that was killed had begun to write."""
    for folder in (out, out / SHARDS):
        for path in folder.glob(".*.tmp"):
            if begun(path) in (MANIFEST, TOKENIZER) or is_own(path):
                path.unlink(missing_ok=True)


def _remove_unused(shards: Path, folders: Iterable[Path]) -> None:
    """Remove the folders of a command that has finished no unit."""
    if any(not (path.name.startswith(TRAINED) and is_own(path)) for path in shards.iterdir()):
        return
    for path in shards.iterdir():
        path.unlink()
    with suppress(OSError):  # something else is in them
        for folder in folders:
            folder.rmdir()
