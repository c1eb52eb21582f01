"""What to do about the runs that are wanted: a pure function of them and the ledger."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from ettsweep.runs.state import State
from ettsweep.spec import RunSpec
from ettsweep.sweep.ledger import Ledger


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
