"""Faults of a cluster, on a real one: whatever breaks, each run is trained once, exactly, and `status` tells the truth.

A test holds a run still by stopping its worker (SIGSTOP), never by hoping that it takes long enough.
"""

import contextlib
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support.arrays import LATER, asks, attempt_at_work, node_of, only_run, only_submission, workers
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
    results: Path, requested: tuple[object, ...], message: str = "1 under way", code: int = 0
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
    grid_submits_nothing(results, requested, "2 under way")
    (array,) = {row["job"].partition("_")[0] for row in rows.values()}
    cluster.begin(array)
    wait_for_the_end(results)
    assert submission.array_id() == array  # the first job that started knew
    assert [run.attempt_numbers() for run in runs_in(results)] == [[1], [1]]
    trained_once(results)


def test_runs_of_a_submitter_killed_before_sbatch_are_submitted_by_the_next_command(
    cluster: Cluster, tmp_path: Path, results: Path, trained_once: Any, instead: Any
) -> None:
    requested = asks(tmp_path, steps=100)
    ended(start(*requested, env=instead("sbatch", f"{ONLY_TRIED}\nkill -KILL $PPID")), -signal.SIGKILL)
    assert not cluster.squeue("--name", only_submission(results).name)
    (row,) = look(results, "missing").values()
    assert row["reason"] == "its submission was cut short"
    assert "1 run submitted" in ettsweep(*requested).stderr
    wait_for_the_end(results)
    assert only_run(results).attempt_numbers() == [1]
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
    grid_submits_nothing(results, requested, "2 finished, 0 under way")
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


@pytest.mark.slow
def test_a_killed_worker_is_an_interruption_that_the_next_command_takes_on(
    cluster: Cluster, tmp_path: Path, results: Path, trained_once: Any
) -> None:
    requested = asks(tmp_path, steps=STEPS)
    ettsweep(*requested)
    lost = attempt_at_work(results)
    with held(results, lost):
        for pid in workers(results):
            os.kill(pid, signal.SIGKILL)
    cluster.wait_state(lost.job_id(), "FAILED")
    (row,) = look(results, "interrupted").values()
    assert row["reason"] == f"job {lost.job_id()} failed (NonZeroExitCode)"
    assert "1 resumed" in ettsweep(*requested).stderr
    wait_for_the_end(results)
    assert RunDir(lost.run).attempt_numbers() == [1, 2]
    assert lineage(RunDir(lost.run).attempt(2)) == [2, 1]
    assert len(submission_folders(results)) == 2
    trained_once(results)


# --- a controller that does not answer ------------------------------------------------------------------------------

NO_CONTROLLER = "Unable to contact slurm controller (connect failure)"


def silent(row: dict[str, Any], message: str) -> bool:
    """Say whether a row of `status` says that SLURM does not answer, with SLURM's own words."""
    reason = str(row["reason"])
    return reason.startswith("SLURM does not answer: squeue: ") and reason.endswith(message)


def nodes_are_up(cluster: Cluster) -> bool:
    """Say whether the controller has heard of all nodes since it started."""
    states = cluster.run("sinfo", "--noheader", "--Node", "--partition=main", "--format=%T").stdout.split()
    return "unknown" not in states


@pytest.mark.parametrize(
    "command", ["cancel", *(pytest.param(command, marks=pytest.mark.slow) for command in ("grid", "retry"))]
)
def test_what_is_cancelled_while_the_controller_is_away_is_withdrawn_later(
    cluster: Cluster, tmp_path: Path, results: Path, command: str
) -> None:
    requested = asks(tmp_path, runs=3, sbatch=LATER)
    ettsweep(*requested)
    ids = sorted(look(results, "queued"))
    cluster.ctl("stop", "slurmctld")
    for _ in range(2):
        result = ettsweep("cancel", *ids[:2], "--yes", "--results", results, code=1)
        assert f"{NO_CONTROLLER}; the next command that submits or cancels withdraws waiting jobs" in result.stderr
    cluster.ctl("start", "slurmctld")
    wait_for(lambda: nodes_are_up(cluster), "the controller")
    assert len([job for job in cluster.squeue() if job["state"] == "PENDING"]) == 3
    withdrawn, waiting = "2 waiting jobs withdrawn from SLURM", 1
    if command == "cancel":
        assert withdrawn in ettsweep("cancel", ids[0], "--results", results).stderr
    elif command == "grid":
        assert withdrawn in ettsweep(*requested, code=None).stderr
    else:
        withdrawn, waiting = "1 waiting job withdrawn from SLURM", 2
        assert withdrawn in ettsweep("retry", ids[0], "--results", results).stderr
    assert len([job for job in cluster.squeue() if job["state"] == "PENDING"]) == waiting
    rows = look(results, "queued", "cancelled")
    assert [rows[run]["state"] for run in ids].count("queued") == waiting
    assert len(submission_folders(results)) == 1


