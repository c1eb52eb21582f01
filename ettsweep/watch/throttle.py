"""Limits the share of time spent on repeated work: a screen that is open all day uses a few percent of a core."""

import time
from dataclasses import dataclass, field

from ettsweep.launch.progress import POLL_REST_FACTOR

REST_FACTOR = 60
"""Pause after work, in multiples of its CPU time: reading takes at most 1/60 of a core, as drawing needs some too."""


@dataclass
class Throttle:
    """A pause in proportion to the time that the work before it took."""

    ready_at_s: float = 0.0

    @property
    def wait_s(self) -> float:
        """Seconds until the pause ends."""
        return max(0.0, self.ready_at_s - time.monotonic())

    @property
    def is_ready(self) -> bool:
        """`True` if the pause is over."""
        return self.wait_s == 0

    def start(self, cpu_s: float, wall_s: float) -> None:
        """Start a pause after work that took `cpu_s` seconds of CPU time and `wall_s` seconds in all.

        Wall time counts too, so that a slow file system is not read all the time.
        """
        self.ready_at_s = time.monotonic() + max(REST_FACTOR * cpu_s, POLL_REST_FACTOR * wall_s)


@dataclass
class Stopwatch:
    """Measures CPU time of this thread and wall time since its creation."""

    # CPU time of the thread, as drawing happens in another one.
    cpu_s: float = field(default_factory=time.thread_time)
    wall_s: float = field(default_factory=time.monotonic)

    def read(self) -> tuple[float, float]:
        """Return (CPU seconds, wall seconds)."""
        return time.thread_time() - self.cpu_s, time.monotonic() - self.wall_s
