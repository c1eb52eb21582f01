"""Sweeps of anybody's code in real workers: one run goes ahead, and where the first runs fail alike, no more begin."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commandline import (
    alive,
    end_workers,
    ettsweep,
    runs_in,
    status,
    wait_for,
    worker_pids,
    write_grid,
)
from support.slots import held

from ettsweep.launch.submissions import submissions

SCORE = {"name": "err", "mode": "min"}
ONE_SLOT = ("--launch-set", "slots=1")
SAYS = """echo '[ettsweep] {{"step": 1, "err": 1.0}}'"""

Ask = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("process")


@pytest.fixture
def grid(tmp_path: Path, results: Path) -> Ask:
    """Return a function that requests runs of a shell's commands in two slots; each has a seed."""

    def ask(script: str, *options: object, seeds: int = 8, reach: int = 0, code: int = 0) -> Any:
        command = ["sh", "-c", f": {{lr}} {{seed}}; cd {tmp_path}; {script}"]
        content = {
            "run": {"command": command, "score": SCORE},
            "centre": {"lr": 0.25},
            "lr": {"range": [-reach, reach]},
        }
        path = tmp_path / "sweep.yaml"
        path.write_text(yaml.safe_dump(content | {"seeds": list(range(seeds))}))
        slots = "--launch-set", "slots=2", "--results", results
        return ettsweep("grid", "--grid", path, *slots, *options, code=code).stderr.replace(f" --results {results}", "")

    return ask


def states(results: Path) -> dict[str, int]:
    """Return how many runs are in each state."""
    now = [row["state"] for row in status(results).values()]
    return {state: now.count(state) for state in sorted(set(now))}


def begun(results: Path) -> int:
    """Return how many attempts there are at all runs."""
    return sum(len(run.attempt_numbers()) for run in runs_in(results))


def test_where_the_first_runs_fail_alike_no_more_begin_and_retry_starts_with_one_again(
    tmp_path: Path, results: Path, grid: Ask
) -> None:
    grid(f"test -e mended || {{{{ echo no data for {{seed}}; exit 4; }}}}; {SAYS}")
    wait_for(lambda: states(results) == {"failed": 3, "held": 5}, "the end")
    rows = list(status(results).values())
    first = rows[0]["run"]
    reason = f"held back: the first 3 runs failed alike: exit code 4: no data for 0; see `ettsweep logs {first}`"
    assert {row["reason"] for row in rows if row["state"] == "held"} == {f"{reason}, then `ettsweep retry`"}
    assert begun(results) == 3

    again = grid(f"test -e mended || {{{{ echo no data for {{seed}}; exit 4; }}}}; {SAYS}")
    assert f"are held: {reason}" in again
    assert "`ettsweep retry --sweep sweep` trains them again" in again
    assert begun(results) == 3, "a person decides"

    ettsweep("retry", "--sweep", "sweep", "--yes", "--launch-set", "slots=2", "--results", results)
    wait_for(lambda: begun(results) == 6 and states(results) == {"failed": 3, "held": 5}, "the end")

    (tmp_path / "mended").touch()
    ettsweep("retry", "--state", "held", "--yes", "--results", results)
    wait_for(lambda: states(results) == {"done": 5, "failed": 3}, "the end")
    ettsweep("retry", "--all", "--yes", "--results", results)
    wait_for(lambda: states(results) == {"done": 8}, "the end")
    groups = [submission.canaries for submission in submissions(results)]
    assert [len(group[0]) if group else 0 for group in groups] == [8, 8, 5, 0], "the last needs no canary"


@pytest.mark.slow
def test_a_run_that_is_retried_alone_and_finishes_releases_the_others(tmp_path: Path, results: Path, grid: Ask) -> None:
    script = f"test -e mended || {{{{ echo no data; exit 4; }}}}; {SAYS}"
    grid(script)
    wait_for(lambda: states(results) == {"failed": 3, "held": 5}, "the end")
    (tmp_path / "mended").touch()
    first = next(run for run, row in status(results).items() if row["state"] == "failed")
    ettsweep("retry", first, "--results", results)
    wait_for(lambda: states(results) == {"done": 1, "failed": 2, "missing": 5}, "its end")
    grid(script)
    wait_for(lambda: states(results) == {"done": 6, "failed": 2}, "the others")


def test_runs_held_back_of_a_sweep_that_was_deleted_can_go(tmp_path: Path, results: Path, grid: Ask) -> None:
    grid("exit 4")
    wait_for(lambda: states(results) == {"failed": 3, "held": 5}, "the end")
    wait_for(lambda: not any(map(alive, worker_pids(results))), "the end of the workers")
    cleaned = ettsweep("clean", "--unused-runs", "--dry-run", "--format", "json", "--results", results)
    assert not [row for row in json.loads(cleaned.stdout) if row["reason"] == "run of no sweep"]
    told = ettsweep("sweeps", "delete", "sweep", "--yes", "--results", results).stderr
    assert "will be trained" not in told
    cleaned = ettsweep("clean", "--unused-runs", "--yes", "--format", "json", "--results", results)
    assert len([row for row in json.loads(cleaned.stdout) if row["reason"] == "run of no sweep"]) == 8
    assert not list(runs_in(results))


