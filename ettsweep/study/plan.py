"""Plan: which requested runs to submit, retry, keep, or leave to a person."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ettsweep.runs.index import RunIndex
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State, Status


@dataclass(frozen=True)
class PlannedRun:
    """A requested run with its id and its status."""

    id: str
    spec: RunSpec
    status: Status

    @property
    def state(self) -> State:
        return self.status.state

    @property
    def reason(self) -> str:
        """Why it is in this state."""
        return self.status.reason


@dataclass(frozen=True)
class Plan:
    """Requested runs by action.

    Attributes:
        submit: never started.
        retry: interrupted; resumed from their checkpoints.
        keep: finished, running or queued: nothing to do.
        blocked: failed, cancelled, held or unknown: a person decides.
        run_index: the index from which the plan was made.
    """

    submit: tuple[PlannedRun, ...] = ()
    retry: tuple[PlannedRun, ...] = ()
    keep: tuple[PlannedRun, ...] = ()
    blocked: tuple[PlannedRun, ...] = ()
    run_index: RunIndex = field(default=RunIndex({}, {}), compare=False, repr=False)

    @property
    def to_launch(self) -> tuple[PlannedRun, ...]:
        """Runs of the next submission, those to resume first."""
        return self.retry + self.submit  # runs with a checkpoint finish soonest

    @property
    def all_runs(self) -> tuple[PlannedRun, ...]:
        """All requested runs."""
        return self.to_launch + self.keep + self.blocked

    @property
    def is_unfinished(self) -> bool:
        """`True` if a run will be launched, or is running or queued."""
        return bool(self.to_launch) or not all(p.state.finished for p in self.keep)


ACTION_BY_STATE = {
    State.MISSING: "submit",
    State.INTERRUPTED: "retry",
    **dict.fromkeys((State.DONE, State.DIVERGED, State.RUNNING, State.QUEUED), "keep"),
    # An unknown owner may be alive: launching the run would train it twice.
    **dict.fromkeys((State.FAILED, State.CANCELLED, State.HELD, State.UNKNOWN), "blocked"),
}
"""Field of `Plan` for each state."""


def make_plan(requested: Iterable[RunSpec], run_index: RunIndex, force_ids: Collection[str] = ()) -> Plan:
    """Decide an action for each requested run by its state; change nothing.

    Args:
        requested: specs of the runs; duplicates are planned once.
        run_index: all runs on disk.
        force_ids: ids of runs to launch even if they would be blocked.
    """
    plan: dict[str, list[PlannedRun]] = {action: [] for action in ACTION_BY_STATE.values()}
    specs: dict[str, RunSpec] = {}
    for spec in requested:
        specs.setdefault(spec.run_id, spec)
    for run_id, spec in specs.items():
        status = run_index.status_of(run_id)
        action = ACTION_BY_STATE[status.state]
        if action == "blocked" and run_id in force_ids:
            action = "retry"
        plan[action].append(PlannedRun(run_id, spec, status))
    return Plan(**{action: tuple(members) for action, members in plan.items()}, run_index=run_index)
