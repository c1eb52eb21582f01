"""The thread that polls the results folder, so that slow reads delay neither keys nor leaving."""

import threading
import time
from collections.abc import Callable

from textual.message import Message

from ettsweep.errors import EttsweepError
from ettsweep.watch.view_model import ViewModel
from ettsweep.watch.watcher import Watcher

MIN_REST_S, MAX_REST_S = 1.5, 60.0
"""Seconds between polls."""

REST_FACTOR = 20
"""Rest after a poll, in multiples of its time: a screen that is open all day takes a few percent of a core."""


class Updated(Message):
    """There is a new view."""

    def __init__(self, view: ViewModel) -> None:
        super().__init__()
        self.view = view


class Progress(Message):
    """How far the first poll is."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class Failed(Message):
    """A poll failed; without a view before, it was the last one."""

    def __init__(self, error: Exception, is_last: bool) -> None:
        super().__init__()
        self.error, self.is_last = error, is_last


class Poller(threading.Thread):
    """Polls until it is stopped, and posts messages: `Updated`, `Progress`, `Failed`."""

    def __init__(self, watcher: Watcher, post: Callable[[Message], object]) -> None:
        # A daemon: the process may exit while a read from a hanging network file system blocks this thread.
        super().__init__(name="poller", daemon=True)
        self._watcher, self._post = watcher, post
        self._wake_event, self._stop_requested, self._has_view = threading.Event(), False, False

    def wake(self) -> None:
        """Poll now, without waiting for the end of the rest."""
        self._wake_event.set()

    def stop(self) -> None:
        """Stop after the current read; does not wait for its end."""
        self._stop_requested = True
        self._wake_event.set()

    def run(self) -> None:
        """Poll, judge families, and rest in proportion to the time that this took."""
        while not self._stop_requested:
            began_s = time.monotonic()
            self._wake_event.clear()  # before reading, so that a `wake` during the read leads to another one
            try:
                self._post(Updated(self._watcher.poll(self._post_progress)))
                if not self._has_view:
                    began_s = time.monotonic()  # the first poll reads all runs: the next ones are much faster
                self._has_view = True
                while not self._stop_requested and self._watcher.judge_next():
                    self._post(Updated(self._watcher.view()))
            except Exception as error:
                # Before the first view, an error is one of the user's options or the folder: retrying would not help.
                is_last = not self._has_view or not isinstance(error, OSError | EttsweepError)
                self._post(Failed(error, is_last))
                if is_last:
                    return
            self._wake_event.wait(min(MAX_REST_S, max(MIN_REST_S, REST_FACTOR * (time.monotonic() - began_s))))

    def _post_progress(self, text: str) -> None:
        """Post how far the first poll is; later ones change what is shown at their end."""
        if not self._has_view:
            self._post(Progress(text))
