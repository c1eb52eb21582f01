"""What is on disk: all runs of a results folder with their states; and what to do about those that are wanted."""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ettsweep.errors import CorruptError, InputError
from ettsweep.files import Json, number
from ettsweep.runs.folder import RunDir, is_run_id, runs_dir
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import Liveness, State, Status
from ettsweep.strategies.strategy import strategy_name
from ettsweep.study.lattice import Point, snap
from ettsweep.trainer.models.registry import model_name


@dataclass(frozen=True)
class Run:
    """A run as found: folder, spec, state, and the result if it is finished."""

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
        """Return what verdicts compare; None where the run diverged or is unfinished."""
        return number(self.result.get("score")) if self.result else None


@dataclass(frozen=True)
class RunIndex:
    """All runs by id, and what is wrong with the folders that hold none."""

    runs: dict[str, Run]
    broken: dict[str, str]

    def state(self, run_id: str) -> Status:
        """Return the state of a run, missing where there is none."""
        run = self.runs.get(run_id)
        if run is not None:
            return run.status
        if run_id in self.broken:
            return Status(State.INTERRUPTED, "its spec.json is damaged and will be written anew")
        return Status(State.MISSING)

    def family(self, family: str) -> list[Run]:
        """Return the runs of a family."""
        return [run for run in self.runs.values() if run.family == family]


def cost_s(run: Run) -> float:
    """Return the device seconds that a run has taken; 0 before it is finished, or pruned."""
    if run.state is State.PRUNED:
        latest = run.dir.latest()
        return latest.spent().device_s if latest else 0.0
    return (number(run.result.get("device_s")) if run.result else None) or 0.0


def by_point(runs: Iterable[Run], asked: Iterable[Point] = ()) -> dict[Point, list[Run]]:
    """Group runs of a family by lattice point: the one asked for that a run means, else that of the first run there."""
    known = dict.fromkeys(asked)
    groups: dict[Point, list[Run]] = {}
    for run in runs:
        point = snap(run.point, known)
        known.setdefault(point)
        groups.setdefault(point, []).append(run)
    return groups


def load_run_index(results: Path, liveness: Liveness | None = None) -> RunIndex:
    """Read all run folders of a results folder, which need not exist; `outlook` is asked about owners and jobs."""
    runs: dict[str, Run] = {}
    broken: dict[str, str] = {}
    try:
        names = sorted(os.listdir(runs_dir(results)))
    except (FileNotFoundError, NotADirectoryError):
        names = []
    for name in names:
        if not is_run_id(name):
            continue
        run = RunDir(runs_dir(results) / name)
        try:
            spec = run.spec()
        except CorruptError as error:
            broken[name] = str(error)
            continue
        runs[name] = Run(run, spec, *run.look(liveness))
    return RunIndex(runs, broken)


def find_run(run_index: RunIndex, prefix: str) -> str:
    """Return the id of the one run whose id starts so.

    Raises:
        InputError: no run, or several, start so.
    """
    found = [name for name in (*run_index.runs, *run_index.broken) if name.startswith(prefix)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise InputError(f"no run starts with {prefix!r}; `ettsweep status` lists them")
    raise InputError(f"{len(found)} runs start with {prefix!r}: {', '.join(found[:5])}{', ...' * (len(found) > 5)}")


def intact(run_index: RunIndex, prefix: str) -> Run:
    """Return the one run whose id starts so.

    Raises:
        InputError: no run, or several, start so.
        CorruptError: its folder is broken.
    """
    run_id = find_run(run_index, prefix)
    if run_id not in run_index.runs:
        raise CorruptError(run_index.broken[run_id])
    return run_index.runs[run_id]


def count_states(states: Iterable[State]) -> dict[State, int]:
    """Return how many there are of each state, in the order of the states."""
    counts = Counter(states)
    return {state: counts[state] for state in State if counts[state]}
