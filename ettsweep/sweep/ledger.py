"""What is on disk: all runs of a results folder with their states. Reading never writes."""

import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ettsweep.errors import CorruptError, InputError
from ettsweep.rundir import Attempt, Json, RunDir, State, Status, is_run_id, runs_dir
from ettsweep.spec import RunSpec


@dataclass(frozen=True)
class Run:
    """A run as found: folder, spec, state, and the result if it is finished."""

    dir: RunDir
    spec: RunSpec
    status: Status
    result: Json | None = None
    family: str = field(default="")

    @property
    def id(self) -> str:
        """Run id."""
        return self.dir.id

    @property
    def state(self) -> State:
        """State, derived when the ledger was read."""
        return self.status.state

    @property
    def score(self) -> float | None:
        """Return what verdicts compare; None where the run diverged or is unfinished."""
        value = self.result.get("score") if self.result else None
        return float(value) if isinstance(value, int | float) else None


@dataclass(frozen=True)
class Ledger:
    """All runs by id, and what is wrong with the folders that hold none."""

    runs: dict[str, Run]
    broken: dict[str, str]

    def state(self, run_id: str) -> Status:
        """Return the state of a run, missing where there is none."""
        run = self.runs.get(run_id)
        if run is not None:
            return run.status
        if run_id in self.broken:
            return Status(State.FAILED, self.broken[run_id])
        return Status(State.MISSING)

    def family(self, family: str) -> list[Run]:
        """Return the runs of a family."""
        return [run for run in self.runs.values() if run.family == family]


def load_ledger(
    results: Path, queued: Collection[str] = (), alive: Callable[[Attempt], str] | None = None
) -> Ledger:
    """Read all run folders.

    Args:
        results: the results folder; it need not exist.
        queued: ids of the runs that live submissions list.
        alive: how to ask whether the owner of an attempt lives.
    """
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
        status = run.status(queued, alive)
        result = run.result() if status.state.finished else None
        runs[name] = Run(run, spec, status, result, spec.family_id)
    return Ledger(runs, broken)


def find_run(ledger: Ledger, prefix: str) -> str:
    """Return the id of the one run whose id starts so.

    Raises:
        InputError: no run, or several, start so.
    """
    found = [name for name in (*ledger.runs, *ledger.broken) if name.startswith(prefix)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise InputError(f"no run starts with {prefix!r}; `ettsweep status` lists them")
    raise InputError(f"{len(found)} runs start with {prefix!r}: {', '.join(found[:5])}{', ...' * (len(found) > 5)}")


def count_states(states: Iterable[State]) -> dict[State, int]:
    """Return how many there are of each state, in the order of the states."""
    counts = dict.fromkeys(State, 0)
    for state in states:
        counts[state] += 1
    return {state: count for state, count in counts.items() if count}
