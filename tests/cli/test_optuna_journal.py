"""A report that also writes a journal for Optuna's tools."""

from pathlib import Path

import pytest
from support.commandline import Call, finish, keep, write_grid

from ettsweep.study.grid_file import load_sweep_spec


@pytest.mark.usefixtures("undrawn")
def test_a_report_writes_a_journal_of_what_it_shows_over_no_file(call: Call, results: Path, tmp_path: Path) -> None:
    sweep_spec = load_sweep_spec(write_grid(tmp_path / "w8.yaml"))
    keep(results, sweep_spec)
    finish(results, sweep_spec.specs()[0], 1.0)
    report, path = ("report", "--results", results, "--optuna"), tmp_path / "w8.journal"
    path.write_text("mine\n")
    refused = call(*report, path, code=2)
    assert refused.err == f"ettsweep: --optuna {path}: exists; delete it, or choose another file\n"
    assert path.read_text() == "mine\n"
    assert not (results / "report").exists(), "it is seen before anything is written"
    assert "choose another folder with --optuna" in call(*report, tmp_path / "nowhere" / "a", code=1).err
    path.unlink()
    said = call(*report, path, "--strategy", "standard").err
    assert f"wrote {path}: 1 trial of 1 study, for optuna-dashboard\n" in said
    assert path.is_file()
