"""Which files were written outside of the folders of runs since some moment: by runs that share one name, say."""

import contextlib
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from ettsweep.runs.folder import code_dir, is_run_id, jobs_dir, runs_dir, store_dir, sweeps_dir

MAX_ENTRIES = 50_000
"""Entries of a folder that are looked at; of a larger one, the rest is not."""

MAX_CODE_BYTES = 2**20
"""Of a file of code, what is looked through for paths."""

SYSTEM = ("bin", "dev", "etc", "lib", "lib64", "proc", "sys", "usr")
"""Folders below / to which no training writes, but for the memory that /dev/shm gives to all programs."""

RESULTS = {
    *(of(Path()).name for of in (runs_dir, sweeps_dir, jobs_dir, code_dir, store_dir)),
    "report",
    "check-scaling",
}
"""Names of folders of a results folder in which ettsweep writes, for any sweep."""

UNTOLD = ("__pycache__", ".")
"""Beginnings of names of folders in which others write too, to no harm."""


def now_ns(folder: Path) -> int:
    """Return the time of a folder's file system, which may differ from this machine's, in ns."""
    descriptor, name = tempfile.mkstemp(dir=folder)
    os.close(descriptor)
    path = Path(name)
    changed_ns = path.stat().st_mtime_ns
    path.unlink()
    return changed_ns


def written_since(since_ns: int, folder: Path, left_out: Collection[Path], depth: int | None = None) -> set[str]:
    """Return the files below a folder that were changed since, by paths relative to it; none that ettsweep keeps.

    Args:
        since_ns: time of the file system, as `now_ns` has it.
        folder: or one file, whose path is then empty; links below it are not followed.
        left_out: folders that are not looked at.
        depth: levels of folders below it that are looked at; None for all.
    """
    found = set[str]()
    for path in _files(folder, left_out, depth):
        try:
            status = path.lstat()
        except OSError:  # it is gone
            continue
        if status.st_mtime_ns > since_ns and status.st_uid == os.geteuid():
            found.add(os.path.relpath(path, folder) if path != folder else "")
    return found


def named_paths(code: Iterable[Path], words: Iterable[str]) -> Iterator[Path]:
    """Yield the absolute paths that exist of those that stand in files of code, or in words of a command."""
    texts = list(words)
    for path in code:
        with contextlib.suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
            texts.append(file.read(MAX_CODE_BYTES))
    between = str.maketrans(dict.fromkeys("\"'`=(),;<>{}[]", " "))
    names = {os.path.normpath(word) for text in texts for word in text.translate(between).split() if word[0] == "/"}
    # What all programs share has files of others.
    shared = {"/", "//", os.path.normpath(tempfile.gettempdir()), str(Path.home()), "/dev/shm"}
    for path in map(Path, sorted(names - shared)):
        is_of_system = path.parts[1] in SYSTEM and not path.is_relative_to("/dev/shm")
        if not is_of_system and path.exists():
            yield path.resolve()


def _files(folder: Path, left_out: Collection[Path], depth: int | None) -> Iterator[Path]:
    if folder.is_file():
        yield folder
    seen = 0
    for parent, folders, names in os.walk(folder):
        level, of_results = len(Path(parent).relative_to(folder).parts), RESULTS if _is_results(Path(parent)) else ()
        folders[:] = [
            name
            for name in folders
            if not name.startswith(UNTOLD)
            and name not in of_results
            and Path(parent, name) not in left_out
            and (depth is None or level < depth)
        ]
        seen += len(folders) + len(names)
        if seen > MAX_ENTRIES:
            return
        for name in names:
            path = Path(parent, name)
            if path.is_file() and not path.is_symlink():
                yield path


def _is_results(folder: Path) -> bool:
    """Whether a folder has runs or sweeps of ettsweep; programs of others have a folder `runs`, too."""
    sweeps = sweeps_dir(folder)
    return any(is_run_id(path.name) for path in runs_dir(folder).glob("*")) or any(
        path for name in ("0001.yaml", "try.json") for path in sweeps.glob(f"*/{name}")
    )
