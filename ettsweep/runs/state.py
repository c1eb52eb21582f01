"""The state of a run, never stored: derived from its folder, its owner's liveness and the scheduler's jobs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from ettsweep.files import Json
from ettsweep.processes import Life, Process
from ettsweep.runs.attempt import Attempt, AttemptProgress

MAX_LOST_ATTEMPTS = 6
"""Lost or terminated attempts in a row from the same step after which a run counts as failed."""


class State(StrEnum):
    """State of a run; never stored. States that need a person come first, finished ones last."""

    FAILED = "failed"
    CANCELLED = "cancelled"
    HELD = "held"
    UNKNOWN = "unknown"
    RUNNING = "running"
    QUEUED = "queued"
    INTERRUPTED = "interrupted"
    MISSING = "missing"
    DIVERGED = "diverged"
    DONE = "done"

    @property
    def finished(self) -> bool:
        """`True` if the run has a result; a diverged run has one, the worst."""
        return self in (State.DONE, State.DIVERGED)

    @property
    def over(self) -> bool:
        """`True` if only a person can continue the run."""
        return self.finished or self in (State.FAILED, State.CANCELLED)

    @property
    def stuck(self) -> bool:
        """`True` if a person must decide about the run."""
        return self in (State.FAILED, State.CANCELLED, State.HELD, State.UNKNOWN)

    @property
    def pending(self) -> bool:
        """`True` if the run will finish by itself."""
        return self in (State.RUNNING, State.QUEUED, State.INTERRUPTED, State.MISSING)


class StopReason(StrEnum):
    """Why a run stops before its last step."""

    TERMINATED = "terminated"
    OUT_OF_TIME = "out of time or preempted"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"


def foremost(states: Iterable[State]) -> State:
    """Return the state of several: the first of them in the order of `State`."""
    return min(states, key=ORDER.__getitem__)


ORDER = {state: number for number, state in enumerate(State)}


@dataclass(frozen=True)
class Status:
    """State of a run, with the reason for it and its progress.

    Attributes:
        reason: why it is in this state, for people.
        progress: fraction of the steps done, 0 to 1; 1 for all finished runs, diverged ones too.
        host: node or host that trains it.
        job: the scheduler's id of its job.
        remaining_s: seconds until it is finished, at the rate so far.
        remaining_slot_s: the run's share of its worker's time until then; less than `remaining_s` if runs share it.
        worker: the process that trains it.
        slot: name of the worker's slot.
        attempt: number of its latest attempt; 0 if there was none.
        is_unanswered: whether the state is unknown because the scheduler does not answer now.
        is_stopped: whether it does not start since others of its submission failed the same way.
    """

    state: State
    reason: str = ""
    progress: float = 0.0
    host: str = ""
    job: str = ""
    remaining_s: float | None = None
    remaining_slot_s: float | None = None
    worker: Process | None = None
    slot: str = ""
    attempt: int = field(default=0, compare=False)
    is_unanswered: bool = False
    is_stopped: bool = False


# --- liveness ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Owner:
    """Liveness of an attempt's owner.

    Attributes:
        life: of its process: `alive`, `dead` or `unknown`.
        host: node or host.
        reason: why it is unknown.
        is_unanswered: whether it is unknown because the scheduler does not answer now.
    """

    life: Life
    host: str = ""
    reason: str = ""
    is_unanswered: bool = False


class Liveness(Protocol):
    """Looks up facts outside run folders: live owners, and jobs that will train a run."""

    def owner(self, attempt: Attempt) -> Owner:
        """Return the liveness of the owner of an attempt that has not recorded an end."""

    def job_status(self, run_id: str) -> Status | None:
        """Return the status of a run that does not train, by its submissions; None without one.

        Queued: a job will train it. Held: a job will, once a person releases it. Unknown: the scheduler does not
        answer. Cancelled, failed, interrupted: the job ended.
        """
        return None


class LocalLiveness(Liveness):
    """Liveness of processes on this machine, without jobs."""

    def owner(self, attempt: Attempt) -> Owner:
        """Return whether the process that made the claim is alive."""
        return Owner(attempt.liveness(), attempt.host(), unseen_reason(attempt.owner()))


def unseen_reason(owner: Process | None) -> str:
    """Return why an owner's process cannot be seen from here."""
    if owner is None:
        return "its claim cannot be seen from here yet"
    if owner.has_name_of_this_host:
        return f"claimed on {owner.host}: before its last boot, in a container, or on another machine of that name"
    return f"claimed on {owner.host}, which cannot be reached from here"


