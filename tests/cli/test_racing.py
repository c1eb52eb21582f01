"""Verdicts that are bounds, as people ask for them: what is bought, what a budget stops, what outlives a kill."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.claims import claimed
from support.commandline import (
    PATIENCE_S,
    Call,
    Done,
    finish,
    runs_in,
    start,
    write_fake_grid,
)
from support.slots import owner, stopped_at_checkpoint

from ettsweep.runs.folder import RunDir
from ettsweep.runs.point import Point
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State
from ettsweep.study.seeds import RACING_SEEDS

Ask = Callable[..., list[RunSpec]]

NOISE = (0.0, 0.01, -0.01, 0.02)
"""What seeds add to scores, in turn, one step further at each point: 1% or so."""


def noisy(spec: RunSpec, slope: float = 1.0) -> float:
    """Lowest at lr 2^-2; a neighbour is worse by `slope` times an eighth or a quarter."""
    return 1 + slope * abs(spec.lr - 0.25) + NOISE[(spec.seed + round(8 * spec.lr)) % len(NOISE)]


@pytest.fixture
def request_noisy(request_sweep: Ask) -> Ask:
    """Return a function that asks for the small grid, judged by a bound, and finishes its runs with noisy scores."""

    def ask(slope: float = 1.0, **changes: Any) -> list[RunSpec]:
        changes = {"criterion": {}, "seeds": [0, 1, 2]} | changes
        return request_sweep("w8", lambda spec: noisy(spec, slope), write_fake_grid, **changes)

    return ask


def verify(call: Call, results: Path, *options: object, code: int | None = None) -> Done:
    return call("verify-optimum", "--results", results, "--format", "json", *options, code=code)


# --- verdicts and what they say -------------------------------------------------------------------------------------


def test_a_mean_alone_is_an_optimum_by_the_papers_rule_only(call: Call, results: Path, request_noisy: Ask) -> None:
    request_noisy(slope=0.1, seeds=[0])
    verify_result = verify(call, results, "--dry-run", "--rule", "paper", code=0)
    assert verify_result.json[0]["reason"] == (
        "Use lr 0.25, wd 0.25. Its mean is better than those of all 2 neighbours."
    )
    verify_result = verify(call, results, "--dry-run", code=1)
    assert verify_result.json[0]["verdict"] == "unresolved"
    assert "6 more runs (0.06 device hours) measure the noise" in verify_result.json[0]["answer"]
    assert "the candidate and its neighbours need 2 more seeds each" in verify_result.json[0]["reason"]
    assert "by the paper's comparison of means it is optimal" in verify_result.json[0]["reason"]
    assert "trains the seeds that narrow the bounds" in verify_result.err


# --- what is bought -------------------------------------------------------------------------------------------------


def test_fresh_seeds_are_those_of_no_race_and_move_no_bound(call: Call, results: Path, request_noisy: Ask) -> None:
    """Also where a sweep's own seeds end just below those of races."""
    requested = request_noisy(seeds=[RACING_SEEDS.start - 3, RACING_SEEDS.start - 2, RACING_SEEDS.start - 1])
    before = verify(call, results, "--dry-run").json[0]
    rows = call("seeds", "--count", 2, "--dry-run", "--results", results, "--format", "json").json
    assert [row["seed"] for row in rows] == [RACING_SEEDS.stop, RACING_SEEDS.stop + 1]
    for number, row in enumerate(rows):
        finish(results, requested[0].with_point(Point.of(lr=before["lr"], wd=before["wd"]), row["seed"]), 9.0 + number)
    after = verify(call, results, "--dry-run").json[0]
    assert [item["score"] for item in after.pop("fresh")] == [9.0, 10.0]
    assert before.pop("fresh") == []
    assert after == before


def test_runs_that_a_spent_budget_leaves_interrupted_are_named(call: Call, results: Path, request_noisy: Ask) -> None:
    requested = request_noisy(slope=0.1, criterion={"margin": "0.1%"})
    spec = requested[0].with_point(Point.of(lr=0.25, wd=0.25), RACING_SEEDS[0])
    claimed(RunDir.create(results, spec)).record_failure("interrupted", "terminated")
    result = call("verify-optimum", "--follow", "--max-runs", 0, "--results", results, code=1)
    assert f"1 run left interrupted: `ettsweep retry {spec.run_id} --results {results}` resumes it\n" in result.err
    assert not (results / "jobs").exists()


# --- a race, and what a dry run says ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("process")
def test_a_race_goes_on_after_its_command_is_killed(
    results: Path, request_noisy: Ask, tmp_path: Path, hold_runs: Callable[[int], None]
) -> None:
    """Its worker lives on; the same command waits for the runs that are under way, and starts none in their place."""
    hold_runs(1)
    run_ids = {spec.run_id for spec in request_noisy(seeds=[0])}
    follow = ("verify-optimum", "--follow", "--results", results, "--launch-set", "slots=1")
    command = start(*follow, cwd=tmp_path)
    worker = owner(stopped_at_checkpoint(results))
    command.kill()
    command.communicate()
    raced = {run.id for run in runs_in(results)} - run_ids
    assert len(raced) == 3, "one more seed of each point"
    os.kill(worker, signal.SIGCONT)
    start(*follow, "--max-runs", 0, cwd=tmp_path).communicate(timeout=PATIENCE_S)
    assert {run.id: (run.attempt_numbers(), run.status().state) for run in runs_in(results)} == dict.fromkeys(
        run_ids | raced, ([1], State.DONE)
    )


def test_the_command_after_a_dry_run_judges_by_the_same_criterion(
    call: Call, results: Path, request_noisy: Ask
) -> None:
    request_noisy(slope=0.1)
    stated = ("--margin", "0.1%", "--confidence", "90%")
    follow = f"--follow --results {results}` trains the seeds that narrow the bounds"
    dry = verify(call, results, "--dry-run", *stated, code=1).err
    assert f"`ettsweep verify-optimum --confidence 90% --margin 0.1% {follow}" in dry
    # What is saved need not be repeated.
    assert f"`ettsweep verify-optimum {follow}" in verify(call, results, *stated, code=1).err
