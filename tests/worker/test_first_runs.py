"""Sweeps in real workers: one run starts first, and after three that fail the same way no more start."""

import json
from pathlib import Path

import pytest
import yaml
from support.commandline import ettsweep, runs_in, status, wait_for

SCORE = {"name": "err", "mode": "min"}
SAYS = """echo '[ettsweep] {{"step": 1, "err": 1.0}}'"""
NO_DATA = f"test -e mended || {{{{ echo no data for {{seed}}; exit 4; }}}}; {SAYS}"

pytestmark = pytest.mark.usefixtures("process")


def states(results: Path) -> dict[str, int]:
    """Return how many runs are in each state."""
    now = [row["state"] for row in status(results).values()]
    return {state: now.count(state) for state in sorted(set(now))}


def test_after_three_that_fail_alike_no_more_start_until_retry(tmp_path: Path, results: Path) -> None:
    def grid(*options: str, code: int = 0) -> str:
        slots = "--launch-set", "slots=2", "--results", results
        return ettsweep("grid", path, *slots, *options, code=code).stderr.replace(f" --results {results}", "")

    path = tmp_path / "sweep.yaml"
    content = {
        "run": {"command": ["sh", "-c", f": {{lr}} {{seed}}; cd {tmp_path}; {NO_DATA}"], "score": SCORE},
        "centre": {"lr": 0.25},
        "lr": {"range": [0, 0]},
        "seeds": list(range(8)),
    }
    path.write_text(yaml.safe_dump(content))
    told = grid("--follow", code=1)
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
    assert f"are cancelled: {reason}" in grid(), "a person decides"
    assert sum(len(run.attempt_numbers()) for run in runs_in(results)) == 3
    retry = "retry", "--sweep", "sweep", "--yes", "--launch-set", "slots=2", "--results", results
    (tmp_path / "mended").touch()
    ettsweep(*retry)
    wait_for(lambda: states(results) == {"done": 8}, "the end")
