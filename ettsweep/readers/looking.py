"""Find metrics in a user's run: a folder, or the log of a command."""

import glob
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ettsweep.errors import InputError, MetricsError
from ettsweep.files import Json
from ettsweep.readers.found_files import is_match
from ettsweep.readers.numbers import resolution
from ettsweep.readers.reader import OUTPUT, Reader
from ettsweep.readers.registry import named_reader, reader_names
from ettsweep.readers.source import MetricSource, listed

LOGS = ("*.log", "*.out", "*.txt", "*.err")
"""Files in a folder that may be the output of its command."""


@dataclass(frozen=True)
class Look:
    """The findings of a reader.

    Attributes:
        reader: of the findings.
        rows: of `MetricSource.rows`.
        files: that it read.
        seen: why it finds no metric, and other findings.
        problem: why it cannot read on; empty without one.
        conflicts: metrics with two values at one step, or fractions as steps, with texts.
        notes: on values that were left out or replaced.
    """

    reader: Reader
    rows: list[Json]
    files: list[str]
    seen: str
    problem: str
    conflicts: dict[str, str]
    notes: list[str]

    @property
    def metrics(self) -> dict[str, dict[int, float]]:
        """Values by name and step; the later one of two."""
        metrics: dict[str, dict[int, float]] = {}
        for row in self.rows:
            for name, value in row.items():
                if name != "step":
                    metrics.setdefault(name, {})[row["step"]] = value
        return metrics


def look(reader: Reader, path: Path) -> Look:
    """Return the findings of a reader.

    Args:
        reader: reads its own files in a folder, or a file like one of them.
        path: a run's folder, or a file.

    Raises:
        InputError: the path is missing, or several files of the folder may be the output.
    """
    if not path.exists():
        raise InputError(f"{path}: there is no such folder or file")
    if path.is_file():
        return _look_at_file(reader, path)
    found = [each for each in _looks_at_folder(reader, path) if each.rows]
    if len(found) > 1:
        logs = ", ".join(name for each in found for name in each.files)
        raise InputError(
            f"{path}: {reader.name or 'the pattern'} finds metrics in {logs}; pass one of these files instead"
        )
    return found[0] if found else next(_looks_at_folder(reader, path))


def looks(path: Path) -> list[Look]:
    """Return the findings of readers with a metric or a problem.

    Raises:
        InputError: the path is missing.
    """
    if not path.exists():
        raise InputError(f"{path}: there is no such folder or file")
    readers = map(named_reader, reader_names())
    if path.is_file():
        all_looks = [_look_at_file(reader, path) for reader in readers if _may_read(reader, path)]
    else:
        all_looks = [each for reader in readers for each in _looks_at_folder(reader, path)]
    return [each for each in all_looks if each.rows or each.problem]


def _may_read(reader: Reader, path: Path) -> bool:
    """Return whether a file's name matches a reader; the output may have any name but that of an event file."""
    name = path.resolve().as_posix().lstrip("/")
    globs = [each if each.startswith("**/") else f"**/{each}" for each in reader.files if each != OUTPUT]
    return any(is_match(each, name) for each in globs) or (OUTPUT in reader.files and "tfevents" not in path.name)


def _look_at_file(reader: Reader, path: Path) -> Look:
    path = path.resolve()  # a user's link means its target
    if OUTPUT in reader.files:
        return _look(reader.model_copy(update={"files": (OUTPUT,)}), path.parent, path)
    return _look(reader.model_copy(update={"files": (glob.escape(path.name),), "which": "all"}), path.parent, None)


def _looks_at_folder(reader: Reader, folder: Path) -> Iterator[Look]:
    logs = [path for pattern in LOGS for path in sorted(folder.glob(pattern))] if OUTPUT in reader.files else []
    if not logs:
        yield _look(reader, folder, None)
    yield from (_look(reader, folder, log) for log in logs)


def _look(reader: Reader, out: Path, log: Path | None) -> Look:
    source = MetricSource(reader, out, log, strict=())
    rows, problem = list[Json](), ""
    try:
        rows = source.rows(final=True)
    except MetricsError as error:
        problem = str(error)
    if not rows:
        problem = problem or "\n".join(dict.fromkeys(source.conflicts.values()))
    files = [log.name if log and name == OUTPUT else name for name in source.files]
    notes = [note for note in source.notes() if note not in source.conflicts.values()]
    return Look(reader, rows, files, source.seen(), problem, source.conflicts, notes)


def summary(metrics: dict[str, dict[int, float]]) -> list[Json]:
    """Return a row for each metric: number of values, steps, and the first, last, lowest and highest value.

    `nonfinite` counts values that are not finite; as `first` or `last` they are None. `resolution` is the step between
    printed values.
    """
    return [_summary_row(name, values) for name, values in sorted(metrics.items())]


def _summary_row(name: str, by_step: dict[int, float]) -> dict[str, Any]:
    steps = sorted(by_step)
    finite = [value for value in by_step.values() if math.isfinite(value)]
    return {
        "metric": name,
        "values": len(by_step),
        "first_step": steps[0],
        "last_step": steps[-1],
        "first": _finite(by_step[steps[0]]),
        "last": _finite(by_step[steps[-1]]),
        "min": min(finite, default=None),
        "max": max(finite, default=None),
        "nonfinite": len(by_step) - len(finite),
        "resolution": resolution(finite),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def overview(all_looks: Iterable[Look]) -> list[Json]:
    """Return a row for each reader with findings."""
    return [
        {
            "reader": each.reader.name,
            "files": each.files,
            "metrics": sorted(each.metrics),
            "rows": len(each.rows),
            "last_step": max((row["step"] for row in each.rows), default=None),
            "problem": each.problem or _clash(each.conflicts),
        }
        for each in all_looks
    ]


def _clash(conflicts: dict[str, str]) -> str:
    return f"ambiguous steps or values: {listed(sorted(conflicts), 5)}" if conflicts else ""


def reader_rows() -> list[Json]:
    """Return a row for each reader."""
    keys = ("name", "kind", "about", "beware", "repository", "commit")
    return [{key: getattr(named_reader(name), key) for key in keys} for name in reader_names()]
