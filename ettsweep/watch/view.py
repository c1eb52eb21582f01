"""The state of a results folder at one instant: the watcher makes it, the application shows it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ettsweep.launch.progress import SweepStatus
from ettsweep.report.verdict_view import VerdictView
from ettsweep.runs.index import Run
from ettsweep.runs.point import Point
from ettsweep.runs.state import State, Status, foremost
from ettsweep.study.study import Study

CANDIDATE, NEIGHBOUR, UNMARKED = "[]", "()", "  "
"""Brackets around a cell of the lattice."""


@dataclass(frozen=True)
class Cell:
    """A point of a lattice.

    Attributes:
        i, j: steps from the centre along the first and the second axis; 0 along a fixed one, or without a second.
        states: of its existing and requested runs; a neighbour that nobody has requested has none.
        score: mean over seeds; None without a score, and if a run diverged.
        mark: `CANDIDATE`, `NEIGHBOUR` or `UNMARKED`.
    """

    i: int
    j: int
    point: Point
    states: tuple[State, ...]
    score: float | None
    mark: str = UNMARKED

    @property
    def state(self) -> State:
        """The most urgent state of its runs."""
        return foremost(self.states) if self.states else State.MISSING


@dataclass(frozen=True)
class FamilyView:
    """A family of a sweep: its present lattice, and its last verdict.

    Attributes:
        run_states: state of each of its runs.
        verdict: None before the family is judged.
        marks: of the candidate and its neighbours.
        judged: the outcomes behind the verdict.
    """

    study: Study
    title: str
    run_states: Mapping[str, State] = field(default_factory=dict)
    cells: tuple[Cell, ...] = ()
    verdict: VerdictView | None = None
    marks: Mapping[Point, str] = field(default_factory=dict)
    judged: Mapping[str, State] | None = None

    @cached_property
    def outcomes(self) -> dict[str, State]:
        """States of the runs with an outcome: a verdict ignores all others."""
        return {run_id: state for run_id, state in self.run_states.items() if not state.pending}

    @cached_property
    def is_stale(self) -> bool:
        """Whether a run has ended since the verdict, or the verdict is missing."""
        return self.judged != self.outcomes

    @property
    def counts(self) -> Counter[State]:
        """Number of runs in each state."""
        return Counter(state for cell in self.cells for state in cell.states)


@dataclass(frozen=True)
class RunView:
    """An unfinished run, with the names of its sweeps and strategy; loss and speed of a run in training."""

    run: Run = field(compare=False)  # a new object after each poll
    status: Status
    sweep: str
    strategy: str
    loss: float | None = None
    steps_per_s: float | None = None


@dataclass(frozen=True)
class Event:
    """An event of a run or of the verdict on a family.

    Attributes:
        at: time of day.
        kind: such as "failed".
        subject: the run, or the title of the family.
        text: details.
    """

    at: str
    kind: str
    subject: str
    text: str


@dataclass(frozen=True)
class View:
    """Families, runs, events and problems of a results folder.

    Attributes:
        status: None during the first read of the folder, which only has `progress`.
        progress: of the first read.
        families: by sweep and family.
        runs: unfinished runs by id: first those in training, then those that need a decision, then waiting ones.
        events: the last events, the oldest first.
        problems: run folders and sweeps that cannot be read.
    """

    status: SweepStatus | None = None
    progress: str = "reading ..."
    families: Mapping[str, FamilyView] = field(default_factory=dict)
    runs: Mapping[str, RunView] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    problems: tuple[str, ...] = ()


def run_title(run: Run, strategy: str) -> str:
    """Return short id, strategy, point and seed of a run."""
    return " ".join(filter(None, [run.id[:8], strategy, f"{run.point} seed {run.seed}"]))
