"""Faults of a cluster, on a real one: whatever breaks, each run is trained once, exactly, and `status` tells the truth.

A test holds a run still by stopping its worker (SIGSTOP), never by hoping that it takes long enough.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.arrays import LATER, asks, attempt_at_work, node_of, only_submission, workers
from support.commandline import (
    ETTSWEEP,
    PATIENCE_S,
    ended,
    ettsweep,
    runs_in,
    start,
    status,
    undisturbed,
    wait_for,
)
from support.devcluster import Cluster

from ettsweep.launch.submissions import Submission, submission_folders, submissions
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir

STEPS = 1200
"""Steps of a run that something happens to: some seconds, and dozens of checkpoints."""

SAME = ("status", "score", "metrics_sha256")
"""What a result says that must be as if nothing had happened."""

MOVING = {"queued", "running", "done"}
"""States of a run that nobody needs to do anything about."""


# --- processes ------------------------------------------------------------------------------------------------------


def started(results: Path) -> list[Attempt]:
    """Return the first attempts that have saved a checkpoint."""
    return [a for run in runs_in(results) if (a := run.attempt(1)).has_checkpoint()]


@contextlib.contextmanager
def held(results: Path, attempt: Attempt) -> Iterator[None]:
    """Stop the worker of an attempt, with its program, and let them go on afterwards if they are still there."""
    found = workers(results, node_of(attempt))
    assert found
    pids = [pid for worker in found for pid in (worker, *below(worker))]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    assert RunDir(attempt.run).result() is None, "the run was faster than this test"
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def below(pid: int) -> list[int]:
    """Return the processes below one."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, path.read_text().split()):
                found += [child, *below(child)]
    return found


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


onlookers: "list[subprocess.Popen[Any]]" = []


@pytest.fixture(autouse=True)
def _no_onlooker_is_left() -> Iterator[None]:
    yield
    while onlookers:
        onlookers[-1].kill()
        onlookers.pop().wait()


class Onlooker:
    """A command that stays and tells what it sees, in lines."""

    def __init__(self, message: Path, *arguments: object) -> None:
        self._said = message
        with message.open("w") as file:
            command = [ETTSWEEP, *map(str, arguments)]
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file, text=True)
        onlookers.append(self.process)

    def says(self, message: str) -> bool:
        return message in self._said.read_text()

    def wait_for(self, message: str) -> None:
        wait_for(lambda: self.says(message) or self.process.poll() is not None, f"a line with {message!r}")
        assert self.says(message), self._said.read_text()

    def ended(self, code: int = 0) -> None:
        assert self.process.wait(PATIENCE_S) == code, self._said.read_text()
        assert not self.says("Traceback")


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


def wait_for_the_end(results: Path, *allowed: str) -> list[dict[str, Any]]:
    """Look until all runs are done; return all that was told of unfinished ones on the way."""
    collected: list[dict[str, Any]] = []

    def ended() -> bool:
        left = [row for row in look(results, *allowed).values() if row["state"] != "done"]
        collected.extend(left)
        return not left

    wait_for(ended, "the end of all runs")
    return collected


@pytest.fixture
def trained_once() -> Callable[[Path], None]:
    """Return a check: each run has one result, that one attempt has trained to, as if nothing had happened to it."""

    def check(results: Path) -> None:
        for run in runs_in(results):
            logs = "".join(run.attempt(number).log_text() for number in run.attempt_numbers())
            assert logs.count(" finished") == 1, logs
            assert "another attempt finished first" not in logs
            # A worker that is killed in the middle of a checkpoint leaves it unfinished in its own attempt.
            *killed, _ = run.attempt_numbers()
            excused = {run.attempt(number).path for number in killed}
            assert [path for path in run.path.rglob("*.tmp") if path.parent not in excused] == []
            calm = undisturbed(run.spec())
            expected, result = calm.result(), run.result()
            assert expected is not None
            assert result is not None
            assert run.metrics_path.read_bytes() == calm.metrics_path.read_bytes()
            assert [result[key] for key in SAME] == [expected[key] for key in SAME]

    return check


def lineage(attempt: Attempt) -> list[int]:
    """Return the attempts that an attempt goes back to, itself first; each has gone on from a checkpoint."""
    numbers = [attempt.number]
    while parent := RunDir(attempt.run).attempt(numbers[-1]).resumed_from()[0]:
        assert RunDir(attempt.run).attempt(numbers[-1]).resumed_from()[1] >= 25
        numbers.append(parent)
    return numbers


