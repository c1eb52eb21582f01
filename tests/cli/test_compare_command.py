"""The command that compares two lists of scores, in tables, lists of numbers, lines of JSON."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    a, b = tmp_path / "a.csv", tmp_path / "b.csv"
    a.write_text("seed,val_loss\n0,3.10\n1,3.16\n2,3.22\n")
    b.write_text("val_loss,seed\n3.00,0\n3.05,1\n3.12,2\n")
    return a, b


def test_it_says_which_is_better_by_how_much(call: Call, files: tuple[Path, Path]) -> None:
    a, b = files
    result = call("compare", a, b, "--min", "--column", "score=val_loss")
    assert "worse: B is better by 0.1033 (0.08899 to 0.1177, 95% sure), over 3 common seeds" in result.err
    result = call("compare", b, a, "--min", "--column", "score=val_loss", "--format", "json")
    data = json.loads(result.out)
    assert (data["verdict"], data["pairs"]) == ("better", 3)
    assert [row["runs"] for row in data["scores"]] == [3, 3]
    assert "better: A is better" in call("compare", a, b, "--max", "--column", "score=val_loss").err


def test_a_column_of_one_list_does_not_keep_the_other_from_being_numbers(
    call: Call, files: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "c.txt").write_text("2.1\n2.2\n2.15\n")
    result = call("compare", files[0], tmp_path / "c.txt", "--min", "--column", "score=val_loss")
    assert "worse: B is better by 1.01" in result.err


def test_where_it_is_luck_the_exit_code_says_so(call: Call, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("3.1\n3.2\n3.15\n")
    (tmp_path / "b.jsonl").write_text('{"score": 3.0}\n{"score": 3.05}\n\n{"score": 3.12, "step": 7}\n{"score": NaN}\n')
    result = call("compare", tmp_path / "a.txt", tmp_path / "b.jsonl", "--min", code=1)
    assert "unresolved: B seems better by 0.09333 (-0.1012 to 0.2879, 95% sure), without common seeds" in result.err
    assert "diverged runs are left out: 1 of B; what has some is not called better" in result.err
    assert "4 more seeds of each would tell" in result.err
    assert call("compare", tmp_path / "a.txt", tmp_path / "b.jsonl", "--min", "--confidence", "60%", code=1).err


@pytest.mark.parametrize(
    ("text", "arguments", "problem"),
    [
        ("seed,score\n0,1\n", [], "at least two scores are needed"),
        ("seed,score\n0,1\n0,2\n", [], "line 3: seed 0 is there twice"),
        ("seed,loss\n0,1\n1,2\n", [], "no column score. It has seed, loss; --column score=NAME says which is score"),
        ("1\n2\nx\n", [], "line 3: score: a number is expected, got 'x'"),
        ("1\n2\n", ["--column", "lr=x"], "--column: one of seed=NAME, score=NAME is expected, got lr"),
        ("1\n2\n", ["--confidence", "2"], "--confidence"),
        ("", [], "no rows"),
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
