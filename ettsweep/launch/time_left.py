"""Remaining time of runs, only from measured times of runs of the same recipe, on as many workers as can train.

All times are worker seconds: of K runs that a worker trains at once, each takes 1/K of the wall time. So a run takes
about the same alone or in a pack, and remaining times can be distributed over workers whatever the packs will be.
"""

import heapq
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping

from ettsweep.files import Json, number
from ettsweep.runs.index import Run
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State, Status

NO_TIMES = (0.0, 0.0)
"""Worker seconds and fractions of runs before any run was timed."""


class TimeLeftEstimator:
    """Estimates remaining time; runs of one recipe count as equally long, whatever fraction of them was seen."""

    def __init__(self) -> None:
        self._finished: dict[Hashable, tuple[float, float]] = defaultdict(lambda: NO_TIMES)

    def add(self, spec: RunSpec, duration_s: float, fraction: float) -> None:
        """Add a run that took a worker so many seconds and ended after a fraction of its steps, 0 to 1."""
        total_s, fractions = self._finished[spec.recipe_key]
        self._finished[spec.recipe_key] = total_s + duration_s, fractions + fraction

    def add_run(self, run: Run) -> None:
        """Add a finished run."""
        result = run.result or {}
        seconds, steps = worker_s(result), number(result.get("steps"))
        if seconds and steps:
            self.add(run.base, seconds, steps / run.base.schedule.last_step)

    def remaining_s(self, specs: Mapping[str, RunSpec], statuses: Mapping[str, Status], at_once: int) -> float | None:
        """Return the seconds until all running and queued runs are finished; None if unknown, or if nothing runs.

        Args:
            specs: by run id.
            statuses: by run id.
            at_once: number of workers that can train; used if it exceeds the number that do now.
        """
        spent = dict(self._finished)
        active = {run: s for run, s in statuses.items() if s.state in (State.RUNNING, State.QUEUED)}
        running = {run: s for run, s in active.items() if s.state is State.RUNNING}
        for run, s in running.items():
            if s.remaining_slot_s is not None and 0 < s.progress < 1:
                kind = specs[run].recipe_key
                # Extrapolate a running run to its elapsed worker seconds: elapsed = left * p / (1 - p).
                seconds, fractions = spent.get(kind, NO_TIMES)
                spent[kind] = seconds + s.remaining_slot_s * s.progress / (1 - s.progress), fractions + s.progress
        left: dict[str, float] = {}
        for run, s in active.items():
            seconds, fractions = spent.get(specs[run].recipe_key, NO_TIMES)
            if s.state is State.RUNNING and s.remaining_slot_s is not None:
                left[run] = s.remaining_slot_s
            elif fractions:
                left[run] = (1 - s.progress) * seconds / fractions
            else:
                return None
        busy: dict[Hashable, float] = defaultdict(float)
        for run, s in running.items():
            # Runs in one pack share a worker, so their worker seconds add up.
            busy[s.worker or run] += left[run]
        waiting = [left[run] for run in active if run not in running]
        return makespan_s(busy.values(), waiting, at_once) if running else None


def worker_s(result: Json) -> float | None:
    """Return the worker seconds of a finished run: its wall time, or its share of it if it was packed."""
    wall_s, device_s = number(result.get("wall_s")), number(result.get("device_s"))
    # device_s is summed over the devices of a run, all of which one worker has.
    return wall_s if wall_s is None or device_s is None else min(wall_s, device_s)


def makespan_s(running: Iterable[float], waiting: Iterable[float], at_once: int) -> float:
    """Return the makespan of jobs with these durations: each waiting job starts as soon as a worker is free."""
    end_times = list(running)
    # Workers that are free now.
    end_times += [0.0] * (at_once - len(end_times))
    heapq.heapify(end_times)
    for seconds in waiting:
        heapq.heapreplace(end_times, end_times[0] + seconds)
    return max(end_times)
