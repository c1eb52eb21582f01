"""The run of a program in a sweep; outside of one, it records nothing, and nothing stops it.

    from ettsweep.run import Run

    run = Run(lr=0.001, wd=0.1)  # in a sweep: lr, wd and seed of the run, whatever is written here
    for step in range(run.resume_step + 1, 1001):
        ...
        run.log(step, loss=loss)
        if step % 100 == 0 or run.should_stop:
            run.save(step, lambda path: torch.save(state, path))
        if run.should_stop:
            break

This file needs nothing else of ettsweep: copy it if ettsweep is not installed. Of several processes, as torchrun starts
them, rank 0 records and saves; calls of the others do nothing.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Line = dict[str, Any]
"""Metrics of a step: `step`, and numbers by name."""

LOOK_S = 0.2
"""Seconds between checks for a stop: the folder may be on a network file system."""

STOP_GRACE_S = 30.0
"""Seconds in which a program must leave once `should_stop` is true, before `log` ends it."""

MAX_NAMES = 50
"""Most names of metrics of a run: more are a mistake, and fill tables."""

MAX_SKIPS = 50
"""fp16 steps in a row that the loss scaler may skip, halving its scale, before the run counts as diverged."""


class RunEnd(SystemExit):
    """Ends a program quietly."""


class Diverged(RunEnd):
    """A loss or the score is not finite."""


class Stopped(RunEnd):
    """Raised in a run that ignores `should_stop`."""


class Run:
    """A run of a sweep.

    Attributes:
        lr, wd, seed, strategy: of the run; outside of a sweep as given.
        inputs: values of all axes and variants by name.
        out: folder for its own files, the same in all attempts.
        data: location of the data, from `--data`; None without it.
        resume_from: checkpoint of an earlier attempt, written by `save`; None to start from the beginning.
        resume_step: step of that checkpoint; 0 to start from the beginning.
        id: of the run; empty outside of a sweep.
        environment: its variables.
        last_step: step of the last metrics; before the first ones, that of `resume_from`.
        is_told: whether the run has got a request to stop.
        start_s: CPU seconds of this process before the first metrics.
    """

    def __init__(
        self,
        lr: float = 1.0,
        wd: float = 0.0,
        seed: int = 0,
        out: str | Path = ".",
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        given = os.environ if environment is None else environment
        self.environment = given
        self.id = given.get("ETTSWEEP_RUN", "")
        self.lr, self.wd = float(given.get("ETTSWEEP_LR", lr)), float(given.get("ETTSWEEP_WD", wd))
        self.inputs = {"lr": self.lr, "wd": self.wd, **json.loads(given.get("ETTSWEEP_INPUTS", "{}"))}
        self.seed = int(given.get("ETTSWEEP_SEED", seed))
        self.strategy = given.get("ETTSWEEP_STRATEGY", "standard")
        self.out = Path(given.get("ETTSWEEP_OUT", out))
        self.data = given.get("ETTSWEEP_DATA") or None
        self.resume_from = Path(given["ETTSWEEP_CHECKPOINT"]) if given.get("ETTSWEEP_CHECKPOINT") else None
        self.resume_step = int(given.get("ETTSWEEP_STEP") or 0)
        self.is_told = False
        self.divergence = Divergence(given.get("ETTSWEEP_LOSSES", "").split("\n"))
        leads = os.environ.get("RANK", "0") == "0"
        self._metrics = given.get("ETTSWEEP_METRICS", "") if leads else ""
        self._states = given.get("ETTSWEEP_STATES", "") if leads else ""
        self._stop = given.get("ETTSWEEP_STOP", "")
        self._file = -1
        self._bytes, self._digest = 0, hashlib.sha256(given.get("ETTSWEEP_HISTORY", "").encode())
        self.last_step = self._saved = self.resume_step
        self._names = set[str]()
        self._looked_s = self._told_s = 0.0
        self._is_asked = False
        self._began_s = time.process_time()
        self.start_s = 0.0

    # --- metrics ---

    def log(self, step: int, **metrics: float) -> None:
        """Record metrics of a step: numbers, or values that `float` accepts, such as a tensor with one value.

        A loss or score that is not finite ends the program: the run has diverged.

        Raises:
            ValueError: the step is not a whole number, or decreases; or there are too many names.
            TypeError: a metric is not a number.
        """
        step = _whole(step)
        if step < self.last_step:
            raise ValueError(f"log(step={step}, ...): the last one was {self.last_step}, and steps must not decrease")
        if step <= self._saved and self._saved:
            raise ValueError(f"log(step={step}, ...): the state after step {self._saved} is saved: log, then save")
        if self.is_told and (not self._is_asked or time.monotonic() - self._told_s > STOP_GRACE_S):
            raise Stopped
        self.write([{"step": step, **{name: _number(name, value) for name, value in metrics.items()}}])

    def write(self, lines: Sequence[Line]) -> None:
        """Record lines of metrics unchanged, see `log`.

        Raises:
            Diverged: a line shows it; later ones are dropped.
            ValueError: there are too many names.
            OSError: they cannot be written.
        """
        texts, diverged = list[str](), False
        self.start_s = self.start_s or time.process_time() - self._began_s
        for line in lines:
            self.last_step = line["step"]
            self._names |= line.keys()
            if len(self._names) > MAX_NAMES + 1:
                raise ValueError(f"more than {MAX_NAMES} names of metrics: {', '.join(sorted(self._names - {'step'}))}")
            line = finite(line)
            texts.append(json.dumps(line) + "\n")
            if diverged := self.divergence.shows(line):
                break
        data = "".join(texts).encode()
        if self._metrics and data:
            if self._file < 0:
                self._file = os.open(self._metrics, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            with _naming(self._metrics):
                _write(self._file, data)
            self._bytes += len(data)
            self._digest.update(data)
        if diverged:
            raise Diverged

    # --- checkpoints ---

    def save(self, step: int, write: Callable[[Path], object]) -> None:
        """Save the state after a step, replacing earlier ones; `write` creates a file or folder at the given path.

        A killed run resumes here, with the metrics up to here: log those of the step first.

        Raises:
            ValueError: metrics of a later step are recorded, or `write` made nothing.
            OSError: it cannot be written.
        """
        self.saving(step)(write)

    def saving(self, step: int) -> Callable[[Callable[[Path], object]], None]:
        """Return a function that saves the state after a step, perhaps in another thread, with the metrics up to now.

        Raises:
            ValueError: metrics of a later step are recorded.
        """
        step = _whole(step)
        if self.last_step > step:
            raise ValueError(
                f"save(step={step}, ...): metrics of step {self.last_step} are recorded, so a resumed run would "
                "repeat them: save first"
            )
        self._saved = step
        if not self._states:
            return lambda write: None
        if self._file >= 0:  # first: a state is useless without its metrics
            with _naming(self._metrics):
                os.fsync(self._file)
        mark = f"{self._digest.hexdigest()}-{self._bytes}"
        return lambda write: self._save(step, mark, write)

    def _save(self, step: int, mark: str, write: Callable[[Path], object]) -> None:
        with _naming(f"{self._states}/{step}"):
            _save(Path(self._states), step, mark, write)

    # --- stop ---

    @property
    def should_stop(self) -> bool:
        """Whether to save a checkpoint and leave now: the run was cancelled, or its time is up."""
        if not self._is_asked:
            self._is_asked = True
            self._heed_signal()
        if not self.is_told and self._stop and time.monotonic() - self._looked_s >= LOOK_S:
            self._looked_s = time.monotonic()
            if os.path.exists(self._stop):  # noqa: PTH110  called after each step
                self.tell()
        return self.is_told

    def tell(self) -> None:
        """Note a request to stop."""
        self._told_s = self._told_s or time.monotonic()
        self.is_told = True

    def on_signal(self) -> None:
        """Note a signal to stop; end a program that does not check.

        Raises:
            Stopped: it has never read `should_stop`.
        """
        self.tell()
        if not self._is_asked:
            raise Stopped

    def _heed_signal(self) -> None:
        """From now on, SIGTERM sets `should_stop` instead of ending the program."""
        in_main = threading.current_thread() is threading.main_thread()
        if self.id and in_main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, lambda number, frame: self.tell())

    def close(self) -> None:
        """Close its file of metrics."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Divergence:
    """The rule by which metrics of a run show a divergence, for recording and reading.

    A run diverges at the first loss or score that is not finite. In fp16 the loss scaler skips a step whose gradients
    are not finite, an `overflow`: there it diverges at a scale of 1 or less, or at the last of `MAX_SKIPS` in a row.

    Args:
        names: of the losses and the score; `NAME@STEP` counts only at that step.

    Attributes:
        skips: last skipped steps in a row.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._steps = {name: int(step or -1) for name, _, step in (each.partition("@") for each in names)}
        self.skips = 0

    def shows(self, line: Line) -> bool:
        """Return whether the next line of metrics, from `finite`, shows a divergence."""
        is_bad = "nonfinite" in line and any(
            line.get(name, 0) is None and step in (-1, line["step"]) for name, step in self._steps.items()
        )
        if "loss_scale" not in line:
            return is_bad
        self.skips = self.skips + 1 if line.get("overflow") else 0
        return (is_bad and line["loss_scale"] <= 1.0) or self.skips >= MAX_SKIPS


def finite(line: Line) -> Line:
    """Return the line with non-finite floats as null and `"nonfinite": true`: strict JSON has no NaN."""
    nonfinite = [name for name, value in line.items() if isinstance(value, float) and value - value != 0.0]
    return {**line, **dict.fromkeys(nonfinite), "nonfinite": True} if nonfinite else line


def _whole(step: object) -> int:
    try:
        number = int(step)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        number = None
    if number is None or number != step or number < 0:
        raise ValueError(f"step: a whole number of 0 or more is expected, got {step!r}")
    return int(number)


def _number(name: str, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TypeError(f"log(..., {name}={value!r}): a number is expected") from None


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Have an error of the disk name a file."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or path
        raise


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


# --- on disk ----------------------------------------------------------------------------------------------------------


def _save(states: Path, step: int, mark: str, write: Callable[[Path], object]) -> None:
    """Save a state, valid once renamed; its name has digest and size of the metrics up to it."""
    state, temporary = states / f"{step}-{mark}", states / f".{step}.tmp"
    if state.exists():
        return
    states.mkdir(exist_ok=True)
    for left_over in states.glob(".*.tmp"):
        _remove(left_over)
    try:
        write(temporary)
        if not temporary.exists():
            raise ValueError(f"save({step}, write): write created no file or folder at its path")
        for path in (temporary, *temporary.rglob("*")):
            _sync(path)
        temporary.rename(state)
    except BaseException as error:
        is_full = shutil.disk_usage(states).free < 2**20
        with contextlib.suppress(OSError):  # on a full disk, the reason for the failure needs the space
            _remove(temporary)
        if is_full and not isinstance(error, OSError):  # some writers do not report the disk
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(states)) from error
        raise
    _sync(states)
    for earlier in states.iterdir():
        if earlier != state and not earlier.name.startswith("."):
            _remove(earlier)


def _sync(path: Path) -> None:
    if path.is_symlink() or not (path.is_dir() or path.is_file()):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
