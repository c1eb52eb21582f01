"""A trial of what trains a sweep: five short runs at its centre, launched as all runs are, in a folder of their own.

One run alone; then one of the same seed and one of another, at once; then one that is killed after its first checkpoint
and taken up again; then one that is told to stop. What is concluded is in `observations`.
"""

import contextlib
import math
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ettsweep.console import as_on_screen
from ettsweep.doctor.imported_files import elsewhere, hooked, told_files
from ettsweep.doctor.trial_record import Imported, Record, Resumed, Stopped, TrialRun, Written
from ettsweep.doctor.written_files import named_paths, now_ns, written_since
from ettsweep.errors import CorruptError, EttsweepError, LaunchError, SlurmUnavailableError
from ettsweep.files import cache_folder, dumps, read_lines, storage_errors, write_atomic
from ettsweep.launch import slurm
from ettsweep.launch.cancellation import cancel_runs
from ettsweep.launch.follow import read_run_index
from ettsweep.launch.gpus import gpu_bytes, gpu_bytes_of
from ettsweep.launch.liveness import SchedulerLiveness
from ettsweep.launch.profile import AnyProfile
from ettsweep.launch.project_snapshot import PROJECT_FILE, project_root, project_snapshots
from ettsweep.launch.slots import lock_dir
from ettsweep.launch.slurm_cache import SlurmCache
from ettsweep.launch.submissions import submissions
from ettsweep.launch.submit import submit
from ettsweep.processes import process_identity
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import TRIAL_OWNER, TRIAL_PREFIX, RunDir, runs_dir
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State, Status
from ettsweep.study.plan import make_plan
from ettsweep.worker.command.checkpoints import newest_checkpoint
from ettsweep.worker.command.child import processes_of, processes_of_session
from ettsweep.worker.command.recipe import CommandRecipe

POLL_S = 0.02
"""Seconds between looks at files of a run."""

STATUS_S = 0.2
"""Seconds between looks at who is alive."""

GPU_S = 1.0
"""Seconds between looks at the memory of GPUs, each of which starts a program."""

LEAVING_S = 120.0
"""Seconds for which runs of a trial that ends early are waited for."""


