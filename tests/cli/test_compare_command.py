"""The command that compares two lists of scores: of tables, lists of numbers, sweeps and their points."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.commandline import finish, keep, write_fake_grid

from ettsweep.study.grid_file import load_sweep_spec

Call = Callable[..., Any]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    a, b = tmp_path / "a.csv", tmp_path / "b.csv"
    a.write_text("seed,val_loss\n0,3.10\n1,3.16\n2,3.22\n")
    b.write_text("val_loss,seed\n3.00,0\n3.05,1\n3.12,2\n")
    return a, b


def test_it_says_which_is_better_by_how_much(call: Call, files: tuple[Path, Path]) -> None:
    a, b = files
    result = call("compare", a, b, "--min", "--score", "val_loss")
    assert "worse: B is better by 0.1033 (0.08899 to 0.1177, 95% sure), over 3 common seeds" in result.err
    result = call("compare", b, a, "--min", "--score", "val_loss", "--format", "json")
    data = json.loads(result.out)
    assert (data["verdict"], data["pairs"]) == ("better", 3)
    assert [row["runs"] for row in data["scores"]] == [3, 3]
    assert "better: A is better" in call("compare", a, b, "--max", "--score", "val_loss").err
    assert "unresolved: A and B are equal" in call("compare", a, a, "--min", "--score", "val_loss", code=1).err


def test_where_it_is_luck_the_exit_code_says_so(call: Call, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("3.1\n3.2\n3.15\n")
    (tmp_path / "b.jsonl").write_text('{"score": 3.0}\n{"score": 3.05}\n\n{"score": 3.12, "step": 7}\n{"score": NaN}\n')
    result = call("compare", tmp_path / "a.txt", tmp_path / "b.jsonl", "--min", code=1)
    assert "unresolved: B seems better by 0.09333 (-0.1012 to 0.2879, 95% sure), without common seeds" in result.err
    assert "diverged runs are left out: 1 of B; a side with diverged runs cannot win" in result.err
    assert "4 more seeds of each would decide it" in result.err
    assert call("compare", tmp_path / "a.txt", tmp_path / "b.jsonl", "--min", "--confidence", "60%", code=1).err


@pytest.mark.parametrize(
    ("text", "arguments", "problem"),
    [
        ("seed,score\n0,1\n", [], "needs at least two scores"),
        ("seed,score\n0,1\n0,2\n", [], "line 3: seed 0 is there twice"),
        ("seed,a\n0,1\n1,2\n", [], "no column score. It has seed, a. Add --score NAME --min (or --max)"),
        ("1\n2\nx\n", [], "line 3: score: a number is expected, got 'x'"),
        ("1\n2\n", ["--seed", "x"], "no column x"),
    ],
)
def test_what_cannot_be_compared_is_told(
    call: Call, tmp_path: Path, text: str, arguments: list[str], problem: str
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    (tmp_path / "b.txt").write_text("1\n2\n")
    result = call("compare", path, tmp_path / "b.txt", "--min", *arguments, code=2)
    assert problem in result.err


# --- sweeps -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def sweep(tmp_path: Path, results: Path) -> Callable[..., None]:
    """Return a function that makes a sweep of finished runs, which are best at lr and wd 0.25."""

    def make(name: str, worse: float, **grid: Any) -> None:
        seeds = [0, 1, 2]
        sweep_spec = load_sweep_spec(write_fake_grid(tmp_path / f"{name}.yaml", seeds=seeds, **grid))
        keep(results, sweep_spec)
        for spec in sweep_spec.specs():
            finish(results, spec, 0.5 + worse + abs(math.log2(spec.lr / 0.25)) + 0.01 * spec.seed)

    return make


def test_sweeps_and_their_points_are_compared_by_seed(call: Call, tmp_path: Path, sweep: Callable[..., None]) -> None:
    sweep("a", 0.0)
    sweep("b", 0.2, run={"every": 4})
    data = json.loads(call("compare", "a", "b:best", "--format", "json").out)
    assert (data["verdict"], data["pairs"], data["advantage"]) == ("better", 3, pytest.approx(0.2))
    assert [(row["lr"], row["wd"]) for row in data["scores"]] == [(0.25, 0.25)] * 2
    assert json.loads(call("compare", "b/standard:0.25,0.25", "a", "--format", "json").out)["verdict"] == "worse"
    assert "looks better than it is" in call("compare", "a", "b").err
    assert "flatter" not in call("compare", "a:0.25,0.25", "b:0.25,0.25").err
    assert json.loads(call("compare", "a:0.25,0.25", "a:0.5,0.25", "--format", "json").out)["verdict"] == "better"
    (tmp_path / "hand.csv").write_text("seed,score\n0,2.0\n1,2.02\n2,2.01\n")
    assert json.loads(call("compare", "a", "hand.csv", "--format", "json").out)["pairs"] == 3
    for first, problem in [
        ("nosuch", "no such file, and no such sweep in results"),
        ("standard", "one of a/standard, b/standard is expected"),
        ("a/mup", "no sweep of results has this strategy"),
        ("a:0.3,0.1", "a:0.3,0.1: lr 0.3 is no point of a"),
        ("a:x", "a:x: lr,wd is expected"),
    ]:
        assert problem in call("compare", first, "b", code=2).err
    assert (
        "--max: low scores are better in a standard at (2^-2, 2^-2)" in call("compare", "a", "b", "--max", code=2).err
    )
    assert "--min or --max" in call("compare", "hand.csv", "hand.csv", code=2).err
