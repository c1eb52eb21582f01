"""Read all runs on disk, caching finished ones.

The cache is in the user's cache folder (`cache.py`); you may delete it at any time.
"""

import marshal
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path

from ettsweep.errors import CorruptError, InputError
from ettsweep.files import Json, folder_names, number, read_file
from ettsweep.metric import valid_score
from ettsweep.runs.cache import FinishedRun, KeptRun, RunCache, Stamp, stamp_of
from ettsweep.runs.folder import RunDir, is_run_id, runs_dir
from ettsweep.runs.point import Point, snap_point
from ettsweep.runs.spec import USUAL_AXES, Labels, RunSpec, axis_fields, family_identity, family_of, id_of_run
from ettsweep.runs.state import Liveness, State, Status, finished_status

MIN_KEPT = 20
"""New finished runs that are worth a write; the next command reads fewer again."""

TICK_NS = 5 * 10**9
"""Age at which a folder's next change surely has another time, if clocks differ by seconds."""

MAX_HELD = 10_000
"""Runs to read before caching them: so many results take some 80 MB."""


DONE = Status(State.DONE, "", 1.0)
"""Of all done runs, which most are."""


class Run:
    """A run on disk: folder, spec, status, and the result if it is finished.

    For a cached run, spec and result are made on access.
    """

    def __init__(self, folder: RunDir, spec: RunSpec, status: Status, result: Json | None = None) -> None:
        self.id, self.status = folder.id, status
        self.values, self.seed = spec.values, spec.seed
        self.base = spec
        """The spec of a run of its family, at any point and seed."""
        self._result = result
        vars(self).update(dir=folder, spec=spec)

    @classmethod
    def kept(cls, runs: str, kept: KeptRun, cache: RunCache) -> "Run":
        """Return a finished run from the cache; `runs` is the folder of run folders."""
        run = cls.__new__(cls)
        run.id, run.family, run.values, run.seed, state, reason, run.score, run.device_s, *_ = kept
        run.status = DONE if state == State.DONE and not reason else Status(State(state), reason, 1.0)
        run.base, run.labels = cache.families[kept.family]
        run.point, run._at = cache.point(kept), (runs, cache, kept)
        return run

    _at: tuple[str, RunCache, KeptRun] | None = None
    _result: Json | None = None

    @cached_property
    def dir(self) -> RunDir:
        assert self._at
        return RunDir(Path(self._at[0], self.id))

    @cached_property
    def spec(self) -> RunSpec:
        return self.base.with_values(self.values, self.seed)

    @property
    def result(self) -> Json | None:
        """Content of result.json; None if unfinished. Not kept: 100,000 take half a gigabyte."""
        if self._at is None:
            return self._result
        _, cache, kept = self._at
        return cache.result(kept) or self.dir.result()

    @cached_property
    def family(self) -> str:
        """Id of the runs that differ from it only in their point and seed."""
        return self.spec.family_id

    @cached_property
    def labels(self) -> Labels:
        """Names of its model and task, one object for a family."""
        return self.base.info.labels

    @cached_property
    def point(self) -> Point:
        return self.spec.point

    def value(self, name: str) -> float:
        """Return the value along an axis, see `RunSpec.value`."""
        return self.values[name] if name in self.values else self.base.value(name)

    @property
    def state(self) -> State:
        return self.status.state

    @cached_property
    def score(self) -> float | None:
        """Score that verdicts compare; None if the run diverged or is unfinished."""
        return valid_score(self.result.get("score")) if self.result else None

    @cached_property
    def device_s(self) -> float:
        """Device seconds of a finished run; 0 for any other."""
        return (number(self.result.get("device_s")) if self.result else None) or 0.0


@dataclass(frozen=True)
class RunIndex:
    """All runs by id, and the errors of run folders that cannot be read, by id."""

    runs: dict[str, Run]
    broken: dict[str, str]
    _families: dict[tuple[str, ...], dict[str, list[Run]]] = field(default_factory=dict, repr=False, compare=False)

    def status_of(self, run_id: str) -> Status:
        """Return the status of a run; `missing` if it has no folder."""
        run = self.runs.get(run_id)
        if run is not None:
            return run.status
        if run_id in self.broken:
            # The id of a requested run is known, so resuming repairs its file.
            return Status(State.INTERRUPTED, "its spec.json is damaged and will be rewritten")
        return Status(State.MISSING)

    @cached_property
    def by_family(self) -> dict[str, list[Run]]:
        """The runs of each family."""
        families: dict[str, list[Run]] = {}
        for run in self.runs.values():
            families.setdefault(run.family, []).append(run)
        return families

    def family_runs(self, base: RunSpec, axes: Collection[str] = USUAL_AXES) -> list[Run]:
        """Return the runs that differ from a spec along these axes and in their seed alone."""
        # Of an axis that is a field of the recipe, each value is a family of its own.
        fields = axis_fields(base, axes)
        families = self._by_fields(fields) if fields else self.by_family
        return families.get(family_of(base, axes), [])

    def _by_fields(self, axes: tuple[str, ...]) -> dict[str, list[Run]]:
        """Return the runs of each family of sweeps with these fields of recipes as axes."""
        if axes not in self._families:
            families = self._families[axes] = dict[str, list[Run]]()
            for runs in self.by_family.values():
                families.setdefault(family_of(runs[0].base, axes), []).extend(runs)
        return self._families[axes]