def assert_said(command: "subprocess.CompletedProcess[str]", *words: str) -> None:
    """A command has said some words."""
    assert [each for each in words if each not in command.stderr] == [], command.stderr


def grid_submits_nothing(
    results: Path, requested: tuple[object, ...], message: str = "1 in progress", code: int = 0
) -> None:
    before = submission_folders(results)
    assert message in ettsweep(*requested, code=code).stderr
    assert submission_folders(results) == before


# --- a submitter that dies ------------------------------------------------------------------------------------------


def test_a_submitter_killed_before_it_knew_of_its_jobs_leaves_no_orphans(
    cluster: Cluster, tmp_path: Path, results: Path, trained_once: Any, instead: Any
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


# --- nodes and workers that die -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_copy_of_a_job_that_slurm_has_given_up_leaves_the_runs_to_the_next(
    cluster: Cluster, tmp_path: Path, results: Path, trained_once: Any
) -> None:
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
            pids = workers(results, cut_off)
            for pid in pids:
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


def test_a_run_goes_on_elsewhere_after_its_node_died(
    cluster: Cluster, tmp_path: Path, results: Path, trained_once: Any
) -> None:
    requested = asks(tmp_path, steps=STEPS)
    ettsweep(*requested)
    lost = attempt_at_work(results)
    with held(results, lost):
        cluster.node("kill", node_of(lost))
    values = look(results, "running", "queued")
    grid_submits_nothing(results, requested)
    values = [*values.values(), *wait_for_the_end(results)]
    assert {row["job"] for row in values} == {lost.job_id()}
    taken_on = RunDir(lost.run).attempt(2)
    assert RunDir(lost.run).attempt_numbers() == [1, 2]
    assert lineage(taken_on) == [2, 1]
    assert taken_on.job_id() == lost.job_id()
    assert node_of(taken_on) != node_of(lost)
    assert lost.failure() is None  # it had no time for words
    trained_once(results)


# --- a controller that does not answer ------------------------------------------------------------------------------

NO_CONTROLLER = "Unable to contact slurm controller (connect failure)"


def silent(row: dict[str, Any], message: str) -> bool:
    """Say whether a row of `status` says that SLURM does not answer, with SLURM's own words."""
    reason = str(row["reason"])
    return reason.startswith("SLURM does not answer: squeue: ") and reason.endswith(message)


def test_nothing_is_concluded_while_the_controller_is_away(
    cluster: Cluster, tmp_path: Path, results: Path, trained_once: Any
) -> None:
    requested = asks(tmp_path, runs=2, steps=STEPS, max_parallel=1)
    follow = Onlooker(tmp_path / "said", *requested, "--follow")
    (first,) = wait_for(lambda: started(results), "a checkpoint")
    with held(results, first):
        cluster.ctl("stop", "slurmctld")
        rows = look(results, "unknown")
        assert all(silent(row, NO_CONTROLLER) for row in rows.values()), rows
        assert rows[first.run.name]["where"] == node_of(first)
        follow.wait_for("(2 unknown)")
        assert follow.says(f"SLURM does not answer: squeue: {NO_CONTROLLER}")
        grid_submits_nothing(results, requested, f"{NO_CONTROLLER}; try again when it answers", code=1)
    wait_for(RunDir(first.run).result, "the end of a run whose controller is away")
    assert look(results, "done", "unknown")[first.run.name]["state"] == "done"
    assert follow.process.poll() is None
    cluster.ctl("start", "slurmctld")
    wait_for_the_end(results)
    follow.ended()
    assert follow.says("2 of 2 runs finished")
    assert len(submission_folders(results)) == 1
    assert [run.attempt_numbers() for run in runs_in(results)] == [[1], [1]]
    trained_once(results)


def test_jobs_that_come_after_sbatch_gave_up_are_found(
    cluster: Cluster, tmp_path: Path, results: Path, trained_once: Any, instead: Any
) -> None:
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


# --- commands at the same instant -----------------------------------------------------------------------------------


