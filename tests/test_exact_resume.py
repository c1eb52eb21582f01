"""Goldens of exact resume: a command, a function and a Transformer, each ended by a signal and resumed.

What they record is compared with the records in tests/frozen, and with a run that nothing happens to.
"""

import hashlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commandline import GRID, ettsweep, runs_in, wait_for, worker_pids
from support.own_code import only_run, processes_of, result_of, undisturbed_metrics
from support.slots import end_stopped, owner, stopped_at_checkpoint
from test_frozen import LAST_BITS, assert_frozen, machine, recorded

from ettsweep.runs.folder import RunDir
from ettsweep.runs.state import State

WALK = '''"""A random walk from a state, in arithmetic that is the same on every machine."""
import json, random


def begin(resume, seed):
    rng = random.Random(seed)
    if not resume:
        return rng, 3.0, 1
    state = json.loads(open(resume).read())
    rng.setstate((state["random"][0], tuple(state["random"][1]), state["random"][2]))
    return rng, state["value"], state["step"] + 1


def state(rng, value, step):
    return json.dumps({"step": step, "value": value, "random": rng.getstate()})


def main(run):
    rng, value, first = begin(run.resume_from, run.seed)
    for step in range(first, 61):
        value += run.lr * (run.wd - value) * 0.1 + 0.01 * rng.random()
        run.log(step, loss=value)
        run.log(step, err=abs(value))
        if step % 10 == 0 or run.should_stop:
            run.save(step, lambda path: path.write_text(state(rng, value, step)))
        if run.should_stop:
            return
'''

PRINTING = """import argparse, json, os, time, walk
parser = argparse.ArgumentParser()
for name in ("--lr", "--wd", "--seed", "--out", "--resume"):
    parser.add_argument(name)
options = parser.parse_args()
rng, value, first = walk.begin(options.resume, int(options.seed))
for step in range(first, 61):
    value += float(options.lr) * (float(options.wd) - value) * 0.1 + 0.01 * rng.random()
    print("[ettsweep]", json.dumps({"step": step, "loss": value}), flush=True)
    if step % 10 == 0:
        print("[ettsweep]", json.dumps({"step": step, "err": abs(value)}), flush=True)
        with open(options.out + "/part", "w") as file:
            file.write(walk.state(rng, value, step))
        os.rename(options.out + "/part", options.out + "/ckpt-%d.json" % step)
    while step == 25 and os.path.exists(os.environ.get("WALK_HOLDS", "")):
        time.sleep(0.01)
"""

CALLING_RUN = """import os, time, walk
from ettsweep.run import Run

run = Run()
rng, value, first = walk.begin(run.resume_from, run.seed)
for step in range(first, 61):
    value += run.lr * (run.wd - value) * 0.1 + 0.01 * rng.random()
    run.log(step, loss=value)
    if step % 10 == 0:
        run.log(step, err=abs(value))
        run.save(step, lambda path: path.write_text(walk.state(rng, value, step)))
    while step == 25 and os.path.exists(os.environ.get("WALK_HOLDS", "")):
        time.sleep(0.01)
"""

pytestmark = pytest.mark.usefixtures("process")


def grid(folder: Path, results: Path, content: dict[str, Any], *options: object) -> None:
    axes = {"centre": {"lr": 0.25, "wd": 0.5}, "lr": {"range": [0, 0]}, "wd": "fixed"}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(axes | content))
    ettsweep("grid", folder / "sweep.yaml", "--results", results, "--launch-set", "slots=1", *options)


def is_saved(run: RunDir) -> bool:
    return (run.path / "out" / "ckpt-20.json").exists() or (
        bool(run.attempt_numbers()) and run.attempt(1).saved_steps() == [20]
    )


