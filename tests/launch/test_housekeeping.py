"""What can be thrown away of a sharded run's checkpoints, and of those of pruned runs."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.commandline import ettsweep, keep, write_grid

from ettsweep.launch.housekeeping import find_waste, remove
from ettsweep.runs.attempt import Attempt
from ettsweep.runs.folder import RunDir
from ettsweep.spec import RunSpec
from ettsweep.sweep.gridfile import load_request
from ettsweep.sweep.search import Request


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


# --- pruned runs ------------------------------------------------------------------------------------------------------


@pytest.fixture
def sweep(results: Path, tmp_path: Path) -> Callable[..., Request]:
    """Return a function that asks for the small grid under a name, and finishes its runs with scores."""

    def ask(name: str, scores: Sequence[float], **changes: Any) -> Request:
        keep(results, request := load_request(write_grid(tmp_path / f"{name}.yaml", **changes)))
        for spec, score in zip(request.specs(), scores, strict=False):
            run = RunDir.create(results, spec)
            if not run.numbers():
                assert run.claim({}, after=0)
                assert run.finish({"status": "done", "score": score}, [])
        return request

    return ask


def pruned(results: Path, spec: RunSpec) -> Attempt:
    """Return an attempt at a run that was pruned, with a checkpoint."""
    run = RunDir.create(results, spec)
    attempt = run.claim({}, after=0)
    assert attempt is not None
    attempt.checkpoint_path.write_bytes(b"weights")
    attempt.fail("interrupted", "pruned")
    assert run.prune(8, "why")
    return attempt


def wasted(results: Path) -> dict[Path, str]:
    return {item.path: item.reason for item in find_waste(results)}


def test_a_checkpoint_of_a_pruned_run_stays_until_the_verdict_is_final(results: Path, sweep: Any) -> None:
    (_, centre, high) = sweep("one", [2.0, 1.0]).specs()
    far = pruned(results, centre.at(8 * centre.lr, centre.wd, centre.seed))
    assert wasted(results) == {}, "the third is still to come"
    assert RunDir.create(results, high).finish({"status": "done", "score": 2.0}, [])
    assert wasted(results) == {far.checkpoint_path: "checkpoint of a pruned run that no verdict needs"}
    RunDir(far.run).revive()
    assert wasted(results) == {}


def test_every_sweep_that_a_pruned_run_belongs_to_must_be_decided(results: Path, sweep: Any) -> None:
    (_, centre, _) = sweep("one", [2.0, 1.0, 2.0]).specs()
    far = pruned(results, centre.at(8 * centre.lr, centre.wd, centre.seed))
    assert wasted(results).keys() == {far.checkpoint_path}
    sweep("two", [], lr={"range": [-1, 2]})
    assert wasted(results) == {}
    ettsweep("sweeps", "archive", "two", "--results", results)
    assert wasted(results).keys() == {far.checkpoint_path}, "archived sweeps want nothing any more"
    stray = pruned(results, centre.at(1.1 * centre.lr, centre.wd, centre.seed))
    assert wasted(results).keys() == {far.checkpoint_path}, "who wants the other one, nobody knows"
    assert stray.has_checkpoint()
    (results / "sweeps" / "one" / "0001.yaml").write_text("{")
    assert wasted(results) == {}
