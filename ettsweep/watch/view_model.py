"""What there is to see of a results folder at one instant."""

from collections.abc import Mapping
from dataclasses import dataclass

from ettsweep.launch.progress import SweepStatus
from ettsweep.runs.state import State
from ettsweep.study.run_index import Run
from ettsweep.study.study import Study
from ettsweep.study.sweep_store import SweepStore
from ettsweep.study.verdict import Verdict
from ettsweep.watch.events import Event
from ettsweep.watch.lattice_cells import LatticeCells


@dataclass(frozen=True)
class FamilyView:
    """A family of a sweep.

    Attributes:
        states: how many of its runs are in each state, those too that nobody has made yet.
        lattice: as it is now.
        verdict: as it was judged last; None before that.
        stale: whether runs have finished since.
    """

    study: Study
    title: str
    states: Mapping[State, int]
    lattice: LatticeCells
    verdict: Verdict | None = None
    stale: bool = True

    @property
    def key(self) -> tuple[str, str]:
        return self.study.key

    @property
    def runs(self) -> int:
        """How many runs it has or is to have."""
        return sum(self.states.values())

    @property
    def finished(self) -> int:
        """How many of them are finished."""
        return sum(number for state, number in self.states.items() if state.finished)


@dataclass(frozen=True)
class RunView:
    """A run that is not finished.

    Attributes:
        sweep: the names of the sweeps that it belongs to.
        loss: that of its last step.
        steps_per_s: at which it trains.
        pack: which runs it trains with.
        attempt: the number of its last one; 0 before the first.
    """

    run: Run
    sweep: str
    loss: float | None = None
    steps_per_s: float | None = None
    pack: str = ""
    attempt: int = 0

    @property
    def step(self) -> int:
        """How many steps it has trained."""
        return round(self.run.status.progress * self.run.spec.schedule.last_step)


@dataclass(frozen=True)
class ViewModel:
    """All of it.

    Attributes:
        runs: those that are not finished, in training first, then those that need a person, then those that wait.
        events: the last ones, the oldest first.
        problems: what cannot be read, and what idles.
        sweeps: of the results folder.
    """

    sweep_status: SweepStatus
    families: tuple[FamilyView, ...]
    runs: tuple[RunView, ...]
    events: tuple[Event, ...]
    problems: tuple[str, ...]
    sweep_store: SweepStore

    @property
    def ended(self) -> bool:
        """Whether nothing runs or waits any more."""
        return bool(self.sweep_status.statuses) and self.sweep_status.settled
