"""Rests between looks: a screen that is open all day takes a small part of a core."""

import time
from dataclasses import dataclass, field

from ettsweep.launch.progress import LOOK_SHARE

REST = 40
"""Work is followed by a rest of this many times the seconds of a core that it took: drawing needs its share too."""


@dataclass
class Throttle:
    """What follows on work that may be done again: in proportion to how long it took."""

    again_s: float = 0.0

    @property
    def left_s(self) -> float:
        """Seconds until it is over."""
        return max(0.0, self.again_s - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether the work may be done again."""
        return self.left_s == 0

    def begin(self, cpu_s: float, wall_s: float) -> None:
        """Begin after so many seconds of work: what is read slowly is not read all the time either."""
        self.again_s = time.monotonic() + max(REST * cpu_s, LOOK_SHARE * wall_s)


@dataclass
class Stopwatch:
    """Seconds that this thread has worked, and that have gone by, since it was made."""

    cpu_s: float = field(default_factory=time.thread_time)
    wall_s: float = field(default_factory=time.monotonic)

    def read(self) -> tuple[float, float]:
        """Return both."""
        return time.thread_time() - self.cpu_s, time.monotonic() - self.wall_s
