"""What strategies and sweeps have cost: runs, device hours, and the share of these that other sweeps use too."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ettsweep.launch.cost import asking
from ettsweep.report.families import StrategyComparison
from ettsweep.runs.state import State
from ettsweep.study.run_index import Run, cost_s
from ettsweep.study.sweep_store import Searches


@dataclass(frozen=True)
class SweepCost:
    """What some runs have cost.

    Attributes:
        what: whose they are.
        runs: finished ones.
        device_s, reused_s: device seconds of all, and of those that several sweeps ask for.
    """

    what: str
    runs: int
    diverged: int
    pruned: int
    device_s: float
    reused_s: float

    @property
    def hours(self) -> float:
        """Device hours."""
        return self.device_s / 3600

    @property
    def reused(self) -> float:
        """The share of the device time that other sweeps use too."""
        return self.reused_s / self.device_s if self.device_s else 0.0


def cost_of(what: str, runs: Iterable[Run], searches: Searches) -> SweepCost:
    """Add up runs, each once."""
    unique_runs = list({run.id: run for run in runs}.values())
    states = [run.state for run in unique_runs]
    shared = [run for run in unique_runs if asking(run, searches) > 1]
    return SweepCost(
        what,
        sum(state.finished for state in states),
        states.count(State.DIVERGED),
        states.count(State.PRUNED),
        sum(map(cost_s, unique_runs)),
        sum(map(cost_s, shared)),
    )


def costs(comparisons: Sequence[StrategyComparison], runs: Sequence[Run], searches: Searches) -> list[SweepCost]:
    """Return what each strategy of each comparison has cost, then runs of no sweep, and all of it.

    What has cost nothing is left out.
    """
    several = len(comparisons) > 1
    rows = [
        cost_of(f"{comparison.title}: {f.verdict.strategy}" if several else f.verdict.strategy, f.runs, searches)
        for comparison in comparisons
        for f in comparison.families
    ]
    sweep_run_ids = {run.id for comparison in comparisons for family in comparison.families for run in family.runs}
    rows.append(cost_of("in no sweep", [run for run in runs if run.id not in sweep_run_ids], searches))
    rows = [row for row in rows if row.runs or row.pruned or row.device_s]
    return [*rows, cost_of("all", runs, searches)] if len(rows) > 1 else rows
