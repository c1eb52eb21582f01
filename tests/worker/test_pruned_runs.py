"""Real workers whose runs are pruned: they stop at a step, and go on in the same numbers once they are wanted."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from support.commandline import (
    LONG_FAKE,
    alive,
    assert_as_if_undisturbed,
    ettsweep,
    runs_in,
    status,
    train_here,
    undisturbed,
    wait_for,
    write_fake_grid,
)
from support.slots import owner, stopped_at_checkpoint, wait_for_results

from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.runs.stop import StopReason
from ettsweep.worker.signals import StopSource

pytestmark = pytest.mark.usefixtures("process")

ONE_SLOT = ("--launch-set", "slots=1", "--launch-set", "threads=1")
SHORT = LONG_FAKE | {"last_step": 200}
"""From its first checkpoint, where it holds, it takes longer than from one look at its folder to the next."""
WHY = "median pruner: best_loss 2.31, the median of 7 others 1.92"
PRUNED = ("pruned", f"at step 25: {WHY}")

Ask = Callable[..., Any]


@pytest.fixture
def grid(tmp_path: Path, results: Path, hold_runs: Callable[[int], None]) -> Ask:
    """Return a function that asks for some short runs, with one slot; the first holds at its first checkpoint."""
    hold_runs(1)

    def ask(*options: object, runs: int = 1) -> Any:
        path = write_fake_grid(tmp_path / "grid.yaml", run=SHORT, lr={"range": [0, runs - 1]})
        return ettsweep("grid", "--grid", path, "--results", results, *ONE_SLOT, *options)

    return ask


def prune_in_training(results: Path) -> tuple[RunDir, Attempt, int]:
    """Ask a run to stop that holds; return it, its attempt, and its worker."""
    attempt = stopped_at_checkpoint(results)
    worker = owner(attempt)
    run = RunDir(attempt.run)
    assert run.prune(25, WHY)
    row = status(results)[run.id]
    assert (row["state"], row["reason"]) == ("running", "pruning")
    return run, attempt, worker


def state(results: Path, run: RunDir) -> tuple[str, str]:
    row = status(results)[run.id]
    return row["state"], row["reason"]


def wait_until_pruned(results: Path, run: RunDir) -> None:
    wait_for(lambda: state(results, run) == PRUNED, "the worker to stop the run")


def test_a_pruned_run_stops_at_a_step_and_goes_on_by_name_in_the_same_numbers(grid: Ask, results: Path) -> None:
    grid(runs=2)
    run, attempt, worker = prune_in_training(results)
    os.kill(worker, signal.SIGCONT)
    wait_until_pruned(results, run)
    assert attempt.failure() == {"kind": "interrupted", "reason": "pruned", "details": ""}
    (other,) = wait_for_results(results, 1)
    assert owner(other.attempt(1)) == worker, "it goes on with its next run"
    wait_for(lambda: not alive(worker), "the worker to end")
    assert (state(results, run), run.attempt_numbers()) == (PRUNED, [1])
    assert "1/2 runs finished (1 done, 1 pruned)" in ettsweep("watch", "--results", results).stderr

    left = ettsweep("retry", "--all", "--yes", *ONE_SLOT, "--results", results)
    assert "nothing to do" in left.stderr, "what was stopped on purpose is not meant by all"
    stopped = max(line["step"] for line in attempt.history())
    assert "1 resumed" in ettsweep("retry", run.id, *ONE_SLOT, "--results", results).stderr
    wait_for_results(results, 2)
    assert run.attempt(2).resumed_from() == (1, stopped)
    assert_as_if_undisturbed(run)


def test_a_run_whose_worker_is_killed_instead_is_pruned_and_a_grid_has_it_go_on(grid: Ask, results: Path) -> None:
    grid()
    run, _, worker = prune_in_training(results)
    os.kill(worker, signal.SIGKILL)
    wait_until_pruned(results, run)
    (row,) = json.loads(grid("--dry-run", "--format", "json").stdout)
    assert (row["action"], row["state"]) == ("retry", "pruned")
    assert state(results, run) == PRUNED, "a dry run changes nothing"
    assert "1 of 1 run finished" in grid("--follow").stderr
    assert run.attempt(2).resumed_from()[0] == 1
    assert_as_if_undisturbed(run)


def test_a_cancellation_outweighs_a_pruning(grid: Ask, results: Path) -> None:
    grid()
    run, attempt, worker = prune_in_training(results)
    assert "1 run cancelled" in ettsweep("cancel", run.id, "--results", results).stderr
    assert state(results, run) == ("running", "cancelling")
    os.kill(worker, signal.SIGCONT)
    wait_for(lambda: not alive(worker), "the worker to end")
    assert state(results, run) == ("cancelled", "")
    assert attempt.failure() == {"kind": "interrupted", "reason": "cancelled", "details": ""}
    assert "1 need a decision" in grid().stderr
    ettsweep("retry", run.id, *ONE_SLOT, "--results", results)
    wait_for_results(results, 1)
    assert_as_if_undisturbed(run)


@pytest.mark.slow
def test_pruned_runs_can_be_cancelled_and_are_retried_by_their_state(grid: Ask, results: Path) -> None:
    grid()
    run, _, worker = prune_in_training(results)
    os.kill(worker, signal.SIGKILL)
    wait_until_pruned(results, run)
    assert "1 resumed" in ettsweep("retry", "--state", "pruned", *ONE_SLOT, "--results", results).stderr
    wait_for_results(results, 1)
    run.result_path.unlink()
    assert run.prune(25, WHY)
    wait_until_pruned(results, run)
    assert "1 run cancelled" in ettsweep("cancel", "--state", "pruned", "--results", results).stderr
    assert state(results, run)[0] == "cancelled"


# --- verdicts ---------------------------------------------------------------------------------------------------------


def trained_until_pruned(run: RunDir) -> Attempt:
    """Train a run in this process for some steps, and prune it."""
    attempt, looks = run.claim({}, after=0), iter(range(100))
    assert attempt is not None
    with mock.patch.object(
        StopSource, "make_poll", return_value=lambda: StopReason.PRUNED if next(looks) > 9 else None
    ):
        train_here(run, attempt)
    assert run.prune(attempt.saved_steps()[0], WHY)
    return attempt


def test_a_verdict_has_a_pruned_neighbour_go_on_and_leaves_others(tmp_path: Path, results: Path) -> None:
    path = write_fake_grid(tmp_path / "grid.yaml", lr={"range": [0, 0]})
    ettsweep("grid", "--grid", path, "--results", results, "--follow")
    (centre,) = runs_in(results)
    spec = centre.spec()
    near, distant = (
        RunDir.create(results, spec.with_point(lr, spec.wd, spec.seed)) for lr in (2 * spec.lr, 4 * spec.lr)
    )
    attempts = {run.id: trained_until_pruned(run) for run in (near, distant)}
    (stopped,) = attempts[near.id].saved_steps()
    assert 0 < stopped < 24

    (verdict,) = json.loads(
        ettsweep("verify-optimum", "--dry-run", "--results", results, "--format", "json", code=1).stdout
    )
    assert {n["lr"]: n["state"] for n in verdict["neighbours"]}[2 * spec.lr] == "pruned"
    (verdict,) = json.loads(
        ettsweep("verify-optimum", "--follow", "--results", results, "--format", "json", *ONE_SLOT).stdout
    )
    assert (verdict["verdict"], verdict["lr"]) == ("optimal", spec.lr)
    assert near.attempt(2).resumed_from() == (1, stopped)
    assert_as_if_undisturbed(near)
    expected = undisturbed(near.spec()).result()
    assert expected is not None
    assert {n["lr"]: n["score"] for n in verdict["neighbours"]}[2 * spec.lr] == expected["score"]
    assert (distant.status().state, distant.attempt_numbers()) == ("pruned", [1])

    assert attempts[distant.id].has_checkpoint()
    rows = json.loads(ettsweep("clean", "--results", results, "--format", "json").stdout)
    pruned = [row["path"] for row in rows if row["reason"] == "checkpoint of a pruned run"]
    assert pruned == [str(attempts[distant.id].saved_path())]
    assert not attempts[distant.id].has_checkpoint()
    ettsweep("retry", distant.id, *ONE_SLOT, "--results", results)
    wait_for_results(results, 4)
    assert distant.attempt(2).resumed_from() == (0, 0)
    assert_as_if_undisturbed(distant)
