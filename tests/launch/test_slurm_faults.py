"""Faults of a cluster, on a real one: whatever breaks, each run is trained once, exactly, and `status` tells the truth.

A test holds a run still by stopping its worker (SIGSTOP), never by hoping that it takes long enough.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.arrays import LATER, asks, attempt_at_work, node_of, only_submission, wait_for_state, workers
from support.commandline import (
    ETTSWEEP,
    assert_as_if_undisturbed,
    ended,
    ettsweep,
    runs_in,
    start,
    status,
    wait_for,
)
from support.devcluster import Cluster

from ettsweep.launch.submissions import submission_folders
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir

STEPS = 1200
"""Steps of a run that something happens to: some seconds, and dozens of checkpoints."""

MOVING = {"queued", "running", "done"}
"""States of a run that nobody needs to do anything about."""


# --- processes ------------------------------------------------------------------------------------------------------


def started(results: Path) -> list[Attempt]:
    """Return the first attempts that have saved a checkpoint."""
    return [a for run in runs_in(results) if (a := run.attempt(1)).has_checkpoint()]


@contextlib.contextmanager
def held(results: Path, attempt: Attempt) -> Iterator[None]:
    """Stop the worker of an attempt, with its program, and let them go on afterwards if they are still there."""
    found = [psutil.Process(pid) for pid in workers(results, node_of(attempt))]
    assert found
    stopped = [each for worker in found for each in (worker, *worker.children(recursive=True))]
    for each in stopped:
        each.suspend()
    assert RunDir(attempt.run).result() is None, "the run was faster than this test"
    try:
        yield
    finally:
        for each in stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.resume()


@pytest.fixture
def instead(tmp_path: Path) -> Callable[[str, str], dict[str, str]]:
    """Return a function that puts a script of the shell before one of SLURM's commands, and gives the environment for it.

    In the script $REAL is the command itself, and $PPID the command of ettsweep that has called it.
    """

    def put(name: str, script: str) -> dict[str, str]:
        folder = tmp_path / "instead"
        folder.mkdir(exist_ok=True)
        path = folder / name
        path.write_text(f"#!/bin/bash\nREAL={shutil.which(name)}\n{script}\n")
        path.chmod(0o755)
        return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}

    return put


ONLY_TRIED = 'case " $* " in *" --test-only "*) exec $REAL "$@" ;; esac'
"""sbatch is asked twice: whether it would take the script, and to take it."""


# --- what must be true ----------------------------------------------------------------------------------------------


def look(results: Path, *allowed: str) -> dict[str, dict[str, Any]]:
    """Ask for `status`; a run is done if and only if it has a result, and in one of the allowed states."""

    def finished() -> set[str]:
        return {run.id for run in runs_in(results) if run.result_path.exists()}

    before = finished()
    rows = status(results)
    values = {run_id for run_id, row in rows.items() if row["state"] == "done"}
    assert before <= values <= finished()
    assert {row["state"] for row in rows.values()} <= set(allowed or MOVING), rows
    return rows


def wait_for_the_end(results: Path) -> list[dict[str, Any]]:
    """Look until all runs are done; return all that was told of unfinished ones on the way."""
    collected: list[dict[str, Any]] = []

    def ended() -> bool:
        left = [row for row in look(results).values() if row["state"] != "done"]
        collected.extend(left)
        return not left

    wait_for(ended, "the end of all runs")
    return collected


def trained_once(results: Path) -> None:
    """Each run has one result, that one attempt has trained to, as if nothing had happened to it."""
    for run in runs_in(results):
        logs = "".join(run.attempt(number).log_text() for number in run.attempt_numbers())
        assert logs.count(" finished") == 1, logs
        assert "another attempt finished first" not in logs
        # A worker that is killed in the middle of a checkpoint leaves it unfinished in its own attempt.
        *killed, _ = run.attempt_numbers()
        excused = {run.attempt(number).path for number in killed}
        assert [path for path in run.path.rglob("*.tmp") if path.parent not in excused] == []
        assert_as_if_undisturbed(run)


def lineage(attempt: Attempt) -> list[int]:
    """Return the attempts that an attempt goes back to, itself first; each has gone on from a checkpoint."""
    numbers = [attempt.number]
    while parent := RunDir(attempt.run).attempt(numbers[-1]).resumed_from()[0]:
        assert RunDir(attempt.run).attempt(numbers[-1]).resumed_from()[1] >= 25
        numbers.append(parent)
    return numbers


def grid_submits_nothing(
    results: Path, requested: tuple[object, ...], message: str = "1 in progress", code: int = 0
) -> None:
    before = submission_folders(results)
    assert message in ettsweep(*requested, code=code).stderr
    assert submission_folders(results) == before


def test_a_submitter_killed_before_it_knew_of_its_jobs_leaves_no_orphans(
    cluster: Cluster, tmp_path: Path, results: Path, instead: Any
) -> None:
    requested = asks(tmp_path, runs=2, steps=100, sbatch=LATER)
    killed = instead("sbatch", f'{ONLY_TRIED}\n$REAL "$@" >/dev/null\nkill -KILL $PPID')
    ended(start(*requested, env=killed), -signal.SIGKILL)
    submission = only_submission(results)
    assert submission.array_id() is None
    rows = look(results, "queued")
    assert all("expected to start" in row["reason"] for row in rows.values())
    grid_submits_nothing(results, requested, "2 in progress")
    (array,) = {row["job"].partition("_")[0] for row in rows.values()}
    cluster.begin(array)
    wait_for_the_end(results)
    assert submission.array_id() == array  # the first job that started knew
    assert [run.attempt_numbers() for run in runs_in(results)] == [[1], [1]]
    trained_once(results)


@pytest.mark.slow
def test_a_copy_that_slurm_gave_up_leaves_runs_to_the_next(cluster: Cluster, tmp_path: Path, results: Path) -> None:
    requested = asks(tmp_path, runs=2, steps=STEPS, runs_per_job=2)
    ettsweep(*requested)
    (older,) = wait_for(lambda: started(results), "a checkpoint")
    cut_off = node_of(older)
    cluster.node("freeze", cut_off)
    with held(results, older):
        newer = RunDir(older.run).attempt(2)
        look(results, "queued", "running")
        wait_for(newer.has_checkpoint, "the next copy's work")
        with held(results, newer):
            assert node_of(newer) != cut_off
            assert (newer.job()["id"], newer.job()["restart"]) == (older.job()["id"], 1)
            for pid in workers(results, cut_off):
                os.kill(pid, signal.SIGCONT)
            wait_for(lambda: not workers(results, cut_off), "the older copy to leave")
            assert "superseded" in older.log_text()
            assert older.failure() is not None
            rows = look(results, "queued", "running")
            assert rows[older.run.name]["where"] == node_of(newer)
    cluster.node("thaw", cut_off)
    wait_for_the_end(results)
    (other,) = (run for run in runs_in(results) if run.id != older.run.name)
    assert (RunDir(older.run).attempt_numbers(), other.attempt_numbers()) == ([1, 2], [1])
    assert lineage(newer) == [2, 1]
    assert other.attempt(1).job()["restart"] == 1
    grid_submits_nothing(results, requested, "2 finished, 0 in progress")
    trained_once(results)


def test_a_run_goes_on_elsewhere_after_its_node_died(cluster: Cluster, tmp_path: Path, results: Path) -> None:
    requested = asks(tmp_path, steps=STEPS)
    ettsweep(*requested)
    lost = attempt_at_work(results)
    with held(results, lost):
        cluster.node("kill", node_of(lost))
    grid_submits_nothing(results, requested)
    assert {row["job"] for row in wait_for_the_end(results)} == {lost.job_id()}
    taken_on = RunDir(lost.run).attempt(2)
    assert RunDir(lost.run).attempt_numbers() == [1, 2]
    assert lineage(taken_on) == [2, 1]
    assert taken_on.job_id() == lost.job_id()
    assert node_of(taken_on) != node_of(lost)
    assert lost.failure() is None  # it had no time for words
    trained_once(results)


NO_CONTROLLER = "Unable to contact slurm controller (connect failure)"


def silent(row: dict[str, Any], message: str) -> bool:
    """Say whether a row of `status` says that SLURM does not answer, with SLURM's own words."""
    reason = str(row["reason"])
    return reason.startswith("SLURM does not answer: squeue: ") and reason.endswith(message)


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[tuple[Callable[..., None], Callable[[str], bool]]]:
    """Give a function that has a command follow its runs, and one that tells whether it has said something."""
    with (tmp_path / "said").open("w") as file, contextlib.ExitStack() as stack:

        def follow(*arguments: object) -> None:
            command = [ETTSWEEP, *map(str, arguments), "--follow"]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file, text=True)
            stack.callback(process.wait)
            stack.callback(process.kill)

        yield follow, lambda message: message in (tmp_path / "said").read_text()


