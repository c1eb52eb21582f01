"""What is kept of finished runs: the same as their folders say, whatever happens to either."""

import contextlib
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.audit import audited

from ettsweep.files import cache_folder
from ettsweep.runs.cache import UNUSED_S
from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import MIN_KEPT, Run, RunReader, load_run_index
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State

MakeSpec = Callable[..., RunSpec]


def finish(results: Path, spec: RunSpec) -> RunDir:
    """Write a finished run; every fifth diverged."""
    run = RunDir.create(results, spec)
    end: dict[str, Any] = {"status": "done", "score": 0.1 + spec.seed / 7, "device_s": 1.5 * spec.seed}
    if spec.seed % 5 == 4:
        end = {"status": "diverged", "score": None, "diverged_step": spec.seed, "device_s": 0.5}
    assert run.finish({**end, "spike_events": [{"step": spec.seed, "kind": "loss"}]}, [])
    return run


@pytest.fixture
def runs(results: Path, make_spec: MakeSpec) -> list[RunDir]:
    """The folders of finished runs of two families."""
    specs = [make_spec(seed=seed, lr=2.0 ** -(seed % 3)) for seed in range(MIN_KEPT)]
    specs += [make_spec(seed=seed, wd=0.0, model={"width": 16}) for seed in range(5)]
    return [finish(results, spec) for spec in specs]


def facts(run: Run) -> tuple[object, ...]:
    """Return all that a run says of itself."""
    place = *run.values.values(), run.seed, run.point, run.family, run.base.family_id
    return (run.id, *place, run.status, run.score, run.device_s, run.result, run.spec, run.dir.path)


def read(results: Path) -> dict[str, tuple[object, ...]]:
    return {run.id: facts(run) for run in load_run_index(results).runs.values()}


def cache_file() -> Path:
    """Return the only file of the cache."""
    (path,) = (cache_folder() / "runs").iterdir()
    return path


def from_folders(results: Path) -> dict[str, tuple[object, ...]]:
    """Return what the run folders alone say."""
    shutil.rmtree(cache_folder(), ignore_errors=True)
    return read(results)


def opened(results: Path) -> list[str]:
    """Return the files below the run folders that reading opens by name."""
    return [path for path in audited("open", lambda: load_run_index(results)) if "/runs/" in path]


def test_a_finished_run_is_read_once_and_stays_what_it_was(results: Path, runs: list[RunDir]) -> None:
    first = read(results)
    assert opened(results) == []
    assert read(results) == first
    assert {run_id: values[7:9] for run_id, values in first.items()} == {
        run.id: (run.status(), None if run.status().state is State.DIVERGED else (run.result() or {})["score"])
        for run in runs
    }
    assert cache_file().suffix == ".sqlite"
    assert [path.name for path in results.iterdir()] == ["runs"], "nothing is kept in the results folder"


def test_a_result_that_was_edited_is_read_again(results: Path, runs: list[RunDir]) -> None:
    read(results)
    edited, removed, again = runs[0], runs[1], runs[2]
    edited.result_path.write_text(edited.result_path.read_text().replace('"score": 0.1', '"score": 0.2'))
    removed.result_path.unlink()
    spec = again.spec()
    shutil.rmtree(again.path)
    run_index = load_run_index(results)
    assert again.id not in run_index.runs
    assert run_index.runs[removed.id].state is State.MISSING
    assert run_index.runs[edited.id].state is State.FAILED
    assert "not the result that run" in run_index.runs[edited.id].status.reason
    RunDir.create(results, spec).finish({"status": "done", "score": 7.0}, [])
    assert load_run_index(results).runs[again.id].score == 7.0
    assert read(results) == from_folders(results)


def test_a_damaged_cache_is_made_anew_without_a_word(results: Path, runs: list[RunDir]) -> None:
    first = read(results)
    path = cache_file()
    whole = path.read_bytes()
    other_score = whole.replace(b"0.24285", b"0.24286")
    assert other_score != whole
    for damaged in (other_score, whole[: len(whole) // 2], whole[:-1], b"no database"):
        path.write_bytes(damaged)
        assert read(results) == first
    assert opened(results) == [], "it is whole again"


def test_where_nothing_can_be_kept_all_is_read(results: Path, runs: list[RunDir]) -> None:
    cache_folder().parent.mkdir(parents=True, exist_ok=True)
    cache_folder().write_text("no folder")
    assert len(read(results)) == len(runs)


def test_commands_that_keep_at_once_lose_nothing(results: Path, make_spec: MakeSpec) -> None:
    readers = [RunReader(results) for _ in range(3)]
    runs = [finish(results, make_spec(seed=seed)) for seed in range(3 * MIN_KEPT)]
    for part, reader in enumerate(readers):
        for run in runs[part::3]:
            reader.read_run(run.id)
        reader.keep()
    assert opened(results) == []
    assert read(results) == from_folders(results)


def test_another_version_is_made_anew(results: Path, runs: list[RunDir]) -> None:
    first = read(results)
    with contextlib.closing(sqlite3.connect(cache_file())) as database:
        database.execute("PRAGMA user_version = 99")
        database.commit()
    assert len(opened(results)) == 2 * len(runs)
    assert opened(results) == []
    assert read(results) == first


def test_what_was_kept_of_folders_that_nobody_uses_is_deleted(results: Path, runs: list[RunDir]) -> None:
    (cache_folder() / "runs").mkdir(parents=True)
    old, recent = (cache_folder() / "runs" / f"{name}.sqlite" for name in ("old", "recent"))
    for path, age_s in ((old, 1.01 * UNUSED_S), (recent, 0.9 * UNUSED_S)):
        path.touch()
        os.utime(path, (time.time() - age_s,) * 2)
    read(results)
    assert not old.exists()
    assert len(list((cache_folder() / "runs").iterdir())) == 2
