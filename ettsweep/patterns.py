"""Time limit for patterns of grid files: some take for ever on some text."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from ettsweep.errors import MetricsError

LIMIT_S = 5.0
"""Most seconds of computing for a piece of text; milliseconds are usual."""


@contextmanager
def time_limit(name: Callable[[], str], limit_s: float = LIMIT_S) -> Iterator[None]:
    """End the body after some seconds of computing, by a signal, which the pattern engine notices while it matches.

    Args:
        name: returns the last pattern, for the message.
        limit_s: the seconds.

    Raises:
        MetricsError: the time is over.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread gets signals
        yield
        return

    def expire(number: int, frame: FrameType | None) -> None:
        raise MetricsError(
            f"pattern {name()!r} has taken {limit_s:g} s for a piece of text: avoid nested repeats such as (a+)+"
        )

    before = signal.signal(signal.SIGVTALRM, expire)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)  # CPU time: the machine may sleep or be busy
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
