"""What of a folder is on the disk at each change of names in it, by tracing what a call asks the operating system for."""

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock


@dataclass(frozen=True)
class Change:
    """A change of names: a file or a folder gets the name `path`, or is removed.

    Attributes:
        path: the new name, or the one that goes.
        source: the name until then; None for one that goes.
        lacking: what is in the folder and would not be whole after a crash of the machine right before the change.
    """

    path: Path
    source: Path | None
    lacking: frozenset[Path]

    def lacks(self, path: Path) -> list[Path]:
        """Return what would be lost of a file, or of a folder and all in it."""
        return sorted(each for each in self.lacking if each.is_relative_to(path))


@contextlib.contextmanager
def traced_changes(root: Path) -> Iterator[list[Change]]:
    """Collect the changes of names below a folder while the body runs, with what was synced before each."""
    synced, changes, listening = dict[tuple[int, int], set[object]](), list[Change](), [True]
    fsync = os.fsync

    def recording_fsync(descriptor: int) -> None:
        fsync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced[_identity(path)] = _content(path)

    def note(path: Any, source: Path | None = None) -> None:
        # What goes with a folder as a whole comes without the folder's name.
        if not (changed := Path(os.fsdecode(path))).is_relative_to(root):
            return
        present = [each for each in root.rglob("*") if not each.is_symlink()]
        lacking = frozenset(each for each in present if not _content(each) <= synced.get(_identity(each), set()))
        changes.append(Change(changed, source, lacking))

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if listening and event in ("os.rename", "os.link"):
            note(arguments[1], Path(os.fsdecode(arguments[0])))
        elif listening and event in ("os.remove", "shutil.rmtree"):
            note(arguments[0])

    sys.addaudithook(hear)
    with mock.patch.object(os, "fsync", recording_fsync):
        try:
            yield changes
        finally:
            listening.clear()  # a hook cannot be removed


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _content(path: Path) -> set[object]:
    """Return what must have been synced: the names in a folder, or a file as it is now."""
    status = path.stat()
    return {*os.listdir(path)} if path.is_dir() else {(status.st_size, status.st_mtime_ns)}
