"""A criterion as people state it: in a grid file, with `grid`, with `verify-optimum`; and where they see it again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.commandline import Call

from ettsweep.study.criterion import Criterion
from ettsweep.study.sweep_store import load_sweep_store

Ask = Callable[..., Any]


def criteria(results: Path) -> dict[str, Criterion]:
    return {name: sweep.criterion for name, sweep in load_sweep_store(results).sweeps.items()}


def test_what_grid_is_told_wins_over_the_file_and_is_kept(
    call: Call, results: Path, request_sweep: Ask, tmp_path: Path
) -> None:
    request_sweep("w8", criterion={"margin": "5%"})
    grid = ("grid", "w8.yaml", "--results", results)
    result = call(*grid, "--rule", "paper", "--margin", "1%", "--dry-run")
    assert "from now on" not in result.err
    assert criteria(results) == {"w8": Criterion(margin=0.05)}, "a dry run keeps nothing"
    result = call(*grid, "--rule", "paper", "--margin", "1%")
    assert "extended sweep w8; rule paper, margin 1% from now on" in result.err
    result = call(*grid, "--name", "other", "--confidence", "90%")
    assert "created sweep other\n" in result.err
    assert criteria(results) == {
        "w8": Criterion(rule="paper", margin=0.01),
        "other": Criterion(confidence=0.9, margin=0.05),
    }


def test_what_verify_optimum_is_told_is_kept_in_the_sweeps_that_it_is_about(
    call: Call, results: Path, request_sweep: Ask
) -> None:
    for name in ("a", "b", "c"):
        request_sweep(name, criterion={})
    verify = ("verify-optimum", "--results", results)
    dry = call(*verify, "--margin", "5%", "--dry-run", code=1)
    assert "from now on" not in dry.err
    assert set(criteria(results).values()) == {Criterion()}
    call(*verify, "-s", "b", "--margin", "0.05", code=1)
    err = call(*verify, "-s", "a", "-s", "b", "--margin", "5%", code=1).err
    assert "sweep a: margin 5% from now on\n" in err
    assert criteria(results) == {"a": Criterion(margin=0.05), "b": Criterion(margin=0.05), "c": Criterion()}
    assert "from now on" not in call(*verify, "-s", "a", "--margin", "5%", code=1).err


def test_an_option_that_is_no_criterion_is_refused(call: Call, results: Path, request_sweep: Ask) -> None:
    request_sweep("w8", criterion={})
    for command, options, message in (
        (["grid", "w8.yaml"], ["--margin", "5"], "margin: 5 is 500%; for 5% write 5% or 0.05"),
        (["verify-optimum"], ["--margin", "wide"], "--margin: a share such as 0.02 or 2% is expected, got 'wide'"),
        (["verify-optimum"], ["--confidence", "50%"], "--confidence: input should be greater than 0.5, got 0.5"),
    ):
        assert message in call(*command, *options, "--results", results, code=2).err
    assert len(load_sweep_store(results).sweeps["w8"].entries) == 1


def test_a_difference_of_scores_needs_a_margin_from_the_file_or_an_option(
    call: Call, results: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.sh").write_text("")
    run = "{command: 'sh train.sh {lr} {seed}', score: {name: loss, mode: min, margin: difference}}"
    (grid := tmp_path / "own.yaml").write_text(f"run: {run}\ncentre: {{lr: 2^-6}}\nlr: {{range: [-1, 1]}}\nseeds: 2\n")
    assert "own.yaml: criterion: margin: a difference of scores is expected, such as 0.01 (or --margin 0.01)" in (
        call("grid", grid, "--dry-run", "--results", results, code=2).err
    )
    call("grid", grid, "--dry-run", "--margin", "0.1", "--results", results)
