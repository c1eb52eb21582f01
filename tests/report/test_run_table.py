"""The table of runs on the page."""

from pathlib import Path
from typing import Any

import pytest
from support.made_sweep import Made, digits_spec, finish, read, search, strategy_of

from ettsweep.report import run_table
from ettsweep.report.run_table import relative_url


def table_of(made: Made) -> dict[str, Any]:
    return run_table.run_table(made.runs, made.studies_by_family, made.results, made.results / "report")


def test_all_runs_are_there_with_their_scores_best_first_in_each_strategy(sample: Made) -> None:
    table = table_of(sample)
    names = [column["name"] for column in table["columns"]]
    assert names == ["run", "strategy", "lr", "wd", "seed", "state", "best_loss", "device_s"], "one model, one sweep"
    rows = [dict(zip(names, row["cells"], strict=True)) for row in table["rows"]]
    by_id = {run.id: run for run in sample.runs}
    assert {row["run"] for row in rows} == by_id.keys()
    for row in rows:
        run = by_id[row["run"]]
        assert row["best_loss"] == ("" if run.score is None else f"{run.score:.4f}")
        assert (row["strategy"], row["state"]) == (strategy_of(run), run.state.value)
    standard = [row["best_loss"] for row in rows if row["strategy"] == "standard"]
    assert standard == [*sorted(filter(None, standard), key=float), ""], "the one that diverged is last"


def test_of_too_many_runs_each_family_keeps_its_best(sample: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_table, "MAX_ROWS", 6)
    rows = [row["cells"] for row in table_of(sample)["rows"]]
    hybrid = [run for run in sample.runs if strategy_of(run) == "hybrid" and run.score is not None]
    assert [cells[1] for cells in rows].count("hybrid") == 2
    assert min(hybrid, key=lambda run: run.score or 0).id in {cells[0] for cells in rows}


def test_folders_are_linked_relative_to_the_page(tmp_path: Path) -> None:
    address = relative_url(tmp_path / "a b#c?<x>" / "runs", tmp_path / "report")
    assert address == "../a%20b%23c%3F%3Cx%3E/runs/"


def test_the_log_is_that_of_the_attempt_that_finished_the_run(tmp_path: Path) -> None:
    base = digits_spec(None)
    run = finish(tmp_path, base, 0.1)
    for number in (1, 2):
        attempt = run.attempt(number)
        attempt.path.mkdir(parents=True)
        attempt.log_path.write_text("a step\n")
    (only,) = (made := read(tmp_path, [search(base)])).runs
    assert only.result is not None
    only.result["attempts"] = 1
    assert [row["log"] for row in table_of(made)["rows"]] == ["attempts/0001/log.txt"]
