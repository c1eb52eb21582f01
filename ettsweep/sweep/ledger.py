"""What is on disk: all runs of a results folder with their states; and what to do about those that are wanted."""

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from ettsweep.errors import CorruptError, InputError, unknown_name
from ettsweep.files import Json
from ettsweep.models.architectures import model_name
from ettsweep.runs.folder import RunDir
from ettsweep.runs.paths import is_run_id, runs_dir
from ettsweep.runs.state import Outlook, State, Status
from ettsweep.scaling.strategies import parse_strategy
from ettsweep.spec import RunSpec
from ettsweep.sweep.search import Point, snap


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
    def point(self) -> Point:
        """Its place on the lattice."""
        return Point(self.spec.lr, self.spec.wd)

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
            return Status(State.INTERRUPTED, "its spec.json is damaged and will be written anew")
        return Status(State.MISSING)

    def family(self, family: str) -> list[Run]:
        """Return the runs of a family."""
        return [run for run in self.runs.values() if run.family == family]


def by_point(runs: Iterable[Run], asked: Iterable[Point] = ()) -> dict[Point, list[Run]]:
    """Group runs of a family by lattice point: the one asked for that a run means, else that of the first run there."""
    known = dict.fromkeys(asked)
    groups: dict[Point, list[Run]] = {}
    for run in runs:
        point = snap(run.point, known)
        known.setdefault(point)
        groups.setdefault(point, []).append(run)
    return groups


def load_ledger(results: Path, outlook: Outlook | None = None) -> Ledger:
    """Read all run folders.

    Args:
        results: the results folder; it need not exist.
        outlook: what to ask about owners and submissions.
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
        status = run.status(outlook)
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


def intact(ledger: Ledger, prefix: str) -> Run:
    """Return the one run whose id starts so.

    Raises:
        InputError: no run, or several, start so.
        CorruptError: its folder is broken.
    """
    run_id = find_run(ledger, prefix)
    if run_id not in ledger.runs:
        raise CorruptError(ledger.broken[run_id])
    return ledger.runs[run_id]


def count_states(states: Iterable[State]) -> dict[State, int]:
    """Return how many there are of each state, in the order of the states."""
    counts = dict.fromkeys(State, 0)
    for state in states:
        counts[state] += 1
    return {state: count for state, count in counts.items() if count}


@dataclass(frozen=True)
class Selection:
    """Which runs a command is about; what is not given does not narrow it."""

    runs: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    states: tuple[State, ...] = ()

    def of(self, ledger: Ledger) -> list[Run]:
        """Return the runs that match.

        Raises:
            InputError: a run or family is not there.
        """
        ids = {find_run(ledger, prefix) for prefix in self.runs}
        strategies = {parse_strategy(name) for name in self.strategies}
        families = {run.family for run in ledger.runs.values()}
        for prefix in self.families:
            if not any(family.startswith(prefix) for family in families):
                raise unknown_name("family", prefix, families)
        return [
            run
            for run in ledger.runs.values()
            if (not ids or run.id in ids)
            and (not self.families or run.family.startswith(self.families))
            and (not strategies or run.spec.strategy.s in strategies)
            and (not self.models or model_name(run.spec.model) in self.models)
            and (not self.states or run.state in self.states)
        ]


# --- plans ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planned:
    """A wanted run with its id, its state and the reason for it."""

    id: str
    spec: RunSpec
    state: State
    reason: str = ""


@dataclass(frozen=True)
class Plan:
    """Wanted runs by what is done about them.

    Attributes:
        submit: never started.
        retry: interrupted; they go on from their checkpoints.
        keep: finished, running or queued.
        blocked: failed, cancelled or unknown: a person decides.
    """

    submit: tuple[Planned, ...] = ()
    retry: tuple[Planned, ...] = ()
    keep: tuple[Planned, ...] = ()
    blocked: tuple[Planned, ...] = ()

    @property
    def to_launch(self) -> tuple[Planned, ...]:
        """Runs for the next submission, interrupted ones first."""
        return self.retry + self.submit

    @property
    def wanted(self) -> tuple[Planned, ...]:
        """All runs."""
        return self.to_launch + self.keep + self.blocked

    @property
    def under_way(self) -> bool:
        """Whether there is a run to launch, or one that is to finish by itself."""
        return bool(self.to_launch) or not all(p.state.finished for p in self.keep)

    def limited(self, room: int) -> "Plan":
        """Return the plan with no more runs to launch than that."""
        retry = self.retry[:room]
        return replace(self, retry=retry, submit=self.submit[: room - len(retry)])


def make_plan(wanted: Iterable[RunSpec], ledger: Ledger, insist: Collection[str] = ()) -> Plan:
    """Sort wanted runs; a run that is asked for twice is planned once.

    Args:
        wanted: the runs.
        ledger: what is on disk.
        insist: ids of runs that a person has decided about: they are launched where they would be blocked.
    """
    groups: dict[str, list[Planned]] = {"submit": [], "retry": [], "keep": [], "blocked": []}
    seen = set()
    for spec in wanted:
        run_id = spec.run_id
        if run_id in seen:
            continue
        seen.add(run_id)
        status = ledger.state(run_id)
        group = _what_to_do(status.state)
        if group == "blocked" and run_id in insist:
            group = "retry"
        groups[group].append(Planned(run_id, spec, status.state, status.reason))
    return Plan(**{name: tuple(members) for name, members in groups.items()})


def _what_to_do(state: State) -> str:
    match state:
        case State.MISSING:
            return "submit"
        case State.INTERRUPTED:
            return "retry"
        case State.DONE | State.DIVERGED | State.RUNNING | State.QUEUED:
            return "keep"
        case State.FAILED | State.CANCELLED | State.UNKNOWN:
            return "blocked"
