"""The command that compares two lists of scores: of tables, lists of numbers, sweeps and their points."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.commandline import Call, write_fake_grid

from ettsweep.runs.spec import RunSpec


def test_it_says_which_is_better_by_how_much(call: Call, tmp_path: Path) -> None:
    a, b = tmp_path / "a.csv", tmp_path / "b.csv"
    a.write_text("seed,val_loss\n0,3.10\n1,3.16\n2,3.22\n")
    b.write_text("val_loss,seed\n3.00,0\n3.05,1\n3.12,2\n")
    result = call("compare", a, b, "--min", "--score", "val_loss")
    assert "worse: B is better by 0.1033 (0.08899 to 0.1177, 95% sure), over 3 common seeds" in result.err
    assert "better: A is better" in call("compare", a, b, "--max", "--score", "val_loss").err
    assert "unresolved: A and B are equal" in call("compare", a, a, "--min", "--score", "val_loss", code=1).err


def test_where_it_is_luck_the_exit_code_says_so(call: Call, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("3.1\n3.2\n3.15\n")
    (tmp_path / "b.jsonl").write_text('{"score": 3.0}\n{"score": 3.05}\n\n{"score": 3.12, "step": 7}\n{"score": NaN}\n')
    result = call("compare", tmp_path / "a.txt", tmp_path / "b.jsonl", "--min", code=1)
    assert "unresolved: B seems better by 0.09333 (-0.1012 to 0.2879, 95% sure), without common seeds" in result.err
    assert "diverged runs are left out: 1 of B; a side with diverged runs cannot win" in result.err
    assert "4 more seeds of each would decide it" in result.err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("seed,score\n0,1\n", "needs at least two scores"),
        ("seed,a\n0,1\n1,2\n", "no column score. It has seed, a. Add --score NAME --min (or --max)"),
        ("1\n2\nx\n", "line 3: score: a number is expected, got 'x'"),
    ],
)
def test_what_cannot_be_compared_is_told(call: Call, tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    (tmp_path / "b.txt").write_text("1\n2\n")
    assert problem in call("compare", tmp_path / "a.csv", tmp_path / "b.txt", "--min", code=2).err


# --- sweeps -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def _sweeps(request_sweep: Any) -> None:
    """Make two sweeps of finished runs, best at lr and wd 0.25; those of b are worse by 0.2."""

    def score(spec: RunSpec, worse: float = 0.0) -> float:
        return 0.5 + worse + abs(math.log2(spec.lr / 0.25)) + 0.01 * spec.seed

    request_sweep("a", score, write_fake_grid, seeds=[0, 1, 2])
    request_sweep("b", partial(score, worse=0.2), write_fake_grid, seeds=[0, 1, 2], run={"every": 4})


@pytest.mark.usefixtures("_sweeps")
def test_sweeps_and_their_points_are_compared_by_seed(call: Call, tmp_path: Path) -> None:
    def compared(*lists: str) -> Any:
        return call("compare", *lists, "--format", "json").json

    data = compared("a", "b:best")
    assert (data["verdict"], data["pairs"], data["advantage"]) == ("better", 3, pytest.approx(0.2))
    assert [(row["lr"], row["wd"]) for row in data["scores"]] == [(0.25, 0.25)] * 2
    assert compared("b/standard:0.25,0.25", "a")["verdict"] == "worse"
    assert compared("a:0.25,0.25", "a:0.5,0.25")["verdict"] == "better"
    (tmp_path / "hand.csv").write_text("seed,score\n0,2.0\n1,2.02\n2,2.01\n")
    assert compared("a", "hand.csv")["pairs"] == 3
    assert "looks better than it is" in call("compare", "a", "b").err
    assert "looks better" not in call("compare", "a:0.25,0.25", "b:0.25,0.25").err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("nosuch b", "no such file, and no such sweep in results"),
        ("standard b", "one of a/standard, b/standard is expected"),
        ("a:0.3,0.1 b", "a:0.3,0.1: lr 0.3 is no point of a"),
        ("a b --max", "--max: low scores are better in a standard at (2^-2, 2^-2)"),
    ],
)
@pytest.mark.usefixtures("_sweeps")
def test_what_is_no_sweep_or_point_is_told(call: Call, arguments: str, problem: str) -> None:
    assert problem in call("compare", *arguments.split(), code=2).err