def resumed(run: RunDir, results: Path, step: int) -> dict[str, Any]:
    """Resume an interrupted run; return what is recorded of its metrics."""
    assert run.status().state is State.INTERRUPTED
    ettsweep("retry", run.id, "--results", results)
    assert result_of(run)["attempts"] == 2
    assert run.attempt(2).resumed_from() == (1, step)
    data = run.metrics_path.read_bytes()
    return {"score": result_of(run)["score"], "lines": data.count(b"\n"), "sha256": hashlib.sha256(data).hexdigest()}


def test_a_function(tmp_path: Path, results: Path, hold_runs: Callable[[int], None]) -> None:
    (tmp_path / "walk.py").write_text(WALK)
    hold_runs(1)
    grid(tmp_path, results, {"run": {"function": "walk:main", "score": {"name": "err", "mode": "min"}}})
    attempt = stopped_at_checkpoint(results)
    end_stopped(owner(attempt), signal.SIGKILL)
    run = only_run(results)
    assert_frozen("resumes", {"function": resumed(run, results, 10)})
    assert run.metrics_path.read_bytes() == undisturbed_metrics(tmp_path, run)


OPTIONS = " --lr {lr} --wd {wd} --seed {seed} --out {out}"
RESUME = {"checkpoint": r"{out}/ckpt-(?P<step>\d+)\.json", "add": "--resume {checkpoint}"}


@pytest.mark.parametrize(
    ("script", "options", "block"),
    [
        (PRINTING, OPTIONS, {"resume": RESUME}),
        pytest.param(CALLING_RUN, "", {"uses": "env"}, marks=pytest.mark.slow),
    ],
    ids=["files of its own", "saves with run"],
)
def test_a_command(
    script: str,
    options: str,
    block: dict[str, Any],
    tmp_path: Path,
    results: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "walk.py").write_text(WALK)
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "hold").touch()
    monkeypatch.setenv("WALK_HOLDS", str(tmp_path / "hold"))
    command = f"{shlex.quote(sys.executable)} train.py{options}"
    grid(tmp_path, results, {"run": {"command": command, "score": {"name": "err", "mode": "min"}, **block}})
    run: RunDir = wait_for(lambda: runs_in(results), "the run")[0]
    wait_for(lambda: is_saved(run), "its checkpoint")
    os.kill(worker_pids(results)[0], signal.SIGTERM)
    wait_for(lambda: run.status().state is State.INTERRUPTED and not processes_of(run), "its end")
    (tmp_path / "hold").unlink()
    result = resumed(run, results, 20)
    if script == PRINTING:
        assert_frozen("resumes", {"command": result})
    assert run.metrics_path.read_bytes() == undisturbed_metrics(tmp_path, run)


@pytest.mark.slow
def test_a_transformer(tmp_path: Path, results: Path, hold_runs: Callable[[int], None]) -> None:
    hold_runs(1)
    small = {key: GRID[key] for key in ("model", "task", "recipe", "strategies")}
    content = small | {"centre": {"standard": {"lr": 0.25, "wd": 0.25}}}
    grid(tmp_path, results, content, "--launch-set", "checkpoint_every_steps=10", "--launch-set", "threads=1")
    attempt = stopped_at_checkpoint(results)
    end_stopped(owner(attempt), signal.SIGTERM)
    run = only_run(results)
    step = json.loads(attempt.metrics_path.read_text().splitlines()[-1])["step"]
    result = resumed(run, results, step)
    weights = result_of(run)["weights_sha256"]
    alone = tmp_path / "alone"
    ettsweep("train", "--spec", run.spec_path, "--launch-set", "threads=1", "--results", alone)
    assert run.metrics_path.read_bytes() == only_run(alone).metrics_path.read_bytes()
    assert weights == result_of(only_run(alone))["weights_sha256"]
    expected = recorded("resumes").get("transformer", result)
    if machine() == recorded("resumes").get("machine", machine()):  # elsewhere, kernels add in another order
        assert_frozen("resumes", {"machine": machine(), "transformer": result | {"weights": weights}})
    assert result["score"] == pytest.approx(expected["score"], rel=LAST_BITS)
    assert result["lines"] == expected["lines"]
