"""Real jobs on a SLURM cluster: what is cancelled, preempted, requeued, out of time or asked to stop comes right.

A worker that must be met at some moment waits there by itself, see `Hold`: nothing here depends on how fast it trains.
"""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.arrays import (
    LATER,
    PROFILE,
    asks,
    asks_trainer,
    only_run,
    only_submission,
    wait_for_state,
)
from support.commandline import (
    assert_as_if_undisturbed,
    assert_close_to_undisturbed,
    ettsweep,
    runs_in,
    status,
    typed,
    wait_for,
)
from support.devcluster import Cluster
from support.onlooker import Onlooker

from ettsweep.launch.submissions import submissions
from ettsweep.runs.folder import RunDir

STEPS = 120
"""Steps of a run here."""

HELD_STEP = 60
"""The step that a held worker is about to take; told to stop, it does so after this one, and no periodic checkpoint is there."""

HOLD = '''
import lean, registering
import os, select, signal, sys
from pathlib import Path

PLACE, LIVES = os.environ.get("HOLD_PLACE"), int(os.environ.get("HOLD_LIVES", 0))
TASK, RANK = os.environ.get("SLURM_ARRAY_TASK_ID"), os.environ.get("SLURM_PROCID")
LIFE, DEAF = int(os.environ.get("SLURM_RESTART_COUNT") or 0), os.environ.get("HOLD_DEAF") == RANK

def hold(place):
    """Say that the worker is here; return when a signal has reached it, or all are let go on."""
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    before = signal.set_wakeup_fd(tell)
    folder = Path(__file__).parent
    (folder / f"held-{TASK}-{RANK}-{LIFE}-{place}").touch()
    while not (folder / "go").exists():
        is_told = bool(select.select([told], [], [], 0.05)[0]) or os.path.exists(os.environ.get("ETTSWEEP_STOP", ""))
        if is_told and not DEAF:
            break
    signal.set_wakeup_fd(before)

def held_before():
    """Say whether this worker has been held before a step: of an ensemble, only the first run that comes there is."""
    return any(Path(__file__).parent.glob(f"held-{TASK}-{RANK}-*-step"))

def holding(lr_at):
    def held(step, *args, **kwargs):
        if step == HELD_STEP and not held_before():
            hold("step")
        return lr_at(step, *args, **kwargs)
    return held

IS_WORKER = "ettsweep.worker" in sys.orig_argv
IS_PROGRAM = bool({"ettsweep.call", "ettsweep.trainer"} & set(sys.orig_argv))

if PLACE and TASK and RANK and LIFE < LIVES:
    if PLACE == "start" and IS_WORKER:
        hold("start")
    if PLACE == "step" and IS_PROGRAM:
        sys.before_steps = lambda step: step == HELD_STEP and not held_before() and hold("step")
    if PLACE == "transformer-step" and IS_PROGRAM:
        from ettsweep.trainer.training import schedule
        schedule.lr_at = holding(schedule.lr_at)
'''.replace("HELD_STEP", str(HELD_STEP))
"""sitecustomize.py of a held worker."""


