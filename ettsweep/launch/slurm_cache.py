"""What a process remembers from look to look: SLURM's answers, and how hearts beat.

A process that looks once makes one call of squeue for all jobs; one that goes on looking asks seldom, and can tell a
heart that beats from one that stands still.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ettsweep.errors import SlurmUnavailableError
from ettsweep.launch import slurm
from ettsweep.launch.submissions import Submission
from ettsweep.processes import Life
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir

BEATS = 3
"""Intervals for which a heart must have stood still, by the clock of whoever looks, before its owner counts as dead."""

ASK_FIRST_S, ASK_LAST_S = 1.0, 30.0
"""Seconds between questions to SLURM of a process that goes on looking: doubled while nothing changes."""


@dataclass
class SlurmCache:
    """What a process remembers from look to look.

    Attributes:
        clock: seconds that only go forward; never compared with those of another machine.
        again_s, wait_s: when the controller is asked next, and how long after it was asked.
        recorded: array of each submission that it was asked about, by name; None where nobody had recorded it.
        tasks: what it told, by id.
        arrays: the array of each job's name, as recorded or as it told.
        silence: why it did not answer.
        ended, history_again_s, no_history: the same of the accounting.
        beats: the heartbeat of an attempt as last seen, since when, and whether it has been seen to beat.
    """

    clock: Callable[[], float] = time.monotonic
    again_s: float = -math.inf
    wait_s: float = 0.0
    recorded: dict[str, str | None] = field(default_factory=dict)
    tasks: dict[str, slurm.ArrayTask] = field(default_factory=dict)
    arrays: dict[str, str] = field(default_factory=dict)
    silence: str = ""
    ended: dict[str, slurm.ArrayTask] = field(default_factory=dict)
    history_again_s: float = -math.inf
    no_history: str = ""
    beats: dict[Path, tuple[str, float, bool]] = field(default_factory=dict)

    def ask(self, submissions: Sequence[Submission]) -> None:
        """Ask SLURM about the jobs of some submissions, if it is time, or it was not asked about all of them."""
        # The name of a submission is there before sbatch is asked, its number before a job of it claims a run.
        recorded = {s.name: s.array() for s in submissions}
        all_covered, now_s = recorded.items() <= self.recorded.items(), self.clock()
        if all_covered and now_s < self.again_s:
            return
        previous = self._ours(submissions), self.silence
        try:
            self.tasks, self.silence = slurm.queue(slurm.known_users({s.user for s in submissions})), ""
        except SlurmUnavailableError as error:
            self.tasks, self.silence = {}, str(error)
        self.arrays = {task.name: id_.partition("_")[0] for id_, task in self.tasks.items()}
        self.arrays |= {name: array for name, array in recorded.items() if array}
        unchanged = all_covered and previous == (self._ours(submissions), self.silence)
        self.wait_s = min(ASK_LAST_S, 2 * self.wait_s) if unchanged else ASK_FIRST_S
        self.recorded, self.again_s = recorded, now_s + self.wait_s

    def _ours(self, submissions: Sequence[Submission]) -> dict[str, slurm.ArrayTask]:
        names = {s.name for s in submissions}
        return {id_: task for id_, task in self.tasks.items() if task.name in names}

    def history(self, id_: str, submissions: Sequence[Submission]) -> slurm.ArrayTask | None:
        """Return how a task ended that the controller has forgotten.

        The accounting is slower than the controller, and often further away: it is asked seldom, and for all tasks of
        the unfinished ones among some submissions at once.
        """
        now_s = self.clock()
        if id_ not in self.ended and now_s >= self.history_again_s:
            self.history_again_s = now_s + ASK_LAST_S
            try:
                arrays = sorted(self.arrays[s.name] for s in submissions if s.name in self.arrays and s.unfinished())
                tasks = slurm.history(arrays) if arrays else {}
                self.ended |= {id_: task for id_, task in tasks.items() if not task.active and not task.waiting}
                self.no_history = ""
            except SlurmUnavailableError as error:
                self.no_history = f"why is not known: {error}"
        return self.ended.get(id_)

    def pulse(self, attempt: Attempt) -> Life:
        """Say whether the heart of an attempt's owner has been seen to beat, or to stand still for too long."""
        count, now_s = attempt.heartbeat(), self.clock()
        last, since_s, has_beaten = self.beats.get(attempt.path, (count, now_s, False))
        if count != last:
            last, since_s, has_beaten = count, now_s, True
        self.beats[attempt.path] = (last, since_s, has_beaten)
        interval_s = attempt.heartbeat_s()
        if interval_s is None:
            return "unknown"  # it was never promised to beat
        if now_s - since_s >= BEATS * interval_s:
            return "dead"
        return "alive" if has_beaten else "unknown"


def watch_pulses(runs: Sequence[RunDir]) -> set[str]:
    """Watch the hearts of the owners of some runs for as long as they may stand still; return those that beat."""
    slurm_cache = SlurmCache()
    attempts = {run.id: attempt for run in runs if (attempt := run.latest()) and attempt.heartbeat_s() is not None}
    beating: set[str] = set()
    while True:
        pulses = {run_id: slurm_cache.pulse(attempt) for run_id, attempt in attempts.items() if run_id not in beating}
        beating |= {run_id for run_id, pulse in pulses.items() if pulse == "alive"}
        if "unknown" not in pulses.values():
            return beating
        time.sleep(WATCH_S)


WATCH_S = 0.5
"""Seconds between looks at a heartbeat."""
