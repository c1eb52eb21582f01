"""Another score of runs that are finished: they are scored anew, as if they had been trained for it."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.audit import audited
from support.commandline import ettsweep, runs_in, status

from ettsweep.launch.rescore import SOURCE
from ettsweep.launch.submissions import submission_folders
from ettsweep.runs.folder import RunDir

SCRIPT = """
import argparse, json
parser = argparse.ArgumentParser()
for name in ("--lr", "--wd"):
    parser.add_argument(name, type=float)
parser.add_argument("--seed", type=int)
parser.add_argument("--out")
parser.add_argument("--steps", type=int, default=6)
options = parser.parse_args()
open(options.out + "/model.pt", "w").write("weights")
for step in range(1, options.steps + 1):
    err = abs(options.lr - 0.25) + 0.1 * abs(step - 4) + 0.001 * options.seed
    row = {"step": step, "loss": 2 * err - 0.01 * step, "norm": err}
    print("[ettsweep]", json.dumps(row if step % 2 else row | {"err": err}))
"""

FUNCTION = """
def main(run, fails=False):
    for step in range(1, 7):
        err = abs(run.lr - 0.25) + 0.1 * abs(step - 4) + 0.001 * run.seed
        run.record(step, err=err, other=float("nan") if fails and step > 4 else -err)
