"""Functions and commands as runs of a SLURM cluster: warned, killed, cancelled, on a node that dies; each once."""

import os
import signal
import sys
from pathlib import Path

import pytest
import yaml
from support.arrays import node_of, only_run, only_submission, wait_for_state, workers, write_profile
from support.commandline import ettsweep, typed, wait_for
from support.devcluster import Cluster

from ettsweep.runs.folder import RunDir

CODE = """import json, random, time
from pathlib import Path


def main(run, steps=400):
    rng, value = random.Random(run.seed), 3.0
    if run.resume_from:
        value, state = json.loads(run.resume_from.read_text())
        rng.setstate((state[0], tuple(state[1]), state[2]))
    for step in range(run.resume_step + 1, steps + 1):
        value += rng.gauss(0, run.lr)
        run.record(step, loss=value, err=abs(value))
        if step % 20 == 0 or run.stop:
            run.checkpoint(step, lambda path: path.write_text(json.dumps([value, rng.getstate()])))
        if run.stop:
            return
        time.sleep(0.02)
"""


COMMAND = """import json, os, random, sys, time

lr, seed, out = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
rng, value, first = random.Random(seed), 3.0, 1
if sys.argv[4:]:
    first, value, state = json.load(open(sys.argv[4]))
    rng.setstate((state[0], tuple(state[1]), state[2]))
for step in range(first, 401):
    value += rng.gauss(0, lr)
    print("[ettsweep]", json.dumps({"step": step, "loss": value, "err": abs(value)}), flush=True)
    if step % 20 == 0:
        json.dump([step + 1, value, rng.getstate()], open(out + "/part", "w"))
        os.rename(out + "/part", f"{out}/{step}.json")
    time.sleep(0.02)
"""

BLOCKS = {
    "function": {"function": "walk:main"},
    "command": {
        "command": [sys.executable, "run.py", "{lr}", "{seed}", "{out}"],
        "resume": {"checkpoint": r"{out}/(?P<step>\d+)\.json", "add": "{checkpoint}"},
    },
}


@pytest.fixture(params=list(BLOCKS))
def submit(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Submit one run of a function or a command to SLURM."""
    (tmp_path / "walk.py").write_text(CODE)
    (tmp_path / "run.py").write_text(COMMAND)
    block = {**BLOCKS[request.param], "score": {"name": "err", "mode": "min"}, "steps": 400}
    grid = tmp_path / "sweep.yaml"
    grid.write_text(yaml.safe_dump({"run": block, "centre": {"lr": 0.25}, "lr": {"range": [0, 0]}}))
    ettsweep(
        "grid", "--grid", grid, "--launch", write_profile(tmp_path / "slurm.yaml"), "--results", tmp_path / "results"
    )


def in_training(results: Path) -> RunDir:
    """Wait until the run has saved a state."""
    run: RunDir = wait_for(lambda: only_run(results), "the run")
    attempt = wait_for(run.latest_attempt, "its attempt")
    wait_for(lambda: attempt.has_checkpoint() or (run.path / "out" / "20.json").exists(), "its state")
    return run


def assert_exact(tmp_path: Path, run: RunDir, attempts: int) -> None:
    """The run has one result, of its last attempt, with what a run records that nothing happens to."""
    result = run.result()
    assert result is not None
    assert (result["attempts"], run.attempt_numbers()[-1]) == (attempts, attempts)
    assert all(run.attempt(number).resumed_from()[1] > 0 for number in range(2, attempts + 1))
    alone = tmp_path / "alone"
    typed("train", "--spec", run.spec_path, "--results", alone)
    assert run.metrics_path.read_bytes() == only_run(alone).metrics_path.read_bytes()


@pytest.mark.usefixtures("submit")
def test_a_job_that_is_warned_of_its_end_goes_on_in_its_next_life(
    cluster: Cluster, tmp_path: Path, results: Path
) -> None:
    run = in_training(results)
    job = f"{only_submission(results).array_id()}_0"
    os.kill(workers(results)[0], signal.SIGUSR2)
    wait_for(lambda: run.attempt(1).failure(), "its end")
    assert run.attempt(1).failure() == {"kind": "interrupted", "reason": "out of time or preempted", "details": ""}
    wait_for_state(results, "done")
    assert {str(run.attempt(number).job()["id"]) for number in run.attempt_numbers()} == {job}
    assert_exact(tmp_path, run, 2)


@pytest.mark.usefixtures("submit")
def test_a_run_whose_node_dies_goes_on_where_slurm_puts_its_job(
    cluster: Cluster, tmp_path: Path, results: Path
) -> None:
    run = in_training(results)
    node = node_of(run.attempt(1))
    cluster.node("kill", node)
    wait_for_state(results, "done")
    assert_exact(tmp_path, run, run.attempt_numbers()[-1])


@pytest.mark.usefixtures("submit")
def test_a_cancelled_run_saves_and_stays_cancelled(cluster: Cluster, tmp_path: Path, results: Path) -> None:
    run = in_training(results)
    ettsweep("cancel", run.id, "--results", results)
    wait_for_state(results, "cancelled")
    ettsweep("retry", run.id, "--results", results, "--launch", tmp_path / "slurm.yaml")
    wait_for_state(results, "done")
    assert_exact(tmp_path, run, 2)