class RunReader:
    """Reads the runs of a results folder, which need not exist, repeatedly.

    Attributes:
        runs: by id, as last read.
        broken: the errors of run folders that cannot be read, by id.
    """

    def __init__(self, results: Path) -> None:
        self._runs_dir = runs_dir(results)
        self.runs: dict[str, Run] = {}
        self.broken: dict[str, str] = {}
        self._names, self._listed_ns = list[str](), 0
        self._stamps: dict[str, Stamp] = {}
        self._fresh: dict[str, FinishedRun] = {}
        self._specs = _SpecReader()
        self._cache = RunCache(results)

    def read(self, liveness: Liveness | None = None) -> RunIndex:
        """Read what has changed, and return all runs.

        Args:
            liveness: looks up owners and jobs; by default, only processes of this machine are known.

        Raises:
            CorruptError: the folder of runs cannot be read.
        """
        names = self.update_names()
        for name in names:
            self.read_run(name, liveness)
            if len(self._fresh) >= MAX_HELD:
                self._release()
        self.runs = {name: self.runs[name] for name in names if name in self.runs}
        self.keep()
        return RunIndex(self.runs, dict(self.broken))

    def update_names(self) -> list[str]:
        """Return the ids of all run folders, and forget those that are gone; the same list if none came or went."""
        try:
            changed_ns = self._runs_dir.stat().st_mtime_ns
        except OSError:  # the listing says what is wrong
            changed_ns = 0
        if changed_ns and changed_ns == self._listed_ns:
            return self._names
        names = [name for name in folder_names(self._runs_dir) if is_run_id(name)]
        # A change within a tick of the file system's clock may have the time of the listing.
        self._listed_ns = changed_ns if time.time_ns() - changed_ns > TICK_NS else 0
        self._names = names
        for name in (self.runs.keys() | self.broken.keys()) - set(names):
            self.runs.pop(name, None)
            self.broken.pop(name, None)
        return names

    def read_run(self, run_id: str, liveness: Liveness | None = None) -> Run | None:
        """Read a run folder, unless it is finished and has not changed; None if it is broken."""
        stamp = self._result_stamp(run_id)
        run = self.runs.get(run_id)
        if stamp and run and run.state.finished and self._stamps.get(run_id) == stamp:
            return run
        self.broken.pop(run_id, None)
        if not (run := (stamp and self._kept_run(run_id, stamp)) or self._read_folder(run_id, stamp, liveness)):
            self.runs.pop(run_id, None)
            return None
        if stamp:
            self._stamps[run_id] = stamp
        self.runs[run_id] = run
        return run

    def _result_stamp(self, run_id: str) -> Stamp | None:
        try:
            # Not with Path: this is called for each of 100,000 runs.
            return stamp_of(os.stat(f"{self._runs_dir}/{run_id}/result.json"))  # noqa: PTH116
        except OSError:
            return None

    def _kept_run(self, run_id: str, stamp: Stamp) -> Run | None:
        kept = self._cache.runs.get(run_id)
        return Run.kept(str(self._runs_dir), kept, self._cache) if kept and kept.stamp == stamp else None

    def _read_folder(self, run_id: str, stamp: Stamp | None, liveness: Liveness | None) -> Run | None:
        folder, previous = RunDir(self._runs_dir / run_id), self.runs.get(run_id)
        try:
            # A folder keeps its spec, which its name hashes.
            spec, family = (previous.spec, previous.family) if previous else self._specs.read(folder)
            run = (stamp and self._read_result(folder, spec, family, stamp)) or Run(
                folder, spec, *folder.status_and_result(liveness)
            )
        except (CorruptError, OSError) as error:
            self.broken[run_id] = str(error)
            return None
        run.family = family
        return run

    def _read_result(self, folder: RunDir, spec: RunSpec, family: str, stamp: Stamp) -> Run | None:
        try:
            data = read_file(folder.result_path)
            result = folder.result_from(data)
        except (CorruptError, OSError):
            return None
        finished = FinishedRun(folder.id, family, spec, result, data, stamp)
        self._fresh[folder.id] = finished
        return Run(folder, spec, finished_status(result), result)

    def _release(self) -> None:
        """Cache the runs read since the last time, and drop their results from memory."""
        fresh = self._fresh
        self.keep()
        for run_id, finished in fresh.items():
            self.runs[run_id] = self._kept_run(run_id, finished.stamp) or self.runs[run_id]

    def keep(self) -> None:
        """Cache the finished runs read since the last time, if there are enough."""
        if len(self._fresh) >= MIN_KEPT:
            self._cache.keep(self._fresh.values())
            self._fresh = {}


