"""Cancel runs."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ettsweep.console import format_count
from ettsweep.launch.liveness import withdraw_jobs
from ettsweep.runs.state import State
from ettsweep.study.run_index import Run
from ettsweep.study.sweep_store import SweepStore, split_exclusive_runs

ENDED_STATES = (State.DONE, State.DIVERGED, State.FAILED, State.CANCELLED)
"""States of runs that have nothing to cancel."""


def cancellable(runs: Sequence[Run], names: Sequence[str], sweep_store: SweepStore) -> tuple[list[Run], list[str]]:
    """Return the runs that can be cancelled, and a line for each other sweep that keeps some of them.

    Args:
        runs: the selected runs.
        names: names of the sweeps to cancel; only their runs that no other sweep needs are cancelled. Empty for all.
        sweep_store: all sweeps.
    """
    unfinished = [run for run in runs if run.state not in ENDED_STATES]
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
        SlurmUnavailableError: SLURM does not answer; the runs are cancelled all the same.
    """
    for run in runs:
        run.dir.cancel()
    yield f"{format_count(len(runs), 'run')} cancelled"
    if running := sum(run.state is State.RUNNING for run in runs):
        yield f"{running} of them {'stops at its' if running == 1 else 'stop at their'} next step, with a checkpoint"
    # Last: without an answer of SLURM the runs must be cancelled all the same.
    if jobs := withdraw_jobs(results, {run.id for run in runs}):
        yield f"{format_count(len(jobs), 'waiting job')} withdrawn from SLURM"