@pytest.mark.slow
def test_a_restart_of_the_controller_goes_unnoticed(
    cluster: Cluster, tmp_path: Path, results: Path, trained_once: Any
) -> None:
    requested = asks(tmp_path, runs=2, steps=STEPS, max_parallel=1)
    ettsweep(*requested)
    (first,) = wait_for(lambda: started(results), "a checkpoint")
    with held(results, first):
        cluster.ctl("restart", "slurmctld")
        rows = look(results, "queued", "running")
        assert sorted(row["state"] for row in rows.values()) == ["queued", "running"]
        grid_submits_nothing(results, requested, "2 under way")
    wait_for_the_end(results)
    assert [run.attempt_numbers() for run in runs_in(results)] == [[1], [1]]
    trained_once(results)


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


@pytest.mark.slow
def test_one_who_looks_on_sees_by_its_heart_that_a_run_goes_on(
    cluster: Cluster, tmp_path: Path, results: Path, trained_once: Any
) -> None:
    ettsweep(*asks(tmp_path, steps=STEPS))
    run = attempt_at_work(results)
    with held(results, run):
        cluster.ctl("stop", "slurmctld")
        watch = Onlooker(tmp_path / "said", "watch", "--results", results)
        watch.wait_for("(1 unknown)")
        assert watch.says("SLURM does not answer: squeue: ")
        with beating(run):
            watch.wait_for("(1 running)")
        cluster.ctl("start", "slurmctld")
    watch.ended()
    assert watch.says("1/1 run finished (1 done)")
    trained_once(results)


@pytest.mark.slow
def test_what_cannot_be_submitted_leaves_nothing_behind(
    cluster: Cluster, tmp_path: Path, results: Path, trained_once: Any
) -> None:
    requested = asks(tmp_path, steps=100)
    cluster.ctl("stop", "slurmctld")
    failed = ettsweep(*requested, code=1)
    assert NO_CONTROLLER in failed.stderr
    assert not results.exists()
    cluster.ctl("start", "slurmctld")
    wait_for(lambda: nodes_are_up(cluster), "the nodes to be back")
    assert "1 run submitted" in ettsweep(*requested).stderr
    wait_for_the_end(results)
    assert only_run(results).attempt_numbers() == [1]
    trained_once(results)


def test_jobs_that_come_after_sbatch_gave_up_are_found(
    cluster: Cluster, tmp_path: Path, results: Path, trained_once: Any, instead: Any
) -> None:
    requested = asks(tmp_path, runs=2, steps=100, sbatch=LATER)
    pid = (cluster.folder / "run" / "slurmctld.pid").read_text().strip()
    failed = ettsweep(*requested, code=1, env=instead("sbatch", f'{ONLY_TRIED}\nkill -STOP {pid}\nexec $REAL "$@"'))
    assert "sbatch: Batch job submission failed: Socket timed out on send/recv operation" in failed.stderr
    assert "the next command looks whether the jobs were made" in failed.stderr
    rows = look(results, "unknown")
    assert all(silent(row, "Socket timed out on send/recv operation") for row in rows.values()), rows
    cluster.ctl("thaw", "slurmctld")
    submission = only_submission(results)
    jobs = wait_for(lambda: cluster.squeue("--name", submission.name), "the jobs")
    assert len(jobs) == 2
    rows = look(results, "queued")
    assert {row["job"] for row in rows.values()} == {job["id"] for job in jobs}
    grid_submits_nothing(results, requested, "2 under way")
    cluster.begin(jobs[0]["id"].partition("_")[0])
    wait_for_the_end(results)
    assert [run.attempt_numbers() for run in runs_in(results)] == [[1], [1]]
    grid_submits_nothing(results, requested, "2 finished, 0 under way")
    trained_once(results)


