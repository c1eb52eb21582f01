"""Another score, or another reader, of runs that are finished: they are scored anew, as if they had been trained for it."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commandline import ettsweep, runs_in, status

from ettsweep.launch.submissions import submission_folders

SCRIPT = """
import argparse, json, os
parser = argparse.ArgumentParser()
for name in ("--lr", "--wd"):
    parser.add_argument(name, type=float)
parser.add_argument("--seed", type=int)
parser.add_argument("--out")
options = parser.parse_args()
with open(options.out + "/log.csv", "w") as file:
    print("step,accuracy", file=file)
    for step in range(1, 7):
        err = abs(options.lr - 0.25) + 0.1 * abs(step - 4) + 0.001 * options.seed
        print("[ettsweep]", json.dumps({"step": step, "err": err, "loss": 2 * err}))
        print(step, 1 - err / 2, sep=",", file=file)
"""

FUNCTION = """
def main(run):
    for step in range(1, 7):
        run.record(step, err=abs(run.lr - 0.25) + 0.1 * abs(step - 4) + 0.001 * run.seed, accuracy=step)
"""

COMMAND = {"command": f"{shlex.quote(sys.executable)} train.py --lr {{lr}} --wd {{wd}} --seed {{seed}} --out {{out}}"}
LOSS = {"score": {"name": "loss", "mode": "min"}}
LAST = {"score": {"name": "err", "mode": "min", "take": "last"}}
CSV = {"score": {"name": "accuracy", "mode": "max"}, "reader": {"kind": "csv", "files": ["log.csv"], "step": "step"}}

Ask = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("process")


@pytest.fixture
def grid(tmp_path: Path, results: Path) -> Ask:
    """Return a function that requests three runs, and waits for them unless it is a dry run."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "own.py").write_text(FUNCTION)

    def ask(name: str, *options: object, folder: Path = results, run: dict[str, Any] = COMMAND, **block: Any) -> Any:
        content = {"run": run | {"score": {"name": "err", "mode": "min"}} | block}
        content |= {"centre": {"lr": 0.25, "wd": 0.5}, "lr": {"range": [-1, 1]}, "seeds": [0, 1]}
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(content))
        return ettsweep("grid", "--grid", path, "--results", folder, "--follow", *options)

    return ask


def outcomes(results: Path) -> dict[str, tuple[bytes, float]]:
    """Return metrics and score of each run."""
    return {run.id: (run.metrics_path.read_bytes(), run.result()["score"]) for run in runs_in(results)}  # type: ignore[index]


@pytest.mark.parametrize(
    ("run", "block"),
    [(COMMAND, LAST), (COMMAND, LOSS), (COMMAND, CSV), ({"function": "own:main"}, LAST)],
    ids=["last", "name", "reader", "function"],
)
def test_a_sweep_that_differs_in_its_score_trains_nothing(
    grid: Ask, results: Path, tmp_path: Path, run: dict[str, Any], block: dict[str, Any]
) -> None:
    grid("first", run=run)
    before = set(outcomes(results))
    dry = grid("second", "--dry-run", run=run, **block)
    assert "6 finished runs may be scored anew by " in dry.stderr
    assert set(outcomes(results)) == before
    said = grid("second", run=run, **block).stderr
    assert "6 finished runs are scored anew by " in said
    assert len(submission_folders(results)) == 1, "nothing is trained"
    scored = {run_id: outcome for run_id, outcome in outcomes(results).items() if run_id not in before}
    grid("second", folder=tmp_path / "alone", run=run, **block)
    assert scored == outcomes(tmp_path / "alone")
    options = ("--sweep", "second", "--dry-run", "--results", results, "--format", "json")
    (verdict,) = json.loads(ettsweep("verify-optimum", *options, code=None).stdout)
    assert (verdict["lr"], verdict["seeds"]) == (0.25, [0, 1])
    assert {row["state"] for row in status(results).values()} == {"done"}


def test_seeds_of_a_race_are_taken_over(grid: Ask, results: Path) -> None:
    grid("first", "--seeds", "0,1,2")
    assert "9 finished runs are scored anew by err_last, not trained again\n" in grid("second", **LAST).stderr
    assert "scored anew" not in grid("second", **LAST).stderr, "once is enough"


def test_runs_whose_files_are_gone_are_trained(grid: Ask, results: Path) -> None:
    grid("first")
    gone = runs_in(results)[0]
    (gone.path / "out" / "log.csv").unlink()
    said = grid("second", **CSV).stderr
    assert "5 finished runs are scored anew by accuracy_best" in said
    assert "1 of 1 run finished" in said or "1 run trained" in said
    assert {row["state"] for row in status(results).values()} == {"done"}


def test_other_code_is_another_run(grid: Ask, results: Path, tmp_path: Path) -> None:
    grid("first")
    (tmp_path / "train.py").write_text(SCRIPT.replace("0.25", "0.5"))
    assert "scored anew" not in grid("second", **LAST).stderr
    assert len(submission_folders(results)) == 2
