"""One run of a submission starts first, and after three failures with the same error no more start.

The answer follows from run folders alone. So a kill leaves nothing to undo, and workers on all machines agree with
commands that only look.
"""

import contextlib
import re
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ettsweep.errors import CorruptError
from ettsweep.launch.submissions import Submission
from ettsweep.project_code import NO_CODE
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir

MAX_ALIKE = 3
"""Failures with the same error, before any run has finished, after which no more start: one may be due to its lr."""

PATIENCE_S = 60.0
"""Seconds that a worker waits for another run's first metric: wrong paths, options and modules fail sooner."""

NUMBERS = re.compile(r"[-+]?(?<![^\W\d])[^\W\d]*\d(?:[\w.]|(?<=[eE])[-+])*")
"""Numbers and words with digits: a program's last line may have its seed, its lr, a time, an address or a run id."""


@dataclass(frozen=True)
class FirstRuns:
    """The state of the first runs of a submission.

    Attributes:
        stop_reason: why no more runs start, and the command that starts them; empty if they do.
        ahead: the run that starts first, until it records a metric; None if no run waits.
        started: how many runs have started and have not failed.
    """

    stop_reason: str = ""
    ahead: str | None = None
    started: int = 0

    @property
    def wait_reason(self) -> str:
        """Text on the run that the others wait for; empty if they do not."""
        return f"waits for the first metric of run {self.ahead}" if self.ahead and self.started == 1 else ""


def read_first_runs(*submissions: Submission, until_stop: bool = False) -> FirstRuns:
    """Read the state of the first runs of some submissions, as if these were one.

    Args:
        submissions: the submissions.
        until_stop: leave out runs that have got further: jobs that left before do not return.
    """
    alike: dict[tuple[object, str], list[tuple[str, str]]] = {}
    furthest = furthest_failed = -1
    ahead, started, failed = None, 0, 0
    for submission in submissions:
        for run in submission.run_dirs(submission.unproven):
            if run.result_path.exists():
                if until_stop:
                    continue
                return FirstRuns()
            attempt = _own_attempt(run, submission)
            failure = (attempt.failure() if attempt else None) or {}
            if attempt and failure.get("kind") == "error":
                reason = str(failure.get("reason", ""))
                likeness = failure.get("exit_code"), NUMBERS.sub("#", reason)
                alike.setdefault(likeness, []).append((run.id, reason))
                furthest_failed = max(furthest_failed, attempt.last_step())
                failed += 1
                continue
            if attempt:
                furthest = max(furthest, attempt.last_step())
                started += 1
            if ahead is None and not run.cancel_path.exists():
                ahead = run.id
    if furthest > furthest_failed and not until_stop:
        return FirstRuns(started=started)
    most = max(alike.values(), key=len, default=[])
    stop_reason = _stop_reason(most, submissions[-1]) if len(most) >= MAX_ALIKE else ""
    return FirstRuns(stop_reason, ahead if failed < MAX_ALIKE else None, started)


def _stop_reason(alike: Sequence[tuple[str, str]], submission: Submission) -> str:
    run_id, reason = alike[0]
    selection = [word for name in submission.sweeps for word in ("--sweep", name)] or ["--all"]
    retry = shlex.join(["ettsweep", "retry", *selection])
    (run,) = submission.run_dirs([run_id])
    with contextlib.suppress(CorruptError):
        code = run.spec().info.code
        if code and code.copy not in ("", NO_CODE):  # else a retry would train the old copy
            retry += "`, or after editing your code `" + shlex.join(["ettsweep", "retry", "--new-code", *selection])
    seen = f"{len(alike)} runs failed with the same error: {reason}; see `ettsweep logs {run_id}`"
    return f"not started: {seen}, then `{retry}`"


def _own_attempt(run: RunDir, submission: Submission) -> Attempt | None:
    """Return the latest attempt of a submission's workers at a run; None without any."""
    attempts = (run.attempt(number) for number in reversed(run.attempt_numbers()))
    return next((attempt for attempt in attempts if attempt.claim().get("submission") == submission.path.name), None)


class Gate:
    """Tells a worker which runs of its submission it may start.

    Args:
        submission: has the runs.
        clock: monotonic seconds.
    """

    def __init__(self, submission: Submission, clock: Callable[[], float] = time.monotonic) -> None:
        self._submission, self._clock = submission, clock
        self._first_runs, self._since_s = FirstRuns(), 0.0
        self._claimed = set[str]()

    def look(self) -> None:
        """Read the state of the first runs."""
        first_runs = read_first_runs(self._submission)
        if first_runs.ahead != self._first_runs.ahead:
            self._since_s = self._clock()
        self._first_runs = first_runs

    def note_claim(self, run: RunDir) -> None:
        """Note that this worker trains a run: runs that it trains with the first one do not wait."""
        self._claimed.add(run.id)

    def is_stopped(self, run: RunDir) -> bool:
        """`True` if too many runs failed with the same error to start this one."""
        return bool(self._first_runs.stop_reason) and self._submission.is_unproven(run.id)

    def may_start(self, run: RunDir) -> bool:
        """`True` if a run may be started now."""
        if not self._submission.is_unproven(run.id):
            return True
        is_open = self._first_runs.ahead in (None, run.id, *self._claimed)
        return not self._first_runs.stop_reason and (is_open or self._clock() - self._since_s >= PATIENCE_S)
