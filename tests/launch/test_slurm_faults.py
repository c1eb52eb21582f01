"""Faults of a cluster, on a real one: whatever breaks, each run is trained once, exactly, and `status` tells the truth.

A test holds a run still by stopping its worker (SIGSTOP), never by hoping that it takes long enough.
"""

import contextlib
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from arrays import asks, attempt_at_work, only_run, only_submission, state, wait_for_state
from commandline import (
    ETTSWEEP,
    PATIENCE_S,
    assert_as_if_undisturbed,
    ended,
    ettsweep,
    runs_in,
    start,
    status,
    wait_for,
)
from devcluster import Cluster

from ettsweep.launch.submissions import Submission, submission_folders, submissions
from ettsweep.rundir import Attempt, RunDir

STEPS = 2000
"""Steps of a run that something happens to: some seconds, and eighty checkpoints."""

MOVING = {"queued", "running", "done"}
"""States of a run that nobody needs to do anything about."""


# --- processes ------------------------------------------------------------------------------------------------------


def workers(results: Path, node: str = "") -> list[int]:
    """Return the processes, as this machine numbers them, that train runs of a results folder on a node."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if "ettsweep.launch.worker" not in command or Path(command[0]).name.startswith(("srun", "slurm")):
                continue
            where = f"SLURMD_NODENAME={node}\0".encode()
            if any(str(results) in part for part in command) and (not node or where in (path / "environ").read_bytes()):
                found.append(int(path.name))
    return found


def node_of(attempt: Attempt) -> str:
    return str(attempt.job()["node"])


def started(results: Path) -> list[Attempt]:
    """Return the first attempts that have saved a checkpoint."""
    return [a for run in runs_in(results) if (a := run.attempt(1)).checkpoint_path.exists()]


@contextlib.contextmanager
def held(results: Path, attempt: Attempt) -> Iterator[None]:
    """Stop the worker that trains an attempt, and let it go on afterwards if it is still there."""
    pids = workers(results, node_of(attempt))
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    assert attempt.run.result() is None, "the run was faster than this test"
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


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


class Onlooker:
    """A command that stays and tells what it sees, in lines."""

    def __init__(self, said: Path, *arguments: object) -> None:
        self._said = said
        with said.open("w") as file:
            command = [ETTSWEEP, *map(str, arguments)]
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file, text=True)

    def says(self, words: str) -> bool:
        return words in self._said.read_text()

    def wait_for(self, words: str) -> None:
        wait_for(lambda: self.says(words) or self.process.poll() is not None, f"a line with {words!r}")
        assert self.says(words), self._said.read_text()

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
    done = {run_id for run_id, row in rows.items() if row["state"] == "done"}
    assert before <= done <= finished()
    assert {row["state"] for row in rows.values()} <= set(allowed or MOVING), rows
    return rows


def wait_for_the_end(results: Path, *allowed: str) -> list[dict[str, Any]]:
    """Look until all runs are done; return all that was told of unfinished ones on the way."""
    told: list[dict[str, Any]] = []

    def ended() -> bool:
        left = [row for row in look(results, *allowed).values() if row["state"] != "done"]
        told.extend(left)
        return not left

    wait_for(ended, "the end of all runs")
    return told


def assert_trained_once(results: Path, folder: Path, *runs: RunDir) -> None:
    """Each run has one result, that one attempt has trained to, as if nothing had happened to it."""
    for run in runs_in(results):
        logs = "".join(run.attempt(number).log() for number in run.numbers())
        assert logs.count(" finished") == 1, logs
        assert "another attempt finished first" not in logs
        assert not list(run.path.rglob("*.tmp"))
    for run in runs or runs_in(results):
        assert_as_if_undisturbed(run, folder)


def lineage(attempt: Attempt) -> list[int]:
    """Return the attempts that an attempt goes back to, itself first; each has gone on from a checkpoint."""
    numbers = [attempt.number]
    while parent := attempt.run.attempt(numbers[-1]).resumed_from()[0]:
        assert attempt.run.attempt(numbers[-1]).resumed_from()[1] >= 25
        numbers.append(parent)
    return numbers


def grid_submits_nothing(results: Path, asked: tuple[object, ...], said: str = "1 under way") -> None:
    before = submission_folders(results)
    assert said in ettsweep(*asked).stderr
    assert submission_folders(results) == before


# --- a submitter that dies ------------------------------------------------------------------------------------------


def test_a_submitter_killed_before_it_knew_of_its_jobs_leaves_no_orphans(
    cluster: Cluster, tmp_path: Path, results: Path, instead: Any
) -> None:
    asked = asks(tmp_path, runs=2, steps=100, sbatch={"hold": True})
    killed = instead("sbatch", f'{ONLY_TRIED}\n$REAL "$@" >/dev/null\nkill -KILL $PPID')
    ended(start(*asked, env=killed), -signal.SIGKILL)
    submission = only_submission(results)
    assert submission.array() is None
    rows = look(results, "queued")
    assert {row["reason"].partition(",")[0] for row in rows.values()} == {"JobHeldUser"}
    grid_submits_nothing(results, asked, "2 under way")
    (array,) = {row["job"].partition("_")[0] for row in rows.values()}
    cluster.run("scontrol", "release", array)
    wait_for_the_end(results)
    assert submission.array() == array  # the first job that started knew
    assert [run.numbers() for run in runs_in(results)] == [[1], [1]]
    assert_trained_once(results, tmp_path / "undisturbed")


def test_runs_of_a_submitter_killed_before_sbatch_are_submitted_by_the_next_command(
    cluster: Cluster, tmp_path: Path, results: Path, instead: Any
) -> None:
    asked = asks(tmp_path, steps=100)
    ended(start(*asked, env=instead("sbatch", f"{ONLY_TRIED}\nkill -KILL $PPID")), -signal.SIGKILL)
    assert not cluster.squeue("--name", only_submission(results).name)
    (row,) = look(results, "missing").values()
    assert row["reason"] == "its submission was cut short"
    assert "1 runs submitted" in ettsweep(*asked).stderr
    wait_for_the_end(results)
    assert only_run(results).numbers() == [1]
    assert_trained_once(results, tmp_path / "undisturbed")


# --- nodes and workers that die -------------------------------------------------------------------------------------


def test_a_copy_of_a_job_that_slurm_has_given_up_leaves_the_runs_to_the_next(
    cluster: Cluster, tmp_path: Path, results: Path
) -> None:
    asked = asks(tmp_path, runs=2, steps=STEPS, runs_per_job=2)
    ettsweep(*asked)
    (older,) = wait_for(lambda: started(results), "a checkpoint")
    cut_off = node_of(older)
    cluster.node("freeze", cut_off)
    with held(results, older):
        newer = older.run.attempt(2)
        wait_for(lambda: look(results, "queued", "running") and newer.checkpoint_path.exists(), "the next copy's work")
        with held(results, newer):
            assert node_of(newer) != cut_off
            assert (newer.job()["id"], newer.job()["restart"]) == (older.job()["id"], 1)
            pids = workers(results, cut_off)
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            wait_for(lambda: not workers(results, cut_off), "the older copy to leave")
            assert "superseded" in older.log()
            assert older.failure() is not None
            rows = look(results, "queued", "running")
            assert rows[older.run.id]["where"] == node_of(newer)
    cluster.node("thaw", cut_off)
    wait_for_the_end(results)
    (other,) = (run for run in runs_in(results) if run.id != older.run.id)
    assert (older.run.numbers(), other.numbers()) == ([1, 2], [1])
    assert lineage(newer) == [2, 1]
    assert other.attempt(1).job()["restart"] == 1
    grid_submits_nothing(results, asked, "2 finished, 0 under way")
    assert_trained_once(results, tmp_path / "undisturbed")


def test_a_run_goes_on_elsewhere_after_its_node_died(cluster: Cluster, tmp_path: Path, results: Path) -> None:
    asked = asks(tmp_path, steps=STEPS)
    ettsweep(*asked)
    lost = attempt_at_work(results)
    with held(results, lost):
        cluster.node("kill", node_of(lost))
    told = look(results, "running", "queued")
    grid_submits_nothing(results, asked)
    told = [*told.values(), *wait_for_the_end(results)]
    assert {row["job"] for row in told} == {lost.job_id()}
    taken_on = lost.run.attempt(2)
    assert lost.run.numbers() == [1, 2]
    assert lineage(taken_on) == [2, 1]
    assert taken_on.job_id() == lost.job_id()
    assert node_of(taken_on) != node_of(lost)
    assert lost.failure() is None  # it had no time for words
    assert_trained_once(results, tmp_path / "undisturbed")


def test_a_killed_worker_is_an_interruption_that_the_next_command_takes_on(
    cluster: Cluster, tmp_path: Path, results: Path
) -> None:
    asked = asks(tmp_path, steps=STEPS)
    ettsweep(*asked)
    lost = attempt_at_work(results)
    with held(results, lost):
        for pid in workers(results):
            os.kill(pid, signal.SIGKILL)
    cluster.wait_state(lost.job_id(), "FAILED")
    (row,) = look(results, "interrupted").values()
    assert row["reason"] == f"job {lost.job_id()} failed (NonZeroExitCode)"
    assert "1 taken on" in ettsweep(*asked).stderr
    wait_for_the_end(results)
    assert lost.run.numbers() == [1, 2]
    assert lineage(lost.run.attempt(2)) == [2, 1]
    assert len(submission_folders(results)) == 2
    assert_trained_once(results, tmp_path / "undisturbed")


# --- a controller that does not answer ------------------------------------------------------------------------------

NO_CONTROLLER = "Unable to contact slurm controller (connect failure)"


def test_a_restart_of_the_controller_goes_unnoticed(cluster: Cluster, tmp_path: Path, results: Path) -> None:
    asked = asks(tmp_path, runs=2, steps=STEPS, max_parallel=1)
    ettsweep(*asked)
    (first,) = wait_for(lambda: started(results), "a checkpoint")
    with held(results, first):
        cluster.ctl("restart", "slurmctld")
        rows = look(results, "queued", "running")
        assert sorted(row["state"] for row in rows.values()) == ["queued", "running"]
        grid_submits_nothing(results, asked, "2 under way")
    wait_for_the_end(results)
    assert [run.numbers() for run in runs_in(results)] == [[1], [1]]
    assert_trained_once(results, tmp_path / "undisturbed")


def test_nothing_is_concluded_while_the_controller_is_away(cluster: Cluster, tmp_path: Path, results: Path) -> None:
    asked = asks(tmp_path, runs=2, steps=STEPS, max_parallel=1)
    follow = Onlooker(tmp_path / "said", *asked, "--follow")
    (first,) = wait_for(lambda: started(results), "a checkpoint")
    with held(results, first):
        cluster.ctl("stop", "slurmctld")
        rows = look(results, "unknown")
        assert {row["reason"] for row in rows.values()} == {f"SLURM does not answer: squeue: {NO_CONTROLLER}"}
        assert rows[first.run.id]["where"] == node_of(first)
        follow.wait_for("(2 unknown); SLURM does not answer: squeue: " + NO_CONTROLLER)
        assert NO_CONTROLLER in ettsweep(*asked, code=1).stderr
    wait_for(first.run.result, "the end of a run whose controller is away")
    assert look(results, "done", "unknown")[first.run.id]["state"] == "done"
    assert follow.process.poll() is None
    cluster.ctl("start", "slurmctld")
    wait_for_the_end(results)
    follow.ended()
    assert follow.says("2 of 2 runs finished")
    assert len(submission_folders(results)) == 1
    assert [run.numbers() for run in runs_in(results)] == [[1], [1]]
    assert_trained_once(results, tmp_path / "undisturbed")


def test_one_who_looks_on_sees_by_its_heart_that_a_run_goes_on(cluster: Cluster, tmp_path: Path, results: Path) -> None:
    ettsweep(*asks(tmp_path, steps=STEPS))
    run = attempt_at_work(results)
    with held(results, run):
        cluster.ctl("stop", "slurmctld")
        watch = Onlooker(tmp_path / "said", "watch", "--results", results)
        watch.wait_for("(1 unknown); SLURM does not answer")
        with beating(run):
            watch.wait_for("(1 running); SLURM does not answer")
        cluster.ctl("start", "slurmctld")
    watch.ended()
    assert watch.says("1/1 runs finished (1 done)")
    assert_trained_once(results, tmp_path / "undisturbed")


def test_what_cannot_be_submitted_leaves_nothing_behind(cluster: Cluster, tmp_path: Path, results: Path) -> None:
    asked = asks(tmp_path, steps=100)
    cluster.ctl("stop", "slurmctld")
    failed = ettsweep(*asked, code=1)
    assert NO_CONTROLLER in failed.stderr
    assert not results.exists()
    cluster.ctl("start", "slurmctld")
    assert "1 runs submitted" in ettsweep(*asked).stderr
    wait_for_the_end(results)
    assert only_run(results).numbers() == [1]
    assert_trained_once(results, tmp_path / "undisturbed")


def test_jobs_that_come_after_sbatch_gave_up_are_found(
    cluster: Cluster, tmp_path: Path, results: Path, instead: Any
) -> None:
    asked = asks(tmp_path, runs=2, steps=100, sbatch={"hold": True})
    pid = (cluster.folder / "run" / "slurmctld.pid").read_text().strip()
    failed = ettsweep(*asked, code=1, env=instead("sbatch", f'{ONLY_TRIED}\nkill -STOP {pid}\nexec $REAL "$@"'))
    assert "sbatch: Batch job submission failed: Socket timed out on send/recv operation" in failed.stderr
    assert "the next command looks whether the jobs were made" in failed.stderr
    assert {row["reason"] for row in look(results, "unknown").values()} == {
        "SLURM does not answer: squeue: Socket timed out on send/recv operation"
    }
    cluster.ctl("thaw", "slurmctld")
    submission = only_submission(results)
    jobs = cluster.wait_for(lambda: cluster.squeue("--name", submission.name), "the jobs")
    assert len(jobs) == 2
    rows = look(results, "queued")
    assert {row["job"] for row in rows.values()} == {job["id"] for job in jobs}
    grid_submits_nothing(results, asked, "2 under way")
    cluster.run("scontrol", "release", jobs[0]["id"].partition("_")[0])
    wait_for_the_end(results)
    assert [run.numbers() for run in runs_in(results)] == [[1], [1]]
    grid_submits_nothing(results, asked, "2 finished, 0 under way")
    assert_trained_once(results, tmp_path / "undisturbed")


# --- owners that cannot be asked ------------------------------------------------------------------------------------


@contextlib.contextmanager
def beating(attempt: Attempt) -> Iterator[None]:
    """Beat as the owner of an attempt."""
    over = threading.Event()

    def beat() -> None:
        count = 10**6
        while not over.wait(0.05):
            attempt.beat(count := count + 1)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("job", [None, {"cluster": "elsewhere", "id": "7_0", "restart": 0, "node": "gone"}])
def test_a_claim_of_a_machine_that_cannot_be_asked_is_given_up_only_when_its_heart_stands_still(
    cluster: Cluster, tmp_path: Path, results: Path, job: dict[str, Any] | None
) -> None:
    asked = asks(tmp_path, steps=STEPS)
    ettsweep(*asked)
    lost = attempt_at_work(results)
    with held(results, lost):
        for pid in workers(results):
            os.kill(pid, signal.SIGKILL)
    cluster.wait_state(lost.job_id(), "FAILED")
    claim = lost.claim()
    claim["process"] |= {"host": "gone", "boot_id": "another"}
    claim_path = lost.path / "claim.json"
    claim_path.write_text(json.dumps(claim | {"job": job}))

    why = (
        "cluster elsewhere cannot be asked from here, which is devcluster"
        if job
        else "claimed on gone, which cannot be asked from here"
    )
    (row,) = look(results, "unknown").values()
    assert (row["reason"], row["where"]) == (why, "gone")
    blocked = ettsweep(*asked)
    assert f"run {lost.run.id} is unknown: {why}; `ettsweep retry {lost.run.id}` trains it again" in blocked.stderr
    retry = ("retry", lost.run.id, "--results", results)
    with beating(lost):
        refused = ettsweep(*retry)
    assert f"run {lost.run.id} is alive: its heart beats on gone" in refused.stderr
    assert (lost.run.numbers(), len(submission_folders(results))) == ([1], 1)
    taken = ettsweep(*retry)
    assert f"run {lost.run.id}: {why}; watching its heartbeat" in taken.stderr
    assert "1 taken on" in taken.stderr
    wait_for_the_end(results)
    assert lost.run.numbers() == [1, 2]
    assert lineage(lost.run.attempt(2)) == [2, 1]
    assert_trained_once(results, tmp_path / "undisturbed")


# --- commands at the same instant -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 4])
def test_commands_at_the_same_instant_train_each_run_once(
    cluster: Cluster, tmp_path: Path, results: Path, instead: Any, count: int
) -> None:
    asked = asks(tmp_path, runs=3, steps=100)
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    # Each has made its plan, and waits for the others before it submits.
    meet = f"touch {meeting}/$PPID; until [ $(ls {meeting} | wc -l) = {count} ]; do sleep 0.01; done"
    environment = instead("sbatch", f'case " $* " in *" --test-only "*) {meet} ;; esac\nexec $REAL "$@"')
    for command in [start(*asked, env=environment) for _ in range(count)]:
        assert "3 runs submitted" in ended(command).stderr
    assert len(submission_folders(results)) == count
    wait_for_the_end(results)
    for submission in submissions(results):
        cluster.wait_for(lambda s=submission: jobs_ended(cluster, s), "all jobs to end")  # type: ignore[misc]
    assert [run.numbers() for run in runs_in(results)] == [[1]] * 3
    grid_submits_nothing(results, asked, "3 finished, 0 under way")
    assert_trained_once(results, tmp_path / "undisturbed")


def jobs_ended(cluster: Cluster, submission: Submission) -> bool:
    """Say whether all jobs of a submission have ended; each with success."""
    states = {job["state"] for job in cluster.squeue("--name", submission.name)}
    assert not states & {"FAILED", "CANCELLED"}
    return states == {"COMPLETED"}
