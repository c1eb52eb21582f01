"""Sweeps in real workers: one run starts first, and after three that fail the same way no more start."""

import json
import os
import signal
import sys
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

    def ask(script: str, *options: object, seeds: int = 8, reach: int = 0, code: int = 0, command: str = "grid") -> Any:
        content = {
            "run": {"command": ["sh", "-c", f": {{lr}} {{seed}}; cd {tmp_path}; {script}"], "score": SCORE},
            "centre": {"lr": 0.25},
            "lr": {"range": [-reach, reach]},
            "seeds": list(range(seeds)),
        }
        path = tmp_path / "sweep.yaml"
        path.write_text(yaml.safe_dump(content))
        slots = "--launch-set", "slots=2", "--results", results
        return ettsweep(command, path, *slots, *options, code=code).stderr.replace(f" --results {results}", "")

    return ask


def states(results: Path) -> dict[str, int]:
    """Return how many runs are in each state."""
    now = [row["state"] for row in status(results).values()]
    return {state: now.count(state) for state in sorted(set(now))}


def started(results: Path) -> int:
    """Return how many attempts there are at all runs."""
    return sum(len(run.attempt_numbers()) for run in runs_in(results))


def test_after_three_that_fail_alike_no_more_start_until_retry(tmp_path: Path, results: Path, grid: Ask) -> None:
    grid(NO_DATA)
    wait_for(lambda: states(results) == {"cancelled": 5, "failed": 3}, "the end")
    rows = list(status(results).values())
    failed = "3 runs failed the same way: exit code 4: no data for 0"
    reason = f"not started: {failed}; see `ettsweep logs {rows[0]['run']}`, then `ettsweep retry --sweep sweep`"
    assert {row["reason"] for row in rows if row["state"] == "cancelled"} == {reason}
    watched = ettsweep("watch", "--results", results, code=1).stderr.replace(f" --results {results}", "")
    assert reason in watched
    ettsweep("report", "--out", tmp_path / "page", "--results", results)
    assert failed in (tmp_path / "page" / "report.html").read_text()

    assert f"are cancelled: {reason}" in grid(NO_DATA), "a person decides"
    assert started(results) == 3

    retry = "retry", "--sweep", "sweep", "--yes", "--launch-set", "slots=2", "--results", results
    ettsweep(*retry)
    wait_for(lambda: started(results) == 6 and states(results) == {"cancelled": 5, "failed": 3}, "the end")
    (tmp_path / "mended").touch()
    ettsweep(*retry)
    wait_for(lambda: states(results) == {"done": 8}, "the end")


def test_after_an_edit_the_command_that_is_named_trains_the_new_code(tmp_path: Path, results: Path) -> None:
    (tmp_path / "train.py").write_text("import no_such_module\n")
    command = [sys.executable, "train.py", "{lr}", "{seed}"]
    block = {"command": command, "score": {"name": "err", "mode": "min"}}
    axes = {"centre": {"lr": 0.25}, "lr": {"range": [-2, 2]}}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({"run": block} | axes))
    options = "--launch-set", "slots=2", "--results", results
    ettsweep("grid", tmp_path / "sweep.yaml", *options)
    wait_for(lambda: states(results) == {"cancelled": 2, "failed": 3}, "the end")
    (reason,) = {row["reason"] for row in status(results).values() if row["state"] == "cancelled"}
    assert reason.endswith("or after an edit of the code `ettsweep retry --new-code --sweep sweep`")
    (tmp_path / "train.py").write_text("""print('[ettsweep] {"step": 1, "err": 1.0}')\n""")
    ettsweep("retry", "--new-code", "--sweep", "sweep", "--yes", *options)
    wait_for(lambda: states(results).get("done") == 5, "the end")


def test_a_command_that_follows_ends_with_the_reason(results: Path, grid: Ask) -> None:
    told = grid("exit 3", "--follow", code=1)
    assert started(results) == 3
    assert "not started: 3 runs failed the same way: exit code 3: it printed nothing; see `ettsweep logs" in told
    assert "`ettsweep retry --sweep sweep` trains them again" in told
    judged = ettsweep("verify-optimum", "--format", "json", "--results", results, code=1)
    (verdict,) = json.loads(judged.stdout)
    assert {run["state"] for run in verdict["why"]["stuck"]} == {"failed", "cancelled"}
    assert verdict["why"]["next"] == [["ettsweep", "retry", "--sweep", "sweep", "--strategy", "standard"]]


@pytest.mark.slow
def test_a_search_ends_whose_runs_fail_alike_round_after_round(results: Path, grid: Ask) -> None:
    """Its rounds are of a few runs, each a submission of its own."""
    told = grid("exit 3", "--max-runs", 50, seeds=1, reach=5, code=1, command="search")
    assert f"not started: {started(results)} runs failed the same way: exit code 3: it printed nothing" in told
    assert 3 <= started(results) <= 4


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


def test_the_others_do_not_wait_for_a_first_run_whose_worker_was_killed(
    tmp_path: Path, results: Path, grid: Ask
) -> None:
    grid(f"test -e began || {{{{ touch began; sleep 600; }}}}; {SAYS}")
    wait_for((tmp_path / "began").exists, "the first")
    wait_for(lambda: len(worker_pids(results)) == 2, "both workers")
    (first,) = (run for run in runs_in(results) if run.attempt_numbers())
    owner = first.attempt(1).owner()
    assert owner is not None
    os.kill(owner.pid, signal.SIGKILL)
    wait_for(lambda: states(results) == {"done": 8}, "the end")
    assert [len(run.attempt_numbers()) for run in runs_in(results)].count(2) == 1


@pytest.mark.slow
def test_a_point_that_fails_with_all_its_seeds_stops_nothing(results: Path, grid: Ask) -> None:
    grid(f"test {{lr}} != 0.125 || {{{{ echo too small; exit 4; }}}}; {SAYS}", seeds=3, reach=1)
    wait_for(lambda: states(results) == {"done": 6, "failed": 3}, "the end")


def test_once_a_run_has_finished_others_may_fail_alike(results: Path, grid: Ask) -> None:
    grid(f"{SAYS}; test {{seed}} -lt 1 || exit 3")
    wait_for(lambda: states(results) == {"done": 1, "failed": 7}, "the end")
    grid(f"{SAYS}; test {{seed}} -lt 1 || exit 3", seeds=12)
    wait_for(lambda: states(results) == {"done": 1, "failed": 11}, "further runs of the family")
