"""What is kept of finished runs, so that their folders need not be read again: a few files of columns and results.

    <store>/<token>.runs    a header line, columns, and what the files result.json have, one after the other

A file is written once, by one rename. Its columns are checked by a checksum when it is read, each result by its own;
a file that is damaged, or of another version, is passed over. Each command that has read enough new runs adds a file;
once there are several, one takes the place of those that are not much larger. Two commands may do so at once: of a run
that is in two files, the later one counts, and only while the stamp of the run's result is the one that it has.
"""

import contextlib
import json
import math
import os
import shutil
import stat
import sys
import time
import uuid
import zlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from ettsweep.errors import InputError, StorageError
from ettsweep.files import Json, loads_fast, number, open_regular, write_atomic
from ettsweep.metric import valid_score
from ettsweep.runs.contract import Labels
from ettsweep.runs.point import Point
from ettsweep.runs.spec import RunSpec, validated_spec
from ettsweep.runs.state import State, Status, finished_status

MAGIC = b"ettsweep runs 1"
"""What a file begins with; the number changes with the format."""

MAX_FILES = 6
"""Files of a store; with one more, one takes the place of several."""

MUCH_LARGER = 4
"""A file that has this many times the runs of all smaller ones stays: else each few new runs would write all again."""

UNUSED_S = 90 * 86400.0
"""Seconds after which what was kept of another results folder is deleted."""

ENDING = ".runs"
ID_LENGTH = 12

COLUMNS = {
    "family": "q",
    "seed": "q",
    "lr": "d",
    "wd": "d",
    "diverged_step": "q",
    "score": "d",
    "device_s": "d",
    "mtime_ns": "q",
    "inode": "Q",
    "size": "q",
    "length": "q",
    "crc": "q",
}
"""Columns with the type codes of `array`. `diverged_step` is -1 for runs that did not diverge; no score is NaN."""

DONE = Status(State.DONE, "", 1.0)
"""Of all runs that are done: most are."""

Stamp = tuple[int, int, int]
"""Modification time in ns, inode and size of a file: while they are the same, so is its content."""


def stamp_of(status: os.stat_result) -> Stamp:
    """Return the stamp of a file."""
    return status.st_mtime_ns, status.st_ino, status.st_size


@dataclass(frozen=True)
class FinishedRun:
    """A finished run, as it is to be kept; `data` is the content of its result.json."""

    id: str
    family: str
    base: RunSpec
    lr: float
    wd: float
    seed: int
    result: Json
    data: bytes
    stamp: Stamp


class Shard:
    """One file of a store: its columns, and an open file from which results are read when they are asked for.

    Attributes:
        ids: of the runs, by row.
        families: id, a spec and its labels of each family; a row has the number of its own.
        columns: arrays by name, see `COLUMNS`.
        written_ns: when it was written.
    """

    def __init__(self, path: Path) -> None:
        """Open a file.

        Raises:
            OSError: it cannot be read.
            ValueError: it is not whole, or of another version.
        """
        self.path = path
        self._descriptor = open_regular(path)
        try:
            status = os.fstat(self._descriptor)
            self.written_ns = status.st_mtime_ns
            with os.fdopen(os.dup(self._descriptor), "rb") as file:
                magic, _, rest = file.readline(200).partition(b"|")
                if magic != MAGIC or len(fields := rest.split()) != 4:
                    raise ValueError("another version")
                byte_order, length, crc, results_length = fields[0].decode(), *map(int, fields[1:])
                data = file.read(length)
                self._results_at = file.tell()
            if (
                byte_order != sys.byteorder
                or zlib.crc32(data) != crc
                or os.fstat(self._descriptor).st_size != self._results_at + results_length
            ):
                raise ValueError("damaged")
            self._parse(data)
        except BaseException:
            os.close(self._descriptor)
            self._descriptor = -1
            raise

    def _parse(self, data: bytes) -> None:
        line, _, rest = data.partition(b"\n")
        head = json.loads(line)
        count = int(head["runs"])
        names = rest[: count * ID_LENGTH].decode("ascii")
        self.ids = [names[at : at + ID_LENGTH] for at in range(0, len(names), ID_LENGTH)]
        self.families: list[tuple[str, RunSpec, Labels]] = []
        for family, spec in head["families"]:
            try:
                base = validated_spec(spec, "kept")
            except InputError as error:
                raise ValueError(str(error)) from None
            if base.family_id != family:
                raise ValueError("another version")
            self.families.append((family, base, base.info.labels))
        self.columns: dict[str, array[float]] = {}
        at = count * ID_LENGTH
        for name, code in COLUMNS.items():
            column = self.columns[name] = array(code)
            column.frombytes(rest[at : at + count * column.itemsize])
            at += count * column.itemsize
        self._ends = list(accumulate(map(int, self.columns["length"])))
        self._points: dict[tuple[float, float, float], Point] = {}

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            os.close(self._descriptor)

    def stamp(self, row: int) -> Stamp:
        """Return the stamp that the run's result had when it was read."""
        columns = self.columns
        return int(columns["mtime_ns"][row]), int(columns["inode"][row]), int(columns["size"][row])

    def status(self, row: int) -> Status:
        """Return the status of a run."""
        step = self.columns["diverged_step"][row]
        return DONE if step < 0 else finished_status({"status": "diverged", "diverged_step": int(step)})

    def point(self, row: int) -> Point:
        """Return the point of a run: one object for all runs of its family there, since they are few."""
        family, lr, wd = (self.columns[name][row] for name in ("family", "lr", "wd"))
        if (point := self._points.get((family, lr, wd))) is None:
            _, base, _ = self.families[int(family)]
            point = self._points[family, lr, wd] = Point(lr, wd, base.info.has_wd)
        return point

    def score(self, row: int) -> float | None:
        """Return the score of a run; None if it diverged."""
        score = self.columns["score"][row]
        return None if score != score else score  # NaN

    def raw_result(self, row: int) -> bytes | None:
        """Return a result as JSON; None if it cannot be read any more, or is damaged."""
        length = int(self.columns["length"][row])
        try:
            data = os.pread(self._descriptor, length, self._results_at + self._ends[row] - length)
        except OSError:  # over NFS, the file of another host may be gone
            return None
        return data if zlib.crc32(data) == self.columns["crc"][row] else None

    def result(self, row: int) -> Json | None:
        """Return a result; None if it cannot be read any more, or is damaged."""
        data = self.raw_result(row)
        if data is None:
            return None
        result: Json = loads_fast(data)
        result.pop("sha256", None)
        return result


