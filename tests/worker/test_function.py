"""Functions as runs, in real workers: killed, stopped, resumed, diverged, wrong."""

import json
import os
import re
import shutil
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

EXAMPLE = Path(__file__).parents[2] / "examples" / "function"

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


def uphill(run):
    import math
    run.log(1, err=1 + (math.log2(run.lr) - 2) ** 2 + random.Random(run.seed).gauss(0, 0.01))


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


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_whose_worker_ends_goes_on_exactly(
    tmp_path: Path, results: Path, grid: Ask, held: Held, number: signal.Signals
) -> None:
    grid()
    run, worker = held()
    end_stopped(worker, number)
    assert run.status().state is State.INTERRUPTED
    failure = run.attempt(1).failure()
    assert failure == (
        None if number == signal.SIGKILL else {"kind": "interrupted", "reason": "terminated", "details": ""}
    )
    ettsweep("retry", run.id, "--results", results)
    assert result_of(run)["attempts"] == 2
    assert run.attempt(2).resumed_from() == (1, 10)
    assert run.metrics_path.read_bytes() == undisturbed_metrics(tmp_path, run)


@pytest.mark.slow
def test_a_torch_function_of_twenty_lines_resumes_exactly(tmp_path: Path, results: Path, held: Held) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "example")
    grid = tmp_path / "example" / "sweep.yaml"
    one = ("--lr-range", "0:0", "--wd-range", "0:0", "--seeds", "3,")
    ettsweep("grid", grid, "--results", results, *one, "--launch-set", "slots=1", "--launch-set", "threads=1")
    run, worker = held()
    end_stopped(worker, signal.SIGKILL)
    ettsweep("retry", run.id, "--results", results)
    assert result_of(run)["attempts"] == 2
    assert run.attempt(2).resumed_from() == (1, 50)
    assert run.metrics_path.read_bytes() == undisturbed_metrics(tmp_path, run)


def test_a_cancelled_run_stops_whether_it_heeds_or_not(results: Path, grid: Ask) -> None:
    for heeds in (True, False):
        grid("main", "--name", f"heeds-{heeds}", pause=0.02, steps=100_000, heeds=heeds)
        run = wait_for(lambda: [run for run in runs_in(results) if run.status().state is State.RUNNING], "the run")[0]
        ettsweep("cancel", run.id, "--results", results)
        wait_for(lambda run=run: run.status().state is State.CANCELLED, "its end")
        assert run.attempt(1).failure() == {"kind": "interrupted", "reason": "cancelled", "details": ""}


def test_a_checkpoint_whose_metrics_were_edited_is_not_used(results: Path, grid: Ask, held: Held) -> None:
    grid()
    run, worker = held()
    end_stopped(worker, signal.SIGKILL)
    attempt = run.attempt(1)
    lines = attempt.metrics_path.read_text().splitlines(keepends=True)
    attempt.metrics_path.write_text("".join(lines[1:]))
    ettsweep("retry", run.id, "--results", results)
    result_of(run)
    assert run.attempt(2).resumed_from() == (0, 0)
    assert "changed since the state after step" in run.attempt(2).log_text()


# --- how runs end -----------------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_ends_the_run_whatever_it_catches(results: Path, grid: Ask) -> None:
    grid("diverging", "--follow")
    result = result_of(only_run(results))
    assert (result["status"], result["diverged_step"], result["score"]) == ("diverged", 2, None)
    assert only_run(results).history()[-1] == {"step": 2, "loss": None, "nonfinite": True}


def test_a_run_without_a_score_fails_and_says_what_was_recorded(results: Path, grid: Ask) -> None:
    grid("silent")
    run = only_run(results)
    wait_for(lambda: run.status().state is State.FAILED, "its failure")
    assert run.status().reason == "no score: err was not recorded; recorded were loss, other"
    assert "working" in run.attempt(1).log_text(), "what it prints is in its log"


def test_a_function_that_returns_before_its_last_step_has_failed(results: Path, grid: Ask) -> None:
    grid("main", "--follow", steps=14, last=40, code=1)
    assert only_run(results).status().reason.startswith("ended at step 14 of 40; ")


def test_an_exception_is_recorded_with_its_traceback(results: Path, grid: Ask) -> None:
    grid("broken", runs=2)
    runs = wait_for(
        lambda: [run for run in runs_in(results) if run.status().state is State.FAILED][1:], "both failures"
    )
    failure = runs[0].attempt(1).failure()
    assert failure is not None
    assert failure["reason"] == "ValueError: no luck"
    assert "walk.py" in runs[0].attempt(1).log_text()


def test_a_function_that_lacks_memory_of_its_gpu_is_told_what_helps(results: Path, grid: Ask) -> None:
    grid("greedy")
    (run,) = runs_in(results)
    wait_for(lambda: run.status().state is State.FAILED, "its failure")
    assert run.status().reason == (
        "out of GPU memory: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB; "
        "a smaller batch takes less, and a larger GPU has more"
    )


def test_a_worker_of_functions_imports_no_torch(results: Path, grid: Ask) -> None:
    grid("torchless")
    result = result_of(only_run(results))
    assert result["score"] == 1.0
    assert result["environment"]["packages"]["torch"] == version("torch"), "though nothing of it was imported"


