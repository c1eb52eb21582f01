"""Duration and cost of runs: only from measured times of runs of the same recipe.

Two kinds of seconds count. Device seconds are the cost of a run: its share of each device. Worker seconds are the time
that it occupies its worker: on several devices in parallel, the seconds of one. Each of K runs that a worker trains at
once takes 1/K of both.
"""

import heapq
import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass

from ettsweep.files import Json, number
from ettsweep.runs.index import Run, RunIndex
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State, Status

MAX_TIMED = 300
"""Finished runs of a recipe that an estimate uses; more would change it little."""


@dataclass
class RecipeTimes:
    """Sums over timed runs of one recipe: their number, and their seconds."""

    runs: int = 0
    device_s: float = 0.0
    worker_s: float = 0.0


class RunTimes:
    """Times of runs trained to their end, by recipe: runs of one recipe count as equally long.

    Diverged runs do not count: much of their time may be start-up.

    Args:
        matches: whether a result counts, such as by its devices; by default all do.
    """

    def __init__(self, matches: Callable[[Json], bool] = lambda result: True) -> None:
        self._matches = matches
        self._by_recipe: dict[Hashable, RecipeTimes] = defaultdict(RecipeTimes)
        self._starts_s: deque[float] = deque(maxlen=MAX_TIMED)
        self._by_family: dict[str, RecipeTimes] = {}  # of its recipe: hashing takes long

    @classmethod
    def of(cls, run_index: RunIndex, matches: Callable[[Json], bool] = lambda result: True) -> "RunTimes":
        """Return the times of all finished runs of an index."""
        times = cls(matches)
        for run in run_index.runs.values():
            times.add(run)
        return times

    def add(self, run: Run) -> None:
        """Add a run, if it is done, was timed and matches."""
        times = self._by_family.get(run.family)
        if times is None:
            times = self._by_family[run.family] = self._by_recipe[run.base.info.key]
        if times.runs >= MAX_TIMED or run.state is not State.DONE:
            return
        result = run.result
        if result is None or not self._matches(result):
            return
        wall_s, device_s = number(result.get("wall_s")), number(result.get("device_s"))
        # Either may be missing in a result of an older version.
        if seconds := device_s or wall_s:
            times.runs, times.device_s = times.runs + 1, times.device_s + seconds
            times.worker_s += min(wall_s or seconds, seconds)
        if start_s := number(result.get("start_s")):
            self._starts_s.append(start_s)

    @property
    def start_s(self) -> float:
        """Seconds that a worker computes before its first training step, in the median; 0 if unknown."""
        return statistics.median(self._starts_s) if self._starts_s else 0.0

    def count(self, specs: Iterable[RunSpec]) -> int:
        """Return the number of timed runs that share a recipe with some specs."""
        return sum(self._by_recipe[key].runs for key in {spec.info.key for spec in specs})

    def device_s(self, spec: RunSpec, fraction: float = 1.0) -> float | None:
        """Return the device seconds of a fraction of a run's steps; None if no run of its recipe was timed."""
        times = self._by_recipe.get(spec.info.key)
        return fraction * times.device_s / times.runs if times and times.runs else None

    def total_device_s(self, specs: Iterable[RunSpec]) -> float | None:
        """Return the device seconds of complete runs; None if the recipe of one of them was not timed."""
        device_seconds = [self.device_s(spec) for spec in specs]
        return None if None in device_seconds else sum(seconds or 0.0 for seconds in device_seconds)

    def remaining_s(self, specs: Mapping[str, RunSpec], statuses: Mapping[str, Status], at_once: int) -> float | None:
        """Return the seconds until all running and queued runs are finished; None if unknown, or without a worker.

        Args:
            specs: by run id.
            statuses: by run id.
            at_once: number of workers that can train, if more than train now.
        """
        active = {run: s for run, s in statuses.items() if s.state in (State.RUNNING, State.QUEUED)}
        running = {run: s for run, s in active.items() if s.state is State.RUNNING}
        if not active or not (running or (at_once and self.start_s)):
            return None
        spent = {key: (times.worker_s, float(times.runs)) for key, times in self._by_recipe.items()}
        for run, s in running.items():
            if s.remaining_slot_s is not None and 0 < s.progress < 1:
                key = specs[run].info.key
                # Extrapolate a running run to its elapsed worker seconds: elapsed = left * p / (1 - p).
                seconds, fractions = spent.get(key, (0.0, 0.0))
                spent[key] = seconds + s.remaining_slot_s * s.progress / (1 - s.progress), fractions + s.progress
        left: dict[str, float] = {}
        for run, s in active.items():
            seconds, fractions = spent.get(specs[run].info.key, (0.0, 0.0))
            if s.state is State.RUNNING and s.remaining_slot_s is not None:
                left[run] = s.remaining_slot_s
            elif fractions:
                left[run] = (1 - s.progress) * seconds / fractions
            else:
                return None
        busy: dict[Hashable, float] = defaultdict(float)
        for run, s in running.items():
            # Of runs that share a worker, the worker seconds add up.
            busy[s.worker or run] += left[run]
        waiting = [left[run] for run in active if run not in running]
        # While none trains, workers have yet to start.
        return makespan_s(busy.values(), waiting, at_once) + (0.0 if running else self.start_s)


def makespan_s(running: Iterable[float], waiting: Iterable[float], at_once: int) -> float:
    """Return the makespan of jobs with these durations: each waiting job starts as soon as a worker is free."""
    end_times = list(running)
    # Workers that are free now.
    end_times += [0.0] * (at_once - len(end_times))
    heapq.heapify(end_times)
    for seconds in waiting:
        heapq.heapreplace(end_times, end_times[0] + seconds)
    return max(end_times, default=0.0)
