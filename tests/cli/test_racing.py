"""Verdicts that are bounds, as people ask for them: what they say, and what outlives a kill."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.commandline import PATIENCE_S, Call, runs_in, start, write_fake_grid
from support.slots import owner, stopped_at_checkpoint

from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State

Ask = Callable[..., list[RunSpec]]

NOISE = (0.0, 0.01, -0.01, 0.02)
"""What seeds add to scores, in turn, one step further at each point: 1% or so."""


@pytest.fixture
def request_noisy(request_sweep: Ask) -> Ask:
    """Return a function that asks for the small grid, judged by a bound, with scores lowest at lr 2^-2."""

    def score(spec: RunSpec) -> float:
        return 1 + 0.1 * abs(spec.lr - 0.25) + NOISE[(spec.seed + round(8 * spec.lr)) % len(NOISE)]

    def ask(**changes: Any) -> list[RunSpec]:
        return request_sweep("w8", score, write_fake_grid, criterion={}, **changes)

    return ask


def test_a_mean_alone_is_an_optimum_by_the_papers_rule_only(call: Call, results: Path, request_noisy: Ask) -> None:
    request_noisy(seeds=[0])
    verify = ("verify-optimum", "--dry-run", "--results", results, "--format", "json")
    (by_means,) = call(*verify, "--rule", "paper").json
    assert by_means["reason"] == "Use lr 0.25, wd 0.25. Its mean is better than those of all 2 neighbours."
    result = call(*verify, code=1)
    (verdict,) = result.json
    assert verdict["verdict"] == "unresolved"
    assert "6 more runs (0.06 device hours) measure the noise" in verdict["answer"]
    assert "the candidate and its neighbours need 2 more seeds each" in verdict["reason"]
    assert "by the paper's comparison of means it is optimal" in verdict["reason"]
    assert "trains the seeds that narrow the bounds" in result.err


def test_the_command_after_a_dry_run_judges_by_the_same_criterion(
    call: Call, results: Path, request_noisy: Ask
) -> None:
    request_noisy(seeds=[0, 1, 2])
    verify = ("verify-optimum", "--margin", "0.1%", "--confidence", "90%", "--results", results)
    follow = f"--follow --results {results}` trains the seeds that narrow the bounds"
    stated = f"`ettsweep verify-optimum --confidence 90% --margin 0.1% {follow}"
    assert stated in call(*verify, "--dry-run", code=1).err
    # What is saved need not be repeated.
    assert f"`ettsweep verify-optimum {follow}" in call(*verify, code=1).err


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
