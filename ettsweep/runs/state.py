"""The state of a run: derived from what its folder says, and from what is known beyond it, whenever it is asked for."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from ettsweep.files import Json
from ettsweep.processes import Life, Process
from ettsweep.runs.attempt import Attempt

MAX_LOST_ATTEMPTS = 6
"""Attempts in a row that may die without a word and without getting further; more is a failure, not bad luck."""


class State(StrEnum):
    """State of a run; never stored."""

    MISSING = "missing"
    QUEUED = "queued"
    HELD = "held"
    RUNNING = "running"
    DONE = "done"
    DIVERGED = "diverged"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    PRUNED = "pruned"
    UNKNOWN = "unknown"

    @property
    def finished(self) -> bool:
        """Whether the run has its result; diverged is one, the worst."""
        return self in (State.DONE, State.DIVERGED)

    @property
    def over(self) -> bool:
        """Whether nothing more happens to the run until a person asks for it."""
        return self.finished or self in (State.FAILED, State.CANCELLED, State.PRUNED)


@dataclass(frozen=True)
class Status:
    """State of a run, and what is known with it.

    Attributes:
        reason: why it is in this state, for people.
        progress: share of the steps done, 0 to 1; a finished run has none left, so 1 where it diverged too.
        where: node or host that trains it.
        job: the scheduler's id of the job that trains it, or will.
        left_s: seconds until it is finished, at the rate so far.
        slot_left_s: what it takes of its worker's seconds until then: a part where that trains others beside it.
        worker: the process that trains it; of runs that train together, the same.
        slot: that its worker has.
    """

    state: State
    reason: str = ""
    progress: float = 0.0
    where: str = ""
    job: str = ""
    left_s: float | None = None
    slot_left_s: float | None = None
    worker: Process | None = None
    slot: str = ""


# --- what is known beyond the folder --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Owner:
    """Whether the owner of an attempt lives.

    Attributes:
        life: of its process.
        where: node or host.
        reason: why it cannot be said.
    """

    life: Life
    where: str = ""
    reason: str = ""


class Liveness(Protocol):
    """What is known of runs beyond their folders: whether owners live, and which jobs list a run."""

    def owner(self, attempt: Attempt) -> Owner:
        """Say whether the owner of an attempt that has not ended lives."""

    def job_status(self, run_id: str) -> Status | None:
        """Return what a run that nobody trains may hope for, as the newest submission that lists it tells, if any does.

        Queued: a job will take it. Held: one would, and a person must let it. Unknown: that cannot be asked. Cancelled,
        failed, interrupted: the job ended.
        """
        return None


class LocalLiveness(Liveness):
    """The outlook without a look at submissions: processes of this machine."""

    def owner(self, attempt: Attempt) -> Owner:
        """Say whether the process that made the claim lives."""
        host = attempt.host()
        return Owner(attempt.liveness(), host, f"claimed on {host}, which cannot be asked from here")


# --- the state ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunFacts:
    """What the folder of a run without a result says.

    Attributes:
        attempted: whether there is an attempt; what follows is of the last one.
        failure: its failure.json.
        retried: whether `retry` forgave how it ended, or gave it up.
        progress: share of the steps done, 0 to 1.
        left_s, slot_left_s: as in a `Status`.
        cancelled: whether there is a cancel.json.
        job: the scheduler's id of the job that made the claim.
        pruned: what its prune.json says; None where there is none.
        worker, slot: that made the claim.
    """

    attempted: bool = False
    failure: Json | None = None
    retried: bool = False
    progress: float = 0.0
    left_s: float | None = None
    cancelled: bool = False
    job: str = ""
    pruned: str | None = None
    slot_left_s: float | None = None
    worker: Process | None = None
    slot: str = ""


@dataclass(frozen=True)
class LostAttempt:
    """An attempt that died without a word.

    Attributes:
        from_step: the step that it began after.
        requeued: whether the scheduler ended it, and started its job again.
    """

    from_step: int = 0
    requeued: bool = False


def unfinished_status(
    run_id: str,
    facts: RunFacts,
    owner: Callable[[], Owner],
    lost: Iterable[LostAttempt],
    prospect: Callable[[], Status | None],
) -> Status:
    """Derive the status of a run without a result; what takes a further look is asked for when it comes to it.

    `owner` is asked where nothing says that the last attempt ended; `lost`, the latest first, is looked at where
    nobody trains the run; `prospect` is asked last.
    """
    failure, progress = facts.failure, facts.progress
    if facts.attempted and not failure and not facts.retried:
        found = owner()
        if found.life == "alive":
            reason = "cancelling" if facts.cancelled else "" if facts.pruned is None else "pruning"
            seconds = facts.left_s, facts.slot_left_s
            return Status(State.RUNNING, reason, progress, found.where, facts.job, *seconds, facts.worker, facts.slot)
        if found.life == "unknown":
            return Status(State.UNKNOWN, found.reason, progress, found.where, facts.job)
    if facts.cancelled:
        return Status(State.CANCELLED, "", progress)
    if facts.pruned is not None:
        return Status(State.PRUNED, facts.pruned, progress)
    if failure and failure.get("kind") == "error" and not facts.retried:
        return Status(State.FAILED, str(failure.get("reason", "")), progress)
    if count := lost_in_a_row(lost):
        return Status(State.FAILED, f"{count} attempts died without a word; see `ettsweep logs {run_id}`", progress)
    return _hoping(facts, prospect() or Status(State.INTERRUPTED))


def _hoping(facts: RunFacts, prospect: Status) -> Status:
    """Return the status of a run that nobody trains, and that nothing keeps from being trained."""
    state, reason = prospect.state, prospect.reason
    if state in (State.QUEUED, State.HELD):
        reason = "; ".join(filter(None, ["to be resumed" if facts.attempted else "", reason]))
    elif state in (State.INTERRUPTED, State.FAILED) and not facts.attempted:
        state = State.MISSING
    elif state is State.INTERRUPTED:
        told = str((facts.failure or {}).get("reason", ""))
        reason = reason or told or "its worker died"
    return replace(prospect, state=state, reason=reason, progress=facts.progress)


def lost_in_a_row(lost: Iterable[LostAttempt]) -> int:
    """Return how many attempts were lost at one point, but for those that were requeued; 0 below the limit."""
    count, from_step = 0, None
    for attempt in lost:
        if from_step not in (None, attempt.from_step):
            break
        from_step = attempt.from_step
        count += not attempt.requeued
    return count if count >= MAX_LOST_ATTEMPTS else 0