class _SpecReader:
    """Reads specs, of which a family's are validated once: they differ in a few numbers."""

    def __init__(self) -> None:
        self._families: dict[bytes, tuple[RunSpec, dict[str, object], str]] = {}

    def read(self, folder: RunDir) -> tuple[RunSpec, str]:
        """Return the spec of a run and the id of its family.

        Raises:
            CorruptError: it cannot be read, or its id is not the folder's name.
        """
        data = folder.spec_data()
        values = _own_values(data)
        # Version 2: later ones write an object again as a reference, so that equal data may have other bytes.
        key = marshal.dumps([item for item in data.items() if item[0] not in (*USUAL_AXES, "axes", "seed")], 2)
        if values and key in self._families:
            base, identity, family = self._families[key]
            # If the id fits, so do the values.
            if id_of_run(identity, *values, base.linear) == folder.id:
                return base.with_values(*values), family
        spec = folder.spec_from(data)
        self._families[key] = spec, family_identity(spec), spec.family_id
        return spec, self._families[key][2]


def _own_values(data: Json) -> tuple[dict[str, float], int] | None:
    """Return the values of axes and the seed of a run; None if they are not what a spec allows."""
    further, seed = data.get("axes", {}), data.get("seed")
    values = {"lr": data.get("lr"), "wd": data.get("wd"), **(further if isinstance(further, dict) else {"axes": None})}
    are_numbers = all(isinstance(value, float | int) and 0 <= value < math.inf for value in values.values())
    return (values, seed) if type(seed) is int and are_numbers and values["lr"] else None


def load_run_index(results: Path, liveness: Liveness | None = None) -> RunIndex:
    """Read all run folders of a results folder, which need not exist; see `RunReader`.

    Raises:
        CorruptError: the folder of runs cannot be read.
    """
    return RunReader(results).read(liveness)


# --- groups of runs -------------------------------------------------------------------------------------------------


def group_by_point(
    runs: Iterable[Run], points: Iterable[Point] = (), point_of: Callable[[Run], Point] = attrgetter("point")
) -> dict[Point, list[Run]]:
    """Group the runs of a family by lattice point.

    Coordinates that differ in the last bits, as after maps between strategies, are one point: the requested one in
    `points`, or else that of the first run.
    """
    lattice_points = dict.fromkeys(points)
    groups: dict[Point, list[Run]] = {}
    groups_by_point: dict[Point, list[Run]] = {}  # by a run's own point, of which there are few
    for run in runs:
        own = point_of(run)
        if (group := groups_by_point.get(own)) is None:
            point = snap_point(own, lattice_points)
            # Later runs that differ in the last bits join this point.
            lattice_points.setdefault(point)
            group = groups_by_point[own] = groups.setdefault(point, [])
        group.append(run)
    return groups


def find_run_id(run_index: RunIndex, prefix: str) -> str:
    """Return the full id of the run whose id starts with `prefix`, broken runs included.

    Raises:
        InputError: no run, or several, have this prefix.
    """
    ids = [name for name in (*run_index.runs, *run_index.broken) if name.startswith(prefix)]
    if len(ids) == 1:
        return ids[0]
    if not ids:
        raise InputError(f"no run starts with {prefix!r}; `ettsweep status` lists them")
    raise InputError(f"{len(ids)} runs start with {prefix!r}: {', '.join(ids[:5])}{', ...' * (len(ids) > 5)}")


def find_intact_run(run_index: RunIndex, prefix: str) -> Run:
    """Return the run whose id starts with `prefix`.

    Raises:
        InputError: no run, or several, have this prefix.
        CorruptError: its folder cannot be read.
    """
    run_id = find_run_id(run_index, prefix)
    if run_id not in run_index.runs:
        raise CorruptError(run_index.broken[run_id])
    return run_index.runs[run_id]


def count_states(states: Iterable[State]) -> dict[State, int]:
    """Count the states: done ones first, those that need a person last."""
    counts = Counter(states)
    return {state: counts[state] for state in reversed(State) if counts[state]}
