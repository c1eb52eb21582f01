"""What to do about the runs that are wanted: submit, retry, keep, or leave to a person."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State
from ettsweep.study.run_index import RunIndex


@dataclass(frozen=True)
class PlannedRun:
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
        retry: interrupted or pruned; they go on from their checkpoints.
        keep: finished, running or queued.
        blocked: failed, cancelled, held or unknown: a person decides.
        ledger: what it was made from.
    """

    submit: tuple[PlannedRun, ...] = ()
    retry: tuple[PlannedRun, ...] = ()
    keep: tuple[PlannedRun, ...] = ()
    blocked: tuple[PlannedRun, ...] = ()
    run_index: RunIndex = field(default=RunIndex({}, {}), compare=False, repr=False)

    @property
    def to_launch(self) -> tuple[PlannedRun, ...]:
        """Runs for the next submission, interrupted ones first."""
        return self.retry + self.submit

    @property
    def wanted(self) -> tuple[PlannedRun, ...]:
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


ACTIONS = {
    State.MISSING: "submit",
    **dict.fromkeys((State.INTERRUPTED, State.PRUNED), "retry"),
    **dict.fromkeys((State.DONE, State.DIVERGED, State.RUNNING, State.QUEUED), "keep"),
    **dict.fromkeys((State.FAILED, State.CANCELLED, State.HELD, State.UNKNOWN), "blocked"),
}


def make_plan(wanted: Iterable[RunSpec], run_index: RunIndex, insist: Collection[str] = ()) -> Plan:
    """Sort wanted runs; a run that is asked for twice is planned once.

    Those that a person insists on, by id, are launched where they would be blocked.
    """
    plan: dict[str, list[PlannedRun]] = {action: [] for action in ACTIONS.values()}
    specs: dict[str, RunSpec] = {}
    for spec in wanted:
        specs.setdefault(spec.run_id, spec)
    for run_id, spec in specs.items():
        status = run_index.state(run_id)
        action = ACTIONS[status.state]
        if action == "blocked" and run_id in insist:
            action = "retry"
        plan[action].append(PlannedRun(run_id, spec, status.state, status.reason))
    return Plan(**{action: tuple(members) for action, members in plan.items()}, run_index=run_index)
