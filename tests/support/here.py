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


class Polled(Run):
    """A run that asks a test before the first step and after each whether it is to stop."""

    def __init__(self, variables: Mapping[str, str], ask: Callable[[], bool]) -> None:
        super().__init__(environment=variables)
        self._ask = ask

    @property
    def should_stop(self) -> bool:
        return self._ask()


class Here:
    """The next attempt at a run, claimed and prepared as a worker does.

    Args:
        run: the run.
        world: number of processes that train it.
        poll: asked before the first step and after each whether to stop, and why.

    Attributes:
        attempt: at the run.
        given: the run as its program has it.
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
        self.given = Polled(self.variables, self._ask)

    def _ask(self) -> bool:
        self._reason = self._reason or self._poll(self.attempt)
        return self._reason is not None

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record how the body has ended, as its program would tell."""
        try:
            yield
        except Exception as error:
            self.end(failure_code(error), failure_text(error))
        else:
            self.end()

    def end(self, code: int = 0, reason: str = "", stop: StopReason | None = None) -> None:
        """Record how it has ended."""
        self._reason = stop or self._reason
        if self._reason is not None:
            self.training._told_s = self.training._told_s or time.monotonic()
        self.given.close()
        with self.training.recording_failure():
            self.training.conclude(SimpleNamespace(), Ended(code, reason))  # type: ignore[arg-type]


def train_once(run: RunDir, settings: RuntimeSettings, poll: Poll = lambda attempt: None) -> Attempt:
    """Train the next attempt at a run in this process, with some settings; return it."""
    here = Here(run, poll=poll)
    with here.recording():
        train_run(here.given, torch.device("cpu"), settings)
    return here.attempt


def at_call(place: Any, name: str, count: int, act: Callable[..., None]) -> None:
    """Have something else done in this process right before the `count`-th call of a function, with its arguments."""
    call, left = getattr(place, name), [count]

    def counted(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            act(*args)
        return call(*args, **kwargs)

    setattr(place, name, counted)