@pytest.mark.slow
def test_jobs_that_come_minutes_after_sbatch_gave_up_are_found(
    cluster: Cluster, tmp_path: Path, results: Path, trained_once: Any, instead: Any
) -> None:
    requested = asks(tmp_path, steps=100, sbatch=LATER)
    timed_out = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    text = f'{ONLY_TRIED}\nprintf %s "$*" > {tmp_path}/asked\necho {timed_out} >&2\nexit 1'
    failed = ettsweep(*requested, code=1, env=instead("sbatch", text))
    assert "Socket timed out on send/recv operation; the next command looks" in failed.stderr
    cluster.run("sbatch", *(tmp_path / "asked").read_text().split())  # the controller gets round to it
    look(results, "queued")
    grid_submits_nothing(results, requested)
    cluster.begin(cluster.squeue("--name", only_submission(results).name)[0]["id"])
    wait_for_the_end(results)
    assert only_run(results).attempt_numbers() == [1]
    trained_once(results)


@pytest.mark.slow
def test_nodes_in_maintenance_are_no_reason_to_refuse(
    cluster: Cluster, tmp_path: Path, results: Path, trained_once: Any
) -> None:
    cluster.run("scontrol", "update", f"nodename={','.join(cluster.nodes)}", "state=drain", "reason=maintenance")
    assert "1 run submitted" in ettsweep(*asks(tmp_path, steps=100)).stderr
    (row,) = look(results, "queued").values()
    assert row["reason"]
    cluster.run("scontrol", "update", f"nodename={','.join(cluster.nodes)}", "state=resume")
    wait_for_the_end(results)
    trained_once(results)


# --- owners that cannot be asked ------------------------------------------------------------------------------------


@contextlib.contextmanager
def beating(attempt: Attempt) -> Iterator[None]:
    """Beat as the owner of an attempt."""
    over = threading.Event()

    def beat() -> None:
        count = 10**6
        while not over.wait(0.05):
            attempt.write_heartbeat(count := count + 1)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(None, marks=pytest.mark.slow),
        {"cluster": "elsewhere", "id": "7_0", "restart": 0, "node": "gone"},
    ],
)
def test_a_claim_of_a_machine_that_cannot_be_asked_is_given_up_only_when_its_heart_stands_still(
    cluster: Cluster, tmp_path: Path, results: Path, trained_once: Any, job: dict[str, Any] | None
) -> None:
    requested = asks(tmp_path, steps=STEPS)
    ettsweep(*requested)
    lost = attempt_at_work(results)
    with held(results, lost):
        for pid in workers(results):
            os.kill(pid, signal.SIGKILL)
    cluster.wait_state(lost.job_id(), "FAILED")
    claim = lost.claim()
    claim["process"] |= {"host": "gone", "boot_id": "another"}
    claim_path = lost.path / "claim.json"
    claim_path.write_text(json.dumps(claim | {"job": job}))

    text = (
        "cluster elsewhere cannot be asked from here, which is devcluster"
        if job
        else "claimed on gone, which cannot be asked from here"
    )
    (row,) = look(results, "unknown").values()
    assert (row["reason"], row["where"]) == (text, "gone")
    message = f"run {lost.run.name} is unknown: {text}\n`ettsweep retry {lost.run.name} --results"
    grid_submits_nothing(results, requested, message, code=1)
    retry = ("retry", lost.run.name, "--results", results)
    with beating(lost):
        refused = ettsweep(*retry)
    assert f"run {lost.run.name} is still training on gone" in refused.stderr
    assert (RunDir(lost.run).attempt_numbers(), len(submission_folders(results))) == ([1], 1)
    result = ettsweep(*retry)
    assert f"run {lost.run.name}: {text}; watching its heartbeat" in result.stderr
    assert "1 resumed" in result.stderr
    wait_for_the_end(results)
    assert RunDir(lost.run).attempt_numbers() == [1, 2]
    assert lineage(RunDir(lost.run).attempt(2)) == [2, 1]
    trained_once(results)


