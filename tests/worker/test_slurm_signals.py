"""Real jobs on a SLURM cluster: what is cancelled, preempted, requeued, out of time or asked to stop comes right.

A worker that must be met at some moment waits there by itself, see `Hold`: nothing here depends on how fast it trains.
"""

import itertools
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.arrays import (
    LATER,
    PROFILE,
    asks,
    asks_trainer,
    node_of,
    only_run,
    only_submission,
    wait_for_state,
    workers,
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
from ettsweep.worker.signals import POLL_S

STEPS = 120
"""Steps of a run here."""

HELD_STEP = 60
"""The step that a held worker is about to take; told to stop, it does so after this one, and no periodic checkpoint is there."""

GONE = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "PREEMPTED")

HOLD = '''
import lean, registering
import os, select, signal, sys
from pathlib import Path

PLACES, LIVES = os.environ.get("HOLD_PLACES", "").split(), int(os.environ.get("HOLD_LIVES", 0))
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

def around(module, name, before=None, after=None):
    function = getattr(module, name)
    def held(*args, **kwargs):
        if before and (before != "step" or (args[0] == HELD_STEP and not held_before())):
            hold(before)
        value = function(*args, **kwargs)
        if after:
            hold(after)
        return value
    setattr(module, name, held)

def begin_claims(*args, held=[]):
    if not held:
        held.append(True)
        hold("claim")

IS_WORKER = "ettsweep.worker" in sys.orig_argv
IS_PROGRAM = bool({"ettsweep.call", "ettsweep.trainer"} & set(sys.orig_argv))

if PLACES and TASK and RANK and LIFE < LIVES and (IS_WORKER or IS_PROGRAM):
    places = PLACES[min(int(RANK), len(PLACES) - 1)].split("+")
    if "start" in places and IS_WORKER:
        hold("start")
    if "claim" in places and IS_WORKER:
        from ettsweep.worker.work_list import WorkList
        claim = WorkList.claim
        WorkList.claim = lambda *args: begin_claims() or claim(*args)
    if "step" in places and IS_PROGRAM:
        sys.before_steps = lambda step: step == HELD_STEP and not held_before() and hold("step")
    if "transformer-step" in places and IS_PROGRAM:
        from ettsweep.trainer.training import schedule
        around(schedule, "lr_at", before="step")
    if "finished" in places and IS_WORKER:
        from ettsweep.runs.folder import RunDir
        around(RunDir, "finish", after="finished")
    if "saved" in places and IS_WORKER:
        from ettsweep.launch import slurm_api
        around(slurm_api, "requeue", before="saved")
        around(slurm_api, "is_being_preempted", before="saved")
'''.replace("HELD_STEP", str(HELD_STEP))
"""sitecustomize.py of a held worker."""