class Hold:
    """Has workers wait at a place in their code until a signal reaches them, or until all are let go on."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(HOLD)
        self._folder = folder

    def at(self, place: str, lives: int = 1, deaf: int | None = None) -> dict[str, Any]:
        """Return what a profile says to hold its workers.

        Args:
            place: `start` of Python; before a `step` of the fake trainable, or a `transformer-step`, once.
            lives: in how many of the job's lives, from the first.
            deaf: the worker that goes on only when all are let go.
        """
        path = os.pathsep.join(filter(None, [str(self._folder), os.environ.get("PYTHONPATH")]))
        mapping = {"PYTHONPATH": path, "HOLD_PLACE": place, "HOLD_LIVES": lives}
        return {"environment": PROFILE["environment"] | mapping | ({} if deaf is None else {"HOLD_DEAF": deaf})}

    def wait(self, task: int = 0, rank: int = 0) -> None:
        """Wait until a worker is there, in the first life of its job."""
        pattern = f"held-{task}-{rank}-0-*"
        wait_for(lambda: any(self._folder.glob(pattern)), f"worker {rank} of task {task}")

    def let_go(self) -> None:
        """Let all workers go on, and hold none from now on."""
        (self._folder / "go").touch()


@pytest.fixture
def hold(tmp_path: Path) -> Hold:
    return Hold(tmp_path / "hold")


@pytest.fixture
def statuses(results: Path) -> Iterator[Onlooker]:
    """Ask for the status again and again, as another process, while the test runs; give all rows that it ever had."""
    onlooker = Onlooker(results)
    yield onlooker
    onlooker.close()


def array(results: Path) -> str:
    number = only_submission(results).array_id()
    assert number is not None
    return number


def by_task(results: Path) -> list[RunDir]:
    """Return the runs in the order in which the only submission lists them."""
    runs = {run.id: run for run in runs_in(results)}
    return [runs[id_] for id_ in only_submission(results).runs]


def restarts(cluster: Cluster, job: str) -> int:
    (row,) = cluster.squeue("--jobs", job)
    return int(row["restarts"])


def lives(run: RunDir) -> list[tuple[str, int]]:
    """Return which job, in which of its lives, made each attempt."""
    jobs = [run.attempt(number).job() for number in run.attempt_numbers()]
    return [(str(job["id"]), int(job["restart"])) for job in jobs]


def wait_until_done(results: Path) -> None:
    """Wait for all results, cheaply; then another process must see them."""
    wait_for(lambda: all(run.result_path.exists() for run in runs_in(results)), "all results")
    assert {row["state"] for row in status(results).values()} == {"done"}


def assert_all_as_if_undisturbed(results: Path, compare: Callable[[RunDir], None] = assert_as_if_undisturbed) -> None:
    """Each run was trained to its end once, by its last attempt, and has the numbers of one that nothing happened to."""
    for run in runs_in(results):
        result = run.result()
        assert result is not None
        assert (result["attempts"], run.latest_attempt().failure()) == (run.attempt_numbers()[-1], None)  # type: ignore[union-attr]
        compare(run)


def assert_resumed(run: RunDir, *steps: int) -> None:
    """Each attempt after the first went on where the one before had stopped."""
    resumed_froms = [run.attempt(number).resumed_from() for number in run.attempt_numbers()]
    assert resumed_froms == [(0, 0), *enumerate(steps, 1)]


# --- an array -------------------------------------------------------------------------------------------------------


def test_a_grid_is_an_array_whose_runs_wait_train_and_finish(
    cluster: Cluster, hold: Hold, tmp_path: Path, results: Path
) -> None:
    command = asks(tmp_path, 3, STEPS, sbatch=LATER, **hold.at("step"))
    ettsweep(*command)
    number, runs = array(results), by_task(results)
    rows = status(results)
    assert [rows[run.id]["state"] for run in runs] == ["queued"] * 3
    assert all("expected to start" in rows[run.id]["reason"] for run in runs)
    assert [rows[run.id]["job"] for run in runs] == [f"{number}_{task}" for task in range(3)]
    cluster.begin(number)
    for task in range(3):
        hold.wait(task)
    rows = status(results)
    for task, run in enumerate(runs):
        row = rows[run.id]
        assert (row["state"], row["job"], row["where"]) == ("running", job := f"{number}_{task}", cluster.node_of(job))
        wait_for(lambda run=run: status(results)[run.id]["progress"] == (HELD_STEP - 1) / STEPS, "its progress")
    assert "3 in progress" in ettsweep(*command).stderr

    hold.let_go()
    wait_until_done(results)
    assert "3 finished, 0 in progress" in ettsweep(*command).stderr
    assert len(submissions(results)) == 1
    assert_all_as_if_undisturbed(results)


def test_all_workers_of_a_job_save_when_its_time_is_up(
    cluster: Cluster, hold: Hold, tmp_path: Path, results: Path, statuses: Onlooker
) -> None:
    ettsweep(*asks(tmp_path, 2, STEPS, nodes=2, runs_per_job=2, **hold.at("step")))
    for rank in (0, 1):
        hold.wait(0, rank)
    job = f"{array(results)}_0"
    cluster.run("scancel", "--signal=USR2", job)
    wait_until_done(results)
    assert {row["state"] for row in statuses()} <= {"queued", "running", "done"}
    for run in runs_in(results):
        assert lives(run) == [(job, 0), (job, 1)]
        assert_resumed(run, HELD_STEP)
    assert restarts(cluster, job) == 1
    assert_all_as_if_undisturbed(results)


# --- workers that train each run together ---------------------------------------------------------------------------

TOGETHER: dict[str, Any] = {"nodes": 2, "devices_per_run": 2}


def trained_together(run: RunDir, folder: Path) -> RunDir:
    """Have two processes of this machine train a run, without SLURM."""
    sets = ("devices=cpu", "slots=2", "devices_per_run=2", "threads=1")
    options = [token for setting in sets for token in ("--launch-set", setting)]
    typed("train", "--spec", run.spec_path, "--results", folder, *options)
    return RunDir(folder / "runs" / run.id)


def test_two_nodes_train_each_run_of_a_list_together_and_go_on_when_their_time_was_up(
    cluster: Cluster, hold: Hold, tmp_path: Path, results: Path, statuses: Onlooker
) -> None:
    ettsweep(*asks_trainer(tmp_path, 2, STEPS, runs_per_job=2, **TOGETHER, **hold.at("transformer-step")))
    for rank in (0, 1):
        hold.wait(0, rank)
    job = f"{array(results)}_0"
    first, second = by_task(results)
    rows = status(results)
    assert [rows[run.id]["state"] for run in (first, second)] == ["running", "queued"]
    cluster.run("scancel", "--signal=USR2", job)
    wait_until_done(results)
    assert lives(first) == [(job, 0), (job, 1)]
    assert {*lives(second)} == {(job, 1)}, "after the first, in the same job"
    assert_resumed(first, HELD_STEP)
    assert {row["state"] for row in statuses()} <= {"queued", "running", "done"}
    cluster.wait_state(job, "COMPLETED")
    for run in (first, second):
        expected = trained_together(run, tmp_path / "together")
        assert run.result()["execution"]["processes"] == 2  # type: ignore[index]
        assert run.metrics_path.read_bytes() == expected.metrics_path.read_bytes()
        assert run.result()["weights_sha256"] == expected.result()["weights_sha256"]  # type: ignore[index]


# --- cancelled in SLURM ---------------------------------------------------------------------------------------------


def test_a_run_whose_job_is_cancelled_in_slurm_waits_for_a_decision(
    cluster: Cluster, hold: Hold, tmp_path: Path, results: Path
) -> None:
    command = asks(tmp_path, 3, STEPS, **hold.at("step"))
    ettsweep(*command)
    for task in range(3):
        hold.wait(task)
    runs, job = by_task(results), f"{array(results)}_1"
    cluster.run("scancel", job)
    row = wait_for(lambda: (r := status(results)[runs[1].id])["state"] == "cancelled" and r, "the cancellation")
    assert (row["reason"], row["job"]) == (f"job {job} was cancelled in SLURM", job)
    assert row["progress"] == HELD_STEP / STEPS
    assert runs[1].attempt(1).failure() == {"kind": "interrupted", "reason": "terminated", "details": ""}
    hold.let_go()
    wait_for_state(results, "done", "cancelled")
    assert [status(results)[run.id]["state"] for run in runs] == ["done", "cancelled", "done"]
    assert "2 finished, 0 in progress, 1 need a decision" in ettsweep(*command).stderr
    assert len(submissions(results)) == 1
    ettsweep("retry", runs[1].id, "--launch", tmp_path / "slurm.yaml", "--results", results)
    wait_until_done(results)
    assert_resumed(runs[1], HELD_STEP)
    assert_all_as_if_undisturbed(results)


# --- preempted, requeued, out of time -------------------------------------------------------------------------------


@pytest.fixture
def preempt_signal(request: pytest.FixtureRequest, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Say whether SLURM warns a job before it preempts it by the signal that the job has asked for."""
    if not request.param:
        monkeypatch.setenv("PREEMPT_SIGNAL", "0")
        cluster.up()
    yield
    if not request.param:
        monkeypatch.delenv("PREEMPT_SIGNAL")
        cluster.up()


