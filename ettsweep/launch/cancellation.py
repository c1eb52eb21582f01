"""Cancel runs, and withdraw the jobs of SLURM that have nothing left to train."""

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

from ettsweep.console import format_count
from ettsweep.errors import SlurmUnavailableError
from ettsweep.launch import slurm_api
from ettsweep.launch.liveness import SchedulerLiveness
from ettsweep.launch.submissions import submissions, try_read_submission
from ettsweep.runs.folder import jobs_dir
from ettsweep.runs.index import Run
from ettsweep.runs.state import State
from ettsweep.study.sweep_store import SweepStore, split_exclusive_runs


def cancellable(runs: Sequence[Run], names: Sequence[str], sweep_store: SweepStore) -> tuple[list[Run], list[str]]:
    """Return the runs that can be cancelled, and a line for each other sweep that keeps some of them.

    Args:
        runs: the selected runs.
        names: names of the sweeps to cancel; only their runs that no other sweep needs are cancelled. Empty for all.
        sweep_store: all sweeps.
    """
    unfinished = [run for run in runs if not run.state.over]
    if not names:
        return unfinished, []
    free, shared = split_exclusive_runs(unfinished, names, sweep_store)
    notes = []
    for name, number in shared.items():
        sentence = f"{format_count(number, 'run')} {'is' if number == 1 else 'are'} kept"
        notes.append(f"{sentence}: sweep {name} needs {'it' if number == 1 else 'them'} too")
    return free, notes


def cancel_runs(results: Path, runs: Sequence[Run]) -> Iterator[str]:
    """Cancel runs and withdraw SLURM jobs that would find only cancelled runs; yield a line for each step.

    Raises:
        StorageError: a run folder cannot be written.
        SlurmUnavailableError: SLURM does not answer; the runs are cancelled all the same, and a later command withdraws
            the jobs.
    """
    ids = {run.id for run in runs}
    jobs = [s for s in submissions(results) if s.kind == "slurm" and not ids.isdisjoint(s.runs)]
    # First of all: after a kill, or without an answer of SLURM, the next command withdraws the jobs.
    for submission in jobs:
        submission.request_withdrawal()
    for run in runs:
        run.dir.cancel()
        if (worker := run.status.worker) and worker.liveness() == "alive":
            with contextlib.suppress(OSError):  # another user's, or gone by now
                os.kill(worker.pid, signal.SIGCONT)  # one that is stopped would not hear of it
    # Again: another command may have carried out the request before the runs were cancelled.
    for submission in jobs:
        submission.request_withdrawal()
    yield f"{format_count(len(runs), 'run')} cancelled"
    if running := sum(run.state is State.RUNNING for run in runs):
        # Whether with a checkpoint is up to a user's own code.
        yield f"{running} of them {'stops at its' if running == 1 else 'stop at their'} next step"
    # Last: without an answer of SLURM the runs must be cancelled all the same.
    if message := withdraw_jobs(results):
        yield message
    if others := {submission.user for submission in jobs if not submission.is_withdrawable}:
        yield (
            f"waiting jobs of user {', '.join(sorted(others))} stay until a command of theirs that submits or cancels "
            "withdraws them; they would find nothing to train"
        )


def withdraw_jobs(results: Path) -> str:
    """Carry out all requests to withdraw jobs of this user: cancel those that would find no run to train.

    Running jobs are left to their workers, which see the cancellation and save first.

    Returns:
        A line for people; empty if there was nothing to withdraw.

    Raises:
        SlurmUnavailableError: SLURM does not answer, or refuses; the request stays for the next command.
    """
    requests: dict[Path, list[Path]] = {}
    for path in jobs_dir(results).glob("*.withdraw-*"):
        requests.setdefault(path.with_suffix(""), []).append(path)
    if not requests:
        return ""
    liveness, withdrawn_count, problems = SchedulerLiveness(results), 0, []
    for folder, paths in requests.items():
        try:
            if submission := try_read_submission(folder):
                if not submission.is_withdrawable:
                    continue
                jobs = liveness.withdrawable_jobs(submission)
                slurm_api.cancel_jobs(jobs)
                withdrawn_count += len(jobs)
        except SlurmUnavailableError as error:
            problems.append(str(error))
        else:
            for path in paths:
                with contextlib.suppress(PermissionError):  # another member's, in a folder with the sticky bit
                    path.unlink(missing_ok=True)
    message = f"{format_count(withdrawn_count, 'waiting job')} withdrawn from SLURM" if withdrawn_count else ""
    if problems:
        later = "the next command that submits or cancels withdraws waiting jobs of cancelled runs"
        raise SlurmUnavailableError("; ".join(filter(None, [message, *dict.fromkeys(problems), later])))
    return message
