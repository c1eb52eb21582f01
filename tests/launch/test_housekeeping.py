"""What can be thrown away of a sharded run's checkpoints, and of those of pruned runs."""

from pathlib import Path

from ettsweep.launch.housekeeping import find_waste, remove
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.spec import RunSpec


def saved(attempt: Attempt, *steps: int) -> list[Path]:
    """Save parts after some steps; all but the last folder are made again, as if nobody had come to remove them."""
    folders = [attempt.parts_folder(step) for step in steps]
    for step, folder in zip(steps, folders, strict=True):
        folder.mkdir()
        attempt.save_parts(step, {})
    for folder in folders:
        folder.mkdir(exist_ok=True)
        (folder / "__0_0.distcp").write_bytes(b"x" * 100)
    return folders


def test_what_a_kill_left_goes_and_what_a_run_goes_on_from_stays(results: Path, spec: RunSpec) -> None:
    run = RunDir.create(results, spec)
    attempts = [run.claim({}, after=number) for number in (0, 1)]
    lefts, keeps = [], []
    for attempt in attempts:
        assert attempt is not None
        left, keep = saved(attempt, 4, 8)
        lefts.append(left)
        keeps.append(keep)
        attempt.fail("interrupted", "terminated")
    waste = find_waste(results)
    assert [(item.path, item.reason, item.size) for item in waste] == [(left, "left by a kill", 100) for left in lefts]
    remove(waste)
    assert not any(left.exists() for left in lefts)
    assert all(keep.exists() for keep in keeps)
    assert all(attempt is not None and attempt.has_checkpoint() for attempt in attempts)


def test_of_a_finished_run_all_parts_go_what_names_them_first(results: Path, spec: RunSpec) -> None:
    run = RunDir.create(results, spec)
    attempt = run.claim({}, after=0)
    assert attempt is not None
    folders = saved(attempt, 4, 8)
    assert run.finish({"status": "done", "score": 1.0}, [])
    waste = find_waste(results)
    assert [item.path for item in waste] == [attempt.parts_path, *folders]
    assert {item.reason for item in waste} == {"checkpoint of a finished run"}
    remove(waste)
    assert attempt.checkpoints() == []
    assert run.result() is not None


def test_the_checkpoint_of_a_pruned_run_goes_and_that_of_one_which_is_wanted_stays(
    results: Path, spec: RunSpec
) -> None:
    run = RunDir.create(results, spec)
    attempt = run.claim({}, after=0)
    assert attempt is not None
    attempt.checkpoint_path.write_bytes(b"weights")
    attempt.fail("interrupted", "pruned")
    assert run.prune(8, "why")
    assert [(item.path, item.reason) for item in find_waste(results)] == [
        (attempt.checkpoint_path, "checkpoint of a pruned run")
    ]
    run.unprune()
    assert find_waste(results) == []
