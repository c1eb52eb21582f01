"""Patterns that a grid file states: some take for ever on some text, so that they are matched for a limited time."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from ettsweep.errors import MetricsError

LIMIT_S = 5.0
"""Seconds of computing that patterns have for a piece of text; milliseconds are usual."""


@contextmanager
def time_limit(name: Callable[[], str], limit_s: float = LIMIT_S) -> Iterator[None]:
    """End the body once it has computed for so many seconds; the engine of patterns looks for signals while it matches.

    Args:
        name: returns the pattern that was matched last, for the message.
        limit_s: the seconds.

    Raises:
        MetricsError: the time is over.
    """
    if threading.current_thread() is not threading.main_thread():  # only that one hears of signals
        yield
        return

    def expire(number: int, frame: FrameType | None) -> None:
        raise MetricsError(
            f"pattern {name()!r} has taken {limit_s:g} s for a piece of text: avoid nested repeats such as (a+)+"
        )

    before = signal.signal(signal.SIGVTALRM, expire)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)  # time of this process, not of a machine that sleeps or is busy
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
