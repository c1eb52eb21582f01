"""Runs that are trained by a call in the worker's process: those of functions and of installed trainables."""

import contextlib
import io
import math
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ettsweep import __version__
from ettsweep.console import escape_control
from ettsweep.errors import (
    CommandFailedError,
    CorruptError,
    EttsweepError,
    InputError,
    LostProcessError,
    RunDiverged,
    RunStopped,
    error_line,
)
from ettsweep.files import Json, finite
from ettsweep.kinds.own_code import early_end
from ettsweep.launch.gpus import driver_version, gpu_name
from ettsweep.launch.profile import AnyProfile
from ettsweep.launch.project_copy import missing_in_copy, placed
from ettsweep.launch.remedies import gpu_memory_advice
from ettsweep.launch.slots import Slot
from ettsweep.provenance import installed_versions
from ettsweep.runs.attempt import NO_TIME, Attempt, TimeSpent
from ettsweep.runs.contract import TRAINING_LOSSES, kind_of
from ettsweep.runs.folder import RunDir
from ettsweep.runs.result import make_result
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.stop import StopReason
from ettsweep.strategies.strategy import strategy_name
from ettsweep.worker.work_list import WorkList, heartbeat

FLUSH_S = 1.0
"""Seconds after which recorded metrics are written, so that progress is visible."""

FLUSH_LINES = 200
"""Recorded lines after which they are written, however fast they come."""

STOP_GRACE_S = 30.0
"""Seconds that a run has to save and return once `run.stop` has told it to, before `record` ends it."""

MAX_NAMES = 50
"""Most names of metrics that a run may record: more are a mistake, and fill tables."""


class Runner:
    """Trains runs one after the other, see `work_list.Runner`."""

    def train(self, work: WorkList) -> None:
        """Claim and train runs until a whole pass over the list claims none."""
        pin_devices(work.slot)
        facts = device_facts(work.slot)
        claimed = True
        while claimed:
            claimed = False
            for run in work.runs:
                attempt = work.claim(run, facts)
                if attempt is None:
                    continue
                claimed = True
                attempt.record_provenance(work.code)
                with heartbeat([attempt], work.profile.heartbeat_s):
                    stop = train_attempt(run, attempt, work)
                work.on_end(attempt, stop)
                if stop is StopReason.SUPERSEDED and attempt.was_requeued():
                    work.stop_source.stop_reason = "SUPERSEDED"  # SLURM has requeued the job, with all of its list
                    return


def pin_devices(slot: Slot) -> None:
    """Show libraries that this process will import the devices and threads of its slot, and no others."""
    gpus = [each.gpu for each in (slot, *slot.others) if each.gpu is not None]
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    elif slot.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    threads = str(slot.threads * (1 + len(slot.others)))
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = threads


def device_facts(slot: Slot) -> Json:
    """Return the facts about this machine that a claim records."""
    gpu = "" if slot.gpu is None else gpu_name(slot.gpu)
    return {
        "device": slot.device,
        "device_name": gpu or platform.processor() or platform.machine(),
        **({"driver": driver} if gpu and (driver := driver_version()) else {}),
        "threads": slot.threads,
        "slot": slot.name,
        "ettsweep": __version__,
        "python": platform.python_version(),
    }


def train_attempt(run: RunDir, attempt: Attempt, work: WorkList) -> StopReason | None:
    """Train a claimed run; return why it was stopped early, or None.

    Its result, its failure, or why it was interrupted is on disk then.

    Raises:
        StorageError: not even the failure could be recorded.
    """
    # Absolute: what is called may change the folder that this process is in.
    run, attempt = RunDir(run.path.absolute()), RunDir(run.path.absolute()).attempt(attempt.number)
    context: RunningRun | None = None
    try:
        spec = run.spec()
        spec = placed(run.path.parent.parent, spec)
        context = RunningRun(run, spec, attempt, work)
        context.log(f"run {run.id} attempt {attempt.number} on {work.slot.device}, pid {os.getpid()}")
        attempt.record_execution({"processes": 1, "threads": work.slot.threads})
        context.start()
        _call(spec, context)
        return context.finish()
    except LostProcessError as error:
        if context:
            context.flush()
            context.log(f"lost: {error}")
        attempt.record_failure("lost", str(error))  # it goes on in its next attempt
    except BaseException as error:  # recorded, so that the other runs of this worker go on, whatever a function raises
        # The worker's own handler raises nothing: without a signal, the function has raised it by itself.
        was_signalled = work.stop_source.stop_reason or (context and context.has_own_handlers)
        if isinstance(error, KeyboardInterrupt) and was_signalled:
            attempt.record_failure("interrupted", str(StopReason.TERMINATED))
            return StopReason.TERMINATED
        ours = isinstance(error, EttsweepError)
        details = "" if ours else traceback.format_exc()
        if context:
            with contextlib.suppress(Exception):
                context.flush()
            context.log(f"failed: {details or error}")
        reason = str(error) if ours else error_line(error)
        if type(error).__name__ == "OutOfMemoryError":  # torch's; not imported here
            reason = f"out of GPU memory: {reason}; {gpu_memory_advice(run.id, work.slot)}"
        if not ours and context and (code := context.own_code) and (missing := missing_in_copy(code.folder, reason)):
            reason = f"{reason}; {missing}"
        exit_code = error.code if isinstance(error, CommandFailedError) else None
        attempt.record_failure("error", reason, details, exit_code)
    return None


