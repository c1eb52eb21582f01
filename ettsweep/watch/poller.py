"""The thread that looks: reading never keeps a key waiting, and leaving never waits for a read to end."""

import threading
from typing import Protocol

from ettsweep.errors import EttsweepError
from ettsweep.watch.throttle import Stopwatch, Throttle
from ettsweep.watch.view_model import ViewModel
from ettsweep.watch.watcher import Watcher

LEAST_S, MOST_S = 1.5, 10.0
"""Seconds between looks, at least and at most: many new runs take long to read, and that comes once."""


class PollListener(Protocol):
    """Who is told; from another thread than its own."""

    def reading(self, message: str) -> None:
        """Hear how far the first look is."""

    def seen(self, view: ViewModel) -> None:
        """Hear what there is to see."""

    def unreadable(self, reason: str) -> None:
        """Hear that a look failed; another one follows."""

    def impossible(self, error: Exception) -> None:
        """Hear that there is nothing to look at, or that this is at its end."""


class Poller(threading.Thread):
    """Looks again and again until it is stopped."""

    def __init__(self, watcher: Watcher, listener: PollListener) -> None:
        super().__init__(name="looking", daemon=True)
        self._watcher, self._audience = watcher, listener
        self._woken, self._stopped = threading.Event(), False

    def wake(self) -> None:
        """Have it look now."""
        self._woken.set()

    def stop(self) -> None:
        """Have it look no more."""
        self._stopped = True
        self._woken.set()

    def run(self) -> None:
        """Look, judge, and rest in proportion."""
        has_view = False
        while not self._stopped:
            stopwatch, throttle = Stopwatch(), Throttle()
            self._woken.clear()
            try:
                self._audience.seen(self._watcher.look(self._audience.reading))
                throttle.begin(*(stopwatch.read() if has_view else (0.0, 0.0)))
                has_view = True
                while not self._stopped and self._watcher.judge():  # which has rests of its own
                    self._audience.seen(self._watcher.sight())
            except Exception as error:
                if not self._tell(error, has_view):
                    return
            self._woken.wait(min(MOST_S, max(LEAST_S, throttle.left_s)))

    def _tell(self, error: Exception, has_view: bool) -> bool:
        """Tell of an error; return whether another look may succeed."""
        if has_view and isinstance(error, OSError | EttsweepError):
            reason = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error)
            self._audience.unreadable(reason)
            return True
        self._audience.impossible(error)
        return False
