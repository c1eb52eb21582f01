"""Reasons for a run to stop before its last step: signals, a cancellation, or a newer attempt."""

import signal
import time
from collections.abc import Callable
from types import FrameType

from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.state import StopReason

POLL_S = 0.5
"""Seconds between reads of the run's folder, for a cancellation or a newer attempt."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
"""Signals that stop a worker once its run has saved; SIGUSR2 is SLURM's warning that the job's time is almost up."""


class StopSource:
    """Signal handlers of a worker, and the stop conditions of its runs.

    Attributes:
        stop_reason: name of the signal to stop, or `SUPERSEDED`; empty while the worker should continue.
    """

    def __init__(self) -> None:
        self.stop_reason = ""
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # the batch script starts workers with SIGUSR2 blocked

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # A preemption may send several at once. SIGUSR2 wins: it means that SLURM can requeue the job.
        if not self.stop_reason or number == signal.SIGUSR2:
            self.stop_reason = signal.Signals(number).name

    def record_stop(self, stop: StopReason | None) -> None:
        """Adopt the reason why a run stopped."""
        if stop is StopReason.OUT_OF_TIME:
            self.stop_reason = "SIGUSR2"
        elif stop is StopReason.TERMINATED:
            self.stop_reason = self.stop_reason or "SIGTERM"

    def make_poll(self, attempt: Attempt) -> Callable[[], StopReason | None]:
        """Return a function that returns the reason for an attempt to stop now, or None."""
        run, polled_s = RunDir(attempt.run), 0.0

        def poll() -> StopReason | None:
            nonlocal polled_s
            if self.stop_reason:
                return StopReason.OUT_OF_TIME if self.stop_reason == "SIGUSR2" else StopReason.TERMINATED
            # Files are read rarely: the folder may be on a network file system.
            now_s = time.monotonic()
            if now_s - polled_s < POLL_S:
                return None
            polled_s = now_s
            if attempt.is_superseded():
                return StopReason.SUPERSEDED
            return StopReason.CANCELLED if run.cancel_path.exists() else None

        return poll
