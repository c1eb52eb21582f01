"""The canary: of code that has finished no run yet, one run goes ahead; where the first runs fail alike, no more begin.

A submission lists the runs that a canary goes ahead of, a group for each family. What its workers may do follows from
what its attempts at these runs have left in their folders. So nothing is left to be undone after a kill at any instant,
workers of all machines come to the same answer, and so does whoever only looks, whether a command follows or not. It
stays so for a submission until one of its runs has finished: `retry` makes another one, and jobs of the old one that
start later leave its runs to that.
A run that is never heard of again, since its node is gone, keeps others waiting for `PATIENCE_S` at most.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ettsweep.files import last_json_line
from ettsweep.launch.submissions import Submission
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.failures import FAILURES, Failure, held_back_text, most_alike
from ettsweep.runs.folder import RunDir
from ettsweep.runs.state import Liveness, LocalLiveness, Owner, State

PATIENCE_S = 60.0
"""Seconds that a worker waits for news of a run that is ahead: wrong paths, options and modules end it sooner."""


@dataclass(frozen=True)
class Outlook:
    """What the runs that a submission has begun tell of the others of their group.

    Attributes:
        is_proven: one has finished.
        is_clear: one has finished, or has got further than all that failed.
        failed: the most of those that failed alike, in order.
        in_training: those in training, or that may be, with the numbers of their attempts.
        next: the first that waits for a worker; None if none does.
    """

    is_proven: bool = False
    is_clear: bool = False
    failed: Sequence[Failure] = ()
    in_training: Sequence[tuple[str, int]] = ()
    next: str | None = None

    @property
    def is_hopeless(self) -> bool:
        """`True` if enough runs failed alike, and none is left that could prove the opposite, or twice as many did."""
        return self.has_failed and (not self.in_training or len(self.failed) >= 2 * FAILURES)

    @property
    def has_failed(self) -> bool:
        """`True` if enough runs failed alike."""
        return len(self.failed) >= FAILURES and not self.is_clear

    @property
    def wait_reason(self) -> str:
        """Which run the others wait for, for people; empty if they do not."""
        if self.is_clear or len(self.in_training) != 1:
            return ""
        return f"waits for news of run {self.in_training[0][0]}, which goes ahead"

    @property
    def held_back(self) -> str:
        """Why no more runs begin, for people; empty if they do."""
        return held_back_text(self.failed) if self.is_hopeless else ""


def read_outlook(submission: Submission, group: Iterable[str], liveness: Liveness) -> Outlook:
    """Read the outlook of runs that share a canary; `liveness` tells who of their owners is alive."""
    failed: list[Failure] = []
    in_training: list[tuple[str, int]] = []
    furthest = last_failed = 0
    waiting: str | None = None
    owners = _Owners(liveness)
    for run in submission.run_dirs(group):
        if not (numbers := run.attempt_numbers()) and waiting is not None:
            continue  # it tells nothing; spares a look at all files that it has not
        attempt = _own_attempt(run, numbers, submission.path.name)
        status = run.status(owners)
        if status.state in (State.MISSING, State.INTERRUPTED):
            waiting = waiting or run.id
        if numbers and status.state.finished:  # also where another submission has trained it, such as that of a retry
            return Outlook(is_proven=True, is_clear=True)
        if attempt is None:
            continue
        is_latest, failure = attempt.number == numbers[-1], attempt.failure()
        is_error = failure is not None and failure.get("kind") == "error"
        if is_error or (is_latest and status.state is State.FAILED):
            failed.append(Failure.of(run.id, failure if is_error else None, status.reason))  # or it died too often
            last_failed = max(last_failed, _step(attempt))
            continue
        furthest = max(furthest, _step(attempt))
        if is_latest and status.state in (State.RUNNING, State.UNKNOWN):
            in_training.append((run.id, attempt.number))
    return Outlook(is_clear=furthest > last_failed, failed=most_alike(failed), in_training=in_training, next=waiting)


def _own_attempt(run: RunDir, numbers: Sequence[int], submission: str) -> Attempt | None:
    """Return the latest attempt at a run that a worker of a submission has made; None if there is none."""
    attempts = (run.attempt(number) for number in reversed(numbers))
    return next((attempt for attempt in attempts if attempt.claim().get("submission") == submission), None)


def _step(attempt: Attempt) -> int:
    """Return the last step of which an attempt has recorded metrics, or which it went on from."""
    step = (last_json_line(attempt.metrics_path) or {}).get("step")
    return step if isinstance(step, int) else attempt.resumed_from()[1]


@dataclass(frozen=True)
class _Owners(Liveness):
    """Liveness of owners alone, whatever jobs list their runs."""

    liveness: Liveness

    def owner(self, attempt: Attempt) -> Owner:
        return self.liveness.owner(attempt)


class _Group:
    """A group as one worker sees it, who waits for it by its own clock: those of other machines differ."""

    def __init__(self, submission: Submission, group: Sequence[str], clock: Callable[[], float]) -> None:
        self._submission, self._group, self._clock = submission, group, clock
        self._seen_s: dict[object, float] = {}
        self.outlook = Outlook()
        self.may_all_begin = self.may_next_begin = False

    def look(self) -> None:
        if self.outlook.is_proven:
            return
        self.outlook = outlook = read_outlook(self._submission, self._group, LocalLiveness())
        now_s = self._clock()
        ahead: Sequence[object] = outlook.in_training or [outlook.next]
        # Of each by itself: those that have begun since do not make the others wait for longer.
        self._seen_s = {each: self._seen_s.get(each, now_s) for each in ahead}
        is_new = [now_s - seen_s < PATIENCE_S for seen_s in self._seen_s.values()]
        self.may_all_begin = outlook.is_clear or not (outlook.has_failed or all(is_new))
        # Where some failed alike while others train on without a word, one at a time finds out.
        self.may_next_begin = not outlook.is_hopeless and not (outlook.in_training and any(is_new))

    def may_begin(self, run: RunDir) -> bool:
        """`True` if a run may begin now."""
        # In order, so that of all workers one gets it: whoever claims it first.
        return self.may_all_begin or (self.may_next_begin and self.outlook.next == run.id)


class Canaries:
    """The runs of a submission that wait for a canary, as one of its workers sees them.

    Args:
        submission: has the groups.
        clock: monotonic seconds.
    """

    def __init__(self, submission: Submission, clock: Callable[[], float] = time.monotonic) -> None:
        self._groups = [_Group(submission, group, clock) for group in submission.canaries]
        self._by_run = {
            run: group for group, runs in zip(self._groups, submission.canaries, strict=True) for run in runs
        }

    def look(self) -> None:
        """Look what has become of the runs."""
        for group in self._groups:
            group.look()

    @property
    def is_waiting(self) -> bool:
        """`True` if some runs wait for others that are ahead."""
        return not all(group.may_all_begin or group.outlook.is_hopeless for group in self._groups)

    def may_begin(self, run: RunDir) -> bool:
        """`True` if a run may begin now."""
        return run.id not in self._by_run or self._by_run[run.id].may_begin(run)

    def is_held_back(self, run: RunDir) -> bool:
        """`True` if a run is not to begin, since others have failed alike."""
        return run.id in self._by_run and self._by_run[run.id].outlook.is_hopeless
