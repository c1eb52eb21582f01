"""The journal that a report writes for Optuna's tools."""

from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from support.commandline import Call, finish, keep, write_grid

from ettsweep.study.grid_file import load_sweep_spec


@pytest.fixture
def journal(results: Path, tmp_path: Path) -> Path:
    """Return where the journal of a report is to be, on a sweep of two strategies; the three points of one are finished."""
    centres = {"standard": {"lr": 0.25, "wd": 0.25}, "mup": {"lr": 1.0, "wd": 0.5}}
    keep(
        results, sweep_spec := load_sweep_spec(write_grid(tmp_path / "w8.yaml", centre=centres, strategies=[*centres]))
    )
    for spec in sweep_spec.specs()[:3]:
        finish(results, spec, 1 + abs(spec.lr - 0.25))
    return tmp_path / "w8.journal"


def values(path: Path) -> dict[str, list[float | None]]:
    """Return the values of the trials of each study of a journal."""
    storage = JournalStorage(JournalFileBackend(str(path)))
    names = optuna.get_all_study_names(storage)
    return {
        name: [trial.value for trial in optuna.load_study(study_name=name, storage=storage).trials] for name in names
    }


@pytest.mark.usefixtures("undrawn")
def test_a_report_writes_a_journal_of_the_families_that_it_is_of(call: Call, results: Path, journal: Path) -> None:
    cases = ("report", "--results", results, "--optuna", journal)
    assert f"wrote {journal}: 3 trials of 2 studies, for optuna-dashboard\n" in call(*cases).err
    assert values(journal) == {"w8 standard": [1.125, 1.0, 1.25], "w8 mup": []}
    assert (results / "report" / "report.html").is_file()
    assert f"wrote {journal}: 3 trials of 1 study, for optuna-dashboard\n" in call(*cases, "--strategy", "standard").err
    assert values(journal) == {"w8 standard": [1.125, 1.0, 1.25]}


def test_a_study_of_somebody_else_is_left_alone(call: Call, results: Path, journal: Path) -> None:
    optuna.create_study(study_name="mine", storage=JournalStorage(JournalFileBackend(str(journal))))
    before = journal.read_bytes()
    result = call("report", "--results", results, "--optuna", journal, code=2)
    text = "exists, and is not a journal that ettsweep wrote; choose another file, or move it away"
    assert result.err == f"ettsweep: --optuna {journal}: {text}\n"
    assert journal.read_bytes() == before
    assert not (results / "report").exists(), "it is seen before anything is written"


@pytest.mark.usefixtures("undrawn")
def test_where_it_cannot_be_written_the_option_is_named(call: Call, results: Path, journal: Path) -> None:
    result = call("report", "--results", results, "--optuna", journal / "nowhere" / "w8.journal", code=1)
    assert "choose another folder with --optuna" in result.err
