"""The run that a program trains, as ettsweep gives it; outside of a sweep nothing is recorded, and nothing stops it.

    from ettsweep.run import Run

    run = Run(lr=0.001, wd=0.1)  # in a sweep: lr, wd and seed of the run, whatever is written here
    for step in range(run.resume_step + 1, 1001):
        ...
        run.log(step, loss=loss)
        if step % 100 == 0 or run.should_stop:
            run.save(step, lambda path: torch.save(state, path))
        if run.should_stop:
            break

It needs this file alone, and imports nothing of ettsweep: copy it where ettsweep is not installed. Of several processes
of a run, as torchrun starts them, that of rank 0 records and saves; the others do so in vain.
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
"""Seconds between looks whether a run is to stop: its folder may be on a network file system."""

STOP_GRACE_S = 30.0
"""Seconds that a program has to leave once `should_stop` has told it to, before `log` ends it."""

MAX_NAMES = 50
"""Most names of metrics that a run may record: more are a mistake, and fill tables."""

MAX_SKIPS = 50
"""fp16 steps in a row that the loss scaler may skip before the run counts as diverged; it halves the scale in each."""


class RunEnd(SystemExit):
    """Ends a program quietly: there is nothing left to do for it."""


class Diverged(RunEnd):
    """A loss or the score is not finite."""


class Stopped(RunEnd):
    """The run was told to stop, and did not look, or did not leave."""


class Run:
    """A run of a sweep.

    Attributes:
        lr, wd, seed, strategy: of the run; outside of a sweep as given.
        out: folder for files of its own, the same in all attempts.
        data: location of the data, as `--data` has it; None without it.
        resume_from: what `save` has written of an earlier attempt; None to start from the beginning.
        resume_step: the step after which it was saved; 0 to start from the beginning.
        id: of the run; empty outside of a sweep.
        environment: variables that it was made of.
        last_step: step of the last metrics; before the first ones, that of `resume_from`.
        is_told: whether it is known that the run is to stop.
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
        """Record metrics of a step: numbers, or what `float` makes one of, such as a tensor with one value.

        A loss or a score that is not finite ends the program: the run has diverged.

        Raises:
            ValueError: the step is no whole number, or goes back; or there are too many names.
            TypeError: a metric is no number.
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
        """Record lines of metrics as they are, see `log`.

        Raises:
            Diverged: one says so; those that follow it are left out.
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
        """Save the state after a step in place of earlier ones; `write` makes a file or folder at the path it is given.

        A killed run goes on from here, with the metrics up to here: log those of the step first.

        Raises:
            ValueError: metrics of a later step are recorded, or `write` made nothing.
            OSError: it cannot be written.
        """
        self.saving(step)(write)

    def saving(self, step: int) -> Callable[[Callable[[Path], object]], None]:
        """Return what saves the state after a step, as far as metrics are recorded by now; maybe in another thread.

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
        if self._file >= 0:  # first: a state whose metrics are lost in a crash would be of no use
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
            if os.path.exists(self._stop):  # noqa: PTH110  it is asked after each step
                self.tell()
        return self.is_told

    def tell(self) -> None:
        """Note that the run is to stop."""
        self._told_s = self._told_s or time.monotonic()
        self.is_told = True

    def on_signal(self) -> None:
        """Note a signal to stop; a program that does not look is ended.

        Raises:
            Stopped: it has never asked whether to stop.
        """
        self.tell()
        if not self._is_asked:
            raise Stopped

    def _heed_signal(self) -> None:
        """From now on, SIGTERM tells a program that looks by itself, instead of ending it."""
        in_main = threading.current_thread() is threading.main_thread()
        if self.id and in_main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, lambda number, frame: self.tell())

    def close(self) -> None:
        """Close its file of metrics."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Divergence:
    """What the metrics of a run say of a divergence: the one rule, for who records them and who reads them.

    A run diverges at the first loss or score that is not finite. In fp16 the loss scaler skips a step whose gradients
    are not finite, an `overflow`: there it diverges at a scale of 1 or less, or at the last of `MAX_SKIPS` in a row.

    Args:
        names: of the losses, and of the score; `NAME@STEP` is one that counts at a step alone.

    Attributes:
        skips: steps that were skipped last, in a row.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._steps = {name: int(step or -1) for name, _, step in (each.partition("@") for each in names)}
        self.skips = 0

    def shows(self, line: Line) -> bool:
        """Return whether the next line of the metrics, as `finite` has it, shows a divergence."""
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
    """Save a state, which counts from its rename on; its name has a mark of the metrics up to it: digest and size."""
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
        with contextlib.suppress(OSError):  # on a full disk, the reason for the failure needs its space
            _remove(temporary)
        if is_full and not isinstance(error, OSError):  # some writers say nothing of the disk
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