def _call(spec: RunSpec, context: "RunningRun") -> None:
    """Call the training of a run; it returns at its end, a divergence or a stop.

    Raises:
        InputError: it has called sys.exit with a code.
    """
    folder, path = Path.cwd(), list(sys.path)
    OUTPUT.log = context.log
    try:
        with contextlib.redirect_stdout(OUTPUT), contextlib.redirect_stderr(OUTPUT):
            spec.train(context)
    except (RunDiverged, RunStopped):
        pass
    except SystemExit as end:
        if end.code:
            raise InputError(f"it left with sys.exit({end.code!r})") from None
    finally:
        OUTPUT.end_line()
        os.chdir(folder)
        sys.path[:] = path
        context.has_own_handlers = context.stop_source.restore()


class RunningRun:
    """A run in training: the `RunContext` that its trainable is given.

    Attributes:
        stop_source: the worker's, which hears of signals.
        attempt: this attempt at it.
        slot: the devices and threads that it has.
        has_own_handlers: whether its code has replaced the worker's handlers of signals, so that some were not heard.
        is_complete: set by training that has reached its end, whatever it was told since.
        postponed: set by training that wants to be taken up again: why.
        advice: set by training that was told to stop: what would let it end.
        packages: versions of what it trains with, by name; set by training by another interpreter than this one.
    """

    def __init__(self, run: RunDir, spec: RunSpec, attempt: Attempt, work: WorkList) -> None:
        self._run, self._spec, self.attempt, self._work = run, spec, attempt, work
        self.id, self.slot = run.id, work.slot
        self.lr, self.wd, self.seed = spec.lr, spec.wd, spec.seed
        self.family = spec.family_id
        self.own_code = spec.info.code
        self.strategy = strategy_name(spec.strategy.s)
        self.out = run.path / "out"
        self.data = work.data_of(run)
        self.settings = work.profile.settings(kind_of(spec).settings)
        self.resume_from: Path | None = None
        self.resume_step = self._saved_step = 0
        self.stop_source = work.stop_source
        self.has_own_handlers = False
        self.is_complete = False
        self.postponed = self.advice = ""
        self.packages: Mapping[str, str] = installed_versions(Path(sys.executable))
        self._poll = work.stop_source.make_poll(attempt)
        self._stop: StopReason | None = None
        self._told_s = 0.0
        self._is_asked = False
        self._history: list[Json] = []
        self._written = 0
        self._names: set[str] = set()
        self._diverged_step: int | None = None
        self._spent_before: TimeSpent = NO_TIME
        self._spent_at_last: TimeSpent = NO_TIME
        self._cpu_s = time.process_time()
        self._start_s: float | None = None
        self._began_s = self._flushed_s = time.monotonic()

    def start(self) -> None:
        """Resume from the newest state of an earlier attempt, if there is one."""
        self.out.mkdir(exist_ok=True)
        if self._spec.keeps_checkpoints:
            return
        earlier = [self._run.attempt(n) for n in self._run.attempt_numbers() if n < self.attempt.number]
        for attempt, step, history in self._usable_states(reversed(earlier)):
            self.resume_from, self.resume_step, self._history = attempt.state_path(step), step, history
            self._written, self._saved_step = len(history), step
            self._spent_before = attempt.time_spent(step)
            self.attempt.record_resume(attempt.number, step)
            self.log(f"resumed from attempt {attempt.number} at step {step}")
            return
        if earlier:
            self.log("no usable checkpoint: starts at step 0")

    def _usable_states(self, attempts: Iterator[Attempt]) -> Iterator[tuple[Attempt, int, list[Json]]]:
        for attempt in attempts:
            for step in attempt.saved_steps():
                try:
                    yield attempt, step, attempt.history_at_state(step, every_step=self._spec.info.records_every_step)
                except CorruptError as error:
                    self.log(f"warning: {error}; not used")

    # --- what training may use ---

    @property
    def stop(self) -> str:
        """Why to save a checkpoint and return now; empty to go on."""
        self._is_asked = True
        if reason := self._stop_reason():
            self._told_s = self._told_s or time.monotonic()
        return reason or ""

    def _stop_reason(self) -> StopReason | None:
        if self._stop is None:
            self._stop = self._poll()
        return self._stop

    def record(self, step: int, **metrics: float) -> None:
        """Record metrics of a step.

        Raises:
            InputError: the step is not a whole number above 0, or below an earlier one; or a value is no number.
            RunDiverged: the loss or the score is not finite.
            RunStopped: the run is to stop, and does not do so by itself.
        """
        step = _whole(step)
        last = self._history[-1]["step"] if self._history else 0
        if step < max(1, last):
            raise InputError(f"record(step={step}, ...): steps count from 1, and the last one was {last}")
        if step <= self._saved_step:
            raise InputError(
                f"record(step={step}, ...): the state after step {self._saved_step} is saved already; "
                "record what belongs to it first"
            )
        # One that looks now and then is waited for; one that has been told has some time to save.
        told_s = time.monotonic() - self._told_s if self._told_s else 0.0
        if self._stop_reason() and (not self._is_asked or told_s > STOP_GRACE_S):
            raise RunStopped
        self.note(step, {name: _number(name, value) for name, value in metrics.items()})

    def note(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep metrics of a step, in whatever order they come.

        Raises:
            InputError: there are too many names.
            RunDiverged: the loss or the score is not finite.
        """
        line = {"step": step, **metrics}
        self._names |= metrics.keys()
        if len(self._names) > MAX_NAMES:
            raise InputError(f"more than {MAX_NAMES} names of metrics were recorded: {', '.join(sorted(self._names))}")
        self._history.append(finite(line))
        self._spent_at_last = self._spent
        if self._start_s is None:
            self._start_s = time.process_time() - self._cpu_s
        watched = {*TRAINING_LOSSES, self._spec.info.metric.column} & metrics.keys()
        if not all(math.isfinite(line[name]) for name in watched):
            self._diverged_step = step
            raise RunDiverged
        self.flush_if_due()

    def flush_if_due(self) -> None:
        """Write what was recorded if it is much, some time has passed, or it is the first: others may wait for it."""
        is_due = len(self._history) - self._written >= FLUSH_LINES or time.monotonic() - self._flushed_s >= FLUSH_S
        if is_due or not self._written:
            self.flush()

    def checkpoint(self, step: int, write: Callable[[Path], object]) -> None:
        """Save the state after a step; `write` makes a file or a folder at the path that it is given.

        Raises:
            InputError: metrics of a later step are recorded already, or `write` made nothing.
            StorageError: it cannot be written.
        """
        step = _whole(step)
        if self._history and self._history[-1]["step"] > step:
            raise InputError(
                f"checkpoint(step={step}, ...): metrics of step {self._history[-1]['step']} are recorded already, "
                "which a resumed run would record again; save the state first"
            )
        if self._stop is StopReason.SUPERSEDED:
            return  # another attempt owns the run
        self.flush()
        self.attempt.save_state(step, write, self._history)
        self._saved_step = step

    def log(self, text: str) -> None:
        """Add a line to the run's log; a full disk costs the line, not the run."""
        with contextlib.suppress(OSError):
            self.attempt.log(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {escape_control(text)}\n")

    # --- of commands, which keep their own checkpoints ---

    def earlier_attempts(self) -> list[Attempt]:
        """Return the attempts before this one, the latest first."""
        numbers = (number for number in self._run.attempt_numbers() if number < self.attempt.number)
        return [self._run.attempt(number) for number in sorted(numbers, reverse=True)]

    def continue_from(self, parent: Attempt, step: int) -> None:
        """Keep the metrics of an earlier attempt up to a step, from which this one goes on."""
        inherited = parent.history(until=step, every_step=False)
        self._history = [*inherited, *self._history[self._written :]]
        self._written, self.resume_step = len(inherited), step
        self._spent_before = parent.time_spent(step)
        self.attempt.record_resume(parent.number, step)
        self.log(f"goes on from attempt {parent.number} at step {step}")

    @property
    def profile(self) -> AnyProfile:
        """The launch profile."""
        return self._work.profile

    @property
    def workers(self) -> int:
        """Number of workers beside which it trains, itself included."""
        return self._work.workers

    @property
    def history(self) -> Sequence[Json]:
        """The metrics so far."""
        return self._history

    def settle(self, put_in_order: Callable[[Sequence[Json]], list[Json]]) -> None:
        """Put the metrics of all attempts in order, as the result has them."""
        self.flush()
        self._history = put_in_order(self._history)
        self._written = len(self._history)

    # --- the end ---

    def flush(self) -> None:
        """Write what was recorded since the last time, and how far the run is."""
        lines, self._written = self._history[self._written :], len(self._history)
        self._flushed_s = time.monotonic()
        if not lines:
            return
        self.attempt.append(self.attempt.metrics_path, lines)
        step, spent = lines[-1]["step"], self._spent_at_last  # what follows the last step is none of it
        line: Json = {"step": step, "wall_s": spent.wall_s, "device_s": spent.device_s}
        if self._spec.info.steps:
            line["progress"] = min(1.0, step / self._spec.info.steps)
        line["steps_per_s"] = (step - self.resume_step) / max(spent.wall_s - self._spent_before.wall_s, 1e-9)
        self.attempt.append(self.attempt.timings_path, [line])

    def finish(self) -> StopReason | None:
        """Write how the run ended: its result, or why it stopped early, which is returned."""
        self.flush()
        step = self._history[-1]["step"] if self._history else 0
        is_whole = self._is_whole(step)
        if self._stop is None and self.has_own_handlers and not is_whole:
            self._stop = StopReason.TERMINATED  # its own handler may have ended it
        if self.postponed and self._diverged_step is None:
            self.log(f"stopped at step {step}: {self.postponed}")
            self.attempt.record_failure("interrupted", self.postponed)
            return None
        if self._stop is not None and self._diverged_step is None and not (is_whole or self.is_complete):
            self.log(f"stopped at step {step}: {self._stop}")
            self.attempt.record_failure("interrupted", "; ".join(filter(None, [self._stop, self.advice])))
            return self._stop
        if self.attempt.is_superseded():
            self.log("another attempt has taken over the run")
            return StopReason.SUPERSEDED
        diverged = self._diverged_step is not None
        if not diverged and (end := early_end(self._spec.info, self._history)):
            raise InputError(end)
        result = make_result(self._spec, self._history, step, self.attempt, self._spent, diverged=diverged)
        claim = self.attempt.claim()
        result |= {
            "environment": {name: claim[name] for name in device_facts(self._work.slot) if name in claim}
            | self.attempt.code()
            | ({"packages": self.packages} if self.packages else {}),
            "execution": self.attempt.execution(),
            "start_s": self._start_s or 0.0,
        }
        finished = self._run.finish(result, self._history)
        ending = f"diverged at step {step}" if diverged else "finished"
        self.log(ending if finished else "another attempt finished first")
        return None

    def _is_whole(self, step: int) -> bool:
        """Whether all of the run was recorded, although it may have been told to stop."""
        if self._spec.keeps_checkpoints:  # what trains it says so: an evaluation may follow its last step
            return False
        known = self._spec.info.steps is not None and step >= self._spec.info.steps
        return (
            known
            and self._stop is not StopReason.SUPERSEDED
            and self._spec.info.metric.score(self._history) is not None
        )

    @property
    def _spent(self) -> TimeSpent:
        wall_s, devices = time.monotonic() - self._began_s, 1 + len(self._work.slot.others)
        return TimeSpent(self._spent_before.wall_s + wall_s, self._spent_before.device_s + devices * wall_s)


class _LogStream(io.TextIOBase):
    """A text stream whose lines go to the log of the run that is in training, whoever has kept the stream."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.log: Callable[[str], None] = lambda text: None
        self._parts = [""]  # of a line that has not ended

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._parts.append(text)
        if "\n" in text or "\r" in text:
            *lines, rest = "".join(self._parts).split("\n")
            for line in lines:
                self.log(_last_state(line))
            self._parts = [_last_state(rest)]
        return len(text)

    def end_line(self) -> None:
        """Write what is left of an incomplete line."""
        if any(self._parts):
            self.write("\n")


def _last_state(line: str) -> str:
    """Return a line as it is seen at last: a progress bar overwrites itself."""
    return line.rstrip("\r").rpartition("\r")[2] + ("\r" if line.endswith("\r") else "")


OUTPUT = _LogStream()
"""What runs print. One for all: what a module has kept of it must not write into the log of an earlier run."""


def _whole(step: object) -> int:
    try:
        number = int(step)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise InputError(f"step: a whole number is expected, got {step!r}") from None
    if number != step:
        raise InputError(f"step: a whole number is expected, got {step!r}")
    return int(number)


def _number(name: str, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InputError(f"record(..., {name}={value!r}): a number is expected") from None
