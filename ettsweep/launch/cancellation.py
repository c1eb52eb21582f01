"""Cancel runs, and withdraw SLURM jobs without runs left to train."""

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
        SlurmUnavailableError: SLURM does not answer; the runs are cancelled, and a later command withdraws the jobs.
    """
    ids = {run.id for run in runs}
    jobs = [s for s in submissions(results) if s.kind == "slurm" and not ids.isdisjoint(s.runs)]
    # First: if this command is killed or SLURM does not answer, the next command withdraws the jobs.
    for submission in jobs:
        submission.request_withdrawal()
    for run in runs:
        run.dir.cancel()
        if (worker := run.status.worker) and worker.liveness() == "alive":
            with contextlib.suppress(OSError):  # another user's, or gone by now
                os.kill(worker.pid, signal.SIGCONT)  # a stopped process would miss the cancellation
    # Again: another command may have withdrawn jobs before the runs were cancelled.
    for submission in jobs:
        submission.request_withdrawal()
    yield f"{format_count(len(runs), 'run')} cancelled"
    if running := sum(run.state is State.RUNNING for run in runs):
        # The user's code decides whether it saves a checkpoint.
        yield f"{running} of them {'stops at its' if running == 1 else 'stop at their'} next step"
    # Last: the runs must be cancelled even if SLURM does not answer.
    if message := withdraw_jobs(results):
        yield message
    if others := {submission.user for submission in jobs if not submission.is_withdrawable}:
        yield (
            f"only user {', '.join(sorted(others))} can withdraw their waiting jobs, which have no runs left: their "
            "next command that submits or cancels does"
        )


def withdraw_jobs(results: Path) -> str:
    """Cancel waiting jobs of this user that would find no run to train, for all requests so far.

    Running jobs end by themselves: their workers see the cancellation and save first.

    Returns:
        A line for people; empty without jobs to withdraw.

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
        later = "waiting jobs of cancelled runs remain: the next command that submits or cancels withdraws them"
        raise SlurmUnavailableError("; ".join(filter(None, [message, *dict.fromkeys(problems), later])))
    return message