def test_commands_at_the_same_instant_train_each_run_once(
    cluster: Cluster, tmp_path: Path, results: Path, trained_once: Any, instead: Any
) -> None:
    requested = asks(tmp_path, runs=3, steps=100)
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    # Each has made its plan, and waits for the others before it submits.
    meet = f"touch {meeting}/$PPID; until [ $(ls {meeting} | wc -l) = 2 ]; do sleep 0.01; done"
    environment = instead("sbatch", f'case " $* " in *" --test-only "*) {meet} ;; esac\nexec $REAL "$@"')
    for command in [start(*requested, env=environment) for _ in range(2)]:
        assert "3 runs submitted" in ended(command).stderr
    assert len(submission_folders(results)) == 2
    wait_for_the_end(results)
    for submission in submissions(results):
        wait_for(lambda s=submission: jobs_ended(cluster, s), "all jobs to end")  # type: ignore[misc]
    assert [run.attempt_numbers() for run in runs_in(results)] == [[1]] * 3
    grid_submits_nothing(results, requested, "3 finished, 0 in progress")
    trained_once(results)


def jobs_ended(cluster: Cluster, submission: Submission) -> bool:
    """Say whether all jobs of a submission have ended; each with success."""
    states = {job["state"] for job in cluster.squeue("--name", submission.name)}
    assert not states & {"FAILED", "CANCELLED"}
    return states == {"COMPLETED"}


# --- jobs that are held ---------------------------------------------------------------------------------------------


def test_a_job_that_is_requeued_and_held_is_replaced_by_cancel_and_retry(
    cluster: Cluster, tmp_path: Path, results: Path, trained_once: Any
) -> None:
    ettsweep(*asks(tmp_path, runs=2, steps=STEPS, runs_per_job=2))
    (first,) = wait_for(lambda: started(results), "a checkpoint")
    with held(results, first):
        cluster.run("scontrol", "requeuehold", "State=SpecialExit", first.job_id())
        rows = wait_for(lambda: (r := look(results, "queued", "running", "held")) and both_held(r) and r, "the hold")
    reason = rows[first.run.name]["reason"]
    assert reason.startswith("to resume; job requeued in held state: run `scontrol release ")
    refused = ettsweep("retry", first.run.name, "--results", results)
    assert f"is held: nothing to retry; {reason}" in refused.stderr
    cancelled = ettsweep("cancel", first.run.name, "--results", results)
    assert_said(cancelled, "1 run cancelled")
    assert "1 resumed" in ettsweep("retry", first.run.name, "--results", results).stderr
    wait_for(RunDir(first.run).result, "the end of a run whose first job is held")
    assert sorted(row["state"] for row in look(results, "done", "held").values()) == ["done", "held"]
    assert lineage(RunDir(first.run).attempt(2)) == [2, 1]
    cluster.release()
    wait_for_the_end(results)
    trained_once(results)


def both_held(rows: dict[str, dict[str, Any]]) -> bool:
    return {row["state"] for row in rows.values()} == {"held"}


# --- accounting that does not answer --------------------------------------------------------------------------------


def test_all_works_without_accounting(
    cluster: Cluster, tmp_path: Path, results: Path, trained_once: Any, instead: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_accounting = "Slurm accounting storage is disabled"
    monkeypatch.setenv("PATH", instead("sacct", f"echo {no_accounting} >&2; exit 1")["PATH"])
    requested = asks(tmp_path, runs=3, steps=STEPS, max_parallel=1)
    ettsweep(*requested)
    (first,) = wait_for(lambda: started(results), "a checkpoint")
    with held(results, first):
        removed, stays = (run for run in runs_in(results) if run.id != first.run.name)
        job = look(results, "queued", "running")[removed.id]["job"]
        cluster.run("scancel", job)  # the controller forgets it at once: only the accounting knows why it is gone
        row = look(results, "queued", "running", "missing")[removed.id]
        assert (row["state"], row["reason"].partition(";")[0]) == ("missing", f"job {job} has ended")
        assert "reason unknown: sacct" in row["reason"]
        assert no_accounting in row["reason"]
        cancelled = ettsweep("cancel", stays.id, "--results", results)
        assert_said(cancelled, "1 run cancelled", "1 waiting job withdrawn")
        result = ettsweep("status", "--results", results)
        assert "Traceback" not in result.stdout
        assert look(results, "running", "missing", "cancelled")[stays.id]["state"] == "cancelled"
    wait_for(RunDir(first.run).result, "the end of the first run")
    stderr = ettsweep(*requested).stderr
    assert re.search(r"1 run submitted to SLURM as job \d+, 1 finished, 0 in progress, 1 need a decision", stderr)
    assert "1 run submitted" in ettsweep("retry", stays.id, "--results", results).stderr
    wait_for_the_end(results)
    assert [run.attempt_numbers() for run in runs_in(results)] == [[1]] * 3
    trained_once(results)
