"""Memory between polls: SLURM's answers, and observed heartbeats.

A poll calls squeue once for all jobs. A process that keeps polling asks less often while nothing changes, and notices
whether a heart beats.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ettsweep.errors import SlurmUnavailableError
from ettsweep.launch import slurm_api
from ettsweep.launch.submissions import Submission
from ettsweep.processes import Life
from ettsweep.runs.folder import RunDir

MISSED_BEATS = 3
"""Heartbeat intervals without a beat, by the observer's clock, after which an owner counts as dead."""

QUERY_MIN_S, QUERY_MAX_S = 1.0, 30.0
"""Shortest and longest wait between queries to SLURM; doubled while nothing changes."""


class Heart(Protocol):
    """An attempt, or the slot of a worker."""

    @property
    def heartbeat_path(self) -> Path:
        """File with the counter."""

    def heartbeat_interval_s(self) -> float | None:
        """Return the promised interval of heartbeats in seconds; None without a promise."""

    def read_heartbeat(self) -> str:
        """Return the text of the counter."""


@dataclass
class SlurmCache:
    """SLURM's answers and observed heartbeats.

    Attributes:
        clock: monotonic seconds; never compared with those of another machine.
        next_query_s, query_interval_s: time of the next query to the controller, and the wait before it.
        recorded_arrays: array id of each submission in the last query, by job name; None before it is recorded.
        tasks: the controller's answer, by job id.
        arrays: array id by job name, as recorded or as the controller reported.
        slurm_error: why the controller did not answer; empty if it did.
        ended_tasks, next_history_s, history_error: the same for the accounting database.
        heartbeats: by file: the last heartbeat, its age, and whether it was seen to change.
    """

    clock: Callable[[], float] = time.monotonic
    next_query_s: float = -math.inf
    query_interval_s: float = 0.0
    recorded_arrays: dict[str, str | None] = field(default_factory=dict)
    tasks: dict[str, slurm_api.ArrayTask] = field(default_factory=dict)
    arrays: dict[str, str] = field(default_factory=dict)
    slurm_error: str = ""
    ended_tasks: dict[str, slurm_api.ArrayTask] = field(default_factory=dict)
    next_history_s: float = -math.inf
    history_error: str = ""
    heartbeats: dict[Path, tuple[str, float, bool]] = field(default_factory=dict)

    def refresh(self, submissions: Sequence[Submission]) -> None:
        """Query the jobs of submissions, if the wait is over or the last query lacked some."""
        # A submission is named before sbatch runs, and its array id is recorded before a job of it claims a run.
        recorded = {s.name: s.array_id() for s in submissions}
        # A new submission outdates the last answer.
        all_covered, now_s = recorded.items() <= self.recorded_arrays.items(), self.clock()
        if all_covered and now_s < self.next_query_s:
            return
        previous = self._own_tasks(submissions), self.slurm_error
        try:
            self.tasks, self.slurm_error = slurm_api.queue(slurm_api.known_users({s.user for s in submissions})), ""
        except SlurmUnavailableError as error:
            self.tasks, self.slurm_error = {}, str(error)
        # By name too: a submitter that was killed has recorded no id.
        self.arrays = {task.name: id_.partition("_")[0] for id_, task in self.tasks.items()}
        self.arrays |= {name: array for name, array in recorded.items() if array}
        unchanged = all_covered and previous == (self._own_tasks(submissions), self.slurm_error)
        # Many commands may poll one controller: do not ask more often than it has news.
        self.query_interval_s = min(QUERY_MAX_S, 2 * self.query_interval_s) if unchanged else QUERY_MIN_S
        self.recorded_arrays, self.next_query_s = recorded, now_s + self.query_interval_s

    def _own_tasks(self, submissions: Sequence[Submission]) -> dict[str, slurm_api.ArrayTask]:
        names = {s.name for s in submissions}
        return {id_: task for id_, task in self.tasks.items() if task.name in names}

    def history(self, id_: str, submissions: Sequence[Submission]) -> slurm_api.ArrayTask | None:
        """Return the end of a task that the controller has forgotten; None if unknown.

        The accounting database is slow: ask it rarely, and for all unfinished submissions at once.
        """
        now_s = self.clock()
        if id_ not in self.ended_tasks and now_s >= self.next_history_s:
            # Set before the query: a failing database must not be asked at each poll.
            self.next_history_s = now_s + QUERY_MAX_S
            try:
                arrays = sorted(
                    self.arrays[s.name] for s in submissions if s.name in self.arrays and s.has_unfinished_runs()
                )
                tasks = slurm_api.history(arrays) if arrays else {}
                # Its answers may be older than the controller's: only ends are final.
                self.ended_tasks |= {
                    id_: task for id_, task in tasks.items() if not task.is_active and not task.is_waiting
                }
                self.history_error = ""
            except SlurmUnavailableError as error:
                self.history_error = f"reason unknown: {error}"
        return self.ended_tasks.get(id_)

    def heartbeat_life(self, heart: Heart) -> Life:
        """Return "alive" if a heartbeat has changed, "dead" if it has not for too long, else "unknown"."""
        count, now_s = heart.read_heartbeat(), self.clock()
        # Compare contents, never time stamps: clocks of nodes and file servers differ.
        last, since_s, has_beaten = self.heartbeats.get(heart.heartbeat_path, (count, now_s, False))
        if count != last:
            last, since_s, has_beaten = count, now_s, True
        self.heartbeats[heart.heartbeat_path] = (last, since_s, has_beaten)
        interval_s = heart.heartbeat_interval_s()
        if interval_s is None:
            return "unknown"  # no promised heartbeat
        if now_s - since_s >= MISSED_BEATS * interval_s:
            return "dead"
        return "alive" if has_beaten else "unknown"


def watch_heartbeats(runs: Sequence[RunDir]) -> set[str]:
    """Watch the heartbeats of runs until each has changed or counts as dead; return the ids of those that changed."""
    slurm_cache = SlurmCache()
    attempts = {
        run.id: attempt
        for run in runs
        if (attempt := run.latest_attempt()) and attempt.heartbeat_interval_s() is not None
    }
    beating: set[str] = set()
    while True:
        pulses = {
            run_id: slurm_cache.heartbeat_life(attempt) for run_id, attempt in attempts.items() if run_id not in beating
        }
        beating |= {run_id for run_id, pulse in pulses.items() if pulse == "alive"}
        if "unknown" not in pulses.values():
            return beating
        time.sleep(HEARTBEAT_POLL_S)


HEARTBEAT_POLL_S = 0.5
"""Seconds between reads of the heartbeats."""
