"""Cache finished runs, so later commands need not read their folders: one SQLite file for each results folder.

The file is in the user's cache folder; you may delete it at any time. A cached run counts only if size, time and inode
of its result.json are unchanged. A file that is damaged or of another version is rebuilt.
"""

import contextlib
import json
import os
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from ettsweep.errors import InputError
from ettsweep.files import Json, cache_folder, loads_fast, number
from ettsweep.metric import valid_score
from ettsweep.runs.point import Point
from ettsweep.runs.spec import Labels, RunSpec, validated_spec
from ettsweep.runs.state import finished_status

VERSION = 1
"""Version of the tables and lines; a file with another one is rebuilt."""

BUSY_S = 1.0
"""Seconds to wait for another writer; after that, new runs are not cached."""

UNUSED_S = 90 * 86400.0
"""Seconds after which the file of another results folder is deleted."""

# Results in a table of their own: the lines of 100,000 runs take 20 MB, their results 200. SQLite has no checksums;
# a run's line has that of its result, so a later result of the same run does not match.
TABLES = """
CREATE TABLE IF NOT EXISTS families(id TEXT PRIMARY KEY, data BLOB, crc INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS runs(id TEXT PRIMARY KEY, data BLOB, crc INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS results(id TEXT PRIMARY KEY, data BLOB) WITHOUT ROWID;
"""

Stamp = tuple[int, int, int]
"""Modification time in ns, inode and size of a file: if unchanged, so is its content."""


def stamp_of(status: os.stat_result) -> Stamp:
    """Return the stamp of a file."""
    return status.st_mtime_ns, status.st_ino, status.st_size


class FinishedRun(NamedTuple):
    """A finished run to keep; `data` is the content of its result.json."""

    id: str
    family: str
    spec: RunSpec
    result: Json
    data: bytes
    stamp: Stamp


class KeptRun(NamedTuple):
    """A cached run; `reason` explains its state, `crc` is the checksum of its result."""

    id: str
    family: str
    lr: float
    wd: float
    seed: int
    state: str
    reason: str
    score: float | None
    device_s: float
    mtime_ns: int
    inode: int
    size: int
    crc: int

    @property
    def stamp(self) -> Stamp:
        """The stamp of the result when it was read."""
        return self.mtime_ns, self.inode, self.size


class RunCache:
    """The cached runs of a results folder.

    Attributes:
        runs: by id.
        families: a spec of each family and its labels, by id.
    """

    def __init__(self, results: Path) -> None:
        name = sha256(os.fsencode(os.path.realpath(results))).hexdigest()[:16]
        self._path = cache_folder() / "runs" / f"{name}.sqlite"
        self._database: sqlite3.Connection | None = None
        self._points: dict[tuple[str, float, float], Point] = {}
        self.runs: dict[str, KeptRun] = {}
        self.families: dict[str, tuple[RunSpec, Labels]] = {}
        with contextlib.suppress(sqlite3.Error, OSError, ValueError, TypeError):
            if self._path.stat().st_size:
                self._load()

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            # `watch` reads in one thread of its own.
            self._database = sqlite3.connect(self._path, timeout=BUSY_S, check_same_thread=False)
        return self._database

    def _load(self) -> None:
        database = self._opened()
        if database.execute("PRAGMA user_version").fetchone()[0] != VERSION:
            return
        for data in _intact(database.execute("SELECT data, crc FROM families")):
            with contextlib.suppress(InputError):  # of a removed kind or field
                base = validated_spec(loads_fast(data), "kept")
                self.families[base.family_id] = base, base.info.labels
        lines = _intact(database.execute("SELECT data, crc FROM runs").fetchall())
        for values in loads_fast(b"[" + b",".join(lines) + b"]"):
            run = KeptRun._make(values)
            if run.family in self.families:
                self.runs[run.id] = run

    def keep(self, runs: Iterable[FinishedRun]) -> None:
        """Cache runs, if the file can be written."""
        fresh = list(runs)
        kept = [_kept(run) for run in fresh]
        for _ in range(2):
            try:
                self._write(fresh, kept)
            except (sqlite3.Error, OSError) as error:
                self._close()
                if not _is_broken(error):
                    return
                with contextlib.suppress(OSError):
                    for suffix in ("", "-journal"):
                        Path(f"{self._path}{suffix}").unlink(missing_ok=True)
            else:
                self.runs |= {run.id: run for run in kept}
                self.families |= {run.family: (run.spec, run.spec.info.labels) for run in fresh}
                return

    def _write(self, fresh: list[FinishedRun], kept: list[KeptRun]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._opened() as database:
            version = database.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, VERSION):
                raise sqlite3.DatabaseError("another version")
            database.executescript(f"BEGIN IMMEDIATE; {TABLES} PRAGMA user_version = {VERSION};")
            specs = {run.family: run.spec for run in fresh}
            database.executemany("REPLACE INTO results VALUES (?, ?)", [(run.id, run.data) for run in fresh])
            for table, rows in {
                "families": [(family, spec.model_dump_json().encode()) for family, spec in specs.items()],
                "runs": [(run.id, json.dumps(run).encode()) for run in kept],
            }.items():
                summed = [(name, data, zlib.crc32(data)) for name, data in rows]
                database.executemany(f"REPLACE INTO {table} VALUES (?, ?, ?)", summed)
        _discard_unused(self._path)

    def result(self, run: KeptRun) -> Json | None:
        """Return a result; None if it is gone or damaged."""
        with contextlib.suppress(sqlite3.Error, ValueError, TypeError):
            (data,) = self._opened().execute("SELECT data FROM results WHERE id = ?", (run.id,)).fetchone()
            if zlib.crc32(data) == run.crc:
                result: Json = loads_fast(data)
                result.pop("sha256", None)
                return result
        return None

    def point(self, run: KeptRun) -> Point:
        """Return the point of a run: one object for all runs of its family there."""
        key = run.family, run.lr, run.wd
        if (point := self._points.get(key)) is None:
            base, _ = self.families[run.family]
            point = self._points[key] = Point(run.lr, run.wd, base.info.has_wd)
        return point


def _kept(run: FinishedRun) -> KeptRun:
    status = finished_status(run.result)
    score, device_s = valid_score(run.result.get("score")), number(run.result.get("device_s")) or 0.0
    where = run.id, run.family, run.spec.lr, run.spec.wd, run.spec.seed
    return KeptRun(*where, str(status.state), status.reason, score, device_s, *run.stamp, zlib.crc32(run.data))


def _is_broken(error: Exception) -> bool:
    """Whether the file is damaged, rather than locked, on a full disk, or read-only."""
    if isinstance(error, sqlite3.OperationalError):
        return error.sqlite_errorcode == sqlite3.SQLITE_ERROR  # other tables or columns
    return isinstance(error, sqlite3.DatabaseError)


def _intact(rows: Iterable[tuple[bytes, int]]) -> Iterator[bytes]:
    """Yield the data whose checksums are right."""
    return (data for data, crc in rows if isinstance(data, bytes) and zlib.crc32(data) == crc)


def _discard_unused(path: Path) -> None:
    """Delete old files beside this one."""
    for other in path.parent.iterdir():
        with contextlib.suppress(OSError):
            if other != path and time.time() - other.lstat().st_mtime > UNUSED_S:
                other.unlink()
