"""Clean-up: find and remove checkpoints of finished runs, dead attempts, orphans and ended submissions."""

import contextlib
import fnmatch
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ettsweep.errors import CorruptError
from ettsweep.files import folder_names, json_or_empty, remove_folder, storage_errors
from ettsweep.launch.code_snapshot import find_unused
from ettsweep.launch.liveness import SchedulerLiveness, watch_hearts
from ettsweep.launch.project_copy import find_unused_copies
from ettsweep.launch.slurm_cache import SlurmCache
from ettsweep.launch.submissions import submission_folders, submissions, try_read_submission
from ettsweep.processes import Process
from ettsweep.project_code import is_project_copy
from ettsweep.runs.folder import TRIAL_OWNER, TRIAL_PREFIX, RunDir, code_dir, is_run_id, runs_dir
from ettsweep.runs.index import load_run_index
from ettsweep.runs.point import Point, snap_point
from ettsweep.runs.state import State
from ettsweep.study.judgement import evaluate_all
from ettsweep.study.sweep_store import load_sweep_store, runs_without_sweep


@dataclass(frozen=True)
class Waste:
    """A file or folder to remove.

    Attributes:
        path: the file or folder.
        reason: why nothing needs it.
        size: in bytes.
    """

    path: Path
    reason: str
    size: int


RUN_OF_NO_SWEEP = "run of no sweep"
"""Reason of a whole run, which has results."""


def find_waste(
    results: Path, slurm_cache: SlurmCache | None = None, *, unused_runs: bool = False, outputs: bool = False
) -> list[Waste]:
    """Return the files and folders that `clean` removes; a live worker uses none of them.

    Args:
        results: the results folder.
        slurm_cache: heartbeats so far; a worker elsewhere counts as alive while its heart may beat.
        unused_runs: also return whole runs of no sweep.
        outputs: also return files that finished runs wrote, except those that recipes keep and runs of candidates.

    Raises:
        CorruptError: with `unused_runs` or `outputs`, a sweep cannot be read, and its runs are unknown.
    """
    liveness = SchedulerLiveness(results, slurm_cache)
    unused = _unused_runs(results, liveness) if unused_runs else set()
    folders = {folder: try_read_submission(folder) for folder in submission_folders(results)}
    live_folders = {folder for folder, submission in folders.items() if submission and liveness.is_live(submission)}
    waste = []
    for name in folder_names(runs_dir(results)):
        path = runs_dir(results) / name
        if path.is_symlink():
            continue
        # Users may keep folders of other names beside them.
        if name in unused:
            # Attempts may belong to other users, who alone can empty them.
            if all(map(_is_removable, [path, *path.glob("attempts/*/")])):
                waste.append(_measure_waste(path, RUN_OF_NO_SWEEP))
        elif path.is_dir() and is_run_id(name):
            waste += list(_run_waste(RunDir(path), liveness, bool(live_folders)))
    for folder, submission in folders.items():
        # An ended submission with unfinished runs is still needed to ask SLURM why its jobs ended.
        if (
            folder not in live_folders
            and _is_removable(folder)
            and not (submission and submission.kind == "slurm" and submission.has_unfinished_runs())
        ):
            waste.append(_measure_waste(folder, "submission that has ended"))
    waste += _ended_trials(results)
    if outputs:
        waste += _unneeded_outputs(results, liveness)
    # Temporary files may belong to a live worker.
    if not live_folders:
        patterns = "sweeps/.*.tmp", "runs/.*.tmp", "jobs/.*.tmp"
        leftovers = sorted(path for pattern in patterns for path in results.glob(pattern))
        waste += [_measure_waste(path, "left by a kill") for path in leftovers]
    return waste + [_measure_waste(path, reason) for path, reason in _unused_snapshots(results, liveness).items()]


