"""The table of runs as the page takes it."""

from pathlib import Path
from typing import Any

import pytest
from support.made_sweep import Made, digits_spec, finish, read, search

from ettsweep.report.run_table import page_table, relative_url
from ettsweep.report.tables import runs_table


def values(column: dict[str, Any]) -> list[Any]:
    result = column["values"]
    return result if isinstance(result, list) else [result["texts"][location] for location in result["at"]]


def test_all_runs_are_there_with_what_is_known_of_them(sample: Made) -> None:
    table = page_table(runs_table(sample.runs), sample.runs, sample.results, sample.results / "report")
    columns = {column["name"]: column for column in table["columns"]}
    assert table["rows"] == len(sample.runs)
    assert all(len(values(column)) == len(sample.runs) for column in columns.values())
    by_id = {run.id: run for run in sample.runs}
    for run, score, state in zip(*(values(columns[name]) for name in ("run", "best_loss", "state")), strict=True):
        assert state == by_id[run].state
        result = by_id[run].result
        assert score == (result["best_loss"] if result else None)
    assert (columns["lr"]["kind"], columns["best_accuracy"]["kind"], columns["state"]["kind"]) == (
        "power",
        "share",
        "choice",
    )
    assert [name for name, column in columns.items() if column["shown"]] == [
        "run", "strategy", "lr", "wd", "seed", "state", "best_loss", "device_s", "log",
    ]  # fmt: skip
    assert "best_bits" not in columns, "no run of digits has any"


def test_scores_keep_all_their_digits(tmp_path: Path) -> None:
    base = digits_spec(None)
    for seed in (0, 1):
        finish(tmp_path, base.with_point(base.lr, base.wd, seed), 0.1 + seed * 1e-9)
    text = read(tmp_path, [search(base)])
    table = page_table(runs_table(text.runs), text.runs, tmp_path, tmp_path / "report")
    scores = next(values(column) for column in table["columns"] if column["name"] == "best_loss")
    assert scores == [0.1, 0.1 + 1e-9]


@pytest.mark.parametrize(
    ("results", "out", "address"),
    [
        ("results/runs", "results/report", "../runs/"),
        ("results/runs", "elsewhere/deep", "../../results/runs/"),
        ("a b#c?<x>/runs", "report", "../a%20b%23c%3F%3Cx%3E/runs/"),
    ],
)
def test_folders_are_linked_relative_to_the_page(tmp_path: Path, results: str, out: str, address: str) -> None:
    assert relative_url(tmp_path / results, tmp_path / out) == address


def test_the_log_is_that_of_the_attempt_that_finished_the_run(tmp_path: Path) -> None:
    base = digits_spec(None)
    run = finish(tmp_path, base, 0.1)
    for number in (1, 2):
        attempt = run.attempt(number)
        attempt.path.mkdir(parents=True)
        attempt.log_path.write_text("a step\n")
    text = read(tmp_path, [search(base)])
    (log,) = [
        column
        for column in page_table(runs_table(text.runs), text.runs, tmp_path, tmp_path)["columns"]
        if column["name"] == "log"
    ]
    assert values(log) == ["attempts/0002/log.txt"]
    (only,) = text.runs
    assert only.result is not None
    only.result["attempts"] = 1
    (log,) = [
        column
        for column in page_table(runs_table(text.runs), text.runs, tmp_path, tmp_path)["columns"]
        if column["name"] == "log"
    ]
    assert values(log) == ["attempts/0001/log.txt"]