@pytest.mark.parametrize(
    "preempt_signal",
    [True, pytest.param(False, marks=pytest.mark.slow)],
    indirect=["preempt_signal"],
    ids=["warned", "unwarned"],
)
@pytest.mark.usefixtures("preempt_signal")
def test_a_preempted_run_comes_back_and_goes_on_at_the_very_step(
    cluster: Cluster, hold: Hold, tmp_path: Path, results: Path, statuses: Onlooker
) -> None:
    ettsweep(*asks(tmp_path, 1, STEPS, partition="low", **hold.at("step")))
    hold.wait()
    job = f"{array(results)}_0"
    node = cluster.node_of(job)
    cluster.sbatch("sleep 600", "--partition=high", "--exclusive", f"--nodelist={node}")
    wait_until_done(results)
    rows = statuses()
    assert {row["state"] for row in rows} <= {"queued", "running", "done"}
    run = only_run(results)
    assert lives(run) == [(job, 0), (job, 1)]
    assert run.attempt(2).job()["node"] != node
    assert_resumed(run, HELD_STEP)
    cluster.wait_state(job, "COMPLETED")
    assert_all_as_if_undisturbed(results)


WARN, REQUEUE = ("scancel", "--signal=USR2"), ("scontrol", "requeue")
slow = pytest.mark.slow
NO_SCONTROL = {"python": f"env PATH=/nowhere {sys.executable}"}


