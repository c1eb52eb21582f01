"""How long runs still take: only from what was measured of runs like them, and as many at a time as can train."""

import heapq
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping

from ettsweep.runs.state import State, Status
from ettsweep.spec import RunSpec

NOTHING = (0.0, 0.0)
"""Seconds and shares of runs, where none was seen."""


class Pace:
    """What is known of how long runs take: those of a kind as long as each other, whatever share of them was seen."""

    def __init__(self) -> None:
        self._finished: dict[Hashable, tuple[float, float]] = defaultdict(lambda: NOTHING)

    def finished(self, spec: RunSpec, seconds: float, share: float) -> None:
        """Take note of a run that ended after a share of its steps, 0 to 1."""
        before, shares = self._finished[spec.kind]
        self._finished[spec.kind] = before + seconds, shares + share

    def left_s(self, specs: Mapping[str, RunSpec], statuses: Mapping[str, Status], at_once: int) -> float | None:
        """Return the seconds until all that run or wait are finished; None where nothing runs, or a rate is missing.

        `at_once` is how many can train at a time, if that is more than do now.
        """
        spent = dict(self._finished)
        active = {run: s for run, s in statuses.items() if s.state in (State.RUNNING, State.QUEUED)}
        running = {run: s for run, s in active.items() if s.state is State.RUNNING}
        for run, s in running.items():
            if s.left_s is not None and 0 < s.progress < 1:
                kind = specs[run].kind
                seconds, shares = spent.get(kind, NOTHING)
                spent[kind] = seconds + s.left_s * s.progress / (1 - s.progress), shares + s.progress
        left: dict[str, float] = {}
        for run, s in active.items():
            seconds, shares = spent.get(specs[run].kind, NOTHING)
            if s.state is State.RUNNING and s.left_s is not None:
                left[run] = s.left_s
            elif shares:
                left[run] = (1 - s.progress) * seconds / shares
            else:
                return None
        waiting = [left[run] for run in active if run not in running]
        return until_free((left[run] for run in running), waiting, at_once) if running else None


def until_free(running: Iterable[float], waiting: Iterable[float], at_once: int) -> float:
    """Return when the last of some jobs ends that take so long, if each that waits starts as soon as one has ended."""
    ends = list(running)
    ends += [0.0] * (at_once - len(ends))
    heapq.heapify(ends)
    for seconds in waiting:
        heapq.heapreplace(ends, ends[0] + seconds)
    return max(ends)
