"""What can be thrown away: checkpoints of finished runs, dead attempts, orphans, ended submissions."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ettsweep.files import storage_errors
from ettsweep.launch.submit import live_workers, submissions
from ettsweep.rundir import RunDir, State, is_run_id, runs_dir


@dataclass(frozen=True)
class Waste:
    """A file or folder that nothing needs any more, with the reason and its size in bytes."""

    path: Path
    reason: str
    size: int


def find_waste(results: Path) -> list[Waste]:
    """Return what `clean` removes; nothing that a live worker could touch is in it."""
    live = any(live_workers(folder) for folder in submissions(results))
    found = []
    for path in sorted(runs_dir(results).glob("*")):
        if path.is_dir() and is_run_id(path.name):
            found += list(_of_run(RunDir(path), live))
    for folder in submissions(results):
        if not live_workers(folder):
            found.append(_waste(folder, "submission that has ended"))
    return found


def _of_run(run: RunDir, live: bool) -> Iterator[Waste]:
    status = run.status()
    if not live and not run.spec_path.exists() and not run.numbers() and not run.result_path.exists():
        yield _waste(run.path, "no run: neither spec.json nor attempts")
        return
    if status.state in (State.RUNNING, State.UNKNOWN):
        return
    if not live:
        for temporary in sorted(
            [*run.path.glob(".*.tmp"), *run.path.glob("attempts/.*.tmp"), *run.path.glob("attempts/*/.*.tmp")]
        ):
            yield _waste(temporary, "left by a kill")
    numbers = run.numbers()
    if status.state.finished:
        for number in numbers[:-1]:
            yield _waste(run.attempt(number).path, "attempt of a finished run that another one finished")
        if numbers and run.attempt(numbers[-1]).checkpoint_path.exists():
            yield _waste(run.attempt(numbers[-1]).checkpoint_path, "checkpoint of a finished run")


def _waste(path: Path, reason: str) -> Waste:
    members = [path] if path.is_file() else path.rglob("*")
    size = 0
    for member in members:
        with contextlib.suppress(OSError):
            size += member.lstat().st_size
    return Waste(path, reason, size)


def remove(waste: list[Waste]) -> None:
    """Remove what `find_waste` found.

    Raises:
        StorageError: the folder cannot be written.
    """
    for item in waste:
        if (item.path / "submission.json").exists() and live_workers(item.path):
            continue
        with storage_errors(item.path):
            if item.path.is_dir() and not item.path.is_symlink():
                shutil.rmtree(item.path)
            else:
                item.path.unlink(missing_ok=True)
