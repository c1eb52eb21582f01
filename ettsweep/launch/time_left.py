"""How long runs still take: only from what was measured of runs like them, on as many workers as can train.

All is reckoned in seconds of a worker: of K runs that it trains at once, each takes one K-th of those that go by. So
what a run takes is much the same whether it trains alone or with others, and what is left can be shared out among the
workers whatever the packs will be.
"""

import heapq
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping

from ettsweep.files import Json, number
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State, Status

NOTHING = (0.0, 0.0)
"""Seconds and shares of runs, where none was seen."""


class TimeLeftEstimator:
    """What is known of how long runs take: those of a kind as long as each other, whatever share of them was seen."""

    def __init__(self) -> None:
        self._finished: dict[Hashable, tuple[float, float]] = defaultdict(lambda: NOTHING)

    def finished(self, spec: RunSpec, seconds: float, fraction: float) -> None:
        """Take note of a run that took a worker so long, and ended after a share of its steps, 0 to 1."""
        total_s, fractions = self._finished[spec.recipe_key]
        self._finished[spec.recipe_key] = total_s + seconds, fractions + fraction

    def learn(self, spec: RunSpec, result: Json) -> None:
        """Take note of a finished run, as its result tells of it."""
        seconds, steps = slot_s(result), number(result.get("steps"))
        if seconds and steps:
            self.finished(spec, seconds, steps / spec.schedule.last_step)

    def left_s(self, specs: Mapping[str, RunSpec], statuses: Mapping[str, Status], at_once: int) -> float | None:
        """Return the seconds until all that run or wait are finished; None where nothing runs, or a rate is missing.

        `at_once` is how many workers can train, if these are more than do now.
        """
        spent = dict(self._finished)
        active = {run: s for run, s in statuses.items() if s.state in (State.RUNNING, State.QUEUED)}
        running = {run: s for run, s in active.items() if s.state is State.RUNNING}
        for run, s in running.items():
            if s.slot_left_s is not None and 0 < s.progress < 1:
                kind = specs[run].recipe_key
                seconds, fractions = spent.get(kind, NOTHING)
                spent[kind] = seconds + s.slot_left_s * s.progress / (1 - s.progress), fractions + s.progress
        left: dict[str, float] = {}
        for run, s in active.items():
            seconds, fractions = spent.get(specs[run].recipe_key, NOTHING)
            if s.state is State.RUNNING and s.slot_left_s is not None:
                left[run] = s.slot_left_s
            elif fractions:
                left[run] = (1 - s.progress) * seconds / fractions
            else:
                return None
        busy: dict[Hashable, float] = defaultdict(float)
        for run, s in running.items():
            busy[s.worker or run] += left[run]
        waiting = [left[run] for run in active if run not in running]
        return until_free(busy.values(), waiting, at_once) if running else None


def slot_s(result: Json) -> float | None:
    """Return the seconds of a worker that a finished run took: all that went by, unless it was packed."""
    wall_s, device_s = number(result.get("wall_s")), number(result.get("device_s"))
    return wall_s if wall_s is None or device_s is None else min(wall_s, device_s)  # of several devices a run has all


def until_free(running: Iterable[float], waiting: Iterable[float], at_once: int) -> float:
    """Return when the last of some jobs ends that take so long, if each that waits starts as soon as one has ended."""
    end_times = list(running)
    end_times += [0.0] * (at_once - len(end_times))
    heapq.heapify(end_times)
    for seconds in waiting:
        heapq.heapreplace(end_times, end_times[0] + seconds)
    return max(end_times)
