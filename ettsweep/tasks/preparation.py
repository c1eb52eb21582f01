"""What commands share that make data ready: parts of the work on all cores, and a folder that one of them writes to."""

import fcntl
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from ettsweep.errors import EttsweepError, FailedError, InputError, StoppedError, StorageError
from ettsweep.files import storage_errors
from ettsweep.output import Advance
from ettsweep.pool import Pool

P = TypeVar("P")
T = TypeVar("T")


# --- parts ------------------------------------------------------------------------------------------------------------


def in_parts(
    pool: Pool,
    work: Callable[[P], T],
    parts: Sequence[P],
    size: Callable[[P], float],
    advance: Advance,
    finished: Callable[[], int],
    total: int | None = None,
) -> list[T]:
    """Return what comes of each part; whatever stops the work says how many of all parts are `finished` by then.

    Args:
        pool: whose processes work.
        work: on one part; it knows by itself what is finished, and how to go on.
        parts: in the order in which they are begun.
        size: of a part, which `advance` is told of when it is done.
        advance: shows how far it is.
        finished: counts the parts that are kept.
        total: how many parts there are, beside these too; by default these.
    """
    count = len(parts) if total is None else total

    def kept() -> str:
        pool.end()  # else they might finish more than is counted
        return f"{finished()} of {count} parts are finished and kept: the same command goes on from there"

    try:
        jobs = {pool.submit(work, part): part for part in parts}
        for job in as_completed(jobs):
            result(job)
            advance(size(jobs[job]))
    except KeyboardInterrupt:
        raise StoppedError(f"interrupted; {kept()}") from None
    except EttsweepError as error:
        raise type(error)(f"{error}\n{kept()}") from None
    return [job.result() for job in jobs]


def result(job: Future[T]) -> T:
    """Return what a process was asked for; FailedError where it was killed.

    Raises:
        FailedError: it was killed.
    """
    try:
        return job.result()
    except BrokenProcessPool:
        raise FailedError("a process was killed, perhaps for lack of memory: try fewer --workers") from None


# --- the folder -------------------------------------------------------------------------------------------------------

_BEGUN = re.compile(r"\A\.(.+)\.[0-9a-f]{32}\.tmp\Z")


def meant(path: Path) -> str:
    """Return the name of a file, or that of the one of which it is what a kill has left (see files.write_atomic)."""
    return _BEGUN.sub(r"\1", path.name)


def check_out(out: Path) -> None:
    """Check that there is a folder, or may be one, that can be written.

    Raises:
        InputError: it is a file.
        StorageError: it cannot be written.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: is a file; a folder is expected")
    above = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not os.access(above, os.W_OK | os.X_OK):
        raise StorageError(f"--out {out}: {above} cannot be written; choose another folder")


@contextmanager
def written_alone(out: Path, inner: str, command: str) -> Iterator[list[Path]]:
    """Make a folder with an inner one for this command alone; give the inner one and those that were not there.

    Raises:
        StorageError: it cannot be made, or another command is at work there.
    """
    with storage_errors(out):
        made = [folder for folder in (out, *out.parents) if not folder.exists()]
        (out / inner).mkdir(parents=True, exist_ok=True)
        lock = os.open(out, os.O_RDONLY)
    try:
        with suppress(OSError):  # not all file systems have locks on folders
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StorageError(f"{out}: another `{command}` is writing there") from None
        yield [out / inner, *made]
    finally:
        os.close(lock)


def remove_begun(folder: Path, own: Callable[[Path], bool]) -> None:
    """Remove what a process that was killed had begun to write."""
    for path in folder.glob(".*.tmp"):
        if own(path):
            path.unlink(missing_ok=True)