class RunStore:
    """The files of a folder.

    Attributes:
        rows: shard and row of each run that is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shards = list[Shard]()
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                path = folder / name
                if name.endswith(ENDING) and not name.startswith("."):
                    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                        shards.append(Shard(path))
        self._set(shards)

    def _set(self, shards: list[Shard]) -> None:
        self.shards = sorted(shards, key=lambda shard: shard.written_ns)
        self.rows = {run_id: (shard, row) for shard in self.shards for row, run_id in enumerate(shard.ids)}

    def keep(self, runs: Iterable[FinishedRun], valid: Iterable[str]) -> None:
        """Add a file with these runs; if there are too many files, it has the valid runs of smaller ones too.

        What cannot be written is not kept.
        """
        rows = list(_fresh_rows(runs))
        merged = self._to_merge(len(rows)) if len(self.shards) >= MAX_FILES else []
        if merged:
            new, shards = {row.id for row in rows}, set(map(id, merged))
            kept = ((run_id, *self.rows[run_id]) for run_id in valid if run_id in self.rows and run_id not in new)
            rows += [row for run_id, shard, at in kept if id(shard) in shards and (row := _kept_row(run_id, shard, at))]
        if not rows:
            return
        path = self.folder / f"{uuid.uuid4().hex}{ENDING}"
        with contextlib.suppress(OSError, StorageError):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomic(path, _encode(rows))
            for shard in merged:
                shard.path.unlink(missing_ok=True)
            self._set([*(shard for shard in self.shards if shard not in merged), Shard(path)])

    def _to_merge(self, count: int) -> list[Shard]:
        """Return the smallest files, as far as none is much larger than all before it with `count` new runs."""
        merged = list[Shard]()
        for shard in sorted(self.shards, key=lambda shard: len(shard.ids)):
            if len(shard.ids) > MUCH_LARGER * count and len(self.shards) - len(merged) < MAX_FILES:
                break
            merged.append(shard)
            count += len(shard.ids)
        return merged


def discard_unused(folder: Path) -> None:
    """Delete what was kept of other results folders, in folders beside this one, once nothing was added for long."""
    with contextlib.suppress(OSError):
        for other in folder.parent.iterdir():
            status = other.lstat()
            if other != folder and stat.S_ISDIR(status.st_mode) and time.time() - status.st_mtime > UNUSED_S:
                shutil.rmtree(other, ignore_errors=True)


@dataclass(frozen=True)
class _Row:
    id: str
    family: str
    base: RunSpec
    values: dict[str, float]
    result: bytes


def _fresh_rows(runs: Iterable[FinishedRun]) -> Iterator[_Row]:
    for run in runs:
        score, diverged_step = valid_score(run.result.get("score")), -1
        mtime_ns, inode, size = run.stamp
        if run.result["status"] == "diverged":
            step = run.result.get("diverged_step")
            if not (isinstance(step, int) and 0 <= step < 2**63):
                continue  # what no worker wrote is read from its folder each time
            diverged_step = step
        values = {
            "seed": run.seed,
            "lr": run.lr,
            "wd": run.wd,
            "diverged_step": diverged_step,
            "score": math.nan if score is None else score,
            "device_s": number(run.result.get("device_s")) or 0.0,
            **{"mtime_ns": mtime_ns, "inode": inode, "size": size},
            **{"length": len(run.data), "crc": zlib.crc32(run.data)},
        }
        yield _Row(run.id, run.family, run.base, values, run.data)


def _kept_row(run_id: str, shard: Shard, row: int) -> _Row | None:
    result = shard.raw_result(row)
    family, base, _ = shard.families[int(shard.columns["family"][row])]
    values = {name: column[row] for name, column in shard.columns.items() if name != "family"}
    return None if result is None else _Row(run_id, family, base, values, result)


def _encode(rows: list[_Row]) -> bytes:
    bases = {row.family: row.base for row in rows}
    number = {family: k for k, family in enumerate(bases)}
    families = [(family, base.model_dump(mode="json")) for family, base in bases.items()]
    columns = [array(code, (row.values[name] for row in rows)) for name, code in COLUMNS.items() if name != "family"]
    columns.insert(0, array(COLUMNS["family"], (number[row.family] for row in rows)))
    parts = [json.dumps({"runs": len(rows), "families": families}).encode() + b"\n"]
    parts += ["".join(row.id for row in rows).encode(), *(column.tobytes() for column in columns)]
    data, results = b"".join(parts), b"".join(row.result for row in rows)
    head = f"|{sys.byteorder} {len(data)} {zlib.crc32(data)} {len(results)}\n"
    return MAGIC + head.encode() + data + results