# --- commands at the same instant -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_commands_at_the_same_instant_train_each_run_once(
    cluster: Cluster, tmp_path: Path, results: Path, trained_once: Any, instead: Any, count: int
) -> None:
    requested = asks(tmp_path, runs=3, steps=100)
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    # Each has made its plan, and waits for the others before it submits.
    meet = f"touch {meeting}/$PPID; until [ $(ls {meeting} | wc -l) = {count} ]; do sleep 0.01; done"
    environment = instead("sbatch", f'case " $* " in *" --test-only "*) {meet} ;; esac\nexec $REAL "$@"')
    for command in [start(*requested, env=environment) for _ in range(count)]:
        assert "3 runs submitted" in ended(command).stderr
    assert len(submission_folders(results)) == count
    wait_for_the_end(results)
    for submission in submissions(results):
        wait_for(lambda s=submission: jobs_ended(cluster, s), "all jobs to end")  # type: ignore[misc]
    assert [run.attempt_numbers() for run in runs_in(results)] == [[1]] * 3
    grid_submits_nothing(results, requested, "3 finished, 0 under way")
    trained_once(results)


def jobs_ended(cluster: Cluster, submission: Submission) -> bool:
    """Say whether all jobs of a submission have ended; each with success."""
    states = {job["state"] for job in cluster.squeue("--name", submission.name)}
    assert not states & {"FAILED", "CANCELLED"}
    return states == {"COMPLETED"}


# --- jobs that are held ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("by", ["its user", pytest.param("SLURM", marks=pytest.mark.slow)])
def test_whoever_follows_a_held_job_is_told_what_releases_it(
    cluster: Cluster, tmp_path: Path, results: Path, trained_once: Any, by: str
) -> None:
    requested = asks(tmp_path, steps=100, sbatch={"hold": by == "its user"})
    if by == "SLURM":
        cluster.let_nothing_start()
    followed = ettsweep(*requested, "--follow", code=1)
    (row,) = look(results, "held").values()
    text = "JobHeldUser" if by == "its user" else "launch failed requeued held"
    release = f"scontrol release {row['job']}"
    assert row["reason"] == f"{text}: `{release}`, or `cancel` and `retry`"
    assert "0/1 run finished (1 held)" in followed.stderr
    assert row["reason"] in followed.stderr
    assert " left" not in followed.stderr
    assert row["reason"] in ettsweep("watch", "--results", results, code=1).stderr
    grid_submits_nothing(results, requested, f"run {row['run']} is held: {row['reason']}\n")
    for node in cluster.nodes if by == "SLURM" else ():
        cluster.node("writable", node)
    cluster.run(*release.split())
    wait_for_the_end(results)
    assert only_run(results).attempt_numbers() == [1]
    trained_once(results)


def test_a_job_that_is_requeued_and_held_is_replaced_by_cancel_and_retry(
    cluster: Cluster, tmp_path: Path, results: Path, trained_once: Any
) -> None:
    ettsweep(*asks(tmp_path, runs=2, steps=STEPS, runs_per_job=2))
    (first,) = wait_for(lambda: started(results), "a checkpoint")
    with held(results, first):
        cluster.run("scontrol", "requeuehold", "State=SpecialExit", first.job_id())
        rows = wait_for(lambda: (r := look(results, "queued", "running", "held")) and both_held(r) and r, "the hold")
    reason = rows[first.run.name]["reason"]
    assert reason.startswith("to be resumed; job requeued in held state: `scontrol release ")
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


