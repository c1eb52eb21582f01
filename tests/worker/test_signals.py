"""Signals that stop a worker."""

import os
import signal

import pytest
from support.commandline import left_as_before

from ettsweep.worker.signals import StopSource


@pytest.mark.parametrize("order", [(signal.SIGTERM, signal.SIGUSR2), (signal.SIGUSR2, signal.SIGTERM)])
def test_of_several_signals_the_one_after_which_slurm_starts_the_job_again_wins(order: tuple[int, int]) -> None:
    with left_as_before():
        source = StopSource()
        for number in order:
            os.kill(os.getpid(), number)
        assert source.stop_reason == "SIGUSR2"
