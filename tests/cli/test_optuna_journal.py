"""A report that also writes a journal for Optuna's tools."""

from pathlib import Path

import pytest
from support.commandline import Call, finish, keep, write_grid

from ettsweep.study.grid_file import load_sweep_spec


@pytest.fixture(autouse=True)
def sweep(results: Path, tmp_path: Path) -> None:
    sweep_spec = load_sweep_spec(write_grid(tmp_path / "w8.yaml"))
    keep(results, sweep_spec)
    finish(results, sweep_spec.specs()[0], 1.0)


@pytest.mark.usefixtures("undrawn")
def test_a_report_writes_a_journal_of_what_it_shows(call: Call, results: Path, tmp_path: Path) -> None:
    path = tmp_path / "w8.journal"
    said = call("report", "--results", results, "--strategy", "standard", "--optuna", path).err
    assert f"wrote {path}: 1 trial of 1 study, for optuna-dashboard\n" in said
    assert path.is_file()


def test_a_file_that_exists_is_left_alone(call: Call, results: Path, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine\n")
    refused = call("report", "--results", results, "--optuna", path, code=2)
    assert refused.err == f"ettsweep: --optuna {path}: exists; delete it, or choose another file\n"
    assert path.read_text() == "mine\n"
    assert not (results / "report").exists(), "it is seen before anything is written"


def test_where_it_cannot_be_written_the_option_is_named(call: Call, results: Path, tmp_path: Path) -> None:
    result = call("report", "--results", results, "--optuna", tmp_path / "nowhere" / "w8.journal", code=1)
    assert "choose another folder with --optuna" in result.err