def test_nothing_is_concluded_if_slurm_is_away(cluster: Cluster, tmp_path: Path, results: Path, follower: Any) -> None:
    requested = asks(tmp_path, runs=2, steps=STEPS, max_parallel=1)
    follow, says = follower
    follow(*requested)
    (first,) = wait_for(lambda: started(results), "a checkpoint")
    with held(results, first):
        cluster.ctl("stop", "slurmctld")
        rows = look(results, "unknown")
        assert all(silent(row, NO_CONTROLLER) for row in rows.values()), rows
        assert rows[first.run.name]["where"] == node_of(first)
        wait_for(lambda: says("(2 unknown)"), "what the command that follows says")
        assert says(f"SLURM does not answer: squeue: {NO_CONTROLLER}")
        grid_submits_nothing(results, requested, f"{NO_CONTROLLER}; try again when it answers", code=1)
    wait_for(RunDir(first.run).result, "the end of a run whose controller is away")
    assert look(results, "done", "unknown")[first.run.name]["state"] == "done"
    cluster.ctl("start", "slurmctld")
    wait_for_the_end(results)
    wait_for(lambda: says("2 of 2 runs finished"), "the end of the command that follows")
    assert not says("Traceback")
    assert len(submission_folders(results)) == 1
    assert [run.attempt_numbers() for run in runs_in(results)] == [[1], [1]]
    trained_once(results)


