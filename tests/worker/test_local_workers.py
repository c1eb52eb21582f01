"""Real commands, real worker processes: what is killed, stopped, asked for twice or interrupted comes right."""

import fcntl
import json
import os
import re
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.commandline import (
    FAKE,
    LONG,
    alive,
    assert_as_if_undisturbed,
    ended,
    ettsweep,
    runs_in,
    start,
    status,
    wait_for,
    worker_pids,
    write_fake_grid,
    write_grid,
)
from support.holds import VARIABLE
from support.own_code import processes_with, result_of
from support.slots import held, owner, stopped_at_checkpoint, wait_for_results, waiting

from ettsweep.launch.local import LocalProfile
from ettsweep.launch.slots import held_slots as held_locks
from ettsweep.launch.slots import make_lock_dir
from ettsweep.launch.submissions import submission_folders
from ettsweep.launch.submit import submit
from ettsweep.processes import process_identity
from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import RunIndex
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.plan import make_plan

pytestmark = [
    pytest.mark.skipif(not Path("/proc/locks").exists(), reason="looks at processes through Linux's /proc"),
    pytest.mark.usefixtures("process"),
]

ONE_SLOT = ("--launch-set", "slots=1", "--launch-set", "threads=1")
TWO_SLOTS = ("--launch-set", "slots=2", *ONE_SLOT[2:])
SHORT = FAKE | {"last_step": 100, "every": 25}
"""Its runs end at once, but for those that hold."""

Hold = Callable[[int], None]


@pytest.fixture
def grid(tmp_path: Path) -> Callable[..., tuple[Any, ...]]:
    """Return a function that writes a grid file, and returns the arguments of the command that asks for it."""

    def ask(*, runs: int = 1, run: dict[str, Any] = SHORT) -> tuple[Any, ...]:
        path = write_fake_grid(tmp_path / "grid.yaml", run=run, lr={"range": [0, runs - 1]})
        return "grid", path, "--results", tmp_path / "results"

    return ask


def has_torch(pid: int) -> bool:
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


# --- in the background ----------------------------------------------------------------------------------------------


def test_commands_at_the_same_instant_train_each_run_once_after_they_have_ended(grid: Any, results: Path) -> None:
    with held("cpu-0", "cpu-1"):
        for command in [start(*grid(runs=3), *TWO_SLOTS) for _ in range(2)]:
            ended(command)
        expected = 2 * len(submission_folders(results))
        workers = wait_for(lambda: len(p := worker_pids(results)) == expected and waiting(p) and p, "workers to wait")
        assert not any(has_torch(pid) for pid in workers)
        assert not any(run.attempt_numbers() for run in runs_in(results))
    runs = wait_for_results(results, 3)
    assert [run.attempt_numbers() for run in runs] == [[1]] * 3
    assert all(result_of(run)["environment"]["code"] == run.attempt(1).provenance()["code"] for run in runs)
    claims = [run.attempt(1).claim() for run in runs]
    assert {claim["slot"] for claim in claims} <= {"cpu-0", "cpu-1"}
    assert {claim["process"]["pid"] for claim in claims} <= set(workers)
    wait_for(lambda: not any(alive(pid) for pid in workers), "the workers to end")


@pytest.mark.slow
def test_who_waits_for_a_slot_says_who_has_it(grid: Any, tmp_path: Path, results: Path, hold_runs: Hold) -> None:
    hold_runs(1)
    waiting_results = tmp_path / "waiting"
    ettsweep(*grid(), *ONE_SLOT)
    holder = owner(stopped_at_checkpoint(results))
    ettsweep(*grid(runs=2)[:-1], waiting_results, *ONE_SLOT)
    text = f"waits for slot cpu-0, held by process {holder} of {results} "
    wait_for(lambda: all(row["reason"].startswith(text) for row in status(waiting_results).values()), "the reason")
    assert {row["state"] for row in status(waiting_results).values()} == {"queued"}
    os.kill(holder, signal.SIGKILL)  # it had no time to take its words back
    wait_for_results(waiting_results, 2)
    assert [row["reason"] for row in status(waiting_results).values()] == ["", ""]


def test_only_a_lock_that_is_held_has_a_holder_and_only_one_that_lives_has_a_name() -> None:
    lock = make_lock_dir() / "cpu-0.lock"
    ended = json.dumps({"process": replace(process_identity(), start_time="1").to_json(), "results": "/gone"})
    here = json.dumps({"process": process_identity().to_json(), "results": "/here"})
    assert held_locks([lock]) == []
    for text, holder in (("{", "another process"), (ended, "another process"), (here, f"process {os.getpid()} of")):
        lock.write_text(text)
        assert held_locks([lock]) == []
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            (held_lock,) = held_locks([lock, lock.with_name("cpu-1.lock")])
            assert str(held_lock).startswith(f"slot cpu-0, held by {holder}")


# --- cores ----------------------------------------------------------------------------------------------------------


def affinities(pid: int) -> set[frozenset[int]]:
    return {frozenset(os.sched_getaffinity(int(task.name))) for task in Path(f"/proc/{pid}/task").iterdir()}


