"""The study that a search keeps for Optuna's tools: written as rounds go, and anew when asked for."""

from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from support.commandline import Call, keep, runs_in, write_grid

from ettsweep.runs.folder import RunDir
from ettsweep.sweep.gridfile import load_request


@pytest.fixture
def journal(results: Path, tmp_path: Path) -> Path:
    """Return where the study of a sweep is to be, three points of which are finished."""
    keep(results, request := load_request(write_grid(tmp_path / "w8.yaml")))
    for spec in request.specs():
        run = RunDir.create(results, spec)
        assert run.claim({}, after=0)
        assert run.finish({"status": "done", "score": 1 + abs(spec.lr - 0.25), "device_s": 36.0}, [])
    return results / "sweeps" / "w8" / "study.journal"


def values(path: Path) -> list[float | None]:
    """Return the values of the trials of a journal."""
    storage = JournalStorage(JournalFileBackend(str(path)))
    return [trial.value for trial in optuna.load_study(study_name="w8 standard", storage=storage).trials]


def test_rebuild_writes_the_study_from_the_runs_and_trains_nothing(call: Call, results: Path, journal: Path) -> None:
    done = call("search", "--sweep", "w8", "--rebuild", "--results", results)
    assert done.err == f"wrote {journal}: 3 trials of 1 study\n"
    assert values(journal) == [1.125, 1.0, 1.25]
    assert len(runs_in(results)) == 3
    assert not (results / "jobs").exists()
    assert len(list(journal.parent.glob("*.yaml"))) == 1, "nothing is asked for"


def test_a_search_brings_the_study_up_to_date(call: Call, results: Path, journal: Path) -> None:
    search = ("search", "--grid", "w8.yaml", "--results", results)
    call(*search, "--dry-run", code=None)
    assert not journal.exists(), "a dry run writes nothing"
    call(*search, "--max-runs", 0, code=None)
    assert values(journal) == [1.125, 1.0, 1.25]


def test_a_study_that_is_not_the_sweeps_is_seen_before_anything_is_asked_or_trained(
    call: Call, results: Path, journal: Path
) -> None:
    optuna.create_study(study_name="mine", storage=JournalStorage(JournalFileBackend(str(journal))))
    before = journal.read_bytes()
    done = call("search", "--grid", "w8.yaml", "--lr-range=-3:3", "--results", results, code=2)
    remedy = f"`ettsweep search --sweep w8 --rebuild --results {results}` writes it anew from the runs"
    assert done.err == f"ettsweep: {journal}: study 'mine' was not written by ettsweep; {remedy}\n"
    assert journal.read_bytes() == before
    assert len(list(journal.parent.glob("*.yaml"))) == 1
    assert len(runs_in(results)) == 3
    journal.write_text("no journal\n")
    done = call("search", "--grid", "w8.yaml", "--lr-range=-3:3", "--results", results, code=1)
    assert "is no journal of Optuna's: ValueError: line 1 is no JSON object" in done.err
    call("search", "--sweep", "w8", "--rebuild", "--results", results)
    assert values(journal) == [1.125, 1.0, 1.25]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--sweep w9 --rebuild", "unknown sweep 'w9'"),
        ("--sweep w8 --rebuild --dry-run", "--rebuild writes one file and trains nothing; it takes no --dry-run"),
        ("--rebuild", "say what is searched"),
    ],
)
def test_what_cannot_be_rebuilt_is_refused(call: Call, results: Path, journal: Path, options: str, told: str) -> None:
    assert told in call("search", *options.split(), "--results", results, code=2).err
    assert not journal.exists()
