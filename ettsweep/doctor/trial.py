"""A trial of a sweep's program: five short runs at its centre, launched as all runs, in their own folder.

First one run; then one of the same seed and one of another, at once; then one that is killed after its first checkpoint
and resumed; then one that gets the signal to stop. `observations` judges them.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from ettsweep.errors import CorruptError, EttsweepError, LaunchError, SlurmUnavailableError
from ettsweep.files import Json, first_json_line, last_json_line, storage_errors
from ettsweep.launch import slurm_api
from ettsweep.launch.cancellation import cancel_runs
from ettsweep.launch.follow import read_run_index
from ettsweep.launch.launcher import Launcher
from ettsweep.launch.liveness import SchedulerLiveness
from ettsweep.launch.slurm_cache import SlurmCache
from ettsweep.launch.submissions import submissions
from ettsweep.launch.submit import submit
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir, runs_dir
from ettsweep.runs.spec import RunSpec, kind_of
from ettsweep.runs.state import State, Status
from ettsweep.study.plan import make_plan
from ettsweep.worker.checkpoints import newest_checkpoint
from ettsweep.worker.program import processes_of, processes_of_session

POLL_S = 0.02
"""Seconds between reads of a run's files."""

STATUS_S = 0.2
"""Seconds between checks of owners."""

MIN_TIMED_S = 0.5
"""Least seconds between the first and the last record of a run to compute the time of a step."""

LEAVING_S = 120.0
"""Seconds to wait for runs of a trial that ends early."""

# fmt: off
OF_THE_MACHINE = {
    "time", "times", "timestamp", "elapsed", "eta", "runtime", "duration", "dt", "latency", "clock", "wallclock",
    "walltime", "s", "sec", "secs", "second", "seconds", "ms", "hours", "speed", "throughput", "fps", "tps", "mfu",
    "flops", "tflops", "util", "mem", "memory",
}
# fmt: on
"""Words in names of metrics that always differ from run to run: `samplesPerSecond`, `step_time`."""


@dataclass(frozen=True)
class TrialRun:
    """An ended run of a trial.

    Attributes:
        spec: the run.
        status: its state, with the reason.
        history: its metrics.
        end: of the program of its last attempt, see `Attempt.end`.
        wall_s, device_s: its duration and device time in seconds.
        step_s: seconds of a step, without start-up; None if unknown.
        memory_bytes: peak of its largest process; 0 if unknown.
        disk_bytes: size of its folder.
    """

    spec: RunSpec
    status: Status
    history: Sequence[Json]
    end: Json
    wall_s: float = 0.0
    device_s: float = 0.0
    step_s: float | None = None
    memory_bytes: int = 0
    disk_bytes: int = 0

    @property
    def curve(self) -> dict[int, float | None]:
        """The recorded scores by step."""
        return self.curve_of(self.spec.info.metric.column)

    def curve_of(self, name: str) -> dict[int, float | None]:
        """Return the recorded values of a metric by step."""
        return {line["step"]: line[name] for line in self.history if name in line}

    @property
    def other_metrics(self) -> list[str]:
        """The recorded metrics besides the score, without times, speeds and memory."""
        names = {name for line in self.history for name in line} - {"step", self.spec.info.metric.column}
        return sorted(name for name in names if OF_THE_MACHINE.isdisjoint(_words(name)))

    @property
    def last_step(self) -> int:
        """The last recorded step; 0 for none."""
        return max((line["step"] for line in self.history), default=0)

    @property
    def is_done(self) -> bool:
        return self.status.state is State.DONE


def _words(name: str) -> list[str]:
    """Return the words of a name in small letters: four of `eval/step_time_s` and `evalStepTimeS`.

    `TFLOPs` is one word.
    """
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return re.findall(r"[^\W\d_]+", f"{name} {apart}".lower())


@dataclass(frozen=True)
class Resumed:
    """A run that was killed and resumed.

    Attributes:
        run: of the trial.
        from_step: step of its checkpoint; None for the start.
        first_step: first recorded step after it; None if none.
    """

    run: TrialRun
    from_step: int | None
    first_step: int | None


@dataclass(frozen=True)
class Stopped:
    """A run that got the signal to stop.

    Attributes:
        stop_s: seconds until it ended.
        was_killed: whether its grace ended before.
        has_saved: whether it saved a checkpoint then; None if it has none at all.
    """

    stop_s: float
    was_killed: bool
    has_saved: bool | None


