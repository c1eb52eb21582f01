"""Sweeps in real workers: one run starts first, and after three that fail the same way no more start."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commandline import ettsweep, runs_in, status, wait_for, worker_pids

SCORE = {"name": "err", "mode": "min"}
SAYS = """echo '[ettsweep] {{"step": 1, "err": 1.0}}'"""
NO_DATA = f"test -e mended || {{{{ echo no data for {{seed}}; exit 4; }}}}; {SAYS}"

Ask = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("process")


@pytest.fixture
def grid(tmp_path: Path, results: Path) -> Ask:
    """Return a function that requests runs of a shell's commands in two slots; each has a seed."""

    def ask(script: str, *options: object, code: int = 0) -> Any:
        content = {
            "run": {"command": ["sh", "-c", f": {{lr}} {{seed}}; cd {tmp_path}; {script}"], "score": SCORE},
            "centre": {"lr": 0.25},
            "lr": {"range": [0, 0]},
            "seeds": list(range(8)),
        }
        path = tmp_path / "sweep.yaml"
        path.write_text(yaml.safe_dump(content))
        slots = "--launch-set", "slots=2", "--results", results
        return ettsweep("grid", path, *slots, *options, code=code).stderr.replace(f" --results {results}", "")

    return ask


def states(results: Path) -> dict[str, int]:
    """Return how many runs are in each state."""
    now = [row["state"] for row in status(results).values()]
    return {state: now.count(state) for state in sorted(set(now))}


def started(results: Path) -> int:
    """Return how many attempts there are at all runs."""
    return sum(len(run.attempt_numbers()) for run in runs_in(results))


@pytest.mark.slow
def test_after_three_that_fail_alike_no_more_start_until_retry(tmp_path: Path, results: Path, grid: Ask) -> None:
    told = grid(NO_DATA, "--follow", code=1)
    assert states(results) == {"cancelled": 5, "failed": 3}
    rows = list(status(results).values())
    failed = "3 runs failed with the same error: exit code 4: no data for 0"
    reason = f"not started: {failed}; see `ettsweep logs {rows[0]['run']}`, then `ettsweep retry --sweep sweep`"
    assert {row["reason"] for row in rows if row["state"] == "cancelled"} == {reason}
    assert reason in told
    assert told.count(failed) == 1
    judged = ettsweep("verify-optimum", "--format", "json", "--results", results, code=1)
    (verdict,) = json.loads(judged.stdout)
    assert {run["state"] for run in verdict["why"]["stuck"]} == {"failed", "cancelled"}
    assert verdict["why"]["next"] == [["ettsweep", "retry", "--sweep", "sweep", "--strategy", "standard"]]
    assert f"are cancelled: {reason}" in grid(NO_DATA), "a person decides"
    assert started(results) == 3
    retry = "retry", "--sweep", "sweep", "--yes", "--launch-set", "slots=2", "--results", results
    (tmp_path / "mended").touch()
    ettsweep(*retry)
    wait_for(lambda: states(results) == {"done": 8}, "the end")


def test_one_run_starts_first_until_its_first_metric_and_then_all_slots_train(
    tmp_path: Path, results: Path, grid: Ask
) -> None:
    wait = "until test -e {0}; do sleep 0.02; done"
    began = "test -e go && echo after >> began || echo before >> began"
    grid(f"{began}; {wait.format('go')}; {SAYS}; {wait.format('end')}")
    wait_for(lambda: len(worker_pids(results)) == 2, "both workers")
    (first,) = wait_for(lambda: [r for r, row in status(results).items() if row["state"] == "running"], "the first")
    wait_for((tmp_path / "began").exists, "its beginning")
    waiting = [row["reason"] for row in status(results).values() if row["state"] == "queued"]
    assert waiting == [f"waits for the first metric of run {first}"] * 7
    (tmp_path / "go").touch()
    wait_for(lambda: states(results).get("running") == 2, "a run in each slot")
    wait_for(lambda: (tmp_path / "began").read_text().split() == ["before", "after"], "the second")
    (tmp_path / "end").touch()
    wait_for(lambda: states(results) == {"done": 8}, "the end")
