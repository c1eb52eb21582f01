"""In which order runs of the command line put their files on the disk: a crash of the machine loses none that counts."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from support.commandline import ettsweep, write_grid
from support.disk_writes import Change, traced_changes
from support.own_code import only_run

from ettsweep.files import lock_dir
from ettsweep.launch.slots import held_slots

SAVES = """
def save(path, folder):
    if not folder:
        return path.write_text("state")
    (path / "part").mkdir(parents=True)
    (path / "part" / "weights").write_text("weights")
    (path / "optimizer").write_text("moments")

def main(run, folder=False):
    for step in range(1, 13):
        run.record(step, err=1 / step)
        if step % 4 == 0:
            run.checkpoint(step, lambda path: save(path, folder))
"""

CASES: dict[str, Callable[[Path], Path]] = {
    "checkpoints of Transformers": write_grid,
    "states that are files": lambda path: write_function_grid(path),
    "states that are folders": lambda path: write_function_grid(path, folder=True),
}


def write_function_grid(path: Path, **arguments: object) -> Path:
    (path.parent / "saves.py").write_text(SAVES)
    run = {"function": "saves:main", "score": {"name": "err", "mode": "min"}, "with": arguments}
    path.write_text(yaml.safe_dump({"run": run, "centre": {"lr": 0.25}, "lr": {"range": [0, 0]}}))
    return path


@pytest.fixture(params=CASES)
def changes(request: pytest.FixtureRequest, tmp_path: Path, results: Path) -> list[Change]:
    """Return how the names in a run's folder changed while `train` trained it."""
    grid = CASES[request.param](tmp_path / "sweep.yaml")
    with traced_changes(results / "runs") as changes:
        ettsweep("train", grid, "--results", results, "--launch-set", "checkpoint_every_steps=8")
    assert only_run(results).result()
    assert held_slots(lock_dir().glob("*.lock")) == [], "the slot is free again"
    return changes


def named(changes: list[Change], *, folder: str = "") -> list[Change]:
    """Return the changes by which something got a name that counts, in a folder of this name if one is given."""
    return [change for change in changes if change.source is not None and _counts(change, folder)]


def _counts(change: Change, folder: str) -> bool:
    return not change.path.name.startswith(".") and change.path.parent.name.endswith(folder)


def test_no_file_gets_its_name_before_all_of_it_is_on_the_disk(changes: list[Change]) -> None:
    assert {"spec.json", "result.json", "metrics.jsonl"} <= {change.path.name for change in named(changes)}
    for change in named(changes):
        assert change.source is not None
        # The folder of a claim may be lost: then nobody has claimed the run.
        assert change.lacks(change.source) in ([], [change.source] * (change.path.parent.name == "attempts")), change


def test_no_state_gets_its_name_before_its_metrics_and_its_digest_are_on_the_disk(changes: list[Change]) -> None:
    # The digest of a checkpoint.pt is in it.
    checkpoints = [change for change in named(changes) if change.path.name == "checkpoint.pt"]
    states = [change for change in named(changes, folder="states") if change.path.suffix != ".sha256"]
    assert len(checkpoints + states) >= 2
    for change in checkpoints + states:
        attempt = change.path.parent.parent if change in states else change.path.parent
        assert change.lacks(attempt / "metrics.jsonl") == []
    for change in states:
        earlier = changes[: changes.index(change)]
        assert change.path.with_name(f"{change.path.name}.sha256") in [each.path for each in earlier]


def test_no_state_goes_before_the_name_of_a_later_one_is_on_the_disk(changes: list[Change]) -> None:
    going = [change for change in changes if change.source is None and _counts(change, "states")]
    for change in going:
        assert change.lacks(change.path.parent) == []
    last = {"12", "12.sha256"}
    assert {each.path.name for each in going} == {each.path.name for each in named(changes, folder="states")} - last
