"""What a run in training asks at each step: go on, or stop, and why."""

import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir

if TYPE_CHECKING:
    from ettsweep.trainer.ensemble.pack import Pack
    from ettsweep.trainer.training.coroutine import Stop


POLL_S = 0.5
"""Seconds between looks for a cancellation, a pruning or a newer attempt."""


SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)


class StopSource:
    """What a run in training asks at each step: was the worker told to stop, the run cancelled, pruned, taken over?"""

    def __init__(self) -> None:
        self.told = ""  # the name of the first signal to stop
        self._heard: tuple[tuple[int, int], str] = ((0, 0), "")  # by which pack, in which round
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # the batch script held them back until now

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # A preemption may send several at once; the one that says that there is a next job weighs most.
        if not self.told or number == signal.SIGUSR2:
            self.told = signal.Signals(number).name

    def heed(self, stop: "Stop | None") -> None:
        """Count what another process of the run was told as told to this one: its signal need not come here too."""
        from ettsweep.trainer.training.coroutine import Stop

        if stop is Stop.OUT_OF_TIME:
            self.told = "SIGUSR2"
        elif stop is Stop.TERMINATED:
            self.told = self.told or "SIGTERM"

    def watch(self, attempt: Attempt, pack: "Pack | None" = None) -> "Callable[[], Stop | None]":
        """Return what tells, whenever it is called, the reason for an attempt to stop, if there is one.

        In one round all of a pack hear of the same signals, so that those of one stream stop at the same step.
        """
        from ettsweep.trainer.training.coroutine import Stop

        run, polled_s = RunDir(attempt.run), 0.0

        def poll() -> Stop | None:
            nonlocal polled_s
            if reason := self._told_to(pack):
                return Stop.OUT_OF_TIME if reason == "SIGUSR2" else Stop.TERMINATED
            now_s = time.monotonic()
            if now_s - polled_s < POLL_S:
                return None
            polled_s = now_s
            if attempt.superseded():
                return Stop.SUPERSEDED
            if run.cancel_path.exists():
                return Stop.CANCELLED
            return Stop.PRUNED if run.prune_path.exists() else None

        return poll

    def _told_to(self, pack: "Pack | None") -> str:
        if pack is None:
            return self.told
        current_round = id(pack), pack.rounds
        if self._heard[0] != current_round:
            self._heard = current_round, self.told
        return self._heard[1]