def test_jobs_after_sbatch_gave_up_are_found(cluster: Cluster, tmp_path: Path, results: Path, instead: Any) -> None:
    requested = asks(tmp_path, runs=2, steps=100, sbatch=LATER)
    pid = (cluster.folder / "run" / "slurmctld.pid").read_text().strip()
    failed = ettsweep(*requested, code=1, env=instead("sbatch", f'{ONLY_TRIED}\nkill -STOP {pid}\nexec $REAL "$@"'))
    assert "sbatch: Batch job submission failed: Socket timed out on send/recv operation" in failed.stderr
    assert "the next command checks whether the jobs exist" in failed.stderr
    rows = look(results, "unknown")
    assert all(silent(row, "Socket timed out on send/recv operation") for row in rows.values()), rows
    cluster.ctl("thaw", "slurmctld")
    submission = only_submission(results)
    jobs = wait_for(lambda: cluster.squeue("--name", submission.name), "the jobs")
    assert len(jobs) == 2
    rows = look(results, "queued")
    assert {row["job"] for row in rows.values()} == {job["id"] for job in jobs}
    grid_submits_nothing(results, requested, "2 in progress")
    cluster.begin(jobs[0]["id"].partition("_")[0])
    wait_for_the_end(results)
    assert [run.attempt_numbers() for run in runs_in(results)] == [[1], [1]]
    grid_submits_nothing(results, requested, "2 finished, 0 in progress")
    trained_once(results)


def test_a_job_that_is_held_is_replaced_by_cancel_and_retry(cluster: Cluster, tmp_path: Path, results: Path) -> None:
    ettsweep(*asks(tmp_path, runs=2, steps=STEPS, runs_per_job=2))
    (first,) = wait_for(lambda: started(results), "a checkpoint")
    with held(results, first):
        cluster.run("scontrol", "requeuehold", "State=SpecialExit", first.job_id())
        rows = wait_for_state(results, "held")
    reason = rows[first.run.name]["reason"]
    assert reason.startswith("to resume; job requeued in held state: run `scontrol release ")
    refused = ettsweep("retry", first.run.name, "--results", results)
    assert f"is held: nothing to retry; {reason}" in refused.stderr
    assert "1 run cancelled" in ettsweep("cancel", first.run.name, "--results", results).stderr
    assert "1 resumed" in ettsweep("retry", first.run.name, "--results", results).stderr
    wait_for(RunDir(first.run).result, "the end of a run whose first job is held")
    assert sorted(row["state"] for row in look(results, "done", "held").values()) == ["done", "held"]
    assert lineage(RunDir(first.run).attempt(2)) == [2, 1]
    cluster.release()
    wait_for_the_end(results)
    trained_once(results)
