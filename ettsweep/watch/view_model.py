"""The view model: all that the screen shows of a results folder at one instant."""

from collections.abc import Mapping
from dataclasses import dataclass

from ettsweep.launch.progress import SweepStatus
from ettsweep.report.verdict_view import VerdictView
from ettsweep.runs.index import Run
from ettsweep.runs.state import State
from ettsweep.study.study import Study
from ettsweep.study.sweep_store import SweepStore
from ettsweep.watch.events import Event
from ettsweep.watch.lattice_cells import LatticeCells


@dataclass(frozen=True)
class FamilyView:
    """A family of a sweep.

    Attributes:
        states: Number of runs in each state; requested runs without a folder are missing.
        lattice: The lattice as it is now.
        verdict: The last verdict; None before the family is judged.
        stale: Whether runs have finished since that verdict.
    """

    study: Study
    title: str
    states: Mapping[State, int]
    lattice: LatticeCells
    verdict: VerdictView | None = None
    stale: bool = True

    @property
    def key(self) -> str:
        return "/".join(self.study.key)

    @property
    def runs(self) -> int:
        """Number of existing and requested runs."""
        return sum(self.states.values())

    @property
    def finished(self) -> int:
        """Number of finished runs."""
        return sum(number for state, number in self.states.items() if state.finished)


@dataclass(frozen=True)
class RunView:
    """An unfinished run.

    Attributes:
        sweep: Names of the sweeps that the run belongs to.
        loss: Loss of the last step.
        steps_per_s: Training speed.
        attempt: Number of its last attempt; 0 before the first.
    """

    run: Run
    sweep: str
    loss: float | None = None
    steps_per_s: float | None = None
    attempt: int = 0

    @property
    def step(self) -> str:
        """Number of trained steps, of all of them; empty if unknown."""
        return self.run.base.info.progress_text(self.run.status.progress)


@dataclass(frozen=True)
class ViewModel:
    """Families, runs, events and problems of a results folder.

    Attributes:
        runs: Unfinished runs: first those in training, then those that need a decision, then those that wait.
        events: The last events, the oldest first.
        problems: Run folders and sweeps that cannot be read.
        sweep_store: All sweeps of the folder.
    """

    sweep_status: SweepStatus
    families: tuple[FamilyView, ...]
    runs: tuple[RunView, ...]
    events: tuple[Event, ...]
    problems: tuple[str, ...]
    sweep_store: SweepStore

    @property
    def ended(self) -> bool:
        """`True` if no run trains or waits any more."""
        return self.sweep_status.run_count > 0 and self.sweep_status.is_over
