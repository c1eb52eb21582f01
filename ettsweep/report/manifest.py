"""The list of files that a report wrote: a later one into the same folder removes those it does not write again."""

from collections.abc import Iterable
from pathlib import Path

from ettsweep.files import dumps, json_or_empty, sha256_of, storage_errors, write_atomic

MANIFEST_NAME = ".written.json"
"""The list, beside the page: the checksum of each file by its relative path."""


def update_manifest(out: Path, paths: Iterable[Path]) -> None:
    """Remove figures and tables that an earlier report wrote and this one did not; record the files of this one.

    Files that were changed since the earlier report stay: they belong to the user.

    Raises:
        StorageError: a file cannot be removed, or the list cannot be written.
    """
    written = list(paths)
    with storage_errors(out):
        checksums = {path.relative_to(out).as_posix(): sha256_of(path) for path in written}
        for name, checksum in json_or_empty(out / MANIFEST_NAME).items():
            path = out / name
            # The list may have been edited or copied: never delete outside of the two folders.
            is_output = path.parent in (out / "figures", out / "tables") and path.name != ".."
            if not (is_output and name not in checksums and path.is_file() and sha256_of(path) == checksum):
                continue
            # Where a file system ignores case, it may be a file of this report, by the name of a sweep since renamed.
            if not any(path.samefile(new_path) for new_path in written):
                path.unlink()
    write_atomic(out / MANIFEST_NAME, dumps(checksums))