def test_planning_functions_imports_no_torch(tmp_path: Path, grid: Ask, results: Path) -> None:
    grid("torchless", "--dry-run")
    assert_planning_imports_no_torch(tmp_path / "sweep.yaml")


def test_data_are_where_the_user_says_and_in_no_id(tmp_path: Path, results: Path, grid: Ask) -> None:
    (tmp_path / "data.txt").write_text("seven..")
    grid("reader", "--data", tmp_path / "data.txt")
    assert result_of(only_run(results))["score"] == 7.0
    assert "data.txt" not in only_run(results).spec_path.read_text()


@pytest.mark.parametrize(
    ("take", "name", "score"),
    [("best", "err_best", 1.0), ("last", "err_last", 2.0), ({"step": 1}, "err_at_1", 3.0)],
)
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
        ({"function": "main"}, "MODULE:NAME is expected, such as mypackage.train:main, got 'main'"),
        ({"with": {"stepz": 3}}, "with.stepz: main in"),
        ({"score": {"name": "err"}}, "score.mode: is required"),
        ({"score": {"name": "val/acc", "mode": "min"}}, "mode: min of val/acc is unusual; max is meant, or write min!"),
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
        "steps=5": "`run:` and `with:` both have steps; --set with.steps=5 sets the function's",
    }.items():
        refused = ettsweep("grid", tmp_path / "sweep.yaml", "--set", override, "--results", results, code=2)
        assert re.search(problem, refused.stderr)


@pytest.mark.usefixtures("undrawn")
def test_a_function_is_swept_to_a_verdict_and_a_report(results: Path, grid: Ask) -> None:
    grid("main", "--follow", runs=4)
    done = ettsweep("verify-optimum", "--rule", "paper", "--follow", "--results", results)
    assert "optimal" in done.stdout
    ettsweep("seeds", "--follow", "-n", "2", "--results", results)
    ettsweep("report", "--results", results)
    page = (results / "report" / "report.html").read_text()
    assert "err_best" in page
    assert "nats" not in page, "a unit that nobody has stated"
    assert "err_best" in next((results / "report").rglob("runs.csv")).read_text().splitlines()[0]


@pytest.mark.slow
def test_a_climb_and_a_race_add_runs_of_a_function(results: Path, grid: Ask) -> None:
    """The optimum lies beyond the requested points, and one seed tells too little."""
    grid("uphill", "--follow", "--lr-range", "0:1", "--seeds", "0,1")
    done = ettsweep("verify-optimum", "--follow", "--margin", "20%", "--max-runs", "40", "--results", results)
    (row,) = json.loads(ettsweep("verify-optimum", "--dry-run", "--format", "json", "--results", results).stdout)
    assert row["verdict"] == "optimal", done.stdout
    assert row["lr"] == 2.0**2
    assert len(runs_in(results)) > 4


def test_two_sweeps_whose_modules_have_one_name_train_their_own_code(tmp_path: Path, results: Path) -> None:
    for name, value in (("first", 1.0), ("second", 2.0)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "helper.py").write_text(f"VALUE = {value}\n")
        (folder / "train.py").write_text("from helper import VALUE\ndef main(run):\n    run.log(1, err=VALUE)\n")
        block = {"function": "train:main", "score": {"name": "err", "mode": "min"}, "code": ["helper.py"]}
        content = {"run": block, "centre": {"lr": 0.25}, "lr": {"range": [0, 0]}}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
        ettsweep(
            "train",
            folder / f"{name}.yaml",
            "--lr",
            0.25,
            "--wd",
            0,
            "--seed",
            3,
            "--results",
            results / name,
        )
        assert result_of(only_run(results / name))["score"] == value


@pytest.mark.slow
def test_a_folder_that_has_moved_is_the_same_sweep(tmp_path: Path, results: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    (old / "walk.py").write_text(WALK)
    block = {"function": "walk:torchless", "score": {"name": "err", "mode": "min"}}
    (old / "sweep.yaml").write_text(yaml.safe_dump({"run": block, "centre": {"lr": 0.25}, "lr": {"range": [0, 0]}}))
    ettsweep("grid", old / "sweep.yaml", "--results", results, "--follow", "--launch-set", "slots=1")
    old.rename(new)
    done = ettsweep("grid", new / "sweep.yaml", "--results", results, "--seeds", "0,1", "--follow")
    assert "1 run was finished already" in done.stderr or "1 finished" in done.stderr
    assert len(runs_in(results)) == 2


def test_another_users_code_is_not_executed(tmp_path: Path, results: Path, grid: Ask) -> None:
    if os.geteuid():
        pytest.skip("only root can give files away")
    grid("main", "--dry-run")
    os.chown(tmp_path / "walk.py", 65534, 65534)
    train = ("train", tmp_path / "sweep.yaml", "--lr", 0.25, "--wd", 0.5, "--results", results)
    assert f"{tmp_path / 'walk.py'} belongs to nobody, and ettsweep executes" in ettsweep(*train, code=2).stderr