class Hold:
    """Has workers wait at a place in their code until a signal reaches them, or until all are let go on."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(HOLD)
        self._folder = folder

    def at(self, *places: str, lives: int = 1, deaf: int | None = None) -> dict[str, Any]:
        """Return what a profile says to hold its workers.

        Args:
            places: for each worker of a job, the last for all further ones: `start` of Python; before its first
                `claim`; before a `step` of the fake trainable, or a `transformer-step`, once; after a run has
                `finished`; when it has `saved` and is about to ask SLURM for another job, or whether there will be
                one. `step+saved` is both, one after the other.
            lives: in how many of the job's lives, from the first.
            deaf: the worker that goes on only when all are let go.
        """
        path = os.pathsep.join(filter(None, [str(self._folder), os.environ.get("PYTHONPATH")]))
        mapping = {"PYTHONPATH": path, "HOLD_PLACES": " ".join(places), "HOLD_LIVES": lives}
        return {"environment": PROFILE["environment"] | mapping | ({} if deaf is None else {"HOLD_DEAF": deaf})}

    def is_at(self, task: int = 0, rank: int = 0, life: int = 0, location: str = "*") -> bool:
        """Say whether a worker is there, or has been."""
        return any(self._folder.glob(f"held-{task}-{rank}-{life}-{location}"))

    def wait(self, task: int = 0, rank: int = 0, life: int = 0, location: str = "*") -> None:
        """Wait until a worker is there."""
        wait_for(lambda: self.is_at(task, rank, life, location), f"worker {rank} of task {task} in life {life}")

    def let_go(self) -> None:
        """Let all workers go on, and hold none from now on."""
        (self._folder / "go").touch()

    def let_go_to_look(self) -> None:
        """Let them go on, each of them to look for its cancellation at its next step, however lately it has looked."""
        time.sleep(POLL_S)
        self.let_go()


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


def last_step(run: RunDir, number: int) -> int:
    return max(int(line["step"]) for line in run.attempt(number).history())


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


def ensembles(run: RunDir) -> list[int]:
    """Return with how many runs, itself among them, each attempt began."""
    return [int(run.attempt(number).execution().get("ensemble", 1)) for number in run.attempt_numbers()]


def assert_came_back_together(runs: list[RunDir], job: str) -> None:
    """All runs of a job were saved after the step before which one was held, and resumed together in a later life."""
    assert [id_ for run in runs for id_, _ in lives(run)] == [job, job] * len(runs)
    (before, after), *others = [[life for _, life in lives(run)] for run in runs]
    assert before < after
    assert others == [[before, after]] * len(others)
    assert [ensembles(run) for run in runs] == [[len(runs)] * 2] * len(runs)
    for run in runs:
        assert_resumed(run, HELD_STEP)


# --- an array -------------------------------------------------------------------------------------------------------


def test_a_grid_is_an_array_whose_runs_wait_train_and_finish(
    cluster: Cluster, hold: Hold, tmp_path: Path, results: Path
) -> None:
    command = asks(tmp_path, 3, STEPS, sbatch=LATER, **hold.at("step"))
    assert "3 runs submitted" in ettsweep(*command).stderr
    number = array(results)
    assert {row["name"].rpartition(".")[0] for row in cluster.squeue()} >= {"fake-standard"}
    assert {row["name"] for row in cluster.squeue("--jobs", number)} == {only_submission(results).name}
    runs = by_task(results)
    rows = status(results)
    assert [rows[run.id]["state"] for run in runs] == ["queued"] * 3
    assert all("expected to start" in rows[run.id]["reason"] for run in runs)
    assert [rows[run.id]["job"] for run in runs] == [f"{number}_{task}" for task in range(3)]
    assert "3 under way" in ettsweep(*command).stderr

    cluster.begin(number)
    for task in range(3):
        hold.wait(task)
    rows = status(results)
    for task, run in enumerate(runs):
        row = rows[run.id]
        assert (row["state"], row["job"], row["where"]) == ("running", job := f"{number}_{task}", cluster.node_of(job))
        wait_for(lambda run=run: status(results)[run.id]["progress"] == (HELD_STEP - 1) / STEPS, "its progress")
    assert "3 under way" in ettsweep(*command).stderr

    hold.let_go()
    wait_until_done(results)
    assert "3 finished, 0 under way" in ettsweep(*command).stderr
    assert [run.attempt_numbers() for run in runs] == [[1]] * 3
    assert len(submissions(results)) == 1
    assert_all_as_if_undisturbed(results)


@pytest.mark.slow
def test_a_job_trains_its_runs_one_after_the_other(cluster: Cluster, tmp_path: Path, results: Path) -> None:
    ettsweep(*asks(tmp_path, 3, STEPS, runs_per_job=2))
    wait_until_done(results)
    number, runs = array(results), by_task(results)
    assert [lives(run) for run in runs] == [[(f"{number}_{task}", 0)] for task in (0, 0, 1)]
    assert sorted(row["id"] for row in cluster.squeue("--jobs", number)) == [f"{number}_0", f"{number}_1"]
    assert len({run.attempt(1).claim()["process"]["pid"] for run in runs[:2]}) == 1
    assert_all_as_if_undisturbed(results)


@pytest.mark.slow
def test_a_job_trains_its_runs_as_an_ensemble_and_all_are_saved_when_its_time_is_up(
    cluster: Cluster, hold: Hold, tmp_path: Path, results: Path, statuses: Onlooker
) -> None:
    ettsweep(*asks_trainer(tmp_path, 6, STEPS, runs_per_job=4, trainer={"ensemble": 4}, **hold.at("transformer-step")))
    for task in (0, 1):
        hold.wait(task)
    (warned, calm), runs = (f"{array(results)}_{task}" for task in (0, 1)), by_task(results)
    rows = status(results)
    assert [(rows[run.id]["state"], rows[run.id]["job"]) for run in runs] == [
        *[("running", warned)] * 4,
        *[("running", calm)] * 2,
    ]
    assert len({run.attempt(1).claim()["process"]["pid"] for run in runs[:4]}) == 1
    cluster.run("scancel", "--signal=USR2", warned)
    wait_for(lambda: restarts(cluster, warned) == 1, "the warned job to come back")
    hold.let_go()
    wait_until_done(results)
    assert {row["state"] for row in statuses()} <= {"queued", "running", "done"}
    assert_came_back_together(runs[:4], warned)
    for run in runs[4:]:
        assert (lives(run), ensembles(run)) == ([(calm, 0)], [2])
    assert restarts(cluster, calm) == 0
    assert_all_as_if_undisturbed(results, assert_close_to_undisturbed)


@pytest.mark.slow
def test_no_more_jobs_than_allowed_run_at_a_time(cluster: Cluster, tmp_path: Path, results: Path) -> None:
    ettsweep(*asks(tmp_path, 3, STEPS, max_parallel=1))
    wait_until_done(results)
    number = array(results)
    tasks = [f"{number}_{task}" for task in range(3)]
    for task in tasks:
        wait_for(lambda task=task: cluster.state(task) == "COMPLETED", f"job {task} to end")  # type: ignore[misc]
    times = cluster.run("squeue", "-h", "-r", "-t", "all", "-j", number, "-o", "%S %e").stdout
    spans = sorted(tuple(line.split()) for line in times.splitlines())
    assert len(spans) == 3
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans)), spans
    assert [lives(run) for run in by_task(results)] == [[(task, 0)] for task in tasks]
    assert_all_as_if_undisturbed(results)


def test_the_workers_of_a_job_on_two_nodes_share_its_runs(
    cluster: Cluster, hold: Hold, tmp_path: Path, results: Path
) -> None:
    ettsweep(*asks(tmp_path, 4, STEPS, nodes=2, runs_per_job=4, **hold.at("step")))
    for rank in (0, 1):
        hold.wait(0, rank)
    rows = status(results).values()
    assert sorted(row["state"] for row in rows) == ["queued", "queued", "running", "running"]
    assert {row["job"] for row in rows} == {f"{array(results)}_0"}
    assert len({row["where"] for row in rows if row["state"] == "running"}) == 2
    hold.let_go()
    wait_until_done(results)
    claims = [run.attempt(1).claim() for run in runs_in(results)]
    assert [run.attempt_numbers() for run in runs_in(results)] == [[1]] * 4
    assert {claim["job"]["rank"] for claim in claims} == {0, 1}
    cluster.wait_state(f"{array(results)}_0", "COMPLETED")
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
    output = "".join(path.read_text() for path in only_submission(results).path.glob("*_log.out"))
    assert "does not start this job again" not in output
    assert_all_as_if_undisturbed(results)


@pytest.mark.slow
def test_a_worker_that_has_saved_waits_for_one_that_has_not(
    cluster: Cluster, hold: Hold, tmp_path: Path, results: Path
) -> None:
    """SLURM ends all processes of a job a moment after one of them has asked for it to be started again."""
    ettsweep(*asks(tmp_path, 2, STEPS, nodes=2, runs_per_job=2, **hold.at("step", deaf=1)))
    for rank in (0, 1):
        hold.wait(0, rank)
    quick, slow = sorted(runs_in(results), key=lambda run: int(run.attempt(1).job()["rank"]))
    job = f"{array(results)}_0"
    cluster.run("scancel", "--signal=USR2", job)
    wait_for(quick.attempt(1).failure, "the first to save")
    for _ in range(3):
        rows = status(results)
        assert (rows[quick.id]["state"], rows[slow.id]["state"]) == ("queued", "running")
        assert (cluster.state(job), restarts(cluster, job)) == ("RUNNING", 0)
    hold.let_go()
    wait_until_done(results)
    for run in (quick, slow):
        assert lives(run) == [(job, 0), (job, 1)]
        assert_resumed(run, run.attempt(1).saved_steps()[0])
    assert_all_as_if_undisturbed(results)


@pytest.mark.slow
def test_nobody_waits_for_a_worker_that_has_nothing_to_save(
    cluster: Cluster, hold: Hold, tmp_path: Path, results: Path
) -> None:
    profile = {"nodes": 2, "time_min": 120, "warn_s": 7000}
    ettsweep(*asks(tmp_path, 1, STEPS, **profile, **hold.at("claim", "step")))
    hold.wait(rank=1)
    idle = only_submission(results)
    wait_for(lambda: hold.is_at(rank=0) or idle.worker_report("0-0").get("leaving"), "the other, or that it has left")
    job = f"{array(results)}_0"
    cluster.run("scancel", "--signal=USR2", job)
    wait_until_done(results)
    assert lives(only_run(results)) == [(job, 0), (job, 1)]
    assert_resumed(only_run(results), HELD_STEP)
    assert_all_as_if_undisturbed(results)


# --- workers that train each run together ---------------------------------------------------------------------------

TOGETHER: dict[str, Any] = {"nodes": 2, "devices_per_run": 2}


@pytest.fixture(scope="module")
def trained_together(tmp_path_factory: pytest.TempPathFactory) -> Callable[[RunDir], RunDir]:
    """Return what has two processes of this machine train a run, without SLURM; once for all tests."""
    folder = tmp_path_factory.mktemp("together")
    sets = ("devices=cpu", "slots=2", "devices_per_run=2", "threads=1")

    def train(run: RunDir) -> RunDir:
        expected = RunDir(folder / "runs" / run.id)
        if not expected.result_path.exists():
            options = [token for setting in sets for token in ("--launch-set", setting)]
            typed("train", "--spec", run.spec_path, "--results", folder, *options)
        return expected

    return train


def assert_all_as_if_together(results: Path, trained_together: Callable[[RunDir], RunDir]) -> None:
    """Each run has the numbers of one that two processes of this machine trained, without SLURM."""
    for run in runs_in(results):
        expected, result = trained_together(run), run.result()
        assert result is not None
        assert result["execution"]["processes"] == 2
        assert run.metrics_path.read_bytes() == expected.metrics_path.read_bytes()
        assert result["weights_sha256"] == expected.result()["weights_sha256"]  # type: ignore[index]


def test_two_nodes_train_each_run_of_a_list_together_and_go_on_when_their_time_was_up(
    cluster: Cluster, hold: Hold, tmp_path: Path, results: Path, statuses: Onlooker, trained_together: Any
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
    assert (lives(first), lives(second)) == ([(job, 0), (job, 1)], [(job, 1)])
    assert_resumed(first, HELD_STEP)
    assert {row["state"] for row in statuses()} <= {"queued", "running", "done"}
    cluster.wait_state(job, "COMPLETED")
    output = "".join(path.read_text() for path in only_submission(results).path.glob("*_log.out"))
    assert "Warning" not in output
    assert "Traceback" not in output
    assert_all_as_if_together(results, trained_together)


@pytest.mark.slow
def test_a_job_ends_with_its_worker_and_the_next_command_goes_on(
    cluster: Cluster, hold: Hold, tmp_path: Path, results: Path, trained_together: Any
) -> None:
    command = asks_trainer(tmp_path, 1, STEPS, **TOGETHER, **hold.at("transformer-step"))
    ettsweep(*command)
    for other in (0, 1):
        hold.wait(0, other)
    job = f"{array(results)}_0"
    for pid in workers(results, node_of(only_run(results).attempt(1))):
        os.kill(pid, signal.SIGKILL)
    cluster.wait_state(job, "FAILED")
    hold.let_go()  # only now: until it is killed, a program goes on without its worker
    (row,) = wait_for_state(results, "interrupted").values()
    assert row["job"] == job
    assert "1 resumed" in ettsweep(*command).stderr
    wait_until_done(results)
    assert_resumed(only_run(results), 50)
    assert_all_as_if_together(results, trained_together)


@pytest.mark.slow
def test_a_cancelled_job_of_two_nodes_waits_for_a_decision(
    cluster: Cluster, hold: Hold, tmp_path: Path, results: Path, trained_together: Any
) -> None:
    command = asks_trainer(tmp_path, 1, STEPS, **TOGETHER, **hold.at("transformer-step"))
    ettsweep(*command)
    for rank in (0, 1):
        hold.wait(0, rank)
    job = f"{array(results)}_0"
    cluster.run("scancel", job)
    cluster.wait_state(job, "CANCELLED")
    row = status(results)[only_run(results).id]
    assert (row["state"], row["reason"]) == ("cancelled", f"job {job} was cancelled in SLURM")
    assert "1 need a decision" in ettsweep(*command).stderr
    ettsweep("retry", only_run(results).id, "--launch", tmp_path / "slurm.yaml", "--results", results)
    wait_until_done(results)
    assert_resumed(only_run(results), HELD_STEP)
    assert_all_as_if_together(results, trained_together)


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

    stderr = ettsweep(*command).stderr
    assert "2 finished, 0 under way, 1 need a decision" in stderr
    assert f"run {runs[1].id} is cancelled: job {job} was cancelled in SLURM\n`ettsweep retry {runs[1].id}" in stderr
    assert len(submissions(results)) == 1

    ettsweep("retry", runs[1].id, "--launch", tmp_path / "slurm.yaml", "--results", results)
    wait_until_done(results)
    assert [run.attempt_numbers() for run in runs] == [[1], [1, 2], [1]]
    assert_resumed(runs[1], HELD_STEP)
    assert_all_as_if_undisturbed(results)


@pytest.mark.slow
def test_all_runs_of_an_array_that_is_cancelled_in_slurm_wait_for_a_decision(
    cluster: Cluster, hold: Hold, tmp_path: Path, results: Path
) -> None:
    command = asks(tmp_path, 3, STEPS, max_parallel=1, **hold.at("step"))
    ettsweep(*command)
    number = array(results)
    hold.wait(0)
    cluster.run("scancel", number)
    rows = wait_for_state(results, "cancelled")
    assert sorted(row["reason"] for row in rows.values()) == [
        f"job {number}_{task} was cancelled in SLURM" for task in range(3)
    ]
    assert "3 need a decision" in ettsweep(*command).stderr
    ettsweep("retry", "--all", "--yes", "--launch", tmp_path / "slurm.yaml", "--results", results)
    hold.let_go()
    wait_until_done(results)
    assert [run.attempt_numbers() for run in by_first_submission(results)] == [[1, 2], [1], [1]]
    assert_all_as_if_undisturbed(results)


def by_first_submission(results: Path) -> list[RunDir]:
    runs = {run.id: run for run in runs_in(results)}
    return [runs[id_] for id_ in submissions(results)[0].runs]


@pytest.mark.slow
def test_a_waiting_job_that_is_cancelled_and_that_slurm_forgets_waits_for_a_decision(
    cluster: Cluster, tmp_path: Path, results: Path
) -> None:
    command = asks(tmp_path, 3, STEPS, sbatch=LATER)
    ettsweep(*command)
    runs, number = by_task(results), array(results)
    cluster.run("scancel", f"{number}_1")
    row = wait_for(lambda: (r := status(results)[runs[1].id])["state"] != "queued" and r, "the job to be gone")
    assert (row["state"], row["reason"]) == ("cancelled", f"job {number}_1 was cancelled in SLURM before it started")
    assert "0 finished, 2 under way, 1 need a decision" in ettsweep(*command).stderr
    ettsweep("retry", runs[1].id, "--launch", tmp_path / "slurm.yaml", "--results", results)
    assert submissions(results)[1].runs == (runs[1].id,)
    for submission in submissions(results):
        cluster.begin(submission.array_id())
    wait_until_done(results)
    assert [run.attempt_numbers() for run in runs] == [[1]] * 3
    assert_all_as_if_undisturbed(results)


@pytest.mark.slow
def test_a_run_whose_job_is_being_cancelled_is_not_given_to_another(
    cluster: Cluster, hold: Hold, tmp_path: Path, results: Path, statuses: Onlooker
) -> None:
    """Held after it has saved and before it ends: SLURM itself says only that the job is completing."""
    command = asks(tmp_path, 1, STEPS, **hold.at("step+saved"))
    ettsweep(*command)
    hold.wait()
    job = f"{array(results)}_0"
    cluster.run("scancel", job)
    hold.wait(location="saved")
    assert "resumed" not in ettsweep(*command).stderr
    assert len(submissions(results)) == 1
    hold.let_go()
    rows = wait_for_state(results, "cancelled")
    assert [row["reason"] for row in rows.values()] == [f"job {job} was cancelled in SLURM"]
    assert {row["state"] for row in statuses()} <= {"queued", "running", "cancelled"}
    ettsweep("retry", only_run(results).id, "--launch", tmp_path / "slurm.yaml", "--results", results)
    wait_until_done(results)
    assert_resumed(only_run(results), HELD_STEP)
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
    ("partition", "preempt_signal"),
    [
        ("low", True),
        pytest.param("nograce", True, marks=pytest.mark.slow),
        pytest.param("low", False, marks=pytest.mark.slow),
        pytest.param("nograce", False, marks=pytest.mark.slow),
    ],
    indirect=["preempt_signal"],
    ids=["warned", "without-grace", "unwarned", "unwarned-without-grace"],
)
@pytest.mark.usefixtures("preempt_signal")
def test_a_preempted_run_comes_back_and_goes_on_at_the_very_step(
    cluster: Cluster, hold: Hold, tmp_path: Path, results: Path, statuses: Onlooker, partition: str
) -> None:
    command = asks(tmp_path, 1, STEPS, partition=partition, **hold.at("step"))
    ettsweep(*command)
    hold.wait()
    job = f"{array(results)}_0"
    node = cluster.node_of(job)
    cluster.sbatch("sleep 600", "--partition=high", "--exclusive", f"--nodelist={node}")
    wait_until_done(results)
    rows = statuses()
    assert {row["state"] for row in rows} <= {"queued", "running", "done"}
    assert {row["job"] for row in rows if row["state"] in ("queued", "running")} <= {job, None}
    run = only_run(results)
    assert lives(run) == [(job, 0), (job, 1)]
    assert run.attempt(2).job()["node"] != node
    assert_resumed(run, HELD_STEP)
    cluster.wait_state(job, "COMPLETED")
    assert restarts(cluster, job) == 1
    assert "1 finished, 0 under way" in ettsweep(*command).stderr
    assert_all_as_if_undisturbed(results)


def test_a_preempted_ensemble_comes_back_and_each_run_goes_on_at_the_very_step(
    cluster: Cluster, hold: Hold, tmp_path: Path, results: Path
) -> None:
    ettsweep(
        *asks_trainer(
            tmp_path, 4, STEPS, runs_per_job=4, trainer={"ensemble": 4}, partition="low", **hold.at("transformer-step")
        )
    )
    hold.wait()
    job = f"{array(results)}_0"
    cluster.sbatch("sleep 600", "--partition=high", "--exclusive", f"--nodelist={cluster.node_of(job)}")
    wait_until_done(results)
    assert_came_back_together(by_task(results), job)
    assert_all_as_if_undisturbed(results, assert_close_to_undisturbed)


WARN, REQUEUE = ("scancel", "--signal=USR2"), ("scontrol", "requeue")
NO_SCONTROL = {"python": f"env PATH=/nowhere {sys.executable}"}


@pytest.mark.parametrize(
    ("message", "location", "hears", "profile", "resumed"),
    [
        pytest.param(REQUEUE, "step", True, {}, HELD_STEP, id="requeued"),
        pytest.param(
            REQUEUE,
            "step",
            False,
            {},
            HELD_STEP // 25 * 25,
            id="requeued-and-killed-before-it-saved",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            WARN, "step", True, NO_SCONTROL, HELD_STEP, id="in-a-container-by-its-batch-script", marks=pytest.mark.slow
        ),
        pytest.param(WARN, "claim", True, {}, None, id="warned-before-its-first-claim", marks=pytest.mark.slow),
        pytest.param(REQUEUE, "claim", True, {}, None, id="requeued-before-its-first-claim", marks=pytest.mark.slow),
        pytest.param(WARN, "start", False, {}, None, id="warned-before-it-listens", marks=pytest.mark.slow),
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
    hears: bool,
    profile: dict[str, Any],
    resumed: int | None,
) -> None:
    """It goes on at the very step, or at its last checkpoint where SLURM killed it first, or begins where it had not."""
    ettsweep(*asks(tmp_path, 1, STEPS, **profile, **hold.at(location, deaf=None if hears else 0)))
    hold.wait()
    job = f"{array(results)}_0"
    cluster.run(*message, job)
    if location == "start":
        hold.let_go()
    wait_until_done(results)
    assert {row["state"] for row in statuses()} <= {"queued", "running", "done"}
    assert {row["job"] for row in statuses()} <= {job, None}
    run = only_run(results)
    if resumed is None:
        assert lives(run) == [(job, 1)]
    else:
        assert lives(run) == [(job, 0), (job, 1)]
        assert (run.attempt(1).failure() is not None) == hears
        assert_resumed(run, resumed)
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
        assert_came_back_together(together, job)
        cluster.wait_state(job, "COMPLETED")
        assert {lives(run)[1] for run in together} == {(job, restarts(cluster, job))}
    for run in runs:
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


@pytest.mark.slow
def test_a_job_of_minutes_may_run_out_of_time_more_often_than_submitit_allows(
    cluster: Cluster, hold: Hold, tmp_path: Path, results: Path
) -> None:
    ettsweep(*asks(tmp_path, 1, STEPS, time_min=9, warn_s=5, **hold.at("claim", lives=5)))
    job = f"{array(results)}_0"
    for life in range(5):
        hold.wait(life=life)
        cluster.run("scancel", "--signal=USR2", job)
    wait_until_done(results)
    assert lives(only_run(results)) == [(job, 5)]
    assert_all_as_if_undisturbed(results)


# --- at the worst moments -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_job_that_asks_to_be_started_again_is_not_replaced(
    cluster: Cluster, hold: Hold, tmp_path: Path, results: Path, statuses: Onlooker
) -> None:
    """Held between the checkpoint and `scontrol requeue`, which may take seconds on a busy controller."""
    command = asks(tmp_path, 1, STEPS, **hold.at("step+saved"))
    ettsweep(*command)
    hold.wait()
    job = f"{array(results)}_0"
    cluster.run("scancel", "--signal=USR2", job)
    hold.wait(location="saved")
    assert "1 under way" in ettsweep(*command).stderr
    hold.let_go()
    wait_until_done(results)
    assert {row["state"] for row in statuses()} <= {"queued", "running", "done"}
    assert len(submissions(results)) == 1
    assert lives(only_run(results)) == [(job, 0), (job, 1)]
    assert_resumed(only_run(results), HELD_STEP)
    assert_all_as_if_undisturbed(results)


@pytest.mark.slow
@pytest.mark.parametrize("message", ["TERM"])
def test_a_job_killed_before_it_hears_leaves_its_run_to_the_next_command(
    cluster: Cluster, hold: Hold, tmp_path: Path, results: Path, message: str
) -> None:
    command = asks(tmp_path, 1, STEPS, **hold.at("start"))
    ettsweep(*command)
    hold.wait()
    job = f"{array(results)}_0"
    cluster.run("scancel", f"--signal={message}", job)
    (row,) = wait_for_state(results, "missing").values()
    assert (row["reason"], row["job"]) == (f"job {job} failed (NonZeroExitCode)", job)
    hold.let_go()
    assert "1 run submitted" in ettsweep(*command).stderr
    wait_until_done(results)
    assert len(only_run(results).attempt_numbers()) == 1
    assert_all_as_if_undisturbed(results)


@pytest.mark.slow
def test_a_job_whose_time_is_up_between_two_runs_comes_back_for_the_second(
    cluster: Cluster, hold: Hold, tmp_path: Path, results: Path
) -> None:
    ettsweep(*asks(tmp_path, 2, STEPS, runs_per_job=2, **hold.at("finished")))
    hold.wait()
    first, second = by_task(results)
    job = f"{array(results)}_0"
    rows = status(results)
    assert [(rows[run.id]["state"], rows[run.id]["job"]) for run in (first, second)] == [
        ("done", None),
        ("queued", job),
    ]
    cluster.run("scancel", "--signal=USR2", job)
    wait_until_done(results)
    assert (lives(first), lives(second)) == ([(job, 0)], [(job, 1)])
    assert_all_as_if_undisturbed(results)


def test_a_job_ended_between_two_runs_leaves_the_second_to_the_next_command(
    cluster: Cluster, hold: Hold, tmp_path: Path, results: Path
) -> None:
    command = asks(tmp_path, 2, STEPS, runs_per_job=2, **hold.at("finished"))
    ettsweep(*command)
    hold.wait()
    first, second = by_task(results)
    job = f"{array(results)}_0"
    cluster.run("scancel", "--signal=TERM", job)
    cluster.wait_state(job, "FAILED")
    row = status(results)[second.id]
    assert (row["state"], row["reason"]) == ("missing", f"job {job} failed (NonZeroExitCode)")
    hold.let_go()
    assert re.search(r"1 run submitted to SLURM as job \d+, 1 finished, 0 under way", ettsweep(*command).stderr)
    wait_until_done(results)
    assert (first.attempt_numbers(), second.attempt_numbers()) == ([1], [1])
    assert_all_as_if_undisturbed(results)


@pytest.mark.slow
def test_a_job_cancelled_between_two_runs_leaves_the_second_to_a_person(
    cluster: Cluster, hold: Hold, tmp_path: Path, results: Path
) -> None:
    command = asks(tmp_path, 2, STEPS, runs_per_job=2, **hold.at("finished"))
    ettsweep(*command)
    hold.wait()
    first, second = by_task(results)
    job = f"{array(results)}_0"
    cluster.run("scancel", job)
    cluster.wait_state(job, "CANCELLED")
    row = status(results)[second.id]
    assert (row["state"], row["reason"]) == ("cancelled", f"job {job} was cancelled in SLURM")
    assert "1 finished, 0 under way, 1 need a decision" in ettsweep(*command).stderr
    hold.let_go()
    ettsweep("retry", second.id, "--launch", tmp_path / "slurm.yaml", "--results", results)
    wait_until_done(results)
    assert (first.attempt_numbers(), second.attempt_numbers()) == ([1], [1])
    assert_all_as_if_undisturbed(results)


# --- cancelled and retried by the tool ------------------------------------------------------------------------------


def answer(folder: Path, text: str) -> Any:
    """Return what stands for a person who types an answer."""
    path = folder / "answer"
    path.write_text(text)
    return path.open()


def pending(cluster: Cluster) -> set[str]:
    return {row["id"] for row in cluster.squeue() if row["state"] == "PENDING"}


def test_a_cancelled_run_stops_with_a_checkpoint_and_its_job_takes_the_next(
    cluster: Cluster, hold: Hold, tmp_path: Path, results: Path, statuses: Onlooker
) -> None:
    command = asks(tmp_path, 2, STEPS, runs_per_job=2, **hold.at("step", deaf=0))
    ettsweep(*command)
    hold.wait()
    first, second = by_task(results)
    job = f"{array(results)}_0"
    stderr = ettsweep("cancel", first.id, "--results", results).stderr
    assert "1 run cancelled" in stderr
    assert "1 of them stops at its next step" in stderr
    assert "withdrawn" not in stderr
    row = status(results)[first.id]
    assert (row["state"], row["reason"], row["job"]) == ("running", "cancelling", job)
    too_early = ettsweep("retry", first.id, "--launch", tmp_path / "slurm.yaml", "--results", results).stderr
    assert f"run {first.id} is running: nothing to retry" in too_early
    hold.let_go_to_look()
    wait_for_state(results, "cancelled", "done")
    rows = status(results)
    assert [rows[run.id]["state"] for run in (first, second)] == ["cancelled", "done"]
    assert first.attempt(1).failure()["reason"] == "cancelled"  # type: ignore[index]
    assert lives(second) == [(job, 0)]
    cluster.wait_state(job, "COMPLETED")
    assert {row["state"] for row in statuses() if row["run"] == second.id} <= {"queued", "running", "done"}
    assert {row["state"] for row in statuses() if row["run"] == first.id} <= {"queued", "running", "cancelled"}

    stopped = last_step(first, 1)
    assert HELD_STEP <= stopped < STEPS
    assert "1 need a decision" in ettsweep(*command).stderr
    assert "1 resumed" in ettsweep("retry", first.id, "--launch", tmp_path / "slurm.yaml", "--results", results).stderr
    wait_until_done(results)
    assert_resumed(first, stopped)
    assert (len(first.attempt_numbers()), second.attempt_numbers()) == (2, [1])
    assert_all_as_if_undisturbed(results)


@pytest.mark.slow
def test_a_cancelled_run_leaves_the_others_of_its_ensemble_as_they_are(
    cluster: Cluster, hold: Hold, tmp_path: Path, results: Path
) -> None:
    ettsweep(*asks_trainer(tmp_path, 4, STEPS, runs_per_job=4, trainer={"ensemble": 4}, **hold.at("transformer-step")))
    hold.wait()
    job, runs = f"{array(results)}_0", by_task(results)
    cancelled = runs.pop(1)
    assert "1 of them stops at its next step" in ettsweep("cancel", cancelled.id, "--results", results).stderr
    assert status(results)[cancelled.id]["reason"] == "cancelling"
    hold.let_go_to_look()
    rows = wait_for_state(results, "cancelled", "done")
    assert [rows[run.id]["state"] for run in (cancelled, *runs)] == ["cancelled", "done", "done", "done"]
    assert cancelled.attempt(1).failure()["reason"] == "cancelled"  # type: ignore[index]
    assert cancelled.attempt(1).has_checkpoint()
    assert last_step(cancelled, 1) in (HELD_STEP - 1, HELD_STEP)
    for run in runs:
        assert (lives(run), ensembles(run)) == ([(job, 0)], [4])
        assert_close_to_undisturbed(run)
    cluster.wait_state(job, "COMPLETED")


def test_waiting_jobs_of_cancelled_runs_are_withdrawn_and_no_others(
    cluster: Cluster, tmp_path: Path, results: Path
) -> None:
    command = asks(tmp_path, 3, STEPS, sbatch=LATER)
    ettsweep(*command)
    name, number = only_submission(results).name, array(results)
    others = {
        cluster.sbatch("true", "--hold", f"--job-name={foreign}", *options)
        for foreign, options in (
            (name.rpartition(".")[0], ()),
            (name[:-1], ()),
            (name + "0", ()),
            (name.rpartition(".")[0] + ".00000000", ()),
        )
    }
    ours = {f"{number}_{task}" for task in range(3)}
    assert pending(cluster) == ours | others
    cancel = ("cancel", "--state", "queued", "--results", results)

    with answer(tmp_path, "n\n") as no:
        result = ettsweep(*cancel, code=1, stdin=no)
        assert "cancel 3 runs?" in result.stdout + result.stderr
    with answer(tmp_path, "") as nothing:
        assert "--yes skips this question" in ettsweep(*cancel, code=2, stdin=nothing).stderr
    assert pending(cluster) == ours | others
    assert {row["state"] for row in status(results).values()} == {"queued"}

    runs = by_task(results)
    assert "1 waiting job withdrawn" in ettsweep("cancel", runs[1].id, "--results", results).stderr
    assert pending(cluster) == ours - {f"{number}_1"} | others
    with answer(tmp_path, "y\n") as yes:
        assert "2 waiting jobs withdrawn" in ettsweep(*cancel, stdin=yes).stderr
    wait_for(lambda: pending(cluster) == others, "our jobs to be gone")
    assert {row["state"] for row in status(results).values()} == {"cancelled"}
    assert "3 need a decision" in ettsweep(*command).stderr

    retry = ("retry", "--state", "cancelled", "--launch", tmp_path / "slurm.yaml", "--results", results)
    with answer(tmp_path, "n\n") as no:
        result = ettsweep(*retry, code=1, stdin=no)
        assert "retry 3 runs?" in result.stdout + result.stderr
    assert {row["state"] for row in status(results).values()} == {"cancelled"}
    ettsweep(*retry, "--yes")
    assert {row["state"] for row in status(results).values()} == {"queued"}
    cluster.begin(submissions(results)[1].array_id())
    wait_until_done(results)
    assert [run.attempt_numbers() for run in runs] == [[1]] * 3
    assert pending(cluster) == others
    assert_all_as_if_undisturbed(results)


@pytest.mark.slow
def test_a_family_is_cancelled_and_what_others_ask_for_is_not(cluster: Cluster, tmp_path: Path, results: Path) -> None:
    (tmp_path / "other").mkdir()
    item = asks(tmp_path, 2, STEPS, sbatch=LATER)
    ettsweep(*item)
    other = asks(tmp_path / "other", 2, STEPS + 1, sbatch=LATER)
    ettsweep(*other[:-1], results, "--name", "other")
    rows = status(results)
    families = {row["family"] for row in rows.values()}
    assert len(families) == 2
    mine = rows[submissions(results)[0].runs[0]]["family"]
    stderr = ettsweep("cancel", "--family", mine, "--yes", "--results", results).stderr
    assert "2 waiting jobs withdrawn" in stderr
    rows = status(results)
    assert {row["state"] for row in rows.values() if row["family"] == mine} == {"cancelled"}
    assert {row["state"] for row in rows.values() if row["family"] != mine} == {"queued"}
    second = submissions(results)[1].array_id()
    assert pending(cluster) == {f"{second}_0", f"{second}_1"}

    ettsweep("retry", "--family", mine, "--yes", "--launch", tmp_path / "slurm.yaml", "--results", results)
    third = submissions(results)[2].array_id()
    assert pending(cluster) == {f"{number}_{task}" for number in (second, third) for task in (0, 1)}
    cluster.begin(second)
    cluster.begin(third)
    wait_until_done(results)
    assert [run.attempt_numbers() for run in runs_in(results)] == [[1]] * 4
    assert_all_as_if_undisturbed(results)


@pytest.mark.slow
def test_a_run_retried_while_its_old_job_still_waits_is_trained_by_that(
    cluster: Cluster, tmp_path: Path, results: Path
) -> None:
    ettsweep(*asks(tmp_path, 2, STEPS, runs_per_job=2, sbatch=LATER))
    first, second = by_task(results)
    job = f"{array(results)}_0"
    assert "withdrawn" not in ettsweep("cancel", first.id, "--results", results).stderr
    assert pending(cluster) == {job}  # it has another run to train
    assert status(results)[first.id]["state"] == "cancelled"
    retry = ("retry", first.id, "--launch", tmp_path / "slurm.yaml", "--results", results)
    assert "1 under way" in ettsweep(*retry).stderr
    assert len(submissions(results)) == 1
    row = status(results)[first.id]
    assert (row["state"], row["job"]) == ("queued", job)
    cluster.begin(job)
    wait_until_done(results)
    assert (lives(first), lives(second)) == ([(job, 0)], [(job, 0)])
    assert_all_as_if_undisturbed(results)


@pytest.mark.slow
def test_all_is_cancelled_whatever_it_is_doing(cluster: Cluster, hold: Hold, tmp_path: Path, results: Path) -> None:
    command = asks(tmp_path, 3, STEPS, max_parallel=1, **hold.at("step"))
    ettsweep(*command)
    hold.wait()
    number = array(results)
    stderr = ettsweep("cancel", "--all", "--yes", "--results", results).stderr
    assert "2 waiting jobs withdrawn" in stderr
    assert "1 of them stops at its next step" in stderr
    assert not pending(cluster)
    hold.let_go_to_look()
    wait_for_state(results, "cancelled")
    wait_for(lambda: cluster.state(f"{number}_0") in GONE, "the job to end")
    first = by_task(results)[0]
    stopped = last_step(first, 1)
    assert HELD_STEP <= stopped < STEPS
    assert [run.attempt_numbers() for run in by_task(results)] == [[1], [], []]
    assert "3 need a decision" in ettsweep(*command).stderr
    ettsweep("retry", "--all", "--yes", "--launch", tmp_path / "slurm.yaml", "--results", results)
    wait_until_done(results)
    assert_resumed(first, stopped)
    assert [run.attempt_numbers() for run in by_first_submission(results)] == [[1, 2], [1], [1]]
    assert_all_as_if_undisturbed(results)