@pytest.fixture(
    params=[
        *(pytest.param(settings, marks=pytest.mark.slow) for settings in ("stopped", "not installed")),
        "switched off",
    ]
)
def no_accounting(request: pytest.FixtureRequest, cluster: Cluster, tmp_path: Path, instead: Any) -> Iterator[str]:
    """Take the accounting away; give why `sacct` fails, as far as the tool can tell."""
    with pytest.MonkeyPatch.context() as patch:  # undone before the cluster is mended
        if request.param == "stopped":
            cluster.ctl("stop", "slurmdbd")
            yield "Connection refused"
        elif request.param == "switched off":
            text = "Slurm accounting storage is disabled"
            patch.setenv("PATH", instead("sacct", f"echo {text} >&2; exit 1")["PATH"])
            yield text
        else:
            patch.setenv(
                "PATH", os.pathsep.join(without("sacct", location, tmp_path) for location in os.get_exec_path())
            )
            assert not shutil.which("sacct")
            yield "sacct is not on this machine"


def without(program: str, location: str, folder: Path) -> str:
    """Return a folder of programs, or one like it that lacks a program."""
    if not (Path(location) / program).exists():
        return location
    copy = folder / location.strip("/").replace("/", "-")
    copy.mkdir()
    for name in set(os.listdir(location)) - {program}:
        (copy / name).symlink_to(Path(location) / name)
    return str(copy)


def test_all_works_without_accounting(
    no_accounting: str, cluster: Cluster, tmp_path: Path, results: Path, trained_once: Any
) -> None:
    requested = asks(tmp_path, runs=3, steps=STEPS, max_parallel=1)
    ettsweep(*requested)
    (first,) = wait_for(lambda: started(results), "a checkpoint")
    with held(results, first):
        removed, stays = (run for run in runs_in(results) if run.id != first.run.name)
        job = look(results, "queued", "running")[removed.id]["job"]
        cluster.run("scancel", job)  # the controller forgets it at once: only the accounting knows why it is gone
        row = look(results, "queued", "running", "missing")[removed.id]
        assert (row["state"], row["reason"].partition(";")[0]) == ("missing", f"job {job} has ended")
        assert "why is not known: sacct" in row["reason"]
        assert no_accounting in row["reason"]
        cancelled = ettsweep("cancel", stays.id, "--results", results)
        assert_said(cancelled, "1 run cancelled", "1 waiting job withdrawn")
        result = ettsweep("status", "--results", results)
        assert "Traceback" not in result.stdout
        assert look(results, "running", "missing", "cancelled")[stays.id]["state"] == "cancelled"
    wait_for(RunDir(first.run).result, "the end of the first run")
    stderr = ettsweep(*requested).stderr
    assert re.search(r"1 run submitted to SLURM as job \d+, 1 finished, 0 under way, 1 need a decision", stderr)
    assert "1 run submitted" in ettsweep("retry", stays.id, "--results", results).stderr
    wait_for_the_end(results)
    assert [run.attempt_numbers() for run in runs_in(results)] == [[1]] * 3
    trained_once(results)


# --- a full disk ----------------------------------------------------------------------------------------------------


def fill(folder: Path, left: int) -> Path:
    """Fill a disk but for some bytes; return the file that does."""
    ballast = folder / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(b"\0" * 4096):
            pass
    os.truncate(ballast, ballast.stat().st_size - left)
    return ballast


def read_all_json(results: Path) -> None:
    """Read all JSON files as any reader would: each is whole, or not there."""
    for path in results.rglob("*.json"):
        assert isinstance(json.loads(path.read_text()), dict)


