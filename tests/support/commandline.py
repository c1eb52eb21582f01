"""The command line as a user types it, a small grid for it, and the processes that it leaves behind."""

import contextlib
import functools
import io
import json
import logging
import math
import os
import pty
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO
from unittest import mock

import yaml

from ettsweep import cli
from ettsweep.errors import CorruptError
from ettsweep.launch import slurm_api
from ettsweep.launch.local import LocalProfile
from ettsweep.launch.slots import Slot
from ettsweep.launch.submissions import read_submission, submission_folders
from ettsweep.runs.folder import RunDir, runs_dir
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import LocalLiveness
from ettsweep.study.sweep_spec import SweepSpec
from ettsweep.study.sweep_store import extend_sweep
from ettsweep.worker.program import Programs
from ettsweep.worker.signals import SIGNALS, StopSource
from ettsweep.worker.training import train_together
from ettsweep.worker.work_list import WorkList

ETTSWEEP = str(Path(sys.executable).with_name("ettsweep"))
PATIENCE_S = 180
"""Seconds after which a test gives up waiting; no test passes or fails by how long anything takes."""

GRID: dict[str, Any] = {
    "model": {"width": 8, "depth": 1, "heads": 2, "patch_size": 4, "image_size": 8, "channels": 1, "classes": 10},
    "task": "digits",
    "recipe": {"batch_size": 32, "schedule": {"total_steps": 24, "warmup_steps": 4, "eval_every": 8}},
    "centre": {"standard": {"lr": 0.25, "wd": 0.25}},
    "lr": {"range": [-1, 1]},
    "wd": "fixed",
    "strategies": ["standard"],
    "criterion": {"rule": "paper"},
}
"""Three runs of a second in all; on this surface the centre is the best by far.

By the paper's rule one seed decides; a test that is about bounds states another criterion, and has more seeds."""

LONG = {"batch_size": 32, "schedule": {"total_steps": 600, "warmup_steps": 4, "eval_every": 200}}
"""A recipe of some seconds of training: time to do something to it."""

FAKE: dict[str, Any] = {"trainable": "fake", "width": 8, "last_step": 24, "every": 8, "best_lr": 0.25, "best_wd": 0.25}
"""The fake trainable, with its optimum at the centre of the small grid."""

LONG_FAKE = FAKE | {"last_step": 600, "every": 25, "step_s": 0.005}
"""A fake run of some seconds."""


def write_grid(path: Path, **changes: Any) -> Path:
    """Write the small grid of the trainer, with other values for some keys."""
    path.write_text(yaml.safe_dump(GRID | changes))
    return path


def write_fake_grid(path: Path, **changes: Any) -> Path:
    """Write the small grid for the fake trainable, with other values for some keys; those of `run` one by one."""
    shared = {key: value for key, value in GRID.items() if key not in ("model", "task", "recipe")}
    path.write_text(yaml.safe_dump(shared | changes | {"run": FAKE | changes.get("run", {})}))
    return path


def keep(results: Path, sweep_spec: SweepSpec) -> None:
    """Keep a request under the name of its grid file, as `grid` does."""
    extend_sweep(results, Path(sweep_spec.grid).stem, sweep_spec)


def finish(results: Path, spec: RunSpec, score: float, device_s: float = 36.0) -> None:
    """Have a run be finished with a made score, as if it had trained for so long."""
    run = RunDir.create(results, spec)
    assert run.claim({}, after=0)
    assert run.finish({"status": "done", "score": score, "device_s": device_s}, [])


def ctrl_c_at(at: str) -> dict[str, str]:
    """Return the environment in which a command presses Ctrl-C: so many events after the first import of a module."""
    return os.environ | {"PYTHONPATH": str(Path(__file__).parent / "ctrl_c"), "CTRL_C_AT": at}


