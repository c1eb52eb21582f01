"""A report that also writes a journal for Optuna's tools."""

from pathlib import Path
from typing import Any

import pytest
from support.commandline import Call


@pytest.mark.usefixtures("undrawn")
def test_a_report_writes_a_journal_of_what_it_shows_over_no_file(
    call: Call, request_sweep: Any, results: Path, tmp_path: Path
) -> None:
    request_sweep("w8", lr="fixed")
    report, path = ("report", "--results", results, "--optuna"), tmp_path / "w8.journal"
    path.write_text("mine\n")
    refused = call(*report, path, code=2)
    assert refused.err == f"ettsweep: --optuna {path}: exists; delete it, or choose another file\n"
    assert path.read_text() == "mine\n"
    assert not (results / "report").exists(), "it is seen before anything is written"

    path.unlink()
    said = call(*report, path, "--strategy", "standard").err
    assert f"wrote {path}: 1 trial of 1 study, for optuna-dashboard\n" in said
    assert path.is_file()