class Trial:
    """A trial of the runs of a study.

    Args:
        whole: the run at the centre, as the sweep asks for it.
        other_seed: another seed than its own.
        profile: where it trains.
        data: paths of data sets by kind of task.
        folder: an empty folder, which all machines see that train.
        notify: receives a line on what is under way.
    """

    def __init__(
        self,
        whole: RunSpec,
        other_seed: int,
        profile: AnyProfile,
        data: Mapping[str, str],
        folder: Path,
        notify: Callable[[str], None] = lambda text: None,
    ) -> None:
        base = whole.for_trial()
        # For trainables whose checkpoints are made by the profile: one before the end.
        often = {"checkpoint_every_steps": max(1, base.steps // 4)} if base.steps else {}
        self._profile = profile.model_copy(update=often)
        self._data, self._folder, self._notify = data, folder, notify
        self._other_spec = base.with_point(base.lr, base.wd, other_seed)
        self._slurm_cache = SlurmCache()
        self._memory: dict[str, int] = {}
        self._gpu_memory: dict[str, int] = {}
        self._gpu_looked_s = 0.0 if gpu_bytes() else math.inf
        self.record = Record(base, whole)

    @property
    def _steps(self) -> Sequence[tuple[str, Callable[[], None]]]:
        return (
            ("one run alone", self._train_alone),
            ("the same seed again, and another one at once", self._train_two),
            ("a run that is killed and taken up again", self._kill_one),
            ("a run that is told to stop", self._stop_one),
        )

    def run(self) -> Record:
        """Carry out the trial, as far as its first run trains; none of its runs is left when it returns or raises."""
        try:
            for number, (subject, step) in enumerate(self._steps, 1):
                self._notify(f"{number}/{len(self._steps)} {subject}")
                step()
                if self.record.alone is None or not self.record.alone.is_done:
                    break
        finally:
            self._end()
        self.record.still_there = self._processes()
        return self.record

    # --- the steps ---

    def _train_alone(self) -> None:
        base = self.record.base
        results, since_ns = self._results("alone"), now_ns(self._folder)
        hook, usual, variables = self._folder / "alone" / "hook", self._profile, dict[str, str]()
        try:
            if isinstance(base, CommandRecipe):
                self._profile, variables = hooked(usual, hook)
            with _environment(variables):
                self._launch(results, [base])
            self._wait(results, base)
        except LaunchError as error:
            self.record.problems["alone"] = str(error)
            return
        finally:
            self._profile = usual
        self.record.alone = self._ended(results, base)
        self.record.imported = self._imported(results, told_files(hook))
        self.record.written = (self._written(results, since_ns), Written())

    def _train_two(self) -> None:
        base, other = self.record.base, self._other_spec
        results, since_ns = self._results("two"), now_ns(self._folder)
        try:
            self._launch(results, [base, other])
            for spec in (base, other):
                self._wait(results, spec)
        except LaunchError as error:
            self.record.problems["again"] = str(error)
            return
        finally:
            self._gpu_looked_s = math.inf  # what follows is timed, and each look holds it up
        self.record.again, self.record.other = self._ended(results, base), self._ended(results, other)
        self.record.written = (self.record.written[0], self._written(results, since_ns))

    def _kill_one(self) -> None:
        spec, results = self.record.base, self._results("killed")
        if isinstance(spec, CommandRecipe) and spec.resume is None:
            return
        run = _run_dir(results, spec)
        try:
            self._launch(results, [spec])
            if not self._wait_until(results, spec, lambda: self._can_be_taken_up(run)):
                self.record.problems["resumed"] = self._why_over(results, spec, "its first checkpoint")
                return
            self._kill(run)
            self._wait(results, spec, goes_on=False)
            if run.result_path.exists():
                self.record.problems["resumed"] = "it ended before it could be killed: longer runs would tell"
                return
            run.retry()  # whatever SLURM says of its job now or later: that it was cancelled, or just that it has ended
            self._launch(results, [spec])
            self._wait(results, spec)
        except (LaunchError, SlurmUnavailableError) as error:
            self.record.problems["resumed"] = str(error)
            return
        attempt = run.latest_attempt()
        assert attempt is not None
        first = attempt.end().get("first_step") or _first_step(attempt)
        self.record.resumed = Resumed(self._ended(results, spec), attempt.resumed_from()[1], first)

    def _stop_one(self) -> None:
        spec, results = self._other_spec, self._results("stopped")
        run = _run_dir(results, spec)
        has_checkpoints = not (
            isinstance(spec, CommandRecipe) and (spec.resume is None or spec.resume.checkpoint is None)
        )
        try:
            self._launch(results, [spec])
            ready = (lambda: bool(_checkpoints(run, spec))) if has_checkpoints else (lambda: _has_begun(run))
            if not self._wait_until(results, spec, ready):
                self.record.problems["stopped"] = self._why_over(results, spec, "it could be told to stop")
                return
            before, told_s = _checkpoints(run, spec), time.monotonic()
            run.cancel()
            self._wait(results, spec, goes_on=False)
        except LaunchError as error:
            self.record.problems["stopped"] = str(error)
            return
        stop_s, ended = time.monotonic() - told_s, self._ended(results, spec)
        assert self.record.alone is not None
        went_on = ended.end.get("code") == 0 and _last_step(ended) >= _last_step(self.record.alone)
        if run.result_path.exists() or went_on:
            self.record.problems["stopped"] = (
                "it came to its end before it could be told to stop: longer runs would tell"
            )
            return
        end_s = ended.end.get("stop_s")
        self.record.stopped = Stopped(
            ended,
            end_s if isinstance(end_s, float) else stop_s,
            bool(ended.end.get("was_killed")),
            self._has_saved(run, spec, before) if has_checkpoints else None,
        )

    def _has_saved(self, run: RunDir, spec: RunSpec, before: tuple[int, ...]) -> bool:
        """Return whether a run that was told to stop has saved for it; `before` is what it had a moment earlier."""
        attempt, alone = run.latest_attempt(), self.record.alone
        assert attempt is not None
        assert alone is not None
        if _saved_step(run, spec) == _last_step(alone):
            return True  # it was at its end
        newest = _checkpoints(run, spec)
        if isinstance(spec, CommandRecipe) and newest and attempt.stop_path.exists():
            # The signal follows that file at once: what came before, it would have saved without.
            return newest[-1] > attempt.stop_path.stat().st_mtime_ns
        return newest != before

    # --- launching and waiting ---

    def _results(self, name: str) -> Path:
        folder = self._folder / name
        with storage_errors(folder):
            folder.mkdir(exist_ok=True)
        return folder

    def _launch(self, results: Path, specs: Sequence[RunSpec]) -> None:
        plan = make_plan(specs, read_run_index(results, self._slurm_cache), {spec.run_id for spec in specs})
        submit(results, plan, self._profile, self._data, has_canary=False)  # two at once are what is tried

    def _wait(self, results: Path, spec: RunSpec, *, goes_on: bool = True) -> None:
        """Wait until a run is over, or nobody has it any more.

        Raises:
            LaunchError: it should go on, and its workers have ended.
        """
        self._wait_until(results, spec, lambda: False)
        if goes_on and not (status := self._status(results, spec)).state.over:
            why = status.reason or submissions(results)[-1].last_output()
            raise LaunchError(f"the run did not end, it is {status.state}: {why}")

    def _wait_until(self, results: Path, spec: RunSpec, condition: Callable[[], bool]) -> bool:
        """Wait for a condition; return False if the run was over before."""
        run, looked_s, told = _run_dir(results, spec), 0.0, ""
        while True:
            if condition():
                return True
            if time.monotonic() - looked_s >= STATUS_S:
                status, looked_s = self._status(results, spec), time.monotonic()
                if status.state.over or status.state in (State.INTERRUPTED, State.MISSING):
                    return condition()
                if status.state in (State.HELD, State.UNKNOWN) and status.reason != told:
                    told = status.reason
                    self._notify(f"waiting: {told}")
                self._look_at_memory(run)
            time.sleep(POLL_S)

    def _status(self, results: Path, spec: RunSpec) -> Status:
        return _run_dir(results, spec).status(SchedulerLiveness(results, self._slurm_cache))

    def _why_over(self, results: Path, spec: RunSpec, event: str) -> str:
        status = self._status(results, spec)
        return f"it was {status.state} before {event}" + (f": {status.reason}" if status.reason else "")

    def _can_be_taken_up(self, run: RunDir) -> bool:
        """Whether a run has left what its next attempt goes on from."""
        spec = self.record.base
        if not isinstance(spec, CommandRecipe) or (spec.resume and spec.resume.checkpoint):
            return bool(_checkpoints(run, spec))
        # A program that finds its own: half of the way should do.
        assert self.record.alone is not None
        attempt, steps = run.latest_attempt(), list(self.record.alone.curve)
        half = steps[(len(steps) - 1) // 2]
        return attempt is not None and any(line["step"] >= half for line in attempt.evaluations(spec.metric.column))

    def _kill(self, run: RunDir) -> None:
        """Kill the worker of a run, and with it all that it has started: its job, or its process here."""
        attempt = run.latest_attempt()
        if attempt is None:
            return
        if job := attempt.job_id():
            slurm.kill_job(job)
        elif (owner := attempt.owner()) and owner.liveness() == "alive":
            with contextlib.suppress(ProcessLookupError):
                os.kill(owner.pid, signal.SIGKILL)

    def _look_at_memory(self, run: RunDir) -> None:
        """Keep the peak of the worker's memory, which is that of a run without a program of its own, and of GPUs."""
        attempt = run.latest_attempt()
        if attempt and (owner := attempt.owner()) and owner.liveness() == "alive":
            with contextlib.suppress(OSError, ValueError, IndexError):
                lines = Path(f"/proc/{owner.pid}/status").read_text(encoding="utf-8").splitlines()
                peak = next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)
                self._memory[str(run.path)] = max(peak, self._memory.get(str(run.path), 0))
            if time.monotonic() - self._gpu_looked_s >= GPU_S:
                used = gpu_bytes_of({owner.pid, *processes_of(str((run.path / "out").resolve()))})
                self._gpu_memory[str(run.path)] = max(used, self._gpu_memory.get(str(run.path), 0))
                self._gpu_looked_s = time.monotonic()

    # --- what is left of a run ---

    def _ended(self, results: Path, spec: RunSpec) -> TrialRun:
        run = _run_dir(results, spec)
        attempt, result = run.latest_attempt(), {}
        with contextlib.suppress(CorruptError):
            result = run.result() or {}
        history = run.history() if result else attempt.history(every_step=False) if attempt else []
        spent = attempt.time_spent() if attempt else None
        end = attempt.end() if attempt else {}
        return TrialRun(
            spec,
            self._status(results, spec),
            history,
            end,
            _last_lines(attempt) if attempt else [],
            result.get("wall_s") or (spent.wall_s if spent else 0.0),
            result.get("device_s") or (spent.device_s if spent else 0.0),
            end.get("memory_bytes") or self._memory.get(str(run.path), 0),
            sum(path.lstat().st_size for path in run.path.rglob("*") if path.is_file() and not path.is_symlink()),
            self._gpu_memory.get(str(run.path), 0),
        )

    def _written(self, results: Path, since_ns: int) -> Written:
        """Return the files that were written outside of the runs' own folders; those in the copy as in the project."""
        by_runs, by_any, left_out = set[str](), set[str](), _own_folders(self._folder)
        roots, named = {Path.cwd().resolve()}, list[Path]()
        if code := self.record.base.own_code():
            roots.add((project_root(code) or code.folder).resolve())
            words = self.record.base.argv if isinstance(self.record.base, CommandRecipe) else ()
            named = list(named_paths(self.record.base.code_paths(), words))
        for snapshot in project_snapshots(results):
            copy = snapshot.moved(snapshot.project)
            assert copy is not None
            # Files have their times from the project, where another process may write while they are copied.
            names = written_since((snapshot.path / PROJECT_FILE).stat().st_mtime_ns, copy, ())
            paths = [snapshot.project.resolve() / name for name in names]
            by_runs |= {str(path) for path in paths if not any(path.is_relative_to(folder) for folder in left_out)}
        for root in roots:
            by_any |= {str(root / name) for name in written_since(since_ns, root, left_out)}
        for path in named:
            by_any |= {str(path / name) for name in written_since(since_ns, path, left_out, 1)}
        return Written(frozenset(by_runs), frozenset(by_any))

    def _imported(self, results: Path, paths: Iterable[Path]) -> Imported:
        """Return which of the files that a run has imported are of no copy, or not part of its id."""
        base = self.record.base
        if (code := base.own_code()) is None:
            return Imported()
        root = (project_root(code) or code.folder).resolve()
        known = {path.resolve() for path in base.code_paths()}
        copies = [(copy, each.project) for each in project_snapshots(results) if (copy := each.moved(each.project))]
        unknown, uncopied, others = set[str](), set[str](), list[Path]()
        for path in paths:
            # A copy has links to what is not copied: by its path in the project each file is known.
            original = next((root / path.relative_to(copy) for copy, root in copies if path.is_relative_to(copy)), path)
            if original == path and path.is_relative_to(self._folder.resolve()):  # rendered for the run
                continue
            if not original.resolve().is_relative_to(root):
                others += [path] if original.resolve() not in known else []
            elif original == path and copies:
                uncopied.add(str(original.resolve().relative_to(root)))
            elif original.resolve() not in known:
                unknown.add(os.path.relpath(original.resolve(), code.folder.resolve()))
        return Imported(sorted(unknown), sorted(uncopied), [str(path) for path in elsewhere(others)])

    # --- the end ---

    def _end(self) -> None:
        """Stop what is left of its runs, and wait until no worker is left."""
        for results in self._parts():
            with contextlib.suppress(EttsweepError):
                left = [run for run in read_run_index(results).runs.values() if not run.state.over]
                if left:
                    for _ in cancel_runs(results, left):
                        pass
        until_s = time.monotonic() + LEAVING_S
        while any(self._live()) and time.monotonic() < until_s:
            time.sleep(POLL_S)

    def _parts(self) -> list[Path]:
        """Return the results folders of its runs."""
        return [path for path in sorted(self._folder.iterdir()) if path.is_dir()]

    def _processes(self) -> list[str]:
        """Return the names of processes on this machine that belong to runs of the trial."""
        pids = set[int]()
        for run in (RunDir(path) for path in self._folder.glob("*/runs/*")):
            pids |= set(processes_of(str((run.path / "out").resolve())))
            owners = [run.attempt(number).owner() for number in run.attempt_numbers()]
            pids |= set(processes_of_session({owner.pid for owner in owners if owner and owner.has_name_of_this_host}))
        names = list[str]()
        for pid in sorted(pids - {os.getpid()}):
            with contextlib.suppress(OSError):
                names.append(Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip())
        return names

    def _live(self) -> Iterator[bool]:
        for results in self._parts():
            liveness = SchedulerLiveness(results, self._slurm_cache)
            for submission in submissions(results):
                yield liveness.is_live(submission)
                yield any(worker is not None and worker.liveness() == "alive" for worker in submission.workers())


@contextlib.contextmanager
def scratch_folder(results: Path) -> Iterator[Path]:
    """Yield a new folder, which is removed unless the block has marked it as kept.

    It lies in the results folder: workers on other machines must see it.

    Raises:
        StorageError: the results folder cannot be written.
    """
    with storage_errors(results):
        results.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=TRIAL_PREFIX, dir=results))
    write_atomic(folder / TRIAL_OWNER, dumps(process_identity().to_json()))
    try:
        yield folder
    finally:
        if not kept_mark(folder).exists():
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Give this process some variables, which the workers that it starts have, too."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def kept_mark(folder: Path) -> Path:
    """Return the file whose presence keeps the folder of a trial."""
    return folder / "kept"