def _ended_trials(results: Path) -> Iterator[Waste]:
    """Yield the folders of trials that ended: kept for the user after a failure, or left by a kill."""
    for folder in sorted(results.glob(f"{TRIAL_PREFIX}*")):
        owner = Process.from_json(json_or_empty(folder / TRIAL_OWNER))
        parts = [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
        is_live = any(SchedulerLiveness(part).is_live(each) for part in parts for each in submissions(part))
        if owner and owner.liveness() == "dead" and not is_live and _is_removable(folder):
            yield _measure_waste(folder, "runs of a trial that has ended")


def _unused_runs(results: Path, liveness: SchedulerLiveness) -> set[str]:
    """Return the ids of runs that belong to no sweep, unless they are or may be about to be trained."""
    active = (State.QUEUED, State.HELD, State.RUNNING, State.UNKNOWN)
    all_runs = load_run_index(results, liveness).runs
    unused = runs_without_sweep(all_runs.values(), load_sweep_store(results))
    return {run.id for run in unused if run.state not in active}


def _unneeded_outputs(results: Path, liveness: SchedulerLiveness) -> Iterator[Waste]:
    run_index, sweep_store = load_run_index(results, liveness), load_sweep_store(results)
    for problem in sweep_store.broken.values():
        raise CorruptError(problem)
    spared_ids = set[str]()
    for study_state in evaluate_all(sweep_store.studies, run_index):
        verdict, study = study_state.verdict(), study_state.study
        named = [point for point in (verdict.point, verdict.bound and verdict.bound.recommended) if point]
        members = run_index.family_runs(study.base, study.axes)
        spared_ids |= {run.id for run in members if _is_at(study.point_of(run), named)}
    for run in run_index.runs.values():
        patterns, out = run.base.info.kept_outputs, run.dir.path / "out"
        if patterns is None or not run.state.finished or not out.is_dir() or not _is_removable(out):
            continue
        if run.id not in spared_ids:
            yield from (_measure_waste(path, "output of a finished run") for path in _unkept(out, out, patterns))


def _is_at(point: Point, points: Sequence[Point]) -> bool:
    return bool(points) and snap_point(point, points) in points


def _unkept(folder: Path, out: Path, patterns: Sequence[str]) -> list[Path]:
    """Return the paths below a folder that no pattern matches, as whole folders if possible."""
    unkept, is_whole = list[Path](), True
    for path in sorted(folder.iterdir()):
        name = path.relative_to(out).as_posix()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            is_whole = False
        elif path.is_dir() and not path.is_symlink():
            below = _unkept(path, out, patterns)
            unkept += below
            is_whole &= below == [path]
        else:
            unkept.append(path)
    return [folder] if is_whole and folder != out else unkept


def _unused_snapshots(results: Path, liveness: SchedulerLiveness) -> dict[Path, str]:
    live = [submission for submission in submissions(results) if liveness.is_live(submission)]
    unused = find_unused(results, {Path(submission.code).name for submission in live if submission.code})
    copies = {path: unused.pop(path) for path in list(unused) if is_project_copy(path)}
    sweep_store = load_sweep_store(results)
    if copies and not live and not sweep_store.broken:
        named = [code for sweep in sweep_store.sweeps.values() for code in sweep.codes]
        unneeded = find_unused_copies(results, named)
        unused |= {path: "copy of a project that no sweep needs" for path in copies if path in unneeded}
    return {path: reason for path, reason in unused.items() if _is_removable(path)}


def _is_removable(path: Path) -> bool:
    """`True` if this user may empty a folder: a shared results folder has those of other users.

    A link, which ettsweep never makes, may lead anywhere.
    """
    return not path.is_symlink() and os.access(path, os.W_OK)


TEMPORARY = (".*.tmp", "attempts/.*.tmp", "attempts/*/.*.tmp", "attempts/*/states/.*.tmp")
"""Names of files that a kill may leave in the folder of a run."""


def _run_waste(run: RunDir, liveness: SchedulerLiveness, any_live: bool) -> Iterator[Waste]:
    status = run.status(liveness)
    if not any_live and not run.spec_path.exists() and not run.attempt_numbers() and not run.result_path.exists():
        yield _measure_waste(run.path, "no run: neither spec.json nor attempts")
        return
    if status.state in (State.RUNNING, State.UNKNOWN):
        return
    if not any_live:
        for temporary in sorted(path for place in TEMPORARY for path in run.path.glob(place)):
            yield _measure_waste(temporary, "left by a kill")
    attempts = [run.attempt(number) for number in run.attempt_numbers()]
    if status.state.finished:
        # The last attempt has the log and timings of the result.
        for attempt in attempts[:-1]:
            if _is_removable(attempt.path):
                yield _measure_waste(attempt.path, "attempt of a run that another attempt finished")
        for attempt in attempts[-1:]:
            if attempt.has_checkpoint() and _is_removable(attempt.path):
                yield _measure_waste(attempt.states_path, "checkpoint of a finished run")
            for path in attempt.metrics_copies() if _is_removable(attempt.path) else ():
                yield _measure_waste(path, "metrics that the finished run also has")


def _measure_waste(path: Path, reason: str) -> Waste:
    members = [path] if path.is_symlink() or path.is_file() else path.rglob("*")
    size = 0
    for member in members:
        # Files may vanish meanwhile: the size is only informative.
        with contextlib.suppress(OSError):
            size += member.lstat().st_size
    return Waste(path, reason, size)


def watch_workers(results: Path, notify: Callable[[str], None]) -> SlurmCache:
    """Watch the hearts of hidden workers on machines with this machine's name, see `watch_hearts`."""
    run_ids = folder_names(runs_dir(results))
    return watch_hearts(results, run_ids, notify, of_this_name=True)


def remove(waste: list[Waste], slurm_cache: SlurmCache | None = None) -> None:
    """Remove the files of `find_waste`, given the same heartbeats, except those in use again.

    Raises:
        StorageError: a file or folder cannot be removed.
    """
    unused: set[str] | None = None
    for item in waste:
        # The user may have taken minutes to confirm: check again.
        submission = try_read_submission(item.path)
        if submission and SchedulerLiveness(submission.results, slurm_cache).is_live(submission):
            continue
        results = item.path.parent.parent
        if item.path.parent == code_dir(results) and item.path not in _unused_snapshots(
            results, SchedulerLiveness(results, slurm_cache)
        ):
            continue  # a submission uses it again
        if item.reason == RUN_OF_NO_SWEEP:
            if unused is None:
                unused = _unused_runs(results, SchedulerLiveness(results, slurm_cache))
            if item.path.name in unused:
                remove_folder(item.path)
            continue
        with storage_errors(item.path):
            if item.path.is_dir() and not item.path.is_symlink():
                shutil.rmtree(item.path)
            else:
                item.path.unlink(missing_ok=True)
