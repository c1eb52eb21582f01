"""The cost of strategies and sweeps: runs, device hours, and the share of these that several sweeps use."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ettsweep.launch.cost import count_sweeps
from ettsweep.report.families import StrategyComparison
from ettsweep.runs.index import Run
from ettsweep.runs.state import State
from ettsweep.study.sweep_store import StudiesByFamily


@dataclass(frozen=True)
class SweepCost:
    """The cost of some runs.

    Attributes:
        label: the strategy, "in no sweep" or "all".
        runs: the number of finished runs, diverged ones included.
        device_s: device seconds of all runs, unfinished ones too.
        reused_s: of these, device seconds of runs that several sweeps request.
    """

    label: str
    runs: int
    diverged: int
    device_s: float
    reused_s: float

    @property
    def hours(self) -> float:
        """Device hours."""
        return self.device_s / 3600

    @property
    def reused(self) -> float:
        """The share of the device time that several sweeps use."""
        return self.reused_s / self.device_s if self.device_s else 0.0


def cost_of(label: str, runs: Iterable[Run], studies_by_family: StudiesByFamily) -> SweepCost:
    """Add up the cost of runs; a run listed twice counts once."""
    unique_runs = list({run.id: run for run in runs}.values())
    states = [run.state for run in unique_runs]
    shared = [run for run in unique_runs if count_sweeps(run, studies_by_family) > 1]
    return SweepCost(
        label,
        sum(state.finished for state in states),
        states.count(State.DIVERGED),
        sum(run.device_s for run in unique_runs),
        sum(run.device_s for run in shared),
    )


def costs(
    comparisons: Sequence[StrategyComparison], runs: Sequence[Run], studies_by_family: StudiesByFamily
) -> list[SweepCost]:
    """Return the cost of each strategy of each comparison, of runs in no sweep, and of all runs together.

    Rows without any cost are left out, and so is the total of a single row.
    """
    several = len(comparisons) > 1
    rows = [
        cost_of(
            f"{comparison.title}: {f.verdict.label}" if several and f.verdict.study.has_strategies else f.verdict.label,
            f.runs,
            studies_by_family,
        )
        for comparison in comparisons
        for f in comparison.families
    ]
    sweep_run_ids = {run.id for comparison in comparisons for family in comparison.families for run in family.runs}
    rows.append(cost_of("in no sweep", [run for run in runs if run.id not in sweep_run_ids], studies_by_family))
    rows = [row for row in rows if row.runs or row.device_s]
    return [*rows, cost_of("all", runs, studies_by_family)] if len(rows) > 1 else rows
