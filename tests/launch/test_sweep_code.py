"""The code of a sweep that goes on: what makes new runs, what is refused, and in which copy runs train."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commandline import ettsweep, runs_in, wait_for
from support.own_code import only_run

from ettsweep.launch.project_copy import project_copies
from ettsweep.runs.state import State

TRAIN = """import json, sys
from pathlib import Path

import factor

lr, seed, out = float(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
print("[ettsweep]", json.dumps({"step": 1, "err": factor.of(lr) + seed / 1000}), flush=True)
"""
FACTOR, OTHER = "def of(lr):\n    return 1 + lr\n", "def of(lr):\n    return 7\n"
BROKEN = "def of(lr):\n    raise SystemExit('a mistake')\n"

pytestmark = pytest.mark.usefixtures("process")

Ask = Callable[..., Any]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make a repository with a script; its module is not tracked."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name, text in {"train.py": TRAIN, "factor.py": FACTOR, "notes.txt": ""}.items():
        (folder / name).write_text(text)
    (folder / "weights.bin").write_bytes(b"\0")
    git(folder, "init", "-q")
    git(folder, "add", "train.py")
    git(folder, "commit", "-qm", "first")
    return folder


def git(folder: Path, *arguments: str) -> None:
    author = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    subprocess.run(["git", *arguments], cwd=folder, check=True, env=os.environ | author)


@pytest.fixture
def grid(project: Path, results: Path) -> Ask:
    """Return a function that requests runs of the script."""

    def ask(
        *options: object,
        lrs: int = 1,
        rc: int | None = 0,
        folder: Path = project,
        vary: dict[str, list[str]] | None = None,
        **block: Any,
    ) -> Any:
        command = [sys.executable, "train.py", "{lr}", "{seed}", "{out}", *(f"{{{name}}}" for name in vary or {})]
        content = {"run": {"command": command, "score": {"name": "err", "mode": "min"}} | block, "centre": {"lr": 0.25}}
        content |= {"lr": {"range": [0, lrs - 1]}} | ({"vary": vary} if vary else {})
        (folder / "sweep.yaml").write_text(yaml.safe_dump(content))
        arguments = "grid", folder / "sweep.yaml", "--results", results, "--launch-set", "slots=1"
        return ettsweep(*arguments, *options, code=rc)

    return ask


def errs(results: Path) -> list[float]:
    """Return the scores of all runs in ascending order."""
    return sorted(dict(run.result() or {})["score"] for run in runs_in(results))


def said(done: Any) -> str:
    return " ".join(done.stderr.split())


def test_what_changes_no_code_makes_no_new_run(project: Path, results: Path, grid: Ask, tmp_path: Path) -> None:
    def runs(*options: object, **more: Any) -> dict[str, str]:
        rows = json.loads(grid("--dry-run", "--format", "json", *options, **more).stdout)
        return {row["run"]: row["action"] for row in rows}

    grid("--follow", lrs=2)
    first = dict.fromkeys((run.id for run in runs_in(results)), "keep")
    assert runs(lrs=2) == first
    more_seeds = runs("--seeds", "0,1", lrs=2)
    assert first.items() < more_seeds.items()
    assert first.items() < runs(lrs=3).items(), "a wider range"
    assert runs(lrs=2, resume={"always": "--resume"}) == first
    for name in ("wandb/run-1/config.yaml", "outputs/a.txt", "train.log", "__pycache__/factor.pyc"):  # a run by hand
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("by hand")
    assert runs(lrs=2) == first
    git(project, "add", "factor.py", "notes.txt")
    git(project, "commit", "-qm", "second")
    assert runs(lrs=2) == first
    git(tmp_path, "clone", "-q", str(project), "clone")
    assert runs(lrs=2, folder=tmp_path / "clone") == first
    (project / "notes.txt").write_text("more")
    assert "notes.txt was edited" in said(grid(lrs=2, rc=2))
    assert runs(lrs=2, code={"exclude": ["notes.txt"]}) == first


@pytest.mark.slow
def test_code_that_counts_as_equal_trains_the_runs_to_come(project: Path, results: Path, grid: Ask) -> None:
    grid("--follow")
    (project / "factor.py").write_text(OTHER)
    grid("--follow", "--same-numbers", lrs=2)
    assert errs(results) == [1.25, 7.0]
    sweeps = results / "sweeps" / "sweep"
    before = sorted(sweeps.glob("*.yaml"))
    grid("--follow", lrs=2)
    assert sorted(sweeps.glob("*.yaml")) == before, "it is recorded once"
    (project / "factor.py").write_text(BROKEN)
    assert "factor.py was edited" in said(grid(lrs=2, rc=2))
    (project / "factor.py").write_text(FACTOR)
    grid("--dry-run", lrs=2)  # as it was at first


def test_code_that_counts_as_equal_is_that_of_all_variants(project: Path, results: Path, grid: Ask) -> None:
    vary = {"opt": ["adam", "sgd"]}
    grid("--follow", vary=vary)
    (project / "factor.py").write_text(OTHER)
    grid("--follow", "--same-numbers", lrs=2, vary=vary)
    assert errs(results) == [1.25, 1.25, 7.0, 7.0]


@pytest.mark.slow
def test_only_grid_and_try_look_at_the_project(project: Path, results: Path, grid: Ask) -> None:
    grid("--follow", "--seeds", "0,1", lrs=3)
    (project / "factor.py").write_text(OTHER)
    (project / "sitecustomize.py").write_text("raise SystemExit(1)")  # as new code that would be found by itself
    assert "factor.py was edited" in said(
        ettsweep("try", project / "sweep.yaml", "--results", results, "--launch-set", "slots=1", code=2)
    )
    options = "--results", results, "--launch-set", "slots=1"
    ettsweep("verify-optimum", "--sweep", "sweep", "--follow", "--max-runs", "2", *options, code=None)
    assert len(runs_in(results)) > 6
    assert 7 not in errs(results)
    shutil.rmtree(project)  # even then
    run = next(run for run in runs_in(results) if run.spec().seed < 2)  # seeds of a race are in the scores, too
    shutil.rmtree(run.path / "attempts")
    run.result_path.unlink()
    ettsweep("retry", run.id, *options)
    assert wait_for(run.result, "its result")["score"] < 7


@pytest.mark.slow
def test_a_run_is_retried_with_its_own_code_or_that_of_now(project: Path, results: Path, grid: Ask) -> None:
    (project / "factor.py").write_text(BROKEN)
    grid("--follow", rc=None)
    run = only_run(results)
    (project / "factor.py").write_text(FACTOR)
    told = said(ettsweep("retry", run.id, "--results", results))
    assert "the runs train with the code of their sweep; pass --new-code for the project as it is now" in told
    wait_for(lambda: run.status().state is State.FAILED and len(run.attempt_numbers()) == 2, "its second failure")
    ettsweep("retry", run.id, "--new-code", "--results", results)
    assert wait_for(run.result, "its result")["score"] == 1.25
    grid("--follow", lrs=2)
    assert errs(results) == [1.25, 1.5], "it counts as the code of the sweep"


@pytest.mark.slow
def test_clean_keeps_the_copies_of_sweeps(project: Path, results: Path, grid: Ask) -> None:
    grid("--follow")
    (project / "factor.py").write_text(OTHER)
    grid("--follow", "--name", "other")
    ettsweep("clean", "--yes", "--results", results)
    assert len(project_copies(results)) == 2
    ettsweep("sweeps", "delete", "other", "--yes", "--results", results)
    assert "copy of a project that no sweep needs" in ettsweep("clean", "--dry-run", "--results", results).stdout
    ettsweep("clean", "--yes", "--results", results)
    assert len(project_copies(results)) == 1