def start(*arguments: object, **options: Any) -> "subprocess.Popen[str]":
    """Start a command in the background."""
    command = [ETTSWEEP, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def ended(process: "subprocess.Popen[str]", code: int = 0) -> "subprocess.CompletedProcess[str]":
    """Wait for a command; its exit code must be the expected one, and no traceback be seen."""
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, f"exit code {process.returncode}, not {code}:\n{out}\n{err}"
    assert "Traceback" not in err
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@dataclass(frozen=True)
class Done:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Call = Callable[..., Done]


def typed(*arguments: object, code: int = 0, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end in a process of its own, as a user does."""
    return ended(start(*arguments, **options), code)


def at_a_terminal(*arguments: object, answer: str = "", term: str = "xterm", columns: int = 400) -> tuple[int, str]:
    """Return how a command ended at a terminal, and what was seen there; somebody answers its questions."""
    ours, theirs = pty.openpty()
    env = os.environ | {"TERM": term, "COLUMNS": str(columns)}
    process = subprocess.Popen([ETTSWEEP, *map(str, arguments)], stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    observed, answered = b"", 0
    with contextlib.suppress(OSError):  # the other end is closed
        while text := os.read(ours, 2**16):
            observed += text
            if b"[y/N]" in observed[answered:]:
                answered = len(observed)
                os.write(ours, answer.encode() + b"\n")
    os.close(ours)
    return process.wait(PATIENCE_S), observed.decode()


def ettsweep(
    *arguments: object,
    code: int | None = 0,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    stdin: TextIO | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end in this process: what it says and does is that of `typed`, without the start of Python.

    What would be a traceback is raised. Any exit code will do where None is expected.
    """
    out, err, command, ended_with = io.StringIO(), io.StringIO(), ["ettsweep", *map(str, arguments)], 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(cwd or "."))
        stack.enter_context(mock.patch.dict(os.environ, env or {}, clear=env is not None))
        stack.enter_context(mock.patch.object(sys, "argv", command))
        stack.enter_context(mock.patch.object(sys, "stdin", stdin or io.StringIO()))
        stack.enter_context(mock.patch.object(os, "dup2", _not_here))  # it would take the output of the tests along
        stack.enter_context(left_as_before())
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        try:
            cli.main()
        except SystemExit as end:
            ended_with = int(end.code or 0)
    said = f"exit code {ended_with}, not {code}:\n{out.getvalue()}\n{err.getvalue()}"
    assert code in (None, ended_with), said
    return subprocess.CompletedProcess(command, ended_with, out.getvalue(), err.getvalue())


def _not_here(source: int, target: int) -> None:
    raise AssertionError("an error of the operating system got through")


@contextlib.contextmanager
def left_as_before() -> Iterator[None]:
    """Leave nothing of a command in this process: handlers of signals and of messages, threads, what SLURM said."""
    handlers = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGPIPE)}
    logger = logging.getLogger("ettsweep")
    level, messages = logger.level, logger.handlers[:]
    slurm_api.configuration.cache_clear()
    try:
        yield
    finally:
        for number, on_signal in handlers.items():
            signal.signal(number, on_signal)
        logger.setLevel(level)
        logger.handlers[:] = messages
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)


def status(results: Path, command: Callable[..., Any] = ettsweep) -> dict[str, dict[str, Any]]:
    """Return what a command says of all runs, by id."""
    rows = json.loads(command("status", "--results", results, "--format", "json").stdout)
    return {row["run"]: row for row in rows}


PICTURES: list[Callable[[], str]] = []
"""What else to say when something does not come: a test on a cluster adds what that looks like."""


def wait_for(condition: Callable[[], Any], subject: str) -> Any:
    """Return the first true value of a condition; one that takes long to look at is looked at less often."""
    began_s = time.monotonic()
    while True:
        looked_s = time.monotonic()
        if value := condition():
            return value
        now_s = time.monotonic()
        if now_s - began_s > PATIENCE_S:
            pictures = [picture() for picture in PICTURES]
            raise AssertionError("\n".join([f"waited in vain for {subject}", *pictures]))
        time.sleep(max(0.01, 3 * (now_s - looked_s)))


def runs_in(results: Path) -> list[RunDir]:
    """Return all run folders."""
    return [RunDir(path) for path in sorted(runs_dir(results).glob("*"))]


def worker_pids(results: Path) -> list[int]:
    """Return the workers that have said that they are there, of all submissions."""
    collected = []
    for folder in submission_folders(results):
        for path in folder.glob("worker-*.json"):
            with contextlib.suppress(ValueError, OSError):
                collected.append(int(json.loads(path.read_text())["process"]["pid"]))
    return collected


def alive(pid: int) -> bool:
    """Say whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def end_workers(results: Path) -> None:
    """Kill the workers that a test left behind, also those that have not spoken yet."""
    pids = worker_pids(results)
    for folder in submission_folders(results):
        with contextlib.suppress(CorruptError):
            pids += [worker.pid for worker in read_submission(folder).workers() if worker]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            if alive(pid) and "ettsweep.worker" in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGKILL)


@functools.cache
def _undisturbed_runs() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="undisturbed-")  # removed when this process ends


@functools.cache
def undisturbed(spec: RunSpec) -> RunDir:
    """Train a run as a worker does, from its start to its end; once for all tests that compare others with it."""
    run = RunDir.create(Path(_undisturbed_runs().name), spec)
    attempt = run.claim({}, after=0)
    assert attempt is not None
    slot, profile = Slot("cpu-0", "cpu", None, 1), LocalProfile(devices="cpu")
    work = WorkList([run], slot, profile, {}, StopSource(), LocalLiveness(), {})
    no_time = mock.patch.dict(os.environ, FAKE_TAKES_NO_TIME="1")
    with no_time, contextlib.closing(Programs()) as programs:
        train_together([(run, attempt)], work, programs)
    return run


def assert_as_if_undisturbed(run: RunDir, train: Callable[[RunSpec], RunDir] = undisturbed) -> None:
    """Compare metrics, byte by byte, and final weights, if any, with those of a run that nothing happened to."""
    reference = train(run.spec())
    assert run.metrics_path.read_bytes() == reference.metrics_path.read_bytes()
    result, expected = run.result() or {}, reference.result() or {}
    assert result["score"] == expected["score"]
    assert result.get("weights_sha256") == expected.get("weights_sha256")


def assert_close_to_undisturbed(run: RunDir, train: Callable[[RunSpec], RunDir] = undisturbed) -> None:
    """Compare all metrics with those of a run that nothing happened to, within rounding: for runs of ensembles."""
    for line, expected in zip(run.history(), train(run.spec()).history(), strict=True):
        assert line.keys() == expected.keys()
        assert all(math.isclose(value, expected[name], rel_tol=1e-3) for name, value in line.items()), line