@pytest.mark.parametrize(
    ("message", "location", "profile"),
    [
        pytest.param(REQUEUE, "step", {}, id="requeued"),
        pytest.param(WARN, "step", NO_SCONTROL, id="in-a-container-by-its-batch-script", marks=slow),
        pytest.param(WARN, "start", {}, id="warned-before-it-listens", marks=slow),
    ],
)
def test_a_run_whose_job_comes_back_goes_on_where_it_was(
    cluster: Cluster,
    hold: Hold,
    tmp_path: Path,
    results: Path,
    statuses: Onlooker,
    message: tuple[str, ...],
    location: str,
    profile: dict[str, Any],
) -> None:
    """It goes on at the very step, or begins where it had not."""
    ettsweep(*asks(tmp_path, 1, STEPS, **profile, **hold.at(location, deaf=0 if location == "start" else None)))
    hold.wait()
    job = f"{array(results)}_0"
    cluster.run(*message, job)
    if location == "start":
        hold.let_go()
    wait_until_done(results)
    assert {row["state"] for row in statuses()} <= {"queued", "running", "done"}
    assert {row["job"] for row in statuses()} <= {job, None}
    run = only_run(results)
    if location == "start":
        assert lives(run) == [(job, 1)]
    else:
        assert lives(run) == [(job, 0), (job, 1)]
        assert_resumed(run, HELD_STEP)
    assert restarts(cluster, job) == 1
    assert_all_as_if_undisturbed(results)


def test_runs_longer_than_the_time_limit_go_through_several_jobs_in_an_ensemble_and_alone(
    cluster: Cluster, hold: Hold, tmp_path: Path, results: Path, statuses: Onlooker
) -> None:
    """The limit is SLURM's own: a job trains to a step, and waits there for the warning, which comes after 25 to 55 s."""
    profile = {"partition": "short", "time_min": 1, "warn_s": 5, "runs_per_job": 3, "trainer": {"ensemble": 3}}
    ettsweep(*asks_trainer(tmp_path, 4, STEPS, **profile, **hold.at("transformer-step", lives=99)))
    wait_for(lambda: all(run.attempt_numbers() for run in runs_in(results)), "the claims")
    wait_until_done(results)
    assert {row["state"] for row in statuses()} <= {"queued", "running", "done"}
    runs, jobs = by_task(results), [f"{array(results)}_{task}" for task in (0, 1)]
    for together, job in zip((runs[:3], runs[3:]), jobs, strict=True):
        cluster.wait_state(job, "COMPLETED")
        last_life = restarts(cluster, job)
        assert last_life > 0
        for run in together:
            executions = [run.attempt(number).execution() for number in run.attempt_numbers()]
            assert [execution.get("ensemble", 1) for execution in executions] == [len(together)] * 2
            assert lives(run)[1] == (job, last_life)
            assert_resumed(run, HELD_STEP)
            assert "out of time" in run.attempt(1).failure()["reason"]  # type: ignore[index]
    assert_all_as_if_undisturbed(results, assert_close_to_undisturbed)


