"""Train an attempt at a Transformer in this process, with all that its worker does before and after."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch

from ettsweep.call import failure_code, failure_text
from ettsweep.launch.local import LocalProfile
from ettsweep.launch.slots import Slot
from ettsweep.run import Run
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.state import LocalLiveness, StopReason
from ettsweep.trainer.training.run import train_run
from ettsweep.trainer.training.runtime_settings import RuntimeSettings
from ettsweep.worker.program import Ended
from ettsweep.worker.training import Training
from ettsweep.worker.work_list import WorkList

Poll = Callable[[Attempt], StopReason | None]


class Here:
    """The next attempt at a run, claimed and prepared as a worker does.

    Args:
        run: the run.
        world: number of processes that train it.
        poll: asked before the first step and after each whether to stop, and why.

    Attributes:
        attempt: at the run.
        given: the run as its program has it, once `begin` has been called; None if that has failed.
    """

    def __init__(self, run: RunDir, world: int = 1, poll: Poll = lambda attempt: None) -> None:
        attempt = run.claim({}, after=max(run.attempt_numbers(), default=0))
        assert attempt is not None
        self.attempt, self._poll = attempt, poll
        self._reason: StopReason | None = None
        others = tuple(Slot(f"cpu-{rank}", "cpu", None, 1) for rank in range(1, world))
        profile = LocalProfile(devices="cpu", devices_per_run=world)
        source: Any = SimpleNamespace(make_poll=lambda attempt: lambda: self._reason)
        slot = Slot("cpu-0", "cpu", None, 1, others=others)
        work = WorkList([run], slot, profile, {}, source, LocalLiveness(), {})
        self.training = Training(run, run.spec(), attempt, work)
        self.variables: Mapping[str, str] = self.training.prepare().variables
        self.given = Polled(self)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record how the body has ended, as its program would tell."""
        try:
            yield
        except Exception as error:
            self.end(failure_code(error), failure_text(error))
        else:
            self.end()

    def ask(self) -> bool:
        """Ask whether to stop."""
        self._reason = self._reason or self._poll(self.attempt)
        return self._reason is not None

    def end(self, code: int = 0, reason: str = "", stop: StopReason | None = None) -> None:
        """Record how it has ended."""
        self._reason = stop or self._reason
        training, program = self.training, SimpleNamespace()
        if self._reason is not None:
            training._told_s = training._told_s or time.monotonic()
        self.given.close()
        with training.recording_failure():
            training.conclude(program, Ended(code, reason))  # type: ignore[arg-type]


class Polled(Run):
    """A run that is asked by a test whether it is to stop."""

    def __init__(self, here: Here) -> None:
        super().__init__(environment=here.variables)
        self._here = here

    @property
    def should_stop(self) -> bool:
        return self._here.ask()


def train_once(run: RunDir, settings: RuntimeSettings, poll: Poll = lambda attempt: None) -> Attempt:
    """Train the next attempt at a run in this process, with some settings; return it."""
    here = Here(run, poll=poll)
    with here.recording():
        train_run(here.given, torch.device("cpu"), settings)
    return here.attempt