@dataclass
class Record:
    """The record of a trial; None for runs that were not made, with a reason in `problems`.

    Attributes:
        base: the run at the centre, shortened for the trial.
        whole: the same run, as long as in the sweep.
        alone: the first run.
        again, other: of the same seed, and of another one, at once.
        resumed: killed and resumed.
        stopped: got the signal to stop.
        still_there: names of processes that outlived all runs.
        problems: reasons of missing runs, by field.
    """

    base: RunSpec
    whole: RunSpec
    alone: TrialRun | None = None
    again: TrialRun | None = None
    other: TrialRun | None = None
    resumed: Resumed | None = None
    stopped: Stopped | None = None
    still_there: Sequence[str] = ()
    problems: dict[str, str] = field(default_factory=dict)


class Trial:
    """A trial of the runs of a study.

    Args:
        whole: the run at the centre, as long as in the sweep.
        other_seed: a seed other than its own.
        profile: its launch profile.
        data: paths of data sets by kind of task.
        folder: an empty folder that all training machines see.
        notify: receives lines on its progress.
    """

    def __init__(
        self,
        whole: RunSpec,
        other_seed: int,
        profile: Launcher,
        data: Mapping[str, str],
        folder: Path,
        notify: Callable[[str], None] = lambda text: None,
    ) -> None:
        base = kind_of(whole).for_trial(whole)
        # For kinds whose checkpoints depend on the profile: one before the end.
        often = {"checkpoint_every_steps": max(1, base.info.steps // 4)} if base.info.steps else {}
        self._profile = profile.model_copy(update=often)
        self._data, self._folder, self._notify = data, folder, notify
        self._other_spec = base.with_point(base.point, other_seed)
        self._slurm_cache = SlurmCache()
        self._memory: dict[Path, int] = {}
        self.record = Record(base, whole)

    def run(self) -> Record:
        """Carry out the trial, unless its first run fails; end all of its runs before it returns or raises."""
        steps = (
            ("alone", "one run alone", self._train_alone),
            ("again", "the same seed again, with another seed at once", self._train_two),
            ("resumed", "a run to kill and resume", self._kill_one),
            ("stopped", "a run to stop", self._stop_one),
        )
        try:
            for number, (part, subject, step) in enumerate(steps, 1):
                self._notify(f"{number}/{len(steps)} {subject}")
                try:
                    step()
                except (LaunchError, SlurmUnavailableError) as error:
                    self.record.problems[part] = str(error)
                if self.record.alone is None or not self.record.alone.is_done:
                    break
        finally:
            self._end()
        self.record.still_there = self._processes()
        return self.record

    # --- the steps ---

    def _train_alone(self) -> None:
        results = self._launch("alone", self.record.base)
        self._wait(results, self.record.base)
        self.record.alone = self._ended(results, self.record.base)

    def _train_two(self) -> None:
        both = self.record.base, self._other_spec
        results = self._launch("two", *both)
        for spec in both:
            self._wait(results, spec)
        self.record.again, self.record.other = (self._ended(results, spec) for spec in both)

    def _kill_one(self) -> None:
        spec = self.record.base
        if spec.info.resume == "none":
            return
        results = self._launch("killed", spec)
        run = _run_dir(results, spec)
        self._wait_until(results, spec, lambda: self._can_be_resumed(run), "its first checkpoint")
        self._kill(run)
        self._wait(results, spec, goes_on=False)
        if run.result_path.exists():
            raise LaunchError("it ended before ettsweep could kill it: make the runs of `try` longer")
        run.retry()  # SLURM may report the job as cancelled or ended, now or later
        self._launch("killed", spec)
        self._wait(results, spec)
        attempt = run.latest_attempt()
        assert attempt is not None
        first, (parent, from_step) = attempt.end().get("first_step"), attempt.resumed_from()
        self.record.resumed = Resumed(self._ended(results, spec), from_step if parent else None, first)

    def _stop_one(self) -> None:
        spec, alone = self._other_spec, self.record.alone
        assert alone is not None
        has_checkpoints = spec.info.resume in ("ettsweep", "files")
        results = self._launch("stopped", spec)
        run = _run_dir(results, spec)
        ready = (lambda: _saved_ns(run, spec) > 0) if has_checkpoints else (lambda: _has_begun(run))
        self._wait_until(results, spec, ready, "it could be told to stop")
        saved_ns, told_s = _saved_ns(run, spec), time.monotonic()
        run.cancel()
        self._wait(results, spec, goes_on=False)
        stop_s, ended = time.monotonic() - told_s, self._ended(results, spec)
        is_at_end = ended.end.get("code") == 0 and ended.last_step >= alone.last_step
        if run.result_path.exists() or is_at_end:
            raise LaunchError("it ended before ettsweep could stop it: make the runs of `try` longer")
        attempt = run.latest_attempt()
        if attempt and attempt.stop_path.exists():  # an older checkpoint does not count
            saved_ns = max(saved_ns, attempt.stop_path.stat().st_mtime_ns)
        has_saved = _saved_ns(run, spec) > saved_ns if has_checkpoints else None
        self.record.stopped = Stopped(ended.end.get("stop_s") or stop_s, bool(ended.end.get("was_killed")), has_saved)

    # --- launching and waiting ---

    def _launch(self, name: str, *specs: RunSpec) -> Path:
        """Start runs; return their results folder."""
        results = self._folder / name
        with storage_errors(results):
            results.mkdir(exist_ok=True)
        plan = make_plan(specs, read_run_index(results, self._slurm_cache), {spec.run_id for spec in specs})
        submit(results, plan, self._profile, self._data, one_first=False)  # two at once
        return results

    def _wait(self, results: Path, spec: RunSpec, *, goes_on: bool = True) -> None:
        """Wait until a run is over, or has no owner any more.

        Raises:
            LaunchError: it is unfinished, and its workers have ended.
        """
        status = self._watch(results, spec, lambda: False)
        if goes_on and status and not status.state.over:
            why = status.reason or submissions(results)[-1].last_output()
            raise LaunchError(f"the run is unfinished and {status.state}: {why}")

    def _wait_until(self, results: Path, spec: RunSpec, condition: Callable[[], bool], event: str) -> None:
        """Wait for a condition.

        Raises:
            LaunchError: the run was over before that event.
        """
        if (status := self._watch(results, spec, condition)) and not condition():
            reason = f": {status.reason}" if status.reason else ""
            raise LaunchError(f"it was {status.state} before {event}{reason}")

    def _watch(self, results: Path, spec: RunSpec, condition: Callable[[], bool]) -> Status | None:
        """Wait until a condition holds, and return None, or until the run is over, and return its status."""
        run, looked_s, told = _run_dir(results, spec), 0.0, ""
        while not condition():
            if time.monotonic() - looked_s >= STATUS_S:
                status, looked_s = self._status(run, results), time.monotonic()
                if status.state.over or status.state in (State.INTERRUPTED, State.MISSING):
                    return status
                if status.state in (State.HELD, State.UNKNOWN) and status.reason != told:
                    told = status.reason
                    self._notify(f"waiting: {told}")
                self._look_at_memory(run)
            time.sleep(POLL_S)
        return None

    def _status(self, run: RunDir, results: Path) -> Status:
        return run.status(SchedulerLiveness(results, self._slurm_cache))

    def _can_be_resumed(self, run: RunDir) -> bool:
        """Whether a run has a checkpoint for its next attempt."""
        spec, alone = self.record.base, self.record.alone
        if spec.info.resume in ("ettsweep", "files"):
            return _saved_ns(run, spec) > 0
        # A program that finds its own checkpoints: half of the steps should do.
        assert alone is not None
        steps = list(alone.curve)
        half = steps[(len(steps) - 1) // 2]
        return any(line["step"] >= half for line in run.evaluations(spec.info.metric.column))

    def _kill(self, run: RunDir) -> None:
        """Kill the worker of a run with all of its processes: its job, or its process here."""
        attempt = run.latest_attempt()
        if attempt is None:
            return
        if job := attempt.job_id():
            slurm_api.kill_job(job)
        elif (owner := attempt.owner()) and owner.liveness() == "alive":
            with contextlib.suppress(ProcessLookupError):
                os.kill(owner.pid, signal.SIGKILL)

    def _look_at_memory(self, run: RunDir) -> None:
        """Keep the peak of the worker's memory, for a run without its own program."""
        attempt = run.latest_attempt()
        if attempt and (owner := attempt.owner()) and owner.liveness() == "alive":
            with contextlib.suppress(OSError, ValueError, IndexError):
                lines = Path(f"/proc/{owner.pid}/status").read_text(encoding="utf-8").splitlines()
                peak = next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)
                self._memory[run.path] = max(peak, self._memory.get(run.path, 0))

    # --- what is left of a run ---

    def _ended(self, results: Path, spec: RunSpec) -> TrialRun:
        run = _run_dir(results, spec)
        status, attempt, result = self._status(run, results), run.latest_attempt(), {}
        if attempt is None:
            return TrialRun(spec, status, (), {})
        with contextlib.suppress(CorruptError):
            result = run.result() or {}
        spent, end = attempt.time_spent(), attempt.end()
        files = [path for path in run.path.rglob("*") if path.is_file() and not path.is_symlink()]
        return TrialRun(
            spec,
            status,
            run.history() if result else attempt.history(every_step=False),
            end,
            result.get("wall_s") or spent.wall_s,
            result.get("device_s") or spent.device_s,
            _step_s(attempt),
            end.get("memory_bytes") or self._memory.get(run.path, 0),
            sum(path.lstat().st_size for path in files),
        )

    # --- the end ---

    def _end(self) -> None:
        """Stop unfinished runs, and wait for the end of all workers."""
        parts = [path for path in sorted(self._folder.iterdir()) if path.is_dir()]
        for results in parts:
            with contextlib.suppress(EttsweepError):
                left = [run for run in read_run_index(results).runs.values() if not run.state.over]
                if left:
                    list(cancel_runs(results, left))
        until_s = time.monotonic() + LEAVING_S
        while any(self._has_workers(results) for results in parts) and time.monotonic() < until_s:
            time.sleep(POLL_S)

    def _has_workers(self, results: Path) -> bool:
        liveness = SchedulerLiveness(results, self._slurm_cache)
        return any(
            liveness.is_live(each) or any(worker and worker.liveness() == "alive" for worker in each.workers())
            for each in submissions(results)
        )

    def _processes(self) -> list[str]:
        """Return the names of processes of the trial's runs on this machine."""
        pids, names = set[int](), list[str]()
        for run in (RunDir(path) for path in self._folder.glob("*/runs/*")):
            owners = [run.attempt(number).owner() for number in run.attempt_numbers()]
            pids |= {*processes_of(str((run.path / "out").resolve()))}
            pids |= {*processes_of_session({each.pid for each in owners if each and each.has_name_of_this_host})}
        for pid in sorted(pids - {os.getpid()}):
            with contextlib.suppress(psutil.Error):
                names.append(psutil.Process(pid).name())
        return names


def _run_dir(results: Path, spec: RunSpec) -> RunDir:
    return RunDir(runs_dir(results) / spec.run_id)


def _saved_ns(run: RunDir, spec: RunSpec) -> int:
    """Return the time of the newest checkpoint of a run, in ns of its file system; 0 without one."""
    with contextlib.suppress(FileNotFoundError):  # a newer one may replace it
        if spec.info.resume == "files":
            newest = newest_checkpoint(run.path / "out", spec.info.checkpoint_pattern)
            return newest.path.stat().st_mtime_ns if newest else 0
        attempt = run.latest_attempt()
        return attempt.states_path.stat().st_mtime_ns if attempt and attempt.has_checkpoint() else 0
    return 0


def _has_begun(run: RunDir) -> bool:
    """Whether a run has recorded or printed anything."""
    attempt = run.latest_attempt()
    paths = (attempt.output_path, attempt.recorded_path, attempt.metrics_path) if attempt else ()
    return any(path.exists() and path.stat().st_size for path in paths)


def _step_s(attempt: Attempt) -> float | None:
    """Return the seconds of a step after the first record; None with one record, or if they came at once."""
    first, last = first_json_line(attempt.timings_path) or {}, last_json_line(attempt.timings_path) or {}
    try:
        steps, wall_s = last["step"] - first["step"], last["wall_s"] - first["wall_s"]
        return float(wall_s / steps) if wall_s >= MIN_TIMED_S else None
    except (KeyError, TypeError, ZeroDivisionError):
        return None
