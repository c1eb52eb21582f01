"""A worker that is killed before any of its file operations: nothing is lost, and no state is wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.commandline import PATIENCE_S, runs_in
from support.own_code import result_of

TESTS = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_run_whose_worker_is_killed_anywhere_ends_exactly(tmp_path: Path) -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "support.killed_worker", str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))},
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (completed.returncode, completed.stderr) == (0, "")
    states = json.loads(completed.stdout.splitlines()[-1])
    first_done = states.index("done")
    assert states == ["interrupted"] * first_done + ["done"] * (len(states) - first_done)
    assert 15 < first_done < len(states) - 1, "some are killed before the result, some after it"
    histories, copies = set(), []
    for number in range(1, len(states) + 1):
        (run,) = runs_in(tmp_path / str(number))
        result = result_of(run)
        histories.add(json.dumps(run.history(result)))
        latest = run.attempt(result["attempts"])
        assert latest.resumed_from()[1] >= 8, "it goes on from a checkpoint"
        copies.append(sum(len(run.attempt(number).metrics_copies()) for number in run.attempt_numbers()))
    assert len(histories) == 1
    assert {*copies[:first_done], copies[-1]} == {0}, "metrics of a finished run exist once"
    assert max(copies) == 2, "those of one that was killed after the result go with `clean`"