@pytest.mark.parametrize("left", [pytest.param(0, marks=pytest.mark.slow), 3 * 4096])
def test_a_results_folder_that_fills_up_costs_no_run(
    cluster: Cluster, tmp_path: Path, left: int, trained_once: Any
) -> None:
    disk = cluster.disk("4m")
    results = disk / "results"
    values = (*asks(tmp_path, steps=STEPS)[:-1], results)
    ettsweep(*values)
    lost = attempt_at_work(results)
    with held(results, lost):
        ballast = fill(disk, left)
    cluster.wait_state(lost.job_id(), "FAILED", "COMPLETED")
    assert RunDir(lost.run).result() is None
    read_all_json(results)
    (row,) = look(results, "failed", "interrupted").values()
    if left:  # enough for the worker to say why
        assert row["state"] == "failed"
        assert "the disk is full" in row["reason"]
        assert "the disk is full" in ettsweep("logs", lost.run.name, "--results", results).stdout
    else:
        assert (row["state"], row["reason"]) == ("interrupted", f"job {lost.job_id()} failed (NonZeroExitCode)")
        assert "the disk is full" in ettsweep(*values, code=1).stderr
        assert not [job for job in cluster.squeue() if job["state"] in ("PENDING", "RUNNING")]
        read_all_json(results)
    ballast.unlink()
    result = ettsweep("retry", lost.run.name, "--results", results) if left else ettsweep(*values)
    assert "1 resumed" in result.stderr
    wait_for_the_end(results)
    assert RunDir(lost.run).attempt_numbers() == [1, 2]
    assert lineage(RunDir(lost.run).attempt(2)) == [2, 1]
    trained_once(results)


# --- clocks and places ----------------------------------------------------------------------------------------------


def clock(attempt: Attempt) -> datetime:
    """Return what the clock of an attempt's owner showed when it started."""
    return datetime.fromisoformat(attempt.log_path.read_text()[:19])


@pytest.mark.slow
@pytest.mark.parametrize("skew_min", [7, pytest.param(-7, marks=pytest.mark.slow)])
def test_clocks_that_differ_between_nodes_do_no_harm(
    cluster: Cluster, tmp_path: Path, results: Path, trained_once: Any, skew_min: int
) -> None:
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
    if library is None:
        pytest.skip("libfaketime is not here; on Debian: apt-get install faketime")
    setup = [
        f"export LD_PRELOAD={library} FAKETIME_DONT_FAKE_MONOTONIC=1 FAKETIME={-skew_min:+d}m",
        f"[ $SLURMD_NODENAME != {cluster.nodes[0]} ] || export FAKETIME={skew_min:+d}m",
    ]
    requested = asks(tmp_path, steps=STEPS, setup=setup)
    ettsweep(*requested)
    lost = attempt_at_work(results)
    assert node_of(lost) == cluster.nodes[0]
    with held(results, lost):
        look(results, "running")
        grid_submits_nothing(results, requested)
        cluster.node("kill", node_of(lost))
    newer = attempt_at_work(results, 2)
    assert node_of(newer) != node_of(lost)
    minutes = (clock(newer) - clock(lost)).total_seconds() / 60
    assert abs(minutes + 2 * skew_min) < 5  # the clocks do differ
    wait_for_the_end(results)
    assert RunDir(lost.run).attempt_numbers() == [1, 2]
    assert lineage(newer) == [2, 1]
    grid_submits_nothing(results, requested, "1 finished, 0 under way")
    trained_once(results)