# --- state ------------------------------------------------------------------------------------------------------------


def finished_status(result: Json) -> Status:
    """Return the status of a run with a result."""
    step = result.get("diverged_step")
    return Status(State(result["status"]), f"at step {step}" if step is not None else "", 1.0)


def unfinished_status(run_id: str, attempts: Sequence[Attempt], cancel_path: Path, liveness: Liveness) -> Status:
    """Derive the status of an unfinished run, with expensive lookups only if they matter.

    Args:
        run_id: of the run.
        attempts: all of them, the latest first.
        cancel_path: of its cancel.json, which need not exist.
        liveness: looks up the latest owner if it recorded no end, and the run's job last: it may query the scheduler.
    """
    # The order matters: a training run is running, even if cancelled; a person's request comes before failures, and
    # failures before the scheduler's answer, which may still list the run.
    latest = attempts[0] if attempts else None
    failure = latest.failure() if latest else None
    is_cancelled = cancel_path.exists()  # read after the end, which a cancelled attempt records
    is_retried = latest is not None and latest.is_retried()
    pace = latest.estimate_progress() if latest else AttemptProgress(0.0)
    if latest and not failure and not is_retried:
        holder, job = Owner("dead") if latest.is_given_up() else liveness.owner(latest), latest.job_id()
        if holder.life == "alive":
            reason, slot = "cancelling" if is_cancelled else "", str(latest.claim().get("slot") or "")
            return Status(State.RUNNING, reason, pace.progress, holder.host, job, *pace[1:], latest.owner(), slot)
        if holder.life == "unknown":
            status = Status(State.UNKNOWN, holder.reason, pace.progress, holder.host, job)
            return replace(status, is_unanswered=holder.is_unanswered)
    if is_cancelled:
        return Status(State.CANCELLED, "", pace.progress)
    if failure and failure.get("kind") == "error" and not is_retried:
        return Status(State.FAILED, str(failure.get("reason", "")), pace.progress)
    if count := count_lost(attempts):
        how = f"got no further: {failure.get('reason')}" if failure else "died without an error"
        return Status(State.FAILED, f"{count} attempts {how}; see `ettsweep logs {run_id}`", pace.progress)
    waiting = _waiting_status(liveness.job_status(run_id) or Status(State.INTERRUPTED), failure, bool(latest))
    return replace(waiting, progress=pace.progress)


def _waiting_status(job: Status, failure: Json | None, has_attempt: bool) -> Status:
    """Return the status of a run that may train but does not, given the status of its job."""
    state, reason = job.state, job.reason
    if state in (State.QUEUED, State.HELD):
        reason = "; ".join(filter(None, ["to resume" if has_attempt else "", reason]))
    elif state in (State.INTERRUPTED, State.FAILED) and not has_attempt:
        state = State.MISSING
    elif state is State.INTERRUPTED:
        recorded = str((failure or {}).get("reason", ""))
        reason = reason or recorded or "its worker died"  # the scheduler knows best why it ended a job
    return replace(job, state=state, reason=reason)


def count_lost(attempts: Sequence[Attempt]) -> int:
    """Return how many of the latest attempts started from the same step, and were lost or terminated.

    0 below `MAX_LOST_ATTEMPTS`, and if the latest saved a checkpoint: then the run makes progress. Requeued attempts
    do not count: the scheduler ended them.
    """
    if not attempts or attempts[0].has_checkpoint():
        return 0
    count, from_step = 0, attempts[0].resumed_from()[1]
    for attempt in attempts:
        failure = attempt.failure()
        # A run that signals itself looks like one that others stop.
        is_lost = not failure or failure.get("kind") == "lost" or failure.get("reason") == StopReason.TERMINATED
        # If an earlier attempt started from another step, the run made progress in between.
        if not is_lost or attempt.is_retried() or attempt.resumed_from()[1] != from_step:
            break
        count += not attempt.was_requeued()
    return count if count >= MAX_LOST_ATTEMPTS else 0
