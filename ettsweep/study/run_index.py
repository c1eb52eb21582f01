"""RunIndex: all runs of a results folder, with specs, states and results."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ettsweep.errors import CorruptError, InputError
from ettsweep.files import Json, folder_names, number
from ettsweep.runs.folder import RunDir, is_run_id, runs_dir
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import Liveness, State, Status
from ettsweep.strategies.strategy import strategy_name
from ettsweep.study.lattice import Point, snap_point
from ettsweep.trainer.models.registry import model_name


@dataclass(frozen=True)
class Run:
    """A run on disk: folder, spec, status, and the result if it is finished."""

    dir: RunDir
    spec: RunSpec
    status: Status
    result: Json | None = None

    @property
    def id(self) -> str:
        return self.dir.id

    @cached_property
    def family(self) -> str:
        return self.spec.family_id

    @property
    def model(self) -> str:
        return model_name(self.spec.model)

    @property
    def strategy(self) -> str:
        return strategy_name(self.spec.strategy.s)

    @property
    def point(self) -> Point:
        return Point(self.spec.lr, self.spec.wd)

    @property
    def state(self) -> State:
        return self.status.state

    @cached_property
    def score(self) -> float | None:
        """Score that verdicts compare; None if the run diverged or is unfinished."""
        return number(self.result.get("score")) if self.result else None


@dataclass(frozen=True)
class RunIndex:
    """All runs by id, and the errors of run folders that cannot be read, by id."""

    runs: dict[str, Run]
    broken: dict[str, str]

    def status_of(self, run_id: str) -> Status:
        """Return the status of a run; `missing` if it has no folder."""
        run = self.runs.get(run_id)
        if run is not None:
            return run.status
        if run_id in self.broken:
            # The id of a requested run is known without the file, so resuming repairs it.
            return Status(State.INTERRUPTED, "its spec.json is damaged and will be rewritten")
        return Status(State.MISSING)

    def family_runs(self, family: str) -> list[Run]:
        """Return the runs of a family."""
        return [run for run in self.runs.values() if run.family == family]


def spent_device_s(run: Run) -> float:
    """Return the device seconds of a finished or pruned run; 0 for any other."""
    if run.state is State.PRUNED:  # it has no result, but its attempts record the time
        latest = run.dir.latest_attempt()
        return latest.time_spent().device_s if latest else 0.0
    return (number(run.result.get("device_s")) if run.result else None) or 0.0


def group_by_point(runs: Iterable[Run], points: Iterable[Point] = ()) -> dict[Point, list[Run]]:
    """Group the runs of a family by lattice point.

    Coordinates that differ in the last bits, as maps between strategies make them, count as one point: the requested
    one in `points`, else that of the first run.
    """
    lattice_points = dict.fromkeys(points)
    groups: dict[Point, list[Run]] = {}
    for run in runs:
        point = snap_point(run.point, lattice_points)
        # Later runs that differ in the last bits join this point.
        lattice_points.setdefault(point)
        groups.setdefault(point, []).append(run)
    return groups


def load_run_index(results: Path, liveness: Liveness | None = None) -> RunIndex:
    """Read all run folders of a results folder, which need not exist.

    Args:
        results: the folder.
        liveness: looks up owners and jobs; by default, only processes of this machine are known.

    Raises:
        CorruptError: the folder of runs cannot be read.
    """
    runs: dict[str, Run] = {}
    broken: dict[str, str] = {}
    for name in folder_names(runs_dir(results)):
        if not is_run_id(name):
            continue  # not ours
        run = RunDir(runs_dir(results) / name)
        try:
            spec = run.spec()
        except CorruptError as error:
            broken[name] = str(error)
            continue
        runs[name] = Run(run, spec, *run.status_and_result(liveness))
    return RunIndex(runs, broken)


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
    """Count the states that occur, in the order of `State`."""
    counts = Counter(states)
    return {state: counts[state] for state in State if counts[state]}
