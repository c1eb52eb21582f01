"""Functions as runs, in real workers: killed, stopped, resumed, diverged, wrong."""

import json
import re
import signal
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commandline import ettsweep, runs_in, status, wait_for
from support.own_code import assert_planning_imports_no_torch, only_run, result_of, undisturbed_metrics
from support.slots import end_stopped, owner, stopped_at_checkpoint

from ettsweep.runs.folder import RunDir
from ettsweep.runs.state import State

WALK = '''"""A random walk that stores its state, a step at a time."""
import json, random, time
from pathlib import Path


def main(run, steps=60, every=10, pause=0.0, heeds=True):
    rng, value, first = random.Random(run.seed), 3.0, 1
    if run.resume_from:
        state = json.loads(run.resume_from.read_text())
        first, value = state["step"] + 1, state["value"]
        rng.setstate((state["random"][0], tuple(state["random"][1]), state["random"][2]))
    for step in range(first, steps + 1):
        value += rng.gauss(0, run.lr)
        run.log(step, loss=value)
        run.log(step, err=abs(value) + run.wd)
        if step % every == 0 or (heeds and run.should_stop):
            state = {"step": step, "value": value, "random": rng.getstate()}
            run.save(step, lambda path: path.write_text(json.dumps(state)))
        if heeds and run.should_stop:
            return
        time.sleep(pause)


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


class OutOfMemoryError(RuntimeError):
    """As torch's is called."""


def greedy(run):
    raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


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

Ask = Callable[..., Any]
Held = Callable[[], tuple[RunDir, int]]
pytestmark = pytest.mark.usefixtures("process")


@pytest.fixture
def held(results: Path, hold_runs: Callable[[int], None]) -> Callable[[], tuple[RunDir, int]]:
    """Have a run hold at its first checkpoint; return what waits for that, and returns the run and its worker."""
    hold_runs(1)

    def wait() -> tuple[RunDir, int]:
        attempt = stopped_at_checkpoint(results)
        return RunDir(attempt.run), owner(attempt)

    return wait


@pytest.fixture
def grid(tmp_path: Path, results: Path) -> Ask:
    """Return a function that requests runs of a function of the module above, one unless it is told otherwise."""
    (tmp_path / "walk.py").write_text(WALK)

    def ask(
        function: str = "main",
        *options: object,
        score: Any = None,
        runs: int = 1,
        last: int | None = None,
        code: int = 0,
        **arguments: Any,
    ) -> Any:
        block: dict[str, Any] = {"function": f"walk:{function}", "score": score or {"name": "err", "mode": "min"}}
        block |= ({"with": arguments} if arguments else {}) | ({"steps": last} if last else {})
        content = {"run": block, "centre": {"lr": 0.25, "wd": 0.5}, "lr": {"range": [0, runs - 1]}}
        path = tmp_path / "sweep.yaml"
        path.write_text(yaml.safe_dump(content))
        return ettsweep("grid", path, "--results", results, "--launch-set", "slots=1", *options, code=code)

    return ask


# --- interrupted ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_whose_worker_is_told_to_end_goes_on_exactly(
    tmp_path: Path, results: Path, grid: Ask, held: Held
) -> None:
    """Of one whose worker is killed, see `test_exact_resume.py`."""
    grid()
    run, worker = held()
    end_stopped(worker, signal.SIGTERM)
    assert run.status().state is State.INTERRUPTED
    assert run.attempt(1).failure() == {"kind": "interrupted", "reason": "terminated", "details": ""}
    ettsweep("retry", run.id, "--results", results)
    assert result_of(run)["attempts"] == 2
    assert run.attempt(2).resumed_from() == (1, 10)
    assert run.metrics_path.read_bytes() == undisturbed_metrics(tmp_path, run)


def test_a_cancelled_run_stops_whether_it_heeds_or_not(results: Path, grid: Ask) -> None:
    for heeds in (True, False):
        grid("main", "--name", f"heeds-{heeds}", pause=0.02, steps=100_000, heeds=heeds)
        run = wait_for(lambda: [run for run in runs_in(results) if run.status().state is State.RUNNING], "the run")[0]
        ettsweep("cancel", run.id, "--results", results)
        wait_for(lambda run=run: run.status().state is State.CANCELLED, "its end")
        assert run.attempt(1).failure() == {"kind": "interrupted", "reason": "cancelled", "details": ""}


# --- how runs end -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_the_run_whatever_it_catches(results: Path, grid: Ask) -> None:
    grid("diverging", "--follow")
    result = result_of(only_run(results))
    assert (result["status"], result["diverged_step"], result["score"]) == ("diverged", 2, None)
    assert only_run(results).history()[-1] == {"step": 2, "loss": None, "nonfinite": True}


def test_a_run_without_a_score_fails_and_says_what_was_recorded(results: Path, grid: Ask) -> None:
    grid("silent")
    run = only_run(results)
    wait_for(lambda: run.status().state is State.FAILED, "its failure")
    assert run.status().reason == "no score: err is missing; the run recorded loss, other"
    assert "working" in run.attempt(1).log_text(), "what it prints is in its log"


def test_an_exception_is_recorded_with_its_traceback(results: Path, grid: Ask) -> None:
    grid("broken", runs=2)
    runs = wait_for(
        lambda: [run for run in runs_in(results) if run.status().state is State.FAILED][1:], "both failures"
    )
    failure = runs[0].attempt(1).failure()
    assert failure is not None
    assert failure["reason"] == "ValueError: no luck"
    assert "walk.py" in runs[0].attempt(1).log_text()


def test_a_worker_of_functions_imports_no_torch(results: Path, grid: Ask) -> None:
    grid("torchless")
    result = result_of(only_run(results))
    assert result["score"] == 1.0
    assert result["environment"]["packages"]["torch"] == version("torch"), "though nothing of it was imported"


@pytest.mark.slow
def test_planning_functions_imports_no_torch(tmp_path: Path, grid: Ask, results: Path) -> None:
    grid("torchless", "--dry-run")
    assert_planning_imports_no_torch(tmp_path / "sweep.yaml")


def test_data_are_where_the_user_says_and_in_no_id(tmp_path: Path, results: Path, grid: Ask) -> None:
    (tmp_path / "data.txt").write_text("seven..")
    grid("reader", "--data", tmp_path / "data.txt")
    assert result_of(only_run(results))["score"] == 7.0
    assert "data.txt" not in only_run(results).spec_path.read_text()


@pytest.mark.parametrize(("take", "name", "score"), [("best", "err_best", 1.0), ({"step": 1}, "err_at_1", 3.0)])
def test_a_score_is_the_best_the_last_or_that_at_a_step(
    results: Path, grid: Ask, take: Any, name: str, score: float
) -> None:
    grid("last_counts", score={"name": "err", "mode": "min", "take": take})
    result = result_of(only_run(results))
    assert (result["score"], result[name], result["steps"]) == (score, score, 9)
    assert status(results)[only_run(results).id]["best_score"] == score


# --- before anything is submitted -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"function": "walk:mian"}, "unknown function 'mian'; did you mean 'main'?"),
        ({"function": "wlak:main"}, "there is no module wlak"),
        ({"function": "main"}, "MODULE:NAME such as mypackage.train:main is expected, got 'main'"),
        ({"with": {"stepz": 3}}, "with.stepz: main in"),
        ({"code": ["*.cfg"]}, "code: no file in"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_submitted(
    tmp_path: Path, results: Path, grid: Ask, change: dict[str, Any], problem: str
) -> None:
    grid("main", "--dry-run")
    path = tmp_path / "sweep.yaml"
    content = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(content | {"run": content["run"] | change}))
    done = ettsweep("grid", path, "--results", results, code=None)
    assert done.returncode in (1, 2)
    assert problem in done.stderr
    assert not results.exists()


def test_a_parameter_of_a_function_is_set_by_its_name(tmp_path: Path, results: Path, grid: Ask) -> None:
    grid("main", "--set", "every=7", "--set", "score.take=last", "--follow", steps=20)
    (score,) = {key for key in result_of(only_run(results)) if key.startswith("err")}
    assert json.loads(only_run(results).spec_path.read_text())["arguments"] == {"steps": 20, "every": 7}
    assert score == "err_last"
    for override, problem in {
        "evry=7": "main in .*walk.py has no such parameter; it takes every, heeds, pause, steps",
        "steps=5": "`run:` and `with:` both have steps; for the function's, pass --set with.steps=5",
    }.items():
        refused = ettsweep("grid", tmp_path / "sweep.yaml", "--set", override, "--results", results, code=2)
        assert re.search(problem, refused.stderr)