def _run_dir(results: Path, spec: RunSpec) -> RunDir:
    return RunDir(runs_dir(results) / spec.run_id)


def _checkpoints(run: RunDir, spec: RunSpec) -> tuple[int, ...]:
    """Return what tells the newest checkpoint of a run from others; empty if there is none."""
    if isinstance(spec, CommandRecipe):
        resume = spec.resume
        newest = newest_checkpoint(run.path / "out", resume.pattern) if resume and resume.checkpoint else None
        return (newest.step or 0, newest.path.stat().st_mtime_ns) if newest else ()
    if not (attempt := run.latest_attempt()) or not attempt.has_checkpoint():
        return ()
    return (*attempt.saved_steps()[:1], attempt.saved_path().stat().st_mtime_ns)


def _own_folders(folder: Path) -> set[Path]:
    """Return the folders in which ettsweep itself writes, given that of a trial."""
    return {path.resolve() for path in (folder.parent, lock_dir(), cache_folder())}


def _saved_step(run: RunDir, spec: RunSpec) -> int | None:
    """Return the step of the newest checkpoint; None if it is not known, as of one in a single file."""
    if isinstance(spec, CommandRecipe):
        resume = spec.resume
        newest = newest_checkpoint(run.path / "out", resume.pattern) if resume and resume.checkpoint else None
        return newest.step if newest else None
    attempt = run.latest_attempt()
    return next(iter(attempt.saved_steps()), None) if attempt else None


def _last_step(run: TrialRun) -> int:
    return max((line["step"] for line in run.history), default=0)


def _has_begun(run: RunDir) -> bool:
    """Whether a run has recorded or printed anything."""
    attempt = run.latest_attempt()
    if attempt is None:
        return False
    sizes = (path.stat().st_size for path in (attempt.output_path, attempt.recorded_path) if path.exists())
    return any(sizes) or attempt.metrics_path.exists() or any((run.path / "out").glob("*"))


def _first_step(attempt: Attempt) -> int | None:
    return next((line["step"] for line in read_lines(attempt.metrics_path)), None)


def _last_lines(attempt: Attempt) -> list[str]:
    with contextlib.suppress(OSError):
        return as_on_screen(attempt.output_path.read_text("utf-8", "replace")).splitlines()[-20:]
    return []
