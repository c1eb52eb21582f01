"""What can be thrown away of the checkpoints of interrupted and finished runs."""

from pathlib import Path

from support.states import save_state

from ettsweep.launch.cleanup import find_waste, remove
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec


def test_what_a_kill_left_goes_and_what_a_run_goes_on_from_stays(results: Path, spec: RunSpec) -> None:
    run = RunDir.create(results, spec)
    attempt = run.claim({}, after=0)
    assert attempt is not None
    saved, left = save_state(attempt), attempt.states_path / ".2.tmp"
    left.write_bytes(b"x" * 100)
    attempt.record_failure("interrupted", "terminated")
    waste = find_waste(results)
    assert [(item.path, item.reason, item.size) for item in waste] == [(left, "left by a kill", 100)]
    remove(waste)
    assert (saved.exists(), left.exists()) == (True, False)


def test_files_and_folders_that_a_kill_left_half_written_go(results: Path) -> None:
    lefts = [results / folder / ".a.0123.tmp" for folder in ("sweeps", "runs", "jobs")]
    for left in lefts:
        left.parent.mkdir(parents=True, exist_ok=True)
        left.touch()
    assert {item.path for item in find_waste(results)} == set(lefts)


def test_the_checkpoint_of_a_finished_run_goes(results: Path, spec: RunSpec) -> None:
    run = RunDir.create(results, spec)
    attempt = run.claim({}, after=0)
    assert attempt is not None
    save_state(attempt)
    assert run.finish({"status": "done", "score": 1.0}, [])
    waste = find_waste(results)
    assert [(item.path, item.reason) for item in waste] == [(attempt.states_path, "checkpoint of a finished run")]
    remove(waste)
    assert not attempt.has_checkpoint()
    assert run.result() is not None
