"""The thread that polls the results folder, so that slow reads delay neither keys nor leaving."""

import threading
from typing import Protocol

from ettsweep.errors import EttsweepError
from ettsweep.watch.throttle import Stopwatch, Throttle
from ettsweep.watch.view_model import ViewModel
from ettsweep.watch.watcher import Watcher

MIN_POLL_S, MAX_POLL_S = 1.5, 10.0
"""Minimum and maximum seconds between polls. The maximum holds even after a poll that read many new runs."""


class PollListener(Protocol):
    """Receives the results of polls; called in the poller's thread."""

    def report_progress(self, message: str) -> None:
        """Receive a line on the progress of the first poll."""

    def show_view(self, view: ViewModel) -> None:
        """Receive a new view."""

    def report_read_error(self, reason: str) -> None:
        """Receive the reason why a poll failed; the poller tries again."""

    def report_failure(self, error: Exception) -> None:
        """Receive the error that ended the poller."""


class Poller(threading.Thread):
    """Polls until it is stopped, and passes each view to a listener."""

    def __init__(self, watcher: Watcher, listener: PollListener) -> None:
        # A daemon: the process may exit while a read from a hanging network file system blocks this thread.
        super().__init__(name="poller", daemon=True)
        self._watcher, self._listener = watcher, listener
        self._wake_event, self._stop_requested = threading.Event(), False

    def wake(self) -> None:
        """Poll now, without waiting for the end of the interval."""
        self._wake_event.set()

    def stop(self) -> None:
        """Stop after the current read; does not wait for its end."""
        self._stop_requested = True
        self._wake_event.set()

    def run(self) -> None:
        """Poll, judge families, and wait in proportion to the time that this took."""
        has_view = False
        while not self._stop_requested:
            stopwatch, throttle = Stopwatch(), Throttle()
            self._wake_event.clear()  # before reading, so that a `wake` during the read leads to another one
            try:
                self._listener.show_view(self._watcher.poll(self._listener.report_progress))
                # The first poll reads all runs: the next ones are much faster, so it does not count.
                throttle.start(*(stopwatch.read() if has_view else (0.0, 0.0)))
                has_view = True
                while not self._stop_requested and self._watcher.judge_next():  # each family has a throttle of its own
                    self._listener.show_view(self._watcher.view())
            except Exception as error:
                if not self._report_error(error, has_view):
                    return
            self._wake_event.wait(min(MAX_POLL_S, max(MIN_POLL_S, throttle.wait_s)))

    def _report_error(self, error: Exception, has_view: bool) -> bool:
        """Report an error; return `True` if another poll may succeed."""
        # Before the first view, an error is one of the user's options or the folder: retrying would not help.
        if has_view and isinstance(error, OSError | EttsweepError):
            reason = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error)
            self._listener.report_read_error(reason)
            return True
        self._listener.report_failure(error)
        return False
