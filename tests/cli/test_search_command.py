"""The command search, as people use it: what it proposes, what outlives a kill, where it starts, what it refuses."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.claims import claimed
from support.commandline import (
    Call,
    finish,
    keep,
    runs_in,
    write_fake_grid,
)

from ettsweep.runs.folder import RunDir
from ettsweep.runs.point import Point
from ettsweep.runs.spec import RunSpec
from ettsweep.study.grid_file import load_sweep_spec
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
    command = ("search", "w8.yaml", "--trials", 6, "--max-runs", 60)
    command += ("--launch-set", "slots=1", "--results", results, "--format", "json")
    result = call(*command)
    runs = {run.id for run in runs_in(results)}
    output = call(*command)
    (verdict,) = result.json
    assert verdict["verdict"] == "optimal"
    assert {n["state"] for n in verdict["neighbours"]} <= {"done", "diverged"}
    proposed_result = proposed(results)["standard"]
    assert proposed_result[0] == 0.0625, "the centre comes first"
    assert len(set(proposed_result)) == len(proposed_result) <= 6
    assert all(0.0625 / 8 <= lr <= 0.0625 * 8 for lr in proposed_result)
    assert {match[0] for match in PROPOSED.findall(result.err)} == {"surface"}
    scored = {run.spec().lr: run.result() for run in runs_in(results) if run.spec().seed == 0}
    assert set(proposed_result) <= scored.keys()
    assert {run.id for run in runs_in(results)} == runs, "nothing is run twice"
    assert not PROPOSED.search(output.err)
    assert output.json == result.json


def test_what_is_finished_is_known_and_not_proposed(call: Call, results: Path, tmp_path: Path) -> None:
    """A grid has run three points of the ranges: they are where the search goes on from."""
    write_fake_grid(tmp_path / "w8.yaml", **WIDE | {"lr": {"range": [0, 2]}, "criterion": {"margin": "1%"}})
    keep(results, sweep_spec := load_sweep_spec(tmp_path / "w8.yaml"))
    for spec in sweep_spec.specs():
        finish(results, spec, 1 + abs(spec.lr - 0.25))
    result = call("search", "w8.yaml", "--range=lr=-3:3", "--dry-run", "--results", results, code=None)
    (match,) = PROPOSED.findall(result.err)
    assert match[1] not in {"(2^-4, 2^-2)", "(2^-3, 2^-2)", "(2^-2, 2^-2)"}
    assert "1 run would be submitted" in result.err
    assert len(load_sweep_store(results).sweeps["w8"].sweep_specs) == 1, "a dry run keeps nothing"


# --- where it starts --------------------------------------------------------------------------------------------------


@pytest.fixture
def verified(results: Path, tmp_path: Path) -> Callable[..., list[RunSpec]]:
    """Return a function that has a sweep of the small model verified under `standard`, with made scores: best at 2^-2."""

    def made(name: str = "w8", **changes: Any) -> list[RunSpec]:
        path = write_fake_grid(tmp_path / f"{name}.yaml", **{"criterion": {}, "seeds": [0, 1, 2]} | changes)
        keep(results, sweep_spec := load_sweep_spec(path))
        for spec in sweep_spec.specs():
            finish(results, spec, 1 + abs(spec.lr - 0.25) + 0.01 * ((spec.seed + round(8 * spec.lr)) % 3))
        return sweep_spec.specs()

    return made


def test_a_strategy_starts_from_the_optimum_of_another_through_the_map(
    call: Call, results: Path, verified: Callable[..., list[RunSpec]]
) -> None:
    """Under ntk lr is 8^1.5 = 2^4.5 times as large at width 8; the lattice of ntk is counted from another centre."""
    verified()
    centres = "centre={standard: {lr: 0.25, wd: 0.25}, ntk: {lr: 1.25, wd: 0.01}}"
    values = ("search", "w8.yaml", "--range=lr=-4:4", "--strategy", "ntk", "--set", centres, "--dry-run")
    for source in ((), ("--from", "standard")):
        result = call(*values, *source, "--results", results, code=None)
        assert (
            "w8 ntk starts from the optimum (2^-2, 2^-2) of standard, mapped to (2^2.5, 2^-6.5), nearest (5, 0.01)"
            in result.err
        )
        assert PROPOSED.findall(result.err) == [("surface", "(5, 0.01)")]


@pytest.fixture
def cheaper(results: Path, tmp_path: Path) -> list[RunSpec]:
    """Have a sweep `cheap` of fewer steps and half the width know made scores of three lr, the best 2^-1; return its runs.

    One seed of each proves nothing: its verdict is not `optimal`.
    """
    cheap = {"width": 4, "last_step": 12}
    path = write_fake_grid(tmp_path / "cheap.yaml", run=cheap, lr={"range": [-1, 1]}, criterion={}, seeds=[0])
    keep(results, sweep_spec := load_sweep_spec(path))
    for spec in sweep_spec.specs():
        finish(results, spec, 1 + abs(spec.lr - 0.5))
    return sweep_spec.specs()


def test_a_search_starts_from_the_best_point_of_a_cheaper_recipe_that_nobody_has_verified(
    call: Call, results: Path, cheaper: list[RunSpec], tmp_path: Path
) -> None:
    """Under standard lr is half as large at twice the width, and wd twice: 2^-1 and 2^-2 become 2^-2 and 2^-1."""
    assert {spec.lr for spec in cheaper} == {0.125, 0.25, 0.5}
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


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("w8.yaml --sampler tpee", "unknown sampler 'tpee'"),
        ("w8.yaml --range lr=fixed", "nothing to search: lr and wd are both fixed"),
        ("w8.yaml --unverified", "--unverified needs --from STRATEGY or --from SWEEP"),
        ("w8.yaml --from standard", "--from standard: this is the strategy being searched"),
        ("w8.yaml --from mup", "--from mup: strategy mup: it has no runs yet"),
        ("--sweep w8 --range=lr=-1:1", "--sweep uses an existing sweep unchanged: leave out --range"),
        ("--sweep nobody", "unknown sweep 'nobody'"),
        ("", "give a grid file, --model NAME, or --sweep NAME"),
    ],
)
def test_what_cannot_be_searched_is_refused(
    call: Call, results: Path, verified: Callable[..., list[RunSpec]], options: str, message: str
) -> None:
    verified()
    result = call("search", *options.split(), "--dry-run", "--results", results, code=2)
    assert message in result.err


# --- what others have, and what was asked before ----------------------------------------------------------------------


@pytest.mark.usefixtures("process")
def test_a_command_with_a_start_goes_on_when_it_is_repeated(
    call: Call, results: Path, verified: Callable[..., list[RunSpec]]
) -> None:
    """It starts at the map of the optimum, which is not the centre; from then on the sweep says where it started."""
    verified()
    centres = "centre={standard: {lr: 0.25, wd: 0.25}, ntk: {lr: 1.25, wd: 0.01}}"
    values = ("search", "w8.yaml", "--range=lr=-4:4", "--strategy", "ntk", "--set", centres)
    values += ("--from", "standard", "--launch-set", "slots=1", "--results", results)
    call(*values, "--trials", 1, "--max-runs", 1, code=1)
    assert proposed(results)["ntk"] == [5.0]
    result = call(*values, "--trials", 2, "--dry-run", code=None)
    assert "ignored --from standard: the search has already started" in result.err
    (study,) = (study for study in load_sweep_store(results).sweeps["w8"].studies if study.strategy == "ntk")
    assert study.start == Point.of(lr=5.0, wd=0.01)
    assert call(*values[:-2], "--from", "nobody", "--results", results, code=2).err.startswith(
        "ettsweep: unknown strategy or sweep 'nobody'"
    )


def test_what_another_sweep_is_training_is_neither_proposed_nor_waited_for(
    call: Call, results: Path, tmp_path: Path
) -> None:
    write_fake_grid(tmp_path / "w8.yaml", **WIDE)
    (centre,) = (spec for spec in load_sweep_spec(tmp_path / "w8.yaml").specs() if spec.lr == 0.0625)
    claimed(RunDir.create(results, centre))
    values = ("search", "w8.yaml", "--name", "mine", "--dry-run", "--results", results)
    (selected,) = re.findall(r"mine standard: surface suggests (.*)", call(*values, code=None).err)
    assert "(2^-4, 2^-2)" not in selected
