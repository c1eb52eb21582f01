"""In which order runs of the command line put their files on the disk: a crash of the machine loses none that counts."""

from pathlib import Path

import pytest
from support.commandline import ettsweep, write_fake_grid
from support.disk_writes import Change, traced_changes
from support.own_code import only_run

from ettsweep.files import lock_dir
from ettsweep.launch.slots import held_slots
from ettsweep.run import Run


def save(path: Path, folder: bool) -> None:
    if not folder:
        path.write_text("state")
        return
    (path / "part").mkdir(parents=True)
    (path / "part" / "weights").write_text("weights")
    (path / "optimizer").write_text("moments")


@pytest.fixture(params=["files", "folders"])
def changes(request: pytest.FixtureRequest, tmp_path: Path) -> list[Change]:
    """Return how the names of the states of an attempt changed while its program saved them."""
    attempt = tmp_path / "0001"
    attempt.mkdir()
    environment = {"ETTSWEEP_STATES": str(attempt / "states"), "ETTSWEEP_METRICS": str(attempt / "metrics.jsonl")}
    run = Run(environment=environment)
    with traced_changes(attempt) as changes:
        for step in range(1, 13):
            run.log(step, err=1 / step)
            if step % 4 == 0:
                run.save(step, lambda path: save(path, request.param == "folders"))
    run.close()
    return changes


@pytest.fixture
def changes_of_worker(tmp_path: Path, results: Path) -> list[Change]:
    """Return how the names in a run's folder changed by its worker while `train` trained it."""
    grid = write_fake_grid(tmp_path / "sweep.yaml")
    with traced_changes(results / "runs") as changes:
        ettsweep("train", grid, "--results", results)
    assert only_run(results).result()
    assert held_slots(lock_dir().glob("*.lock")) == [], "the slot is free again"
    return changes


def named(changes: list[Change], *, folder: str = "") -> list[Change]:
    """Return the changes by which something got a name that counts, in a folder of this name if one is given."""
    return [change for change in changes if change.source is not None and _counts(change, folder)]


def _counts(change: Change, folder: str) -> bool:
    return not change.path.name.startswith(".") and change.path.parent.name.endswith(folder)


def test_no_file_gets_its_name_before_all_of_it_is_on_the_disk(changes_of_worker: list[Change]) -> None:
    found = named(changes_of_worker)
    assert {"spec.json", "result.json", "metrics.jsonl"} <= {change.path.name for change in found}
    for change in found:
        assert change.source is not None
        # The folder of a claim may be lost: then nobody has claimed the run.
        assert change.lacks(change.source) in ([], [change.source] * (change.path.parent.name == "attempts")), change


def test_no_state_gets_its_name_before_it_and_its_metrics_are_on_the_disk(changes: list[Change]) -> None:
    states = named(changes, folder="states")
    assert len(states) == 3
    for change in states:
        assert change.source is not None
        assert change.lacks(change.source) == []
        assert change.lacks(change.path.parent.parent / "metrics.jsonl") == []


def test_no_state_goes_before_the_name_of_a_later_one_is_on_the_disk(changes: list[Change]) -> None:
    going = [change for change in changes if change.source is None and _counts(change, "states")]
    for change in going:
        assert change.lacks(change.path.parent) == []
    assert [each.path for each in going] == [each.path for each in named(changes, folder="states")][:-1]