BOUND = {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores", "GOMP_CPU_AFFINITY": "0-1", "KMP_AFFINITY": "compact"}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="has one core only")
def test_no_thread_of_a_program_is_bound_to_a_core(
    tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch, hold_runs: Hold
) -> None:
    hold_runs(1)
    for name, value in BOUND.items():
        monkeypatch.setenv(name, value)
    path = write_grid(tmp_path / "grid.yaml", recipe=LONG)
    plan = make_plan(load_sweep_spec(path).specs()[:1], RunIndex({}, {}))
    submit(results, plan, LocalProfile(devices="cpu", slots=1, threads=2, checkpoint_every_steps=25))
    attempt = stopped_at_checkpoint(results)
    holding = processes_with(f"{VARIABLE}={os.environ[VARIABLE]}")
    (program,) = (pid for pid, words in holding.items() if b"ettsweep.trainer" in words and b"-S" not in words)
    assert affinities(program) == {frozenset(os.sched_getaffinity(0))}
    assert len(list(Path(f"/proc/{program}/task").iterdir())) > 1, "it has threads for its sums"
    ignored = "OMP_PROC_BIND, OMP_PLACES, GOMP_CPU_AFFINITY, KMP_AFFINITY ignored: "
    assert ignored in attempt.output_path.read_text()


# --- killed and stopped ---------------------------------------------------------------------------------------------


def test_another_worker_takes_on_the_run_of_a_killed_one(grid: Any, results: Path, hold_runs: Hold) -> None:
    hold_runs(2)
    ettsweep(*grid(runs=2), *TWO_SLOTS)
    lost = stopped_at_checkpoint(results)
    other = RunDir(stopped_at_checkpoint(results, but=lost.run.name).run)
    assert owner(lost) != owner(other.attempt(1))
    os.kill(owner(lost), signal.SIGKILL)
    os.kill(owner(other.attempt(1)), signal.SIGCONT)
    wait_for_results(results, 2)
    assert (other.attempt_numbers(), RunDir(lost.run).attempt_numbers()) == ([1], [1, 2])
    second = RunDir(lost.run).attempt(2)
    assert owner(second) == owner(other.attempt(1))
    assert second.resumed_from() == (1, 25)
    assert_as_if_undisturbed(RunDir(lost.run))


# --- replaced -------------------------------------------------------------------------------------------------------


def test_the_next_command_uses_the_slot_of_a_dead_worker(grid: Any, results: Path, hold_runs: Hold) -> None:
    hold_runs(2)
    ettsweep(*grid(runs=4), *TWO_SLOTS)
    lost = stopped_at_checkpoint(results)
    other = owner(stopped_at_checkpoint(results, but=lost.run.name))
    os.kill(owner(lost), signal.SIGKILL)
    wait_for(lambda: not alive(owner(lost)), "the worker to end")
    assert Counter(row["state"] for row in status(results).values()) == {"queued": 3, "running": 1}
    assert re.search(r"^no worker in cpu-\d: it died; a command", ettsweep("status", "--results", results).stderr, re.M)
    values = (*grid(runs=4), *TWO_SLOTS)
    assert "1 idle slot would get a new worker\n" in ettsweep(*values, "--dry-run").stderr
    assert len(list(results.glob("jobs/*/*_log.out"))) == 2
    assert "1 idle slot has a new worker\n" in ettsweep(*values).stderr
    assert "has a new worker" not in ettsweep(*values).stderr, "it lives"
    wait_for_results(results, 3)
    os.kill(other, signal.SIGCONT)
    runs = wait_for_results(results, 4)
    assert len(submission_folders(results)) == 1
    assert sorted(run.attempt_numbers() for run in runs) == [[1], [1], [1], [1, 2]]
    assert RunDir(lost.run).attempt(2).resumed_from()[0] == 1
    assert_as_if_undisturbed(RunDir(lost.run))


# --- cleaned --------------------------------------------------------------------------------------------------------


def test_cleaning_leaves_alone_what_live_workers_could_touch(grid: Any, results: Path) -> None:
    """What of runs is needless, see `tests/launch/test_cleanup.py`."""
    with held("cpu-0"):
        ettsweep(*grid(), *ONE_SLOT)
        (worker,) = wait_for(lambda: waiting(worker_pids(results)) and worker_pids(results), "the worker to wait")
        (queued,) = runs_in(results)
        (submission,) = submission_folders(results)
        temporary, broken = queued.path / ".spec.json.0.tmp", results / "runs" / ("0" * 12)
        temporary.touch()
        broken.mkdir()
        before = set(results.rglob("*"))
        ettsweep("clean", "--results", results)
        assert set(results.rglob("*")) == before
        assert status(results)[queued.id]["state"] == "queued"
        os.kill(worker, signal.SIGTERM)
        wait_for(lambda: status(results)[queued.id]["state"] == "missing", "the submission to end")
        ettsweep("clean", "--dry-run", "--results", results)
        assert before <= set(results.rglob("*"))
        ettsweep("clean", "--results", results)
    assert before - set(results.rglob("*")) >= {temporary, broken, submission}
    assert queued.spec_path.exists()
    assert (results / "sweeps").is_dir()


# --- workers that cannot work ---------------------------------------------------------------------------------------


@pytest.fixture
def broken_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have processes that are started from now on find a package that cannot be imported."""
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "pydantic.py").write_text("raise ImportError('libcudart.so: no such file')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))


@pytest.mark.usefixtures("broken_start")
def test_workers_that_cannot_start_are_an_error_not_a_loop(grid: Any, results: Path) -> None:
    failed = ettsweep(*grid(), *ONE_SLOT, "--follow", code=1)
    assert "workers ended without starting a run" in failed.stderr
    assert "libcudart.so: no such file" in failed.stderr
    assert [row["state"] for row in status(results).values()] == ["missing"]
