"""The list of files that a report wrote: a later one into the same folder writes and removes only what has changed."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from ettsweep.files import dumps, json_or_empty, sha256_of, storage_errors, write_atomic
from ettsweep.report.figure_export import digest, paths_of

MANIFEST_NAME = ".written.json"
"""The list, beside the page: the checksum of each file by its relative path, and the digest of each figure."""


class Manifest:
    """The list of an earlier report in a folder; empty if there was none.

    Args:
        out: the folder of the report.
    """

    def __init__(self, out: Path) -> None:
        self._out = out
        content = json_or_empty(out / MANIFEST_NAME)
        # Whoever edits the list finds the report written anew.
        self._files, self._figures = (
            part if isinstance(part := content.get(name), dict) else {} for name in ("files", "figures")
        )

    @property
    def has_figures(self) -> bool:
        """`True` if the earlier report wrote figures as files."""
        return bool(self._figures)

    def has_figure(self, stem: Path, spec: str) -> bool:
        """`True` if the files of a figure are those of a specification already, and as they were written.

        Args:
            stem: path of the files without their suffixes.
            spec: the specification, as JSON.
        """
        return self._figures.get(stem.name) == digest(spec) and all(
            path.is_file() and self._files.get(self._name(path)) == sha256_of(path) for path in paths_of(stem)
        )

    def update(self, paths: Iterable[Path], specs: Mapping[Path, str]) -> None:
        """Remove figures and tables that the earlier report wrote and this one did not; record the files of this one.

        Files that were changed since the earlier report stay: they belong to the user.

        Args:
            paths: all files of this report.
            specs: specifications of its figures, by the path of their files without suffixes.

        Raises:
            StorageError: a file cannot be removed, or the list cannot be written.
        """
        out, written = self._out, list(paths)
        with storage_errors(out):
            checksums = {self._name(path): sha256_of(path) for path in written}
            for name, checksum in self._files.items():
                path = out / name
                # The list may have been edited or copied: never delete outside of the two folders.
                is_output = path.parent in (out / "figures", out / "tables") and path.name != ".."
                if not (is_output and name not in checksums and path.is_file() and sha256_of(path) == checksum):
                    continue
                # Where a file system ignores case, it may be a file of this report, by the name of a sweep since
                # renamed.
                if not any(path.samefile(new_path) for new_path in written):
                    path.unlink()
        figures = {stem.name: digest(spec) for stem, spec in specs.items()}
        write_atomic(out / MANIFEST_NAME, dumps({"files": checksums, "figures": figures}))

    def _name(self, path: Path) -> str:
        return path.relative_to(self._out).as_posix()