@pytest.mark.slow
def test_status_is_the_same_wherever_it_is_asked(
    cluster: Cluster, tmp_path: Path, results: Path, trained_once: Any
) -> None:
    requested = asks(tmp_path, runs=3, steps=STEPS, max_parallel=1)
    ettsweep(*requested)

    def second() -> Attempt | None:
        return next((attempt for attempt in started(results) if RunDir(attempt.run).result() is None), None)

    wait_for(lambda: any(run.result() for run in runs_in(results)), "a result")
    at_work = wait_for(second, "the second run")

    def essence(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        keys = ("run", "state", "progress", "best_score", "where", "job")
        return [(*(row[key] for key in keys), row["reason"].partition(", expected")[0]) for row in rows]

    with held(results, at_work):
        local = look(results)
        assert sorted(row["state"] for row in local.values()) == ["done", "queued", "running"]
        for node in cluster.nodes:
            srun = ("srun", "--cpus-per-task=1", "--chdir=/", f"--nodelist={node}", ETTSWEEP)
            run_result = cluster.run(*srun, "status", "--results", results, "--format", "json")
            assert essence(json.loads(run_result.stdout)) == essence(list(local.values()))
            assert "1 finished, 2 under way" in cluster.run(*srun, *requested).stderr
    assert len(submission_folders(results)) == 1
    wait_for_the_end(results)
    trained_once(results)


# --- jobs that SLURM refuses, or never starts -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ({"partition": "nowhere"}, "nvalid partition"),
        pytest.param({"gpus": 5}, "Requested node configuration is not available", marks=pytest.mark.slow),
        pytest.param({"sbatch": {"none-such": 1}}, "unrecognized option '--none-such=1'", marks=pytest.mark.slow),
    ],
)
def test_what_slurm_refuses_is_said_in_its_words_and_leaves_nothing_behind(
    cluster: Cluster, tmp_path: Path, results: Path, profile: dict[str, Any], message: str
) -> None:
    failed = ettsweep(*asks(tmp_path, runs=2, steps=100, **profile), code=1)
    assert failed.stderr.startswith("ettsweep: sbatch refuses: ")
    assert message in failed.stderr
    assert not results.exists(), "not even an empty folder"
    assert not [job for job in cluster.squeue() if job["state"] == "PENDING"]


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, *arguments: object) -> None:
        screen, terminal = pty.openpty()
        command = [ETTSWEEP, *map(str, arguments)]
        self.process = subprocess.Popen(
            command,
            env=os.environ | {"COLUMNS": "250", "TERM": "xterm"},
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
        )
        onlookers.append(self.process)
        os.close(terminal)
        self._screen = screen
        self._seen = ""

    def says(self, message: str) -> bool:
        if select.select([self._screen], [], [], 0)[0]:
            with contextlib.suppress(OSError):  # EIO: the command has ended
                self._seen += os.read(self._screen, 65536).decode(errors="replace")
        return message in self._seen

    def ctrl_c(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def ended(self) -> int:
        wait_for(lambda: self.says("\0") or self.process.poll() is not None, "the end of the command")
        self.says("")
        os.close(self._screen)
        assert "Traceback" not in self._seen
        return self.process.wait(PATIENCE_S)


def test_a_job_that_never_starts_says_why_until_it_is_cancelled(
    cluster: Cluster, tmp_path: Path, results: Path
) -> None:
    requested, reason = asks(tmp_path, steps=100, partition="short", time_min=6), "PartitionTimeLimit"
    ettsweep(*requested)
    job = wait_for(
        lambda: (row := next(iter(look(results, "queued").values())))["reason"].startswith(reason) and row["job"],
        reason,
    )
    follow = Terminal(*requested, "--follow")
    wait_for(lambda: follow.says(reason) and follow.says(str(job)), "the picture to say why nothing happens")
    follow.ctrl_c()
    wait_for(lambda: follow.says("interrupted; the runs go on"), "the command to detach")
    assert follow.ended() == 130
    assert len(submission_folders(results)) == 1
    look(results, "queued")
    cancelled = ettsweep("cancel", "--all", "--yes", "--results", results)
    assert_said(cancelled, "1 run cancelled", "1 waiting job withdrawn")
    assert not [job for job in cluster.squeue() if job["state"] == "PENDING"]
    look(results, "cancelled")
    assert only_run(results).attempt_numbers() == []


def test_a_thousand_runs_are_arrays_of_the_size_that_the_site_allows(
    cluster: Cluster, tmp_path: Path, results: Path
) -> None:
    seeds = ",".join(map(str, range(1003)))
    values = (*asks(tmp_path, steps=100, sbatch=LATER), "--seeds", seeds)
    began_s = time.monotonic()
    assert "1003 runs submitted" in ettsweep(*values).stderr
    submitted_s = time.monotonic()
    assert sorted(len(submission.runs) for submission in submissions(results)) == [2, 1001]
    rows = look(results, "queued")
    assert len(rows) == len({row["job"] for row in rows.values()}) == 1003
    grid_submits_nothing(results, values, "1003 under way")
    asked_s = time.monotonic()
    cancelled = ettsweep("cancel", "--all", "--yes", "--results", results)
    assert_said(cancelled, "1003 runs cancelled", "1003 waiting jobs withdrawn")
    print(f"1003 runs: submitted in {submitted_s - began_s:.1f} s, cancelled in {time.monotonic() - asked_s:.1f} s")
    assert not [job for job in cluster.squeue() if job["state"] == "PENDING"]
    assert len(look(results, "cancelled")) == 1003
