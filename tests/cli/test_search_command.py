"""The command search, as people use it: what it proposes, where it starts, what it refuses."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commandline import (
    Call,
    runs_in,
    write_fake_grid,
)

from ettsweep.runs.point import Point
from ettsweep.runs.spec import RunSpec
from ettsweep.study.sweep_store import load_sweep_store

WIDE: dict[str, Any] = {
    "centre": {"standard": {"lr": 0.0625, "wd": 0.25}},
    "lr": {"range": [-3, 3]},
    "criterion": {"margin": "20%"},
}
"""A grid file of the small model whose best lr lies two steps above its centre; wd is fixed."""

PROPOSED = re.compile(r"^w8 \w+: (\w+) suggests (.*)$", re.MULTILINE)


def proposed(results: Path) -> dict[str, list[float]]:
    """Return the lr that was proposed for each strategy, first to last, as files have it."""
    collected: dict[str, list[float]] = {}
    for entry in yaml.safe_load((results / "sweeps" / "w8.yaml").read_text()):
        for proposal in entry.get("proposed") or ():
            collected.setdefault(proposal["strategy"], []).extend(point["lr"] for point in proposal["points"])
    return collected


# --- from a grid file to a verdict ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("process")
def test_a_search_ends_in_a_verified_optimum_and_goes_nowhere_when_asked_again(
    call: Call, results: Path, tmp_path: Path
) -> None:
    write_fake_grid(tmp_path / "w8.yaml", **WIDE)
    command = ("search", "w8.yaml", "--trials", 4, "--max-runs", 60)
    command += ("--launch-set", "slots=1", "--results", results, "--format", "json")
    result = call(*command)
    runs = {run.id for run in runs_in(results)}
    output = call(*command)
    (verdict,) = result.json
    assert verdict["verdict"] == "optimal"
    assert {n["state"] for n in verdict["neighbours"]} <= {"done", "diverged"}
    proposed_result = proposed(results)["standard"]
    assert proposed_result[0] == 0.0625, "the centre comes first"
    assert len(set(proposed_result)) == len(proposed_result) <= 4
    assert all(0.0625 / 8 <= lr <= 0.0625 * 8 for lr in proposed_result)
    assert {match[0] for match in PROPOSED.findall(result.err)} == {"surface"}
    assert {run.id for run in runs_in(results)} == runs, "nothing is run twice"
    assert not PROPOSED.search(output.err)
    assert output.json == result.json


def test_what_is_finished_is_known_and_not_proposed(call: Call, results: Path, request_sweep: Any) -> None:
    """A grid has run three points of the ranges: they are where the search goes on from."""
    changes = WIDE | {"lr": {"range": [0, 2]}, "criterion": {"margin": "1%"}}
    request_sweep(write=write_fake_grid, **changes)
    result = call("search", "w8.yaml", "--range=lr=-3:3", "--dry-run", "--results", results, code=None)
    (match,) = PROPOSED.findall(result.err)
    assert match[1] not in {"(2^-4, 2^-2)", "(2^-3, 2^-2)", "(2^-2, 2^-2)"}
    assert "1 run would be submitted" in result.err
    assert len(load_sweep_store(results).sweeps["w8"].sweep_specs) == 1, "a dry run keeps nothing"


# --- where it starts --------------------------------------------------------------------------------------------------


@pytest.fixture
def _verified(request_sweep: Any) -> None:
    """Have a sweep of the small model verified under `standard`, with made scores: best at 2^-2."""

    def score(spec: RunSpec) -> float:
        return 1 + abs(spec.lr - 0.25) + 0.01 * ((spec.seed + round(8 * spec.lr)) % 3)

    request_sweep("w8", score, write_fake_grid, criterion={}, seeds=[0, 1, 2])


FROM_THE_MAP = (
    *("search", "w8.yaml", "--range=lr=-4:4", "--strategy", "ntk"),
    *("--set", "centre={standard: {lr: 0.25, wd: 0.25}, ntk: {lr: 1.25, wd: 0.01}}"),
)
"""A search of ntk, whose lattice is counted from another centre than that of `standard`."""


@pytest.mark.usefixtures("_verified")
def test_a_strategy_starts_from_the_optimum_of_another_through_the_map(call: Call, results: Path) -> None:
    """Under ntk lr is 8^1.5 = 2^4.5 times as large at width 8."""
    for source in ((), ("--from", "standard")):
        result = call(*FROM_THE_MAP, "--dry-run", *source, "--results", results, code=None)
        assert (
            "w8 ntk starts from the optimum (2^-2, 2^-2) of standard, mapped to (2^2.5, 2^-6.5), nearest (5, 0.01)"
            in result.err
        )
        assert PROPOSED.findall(result.err) == [("surface", "(5, 0.01)")]


def test_a_search_starts_from_the_best_point_of_a_cheaper_recipe_that_nobody_has_verified(
    call: Call, results: Path, request_sweep: Any, tmp_path: Path
) -> None:
    """Under standard lr is half as large at twice the width, and wd twice: 2^-1 and 2^-2 become 2^-2 and 2^-1.

    One seed of each point proves nothing: the verdict of the cheap sweep is not `optimal`.
    """
    cheap = {"width": 4, "last_step": 12}
    request_sweep("cheap", lambda spec: 1 + abs(spec.lr - 0.5), write_fake_grid, run=cheap, criterion={}, seeds=[0])
    write_fake_grid(tmp_path / "w8.yaml", **WIDE | {"wd": {"range": [-2, 2]}})
    values = ("search", "w8.yaml", "--from", "cheap", "--dry-run", "--results", results)
    refused = call(*values, code=2)
    assert "ettsweep: --from cheap: sweep cheap has no verified optimum: standard is " in refused.err
    assert "; `ettsweep verify-optimum --sweep cheap --follow " in refused.err
    assert " continues, and --unverified starts at the best point so far\n" in refused.err
    result = call(*values, "--unverified", code=None)
    assert (
        "w8 standard starts from the best point (2^-1, 2^-2), which is not verified, of standard at width 4 of sweep "
        "cheap, mapped to (2^-2, 2^-1), nearest (2^-2, 2^-1)\n"
    ) in result.err
    assert PROPOSED.findall(result.err) == [("surface", "(2^-2, 2^-1)")]


# --- bad input, and what was asked before -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("w8.yaml --sampler tpee", "unknown sampler 'tpee'"),
        ("w8.yaml --range lr=fixed", "nothing to search: lr and wd are both fixed"),
        ("w8.yaml --unverified", "--unverified needs --from STRATEGY or --from SWEEP"),
        ("w8.yaml --from standard", "--from standard: this is the strategy being searched"),
        ("w8.yaml --from nobody", "unknown strategy or sweep 'nobody'"),
        ("--sweep w8 --range=lr=-1:1", "--sweep uses an existing sweep unchanged: leave out --range"),
    ],
)
@pytest.mark.usefixtures("_verified")
def test_what_cannot_be_searched_is_refused(call: Call, results: Path, options: str, message: str) -> None:
    result = call("search", *options.split(), "--dry-run", "--results", results, code=2)
    assert message in result.err


@pytest.mark.usefixtures("process", "_verified")
def test_a_command_with_a_start_goes_on_when_it_is_repeated(call: Call, results: Path) -> None:
    """It starts at the map of the optimum, which is not the centre; from then on the sweep says where it started."""
    values = (*FROM_THE_MAP, "--from", "standard", "--launch-set", "slots=1", "--results", results)
    call(*values, "--trials", 1, "--max-runs", 1, code=1)
    assert proposed(results)["ntk"] == [5.0]
    result = call(*values, "--trials", 2, "--dry-run", code=None)
    assert "ignored --from standard: the search has already started" in result.err
    (study,) = (study for study in load_sweep_store(results).sweeps["w8"].studies if study.strategy == "ntk")
    assert study.start == Point.of(lr=5.0, wd=0.01)