def test_a_command_that_follows_says_why_it_has_stopped(results: Path, grid: Ask) -> None:
    told = grid("exit 3", "--follow", code=1)
    assert begun(results) == 3
    assert "held back: the first 3 runs failed alike: exit code 3: it printed nothing; see `ettsweep logs" in told
    assert "`ettsweep retry --sweep sweep` trains them again" in told
    judged = ettsweep("verify-optimum", "--format", "json", "--results", results, code=1)
    (verdict,) = json.loads(judged.stdout)
    assert {run["state"] for run in verdict["why"]["stuck"]} == {"failed", "held"}
    assert verdict["why"]["next"] == [["ettsweep", "retry", "--sweep", "sweep", "--strategy", "standard"]]


@pytest.mark.slow
def test_a_search_ends_whose_runs_fail_alike_round_after_round(tmp_path: Path, results: Path) -> None:
    """Its rounds are of a few runs, each a submission of its own."""
    command = ["sh", "-c", ": {lr} {seed}; exit 3"]
    content = {"run": {"command": command, "score": SCORE}, "centre": {"lr": 0.25}, "lr": {"range": [-5, 4]}}
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(content | {"seeds": [0]}))
    slots = "--launch-set", "slots=2", "--max-runs", 50, "--results", results
    told = ettsweep("search", "--grid", path, *slots, code=1).stderr
    assert f"held back: the first {begun(results)} runs failed alike: exit code 3: it printed nothing" in told
    assert 3 <= begun(results) <= 4


def test_one_run_goes_ahead_until_its_first_metric_and_then_all_slots_train(
    tmp_path: Path, results: Path, grid: Ask
) -> None:
    wait = "until test -e {0}; do sleep 0.02; done"
    began = "test -e go && echo after >> began || echo before >> began"
    grid(f"{began}; {wait.format('go')}; {SAYS}; {wait.format('end')}")
    wait_for(lambda: len(worker_pids(results)) == 2, "both workers")
    (ahead,) = wait_for(lambda: [r for r, row in status(results).items() if row["state"] == "running"], "the first")
    wait_for((tmp_path / "began").exists, "its beginning")
    waiting = [row["reason"] for row in status(results).values() if row["state"] == "queued"]
    assert waiting == [f"waits for news of run {ahead}, which goes ahead"] * 7
    (tmp_path / "go").touch()
    wait_for(lambda: states(results).get("running") == 2, "a run in each slot")
    wait_for(lambda: (tmp_path / "began").read_text().split() == ["before", "after"], "the second")
    (tmp_path / "end").touch()
    wait_for(lambda: states(results) == {"done": 8}, "the end")


def test_a_canary_whose_worker_is_killed_does_not_hold_up_the_others(tmp_path: Path, results: Path, grid: Ask) -> None:
    grid(f"test -e began || {{{{ touch began; sleep 600; }}}}; {SAYS}")
    wait_for((tmp_path / "began").exists, "the first")
    wait_for(lambda: len(worker_pids(results)) == 2, "both workers")
    (ahead,) = (run for run in runs_in(results) if run.attempt_numbers())
    owner = ahead.attempt(1).owner()
    assert owner is not None
    os.kill(owner.pid, signal.SIGKILL)
    wait_for(lambda: states(results) == {"done": 8}, "the end")
    assert [len(run.attempt_numbers()) for run in runs_in(results)].count(2) == 1


@pytest.mark.slow
def test_other_failures_hold_nothing_back(results: Path, grid: Ask) -> None:
    grid("exit $(({seed} + 1))")
    wait_for(lambda: states(results) == {"failed": 8}, "the end")


@pytest.mark.slow
def test_a_point_that_fails_with_all_its_seeds_holds_nothing_back(results: Path, grid: Ask) -> None:
    grid(f"test {{lr}} != 0.125 || {{{{ echo too small; exit 4; }}}}; {SAYS}", seeds=3, reach=1)
    wait_for(lambda: states(results) == {"done": 6, "failed": 3}, "the end")


def test_where_one_has_finished_others_may_fail_alike(results: Path, grid: Ask) -> None:
    grid(f"{SAYS}; test {{seed}} -lt 1 || exit 3")
    wait_for(lambda: states(results) == {"done": 1, "failed": 7}, "the end")


def test_a_function_has_a_canary_and_the_built_in_trainer_none(tmp_path: Path, results: Path) -> None:
    (tmp_path / "broken.py").write_text("def main(run):\n    import no_such_module\n")
    block = {"run": {"function": "broken:main", "score": SCORE}, "seeds": [0, 1, 2, 3, 4]}
    own = tmp_path / "own.yaml"
    own.write_text(yaml.safe_dump(block | {"centre": {"lr": 0.25}, "lr": {"range": [0, 0]}}))
    with held("cpu-0"):  # those of the trainer need not train
        ettsweep("grid", "--grid", write_grid(tmp_path / "vit.yaml"), "--results", tmp_path / "vit", *ONE_SLOT)
    end_workers(tmp_path / "vit")
    ettsweep("grid", "--grid", own, "--results", results, *ONE_SLOT)
    (built_in,), (functions,) = submissions(tmp_path / "vit"), submissions(results)
    assert (len(functions.canaries[0]), built_in.canaries) == (5, ())
    wait_for(
        lambda: (
            {r: row["state"] for r, row in status(results).items() if r in functions.runs}
            == dict(zip(functions.runs, ["failed"] * 3 + ["held"] * 2, strict=True))
        ),
        "the end",
    )
