"""The folder of copies: only where nothing else is, written by one command at a time, finished in one rename."""

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ettsweep.errors import EttsweepError, InputError
from ettsweep.files import storage_errors, write_atomic
from ettsweep.tasks.images.copies import MANIFEST, PARTS, Copies, copies_in
from ettsweep.tasks.images.location import SPLITS
from ettsweep.tasks.preparation import check_out, meant, remove_begun, written_alone


def check_folder(out: Path) -> None:
    """Check that a folder may become one of copies: nothing else is there, and it can be written.

    Raises:
        InputError: something else is there.
        StorageError: it cannot be written.
    """
    check_out(out)
    there = sorted(out.iterdir()) if out.is_dir() else []
    ours = (out / PARTS).is_dir() or copies_there(out) is not None
    known = {MANIFEST, PARTS, *(name for names in SPLITS.values() for name in names)}
    others = [path.name for path in there if not (ours and (meant(path) in known or path.suffix == ".tar"))]
    if others:
        told = ", ".join(others[:6])
        raise InputError(
            f"--out {out}: is not empty, and not a folder of copies alone (it holds {told}); name a new folder"
        )


def copies_there(out: Path) -> Copies | None:
    """Return what finished copies in a folder say of themselves, None where there are none."""
    try:
        return copies_in(out)
    except EttsweepError:
        return None


@contextmanager
def copies_folder(out: Path) -> Iterator[None]:
    """Keep the folder for this command alone; what it has begun goes, and so does a folder without any copy.

    Raises:
        StorageError: another command is at work there.
    """
    with written_alone(out, PARTS, "ettsweep data images") as made:
        try:
            yield
        finally:
            remove_begun(out, lambda path: meant(path) == MANIFEST)
            remove_begun(out / PARTS, lambda path: True)
            if os.listdir(out) == [PARTS]:
                with suppress(OSError):  # there is something in them
                    for folder in made:
                        folder.rmdir()


def others_in(out: Path, wanted: Collection[str]) -> list[str]:
    """Return the files of a folder that are none of those wanted, nor what is known of parts."""
    found = []
    for folder, inner, files in os.walk(out):
        within = os.path.relpath(folder, out)
        if within == ".":
            inner[:] = [name for name in inner if name != PARTS]
            files = [name for name in files if meant(Path(name)) != MANIFEST]
        found += [path for name in files if (path := os.path.normpath(f"{within}/{name}")) not in wanted]
    return sorted(found)


def remove(out: Path, files: Sequence[str]) -> None:
    """Remove files, and folders that are then empty."""
    with storage_errors(out):
        for name in files:
            (out / name).unlink()
    for folder in sorted({(out / name).parent for name in files}, reverse=True):
        with suppress(OSError):  # there is something in it
            folder.rmdir()


def finish(out: Path, copies: Copies, records: Collection[str]) -> None:
    """Make a data set of the copies, and forget all parts but those with these records."""
    os.sync()  # a million files at once, and before the manifest
    write_atomic(out / MANIFEST, copies.model_dump_json(indent=1))
    for path in (out / PARTS).iterdir():
        if path.name not in records:
            path.unlink()