"""

KILLED = """
import os
from ettsweep import cli
from ettsweep.runs.folder import RunDir
RunDir.finish = lambda *_: os._exit(9)
cli.main()
"""

COMMAND = {"command": f"{shlex.quote(sys.executable)} train.py --lr {{lr}} --wd {{wd}} --seed {{seed}} --out {{out}}"}
LONG = {"command": f"{COMMAND['command']} --steps 20003"}
LAST = {"score": {"name": "err", "mode": "min", "take": "last"}}
LOSS = {"score": {"name": "loss", "mode": "min"}}
OTHER = {"score": {"name": "other", "mode": "max"}}

Ask = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("process")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a grid file of three points of two seeds."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "own.py").write_text(FUNCTION)

    def grid_file(name: str, run: dict[str, Any] = COMMAND, **block: Any) -> Path:
        content = {"run": run | {"score": {"name": "err", "mode": "min"}} | block}
        content |= {"centre": {"lr": 0.25, "wd": 0.5}, "lr": {"range": [-1, 1]}, "seeds": [0, 1]}
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    return grid_file


@pytest.fixture
def grid(write: Callable[..., Path], results: Path) -> Ask:
    """Return a function that requests the runs of a grid file, and waits for them unless it is a dry run."""

    def ask(name: str, *options: object, folder: Path = results, code: int = 0, **changes: Any) -> str:
        path = write(name, **changes)
        return ettsweep("grid", "--grid", path, "--results", folder, "--follow", *options, code=code).stderr

    return ask


def outcomes(results: Path) -> dict[str, tuple[bytes, str, float | None, int]]:
    """Return metrics, status, score and last step of each run."""
    return {
        run.id: (run.metrics_path.read_bytes(), result["status"], result["score"], result["steps"])
        for run in runs_in(results)
        if (result := run.result())
    }


@pytest.mark.parametrize(
    ("run", "block"),
    [
        pytest.param(COMMAND, LAST, id="last"),
        pytest.param(COMMAND, LOSS, id="name", marks=pytest.mark.slow),
        pytest.param({"function": "own:main"}, LAST, id="function", marks=pytest.mark.slow),
        pytest.param({"function": "own:main"}, OTHER, id="name in a function"),
    ],
)
def test_a_sweep_that_differs_in_its_score_trains_nothing(
    grid: Ask, results: Path, tmp_path: Path, run: dict[str, Any], block: dict[str, Any]
) -> None:
    grid("first", run=run)
    before = set(outcomes(results))
    assert "6 finished runs would be scored anew by " in (dry := grid("second", "--dry-run", run=run, **block))
    assert "to train" not in dry
    assert set(outcomes(results)) == before
    assert "6 finished runs are scored anew by " in grid("second", run=run, **block)
    assert len(submission_folders(results)) == 1, "nothing is trained"
    scored = {run_id: outcome for run_id, outcome in outcomes(results).items() if run_id not in before}
    grid("second", folder=tmp_path / "alone", run=run, **block)
    assert scored == outcomes(tmp_path / "alone")
    options = ("--sweep", "second", "--dry-run", "--results", results, "--format", "json")
    (verdict,) = json.loads(ettsweep("verify-optimum", *options, code=None).stdout)
    assert (verdict["lr"], verdict["seeds"], len(verdict["versions"])) == (0.25, [0, 1], 1)
    assert {row["state"] for row in status(results).values()} == {"done"}
    assert "scored anew" not in grid("second", run=run, **block), "once is enough"


@pytest.mark.parametrize(
    ("run", "block"),
    [
        pytest.param(LONG, LOSS, marks=pytest.mark.slow),  # every second line without the former score was left out
        ({"function": "own:main", "with": {"fails": True}}, OTHER),  # training would have ended as diverged
        (COMMAND, {"score": {"name": "norm", "mode": "min"}}),  # it was not kept
        (COMMAND, LAST | {"score": LAST["score"] | {"take": {"step": 5}}}),
        (COMMAND, LOSS | {"reader": {"kind": "jsonl", "files": ["{output}"]}}),
    ],
    ids=["thinned", "not finite", "not kept", "no such step", "another reader"],
)
def test_what_is_not_known_is_trained(grid: Ask, run: dict[str, Any], block: dict[str, Any]) -> None:
    one = ("--lr-range", "0:0", "--seeds", "0")
    grid("first", *one, run=run)
    assert "1 run would be submitted" in (dry := grid("second", *one, "--dry-run", run=run, **block))
    assert "scored anew" not in dry


@pytest.mark.slow
def test_metrics_are_not_read_for_a_score_that_they_do_not_have(grid: Ask, results: Path) -> None:
    grid("first")
    loss = {"score": {"name": "loss", "mode": "min"}}
    norm = {"score": {"name": "norm", "mode": "min"}}

    def read(**block: Any) -> int:
        opened = audited("open", lambda: grid("second", "--dry-run", **block))
        return sum(name.endswith("metrics.jsonl") for name in opened)

    assert read(**loss) == 6
    assert read(**norm) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_runs_that_were_added_are_taken_over(grid: Ask, results: Path) -> None:
    grid("first", "--seeds", "0,1,2")
    assert "9 finished runs are scored anew by err_last, not trained again\n" in grid("second", **LAST)
    cost = ettsweep("report", "--results", results).stderr
    alone = ettsweep("report", "--sweep", "first", "--results", results).stderr
    assert cost.split("device hours")[0].split()[-1] == alone.split("device hours")[0].split()[-1], "counted once"


def test_a_rescoring_that_was_killed_is_repeated(write: Callable[..., Path], grid: Ask, results: Path) -> None:
    grid("first")
    command = ["grid", "--grid", str(write("second", **LAST)), "--results", str(results)]
    killed = subprocess.run([sys.executable, "-c", KILLED, *command], check=False)
    assert killed.returncode == 9
    assert [row["state"] for row in status(results).values()].count("interrupted") == 1
    assert "6 finished runs are scored anew" in grid("second", **LAST)
    assert len(submission_folders(results)) == 1
    assert {row["state"] for row in status(results).values()} == {"done"}


@pytest.mark.slow
def test_what_cannot_be_submitted_changes_nothing(grid: Ask, results: Path) -> None:
    grid("first")
    before = set(outcomes(results))
    grid("second", "--seeds", "0,1,2", "--launch-set", "devices=[0]", code=2, **LAST)
    assert {run.id for run in runs_in(results)} == before


def test_a_run_that_was_scored_anew_is_reproduced_as_it_was_trained(
    grid: Ask, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid("first")
    grid("second", **LAST)
    scored = next(run for run in runs_in(results) if (run.result() or {}).get(SOURCE))
    monkeypatch.chdir(tmp_path)
    notes = ettsweep("show", scored.id, "--reproduce", "--results", results).stderr
    by_hand = " ".join(notes.split("by hand: ")[1].split("no difference found")[0].split())
    subprocess.run(by_hand, shell=True, check=True)
    assert (tmp_path / f"reproduced-{scored.id}" / "out" / "model.pt").read_text() == "weights"


@pytest.mark.slow
def test_outputs_of_what_was_trained_are_kept_for_the_best_point_of_either_score(grid: Ask, results: Path) -> None:
    run = COMMAND | {"keep": ["nothing"]}
    grid("first", "--lr-range", "-1:2", run=run)
    grid("second", "--lr-range", "-1:2", run=run, score={"name": "loss", "mode": "max!"})
    options = ("--results", results, "--dry-run", "--format", "json")
    rows = json.loads(ettsweep("clean", "--outputs", *options).stdout)
    cleaned = {Path(row["path"]).parents[1].name for row in rows if row["reason"] == "output of a finished run"}
    trained = {r.id for r in runs_in(results) if SOURCE not in (r.result() or {})}
    spared = {RunDir(results / "runs" / run_id).spec().lr for run_id in trained - cleaned}
    assert spared == {0.25, 1.0}, "the lowest err, and the highest loss"
    ettsweep("sweeps", "delete", "first", "--yes", "--results", results)
    rows = json.loads(ettsweep("clean", "--unused-runs", *options).stdout)
    assert not trained & {Path(row["path"]).name for row in rows}


@pytest.mark.slow
def test_other_code_is_another_run(grid: Ask, results: Path, tmp_path: Path, write: Callable[..., Path]) -> None:
    grid("first")
    path = write("second", **LAST)
    (tmp_path / "train.py").write_text(SCRIPT.replace("0.25", "0.5"))
    assert "scored anew" not in ettsweep("grid", "--grid", path, "--results", results, "--follow").stderr
    assert len(submission_folders(results)) == 2
