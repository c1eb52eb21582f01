"""Functions as runs: cancelled, diverged, wrong; in this process, and in a worker where that matters.

Of killed ones, see `test_exact_resume.py`.
"""

import json
import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commandline import ettsweep, status, wait_for
from support.own_code import only_run, result_of

from ettsweep.runs.folder import RunDir
from ettsweep.runs.state import State

WALK = '''"""What runs do."""
import time
from pathlib import Path


def main(run, steps=60, every=10):
    for step in range(1, steps + 1):
        run.log(step, loss=1.0, err=abs(run.wd - step / every))


def deaf(run):
    for step in range(1, 100_000):
        run.log(step, loss=1.0)
        time.sleep(0.01)


def diverging(run):
    run.log(1, loss=1.0)
    try:
        run.log(2, loss=float("inf"))
    except Exception:
        pass
    run.log(3, loss=1.0, err=0.0)


def silent(run):
    print("working")
    run.log(1, loss=1.0, other=2.0)


def broken(run):
    raise ValueError("no luck")


def reader(run):
    run.log(1, err=float(len(Path(run.data).read_text())))


def torchless(run):
    import sys
    assert not {"torch", "pandas", "optuna"} & set(sys.modules)
    run.log(1, err=1.0)


def last_counts(run):
    for step, err in ((1, 3.0), (5, 1.0), (9, 2.0)):
        run.log(step, err=err)
'''

Write = Callable[..., Path]
Train = Callable[..., RunDir]
pytestmark = pytest.mark.usefixtures("process")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes a grid file for one run of a function of the module above."""
    (tmp_path / "walk.py").write_text(WALK)

    def write(function: str, /, **block: Any) -> Path:
        block = {"function": f"walk:{function}", "score": {"name": "err", "mode": "min"}} | block
        path = tmp_path / "sweep.yaml"
        path.write_text(yaml.safe_dump({"run": block, "centre": {"lr": 0.25, "wd": 0.5}, "lr": {"range": [0, 0]}}))
        return path

    return write


@pytest.fixture
def train(results: Path, write: Write) -> Train:
    """Return a function that trains a run in this process, and returns it."""

    def train(function: str, *options: object, **block: Any) -> RunDir:
        ettsweep("train", write(function, **block), "--results", results, *options, code=None)
        return only_run(results)

    return train


# --- how runs end -----------------------------------------------------------------------------------------------------


def test_a_cancelled_run_stops_though_it_does_not_heed(results: Path, write: Write) -> None:
    ettsweep("grid", write("deaf"), "--results", results, "--launch-set", "slots=1")
    run = only_run(results)
    wait_for(lambda: run.status().state is State.RUNNING, "the run")
    ettsweep("cancel", run.id, "--results", results)
    wait_for(lambda: run.status().state is State.CANCELLED, "its end")
    assert run.attempt(1).failure() == {"kind": "interrupted", "reason": "cancelled", "details": ""}


def test_a_loss_that_is_not_finite_ends_the_run_whatever_it_catches(train: Train) -> None:
    run = train("diverging")
    result = result_of(run)
    assert (result["status"], result["diverged_step"], result["score"]) == ("diverged", 2, None)
    assert run.history()[-1] == {"step": 2, "loss": None, "nonfinite": True}


def test_a_run_without_a_score_fails_and_says_what_was_recorded(train: Train) -> None:
    run = train("silent")
    assert run.status().state is State.FAILED
    assert run.status().reason == "no score: err is missing; the run recorded loss, other"
    assert "working" in run.attempt(1).log_text(), "what it prints is in its log"


def test_an_exception_is_recorded_with_its_traceback(train: Train) -> None:
    run = train("broken")
    assert (run.status().state, run.status().reason) == (State.FAILED, "ValueError: no luck")
    assert "walk.py" in run.attempt(1).log_text()


def test_a_function_imports_no_torch_unless_it_wants_to(train: Train) -> None:
    result = result_of(train("torchless"))
    assert result["score"] == 1.0
    assert result["environment"]["packages"]["torch"] == version("torch"), "though nothing of it was imported"


def test_data_are_where_the_user_says_and_in_no_id(tmp_path: Path, train: Train) -> None:
    (tmp_path / "data.txt").write_text("seven..")
    run = train("reader", "--data", tmp_path / "data.txt")
    assert result_of(run)["score"] == 7.0
    assert "data.txt" not in run.spec_path.read_text()


@pytest.mark.parametrize(("take", "name", "score"), [("best", "err_best", 1.0), ({"step": 1}, "err_at_1", 3.0)])
def test_a_score_is_the_best_or_that_at_a_step(results: Path, train: Train, take: Any, name: str, score: float) -> None:
    run = train("last_counts", score={"name": "err", "mode": "min", "take": take})
    result = result_of(run)
    assert (result["score"], result[name], result["steps"]) == (score, score, 9)
    assert status(results)[run.id]["best_score"] == score


# --- before anything is submitted -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"function": "walk:mian"}, "unknown function 'mian'; did you mean 'main'?"),
        ({"function": "wlak:main"}, "there is no module wlak"),
        ({"function": "main"}, "MODULE:NAME such as mypackage.train:main is expected, got 'main'"),
        ({"with": {"stepz": 3}}, "with.stepz: main in"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_submitted(
    results: Path, write: Write, change: dict[str, Any], problem: str
) -> None:
    done = ettsweep("grid", write("main", **change), "--results", results, code=None)
    assert done.returncode in (1, 2)
    assert problem in done.stderr
    assert not results.exists()


def test_a_parameter_of_a_function_is_set_by_its_name(results: Path, write: Write, train: Train) -> None:
    run = train("main", "--set", "every=7", "--set", "score.take=last", **{"with": {"steps": 20}})
    assert json.loads(run.spec_path.read_text())["arguments"] == {"steps": 20, "every": 7}
    assert "err_last" in result_of(run)
    for override, problem in {
        "evry=7": "main in .*walk.py has no such parameter; it takes every, steps",
        "steps=5": "`run:` and `with:` both have steps; for the function's, pass --set with.steps=5",
    }.items():
        path = write("main", **{"with": {"steps": 20}})
        refused = ettsweep("grid", path, "--set", override, "--results", results, code=2)
        assert re.search(problem, refused.stderr)
