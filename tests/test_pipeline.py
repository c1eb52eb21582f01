"""The whole path as a researcher walks it: from a grid file to a report, and to the same question asked again."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from support.commandline import ettsweep, write_fake_grid


def six_around(lr: float, wd: float) -> set[tuple[float, float]]:
    return {(2 * lr, wd), (lr, 2 * wd), (2 * lr, wd / 2), (lr / 2, 2 * wd), (lr, wd / 2), (lr / 2, wd)}


@pytest.mark.usefixtures("process", "undrawn")
def test_from_a_grid_file_to_a_report(tmp_path: Path, results: Path) -> None:
    grid = write_fake_grid(
        tmp_path / "small.yaml",
        centre={"standard": {"lr": 0.0625, "wd": 0.25}},
        lr={"range": [0, 1]},
        wd={"range": [0, 1]},
    )

    def command(*arguments: object, code: int = 0) -> Any:
        output = ettsweep(*arguments, "--results", results, "--format", "json", code=code, cwd=tmp_path)
        return json.loads(output.stdout) if output.stdout else output.stderr

    def scores() -> dict[tuple[float, float], float]:
        return {(row["lr"], row["wd"]): row["best_score"] for row in command("status")}

    # Four points, none of them an optimum: the best one lies at the edge.
    values = ("grid", grid, "--launch-set", "slots=1")
    assert [row["action"] for row in command(*values, "--dry-run")] == ["submit"] * 4
    assert not results.exists()
    assert "4 of 4 runs finished" in command(*values, "--follow")
    four = scores()
    assert len(four) == 4
    (edge,) = command("verify-optimum", "--dry-run", code=1)
    assert edge["verdict"] == "edge"
    assert four[edge["lr"], edge["wd"]] == min(four.values())

    # The climb leaves the grid, and ends where all six neighbours are worse.
    (result,) = command("verify-optimum", "--follow", "--max-runs", 20)
    optimum, trained = (result["lr"], result["wd"]), scores()
    assert result["verdict"] == "optimal"
    assert {(n["lr"], n["wd"]) for n in result["neighbours"]} == six_around(*optimum)
    assert result["score"] == trained[optimum] == min(trained.values())
    assert all(trained[n["lr"], n["wd"]] == n["score"] > result["score"] for n in result["neighbours"])
    assert result["outside"]

    # Fresh seeds are reported beside the verdict.
    (rerun,) = command("seeds", "--count", 2, "--follow")
    assert (rerun["verdict"], rerun["score"]) == ("optimal", result["score"])
    rows = command("status")
    assert {row["state"] for row in rows} == {"done"}
    fresh = {row["seed"]: row["best_score"] for row in rows if row["seed"] != 0 and (row["lr"], row["wd"]) == optimum}
    assert {f["seed"]: f["score"] for f in rerun["fresh"]} == fresh
    assert set(fresh) == {1, 2}

    # One run, and what it logged.
    best = next(row["run"] for row in rows if (row["lr"], row["wd"], row["seed"]) == (*optimum, 0))
    assert command("show", best)["result"]["score"] == result["score"]
    assert "step 24/24" in ettsweep("logs", best, "--results", results).stdout

    # Tables, figures, one page.
    (reported,) = command("report")
    assert reported["verdict"] == "optimal"
    table = (results / "report" / "tables" / "runs.csv").read_text().splitlines()
    assert {row["run"] for row in csv.DictReader(table)} == {row["run"] for row in rows}
    assert list((results / "report").rglob("*.png"))

    # What is left is small, and asking again does nothing.
    ettsweep("clean", "--results", results)
    assert not list((results / "jobs").iterdir())
    files = sorted(results.rglob("*"))
    ettsweep(*values, "--follow", "--results", results)
    (repeated,) = command("verify-optimum", "--follow")
    assert (repeated["verdict"], repeated["lr"], repeated["wd"]) == ("optimal", *optimum)
    assert command("seeds", "--count", 2, "--follow") == [rerun]
    assert sorted(results.rglob("*")) == files
    assert command("status") == rows