@pytest.mark.slow
def test_a_job_that_comes_back_brings_no_other_of_its_array_with_it(
    cluster: Cluster, hold: Hold, tmp_path: Path, results: Path
) -> None:
    """SLURM calls one task of an array by the number of the array itself, and takes that number for all of them."""
    ettsweep(*asks(tmp_path, 3, STEPS, **hold.at("step")))
    for task in range(3):
        hold.wait(task)
    numbers = dict(
        line.split() for line in cluster.run("squeue", "-h", "-r", "-O", "JobID,JobArrayID").stdout.splitlines()
    )
    base = numbers.pop(array(results))
    stays, goes = numbers.values()
    cluster.run("scancel", goes)
    cluster.wait_state(goes, "CANCELLED")
    cluster.run("scancel", "--signal=USR2", base)
    wait_for(lambda: restarts(cluster, base) == 1, "the warned job to come back")
    assert (restarts(cluster, stays), cluster.state(stays)) == (0, "RUNNING")
    hold.let_go()
    rows = wait_for_state(results, "done", "cancelled")
    assert sorted(row["state"] for row in rows.values()) == ["cancelled", "done", "done"]
    attempts = {run.attempt(1).job_id(): len(run.attempt_numbers()) for run in runs_in(results)}
    assert attempts == {base: 2, stays: 1, goes: 1}


# --- cancelled and retried by the tool ------------------------------------------------------------------------------


def test_a_cancelled_run_stops_with_a_checkpoint_and_its_job_takes_the_next(
    cluster: Cluster, hold: Hold, tmp_path: Path, results: Path, statuses: Onlooker
) -> None:
    ettsweep(*asks(tmp_path, 2, STEPS, runs_per_job=2, **hold.at("step", deaf=0)))
    hold.wait()
    first, second = by_task(results)
    job = f"{array(results)}_0"
    stderr = ettsweep("cancel", first.id, "--results", results).stderr
    assert "1 of them stops at its next step" in stderr
    assert "withdrawn" not in stderr
    row = status(results)[first.id]
    assert (row["state"], row["reason"], row["job"]) == ("running", "cancelling", job)
    too_early = ettsweep("retry", first.id, "--launch", tmp_path / "slurm.yaml", "--results", results).stderr
    assert f"run {first.id} is running: nothing to retry" in too_early
    wait_for(first.attempt(1).stop_path.exists, "the run to be told")
    hold.let_go()
    wait_for_state(results, "cancelled", "done")
    assert first.attempt(1).failure()["reason"] == "cancelled"  # type: ignore[index]
    assert lives(second) == [(job, 0)]
    cluster.wait_state(job, "COMPLETED")
    assert {row["state"] for row in statuses() if row["run"] == first.id} <= {"queued", "running", "cancelled"}
    stopped = first.attempt(1).last_step()
    assert HELD_STEP <= stopped < STEPS
    ettsweep("retry", first.id, "--launch", tmp_path / "slurm.yaml", "--results", results)
    wait_until_done(results)
    assert_resumed(first, stopped)
    assert second.attempt_numbers() == [1]
    assert_all_as_if_undisturbed(results)


def test_waiting_jobs_of_cancelled_runs_are_withdrawn(cluster: Cluster, tmp_path: Path, results: Path) -> None:
    """That no others are, see `tests/launch/test_liveness.py`."""
    ettsweep(*asks(tmp_path, 3, STEPS, sbatch=LATER))
    number, runs = array(results), by_task(results)

    def pending() -> set[str]:
        return {row["id"] for row in cluster.squeue() if row["state"] == "PENDING"}

    assert "1 waiting job withdrawn" in ettsweep("cancel", runs[1].id, "--results", results).stderr
    assert pending() == {f"{number}_0", f"{number}_2"}
    cancel = ("cancel", "--state", "queued", "--yes", "--results", results)
    assert "2 waiting jobs withdrawn" in ettsweep(*cancel).stderr
    wait_for(lambda: not pending(), "our jobs to be gone")
    assert {row["state"] for row in status(results).values()} == {"cancelled"}
    retry = ("retry", "--state", "cancelled", "--launch", tmp_path / "slurm.yaml", "--results", results)
    ettsweep(*retry, "--yes")
    cluster.begin(submissions(results)[1].array_id())
    wait_until_done(results)
    assert_all_as_if_undisturbed(results)
