"""Copies of users' projects, made at submission: edits do not change runs that wait, and all else stays in reach."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commandline import ettsweep, runs_in, status

from ettsweep.errors import InputError
from ettsweep.launch.project_copy import ProjectCopy, ensure_copies, find_copy, placed, project_copies
from ettsweep.study.grid_file import load_sweep_spec

TRAIN = """import json, os, sys
from pathlib import Path

import factor

lr, seed, out = float(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
print("[ettsweep]", json.dumps({"step": 1, "err": factor.of(lr)}), flush=True)
(out / "seen.json").write_text(json.dumps({"folder": os.getcwd(), "file": factor.__file__}))
"""
FACTOR = "def of(lr):\n    return 1 + lr\n"

Ask = Callable[..., Any]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make a project of a script, a module, and data that git would ignore."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "factor.py").write_text(FACTOR)
    (folder / "data").mkdir()
    (folder / "data" / "words.txt").write_text("of, and, the")
    return folder


@pytest.fixture
def grid(project: Path, results: Path) -> Ask:
    """Return a function that requests runs of the script."""

    def ask(*options: object, runs: int = 1, code: int | None = 0, **block: Any) -> Any:
        command = [sys.executable, "train.py", "{lr}", "{seed}", "{out}"]
        content = {"run": {"command": command, "score": {"name": "err", "mode": "min"}} | block}
        content |= {"centre": {"lr": 0.25}}
        (project / "sweep.yaml").write_text(yaml.safe_dump(content))
        arguments = "grid", project / "sweep.yaml", "--results", results, "--launch-set", "slots=1"
        arguments += "--range", f"lr=0:{runs - 1}"
        return ettsweep(*arguments, *options, code=code)

    return ask


def track(project: Path, *names: str) -> None:
    """Have git track some files of a project."""
    author = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    for arguments in (["init", "-q"], ["add", *names], ["commit", "-qm", "first"]):
        subprocess.run(["git", *arguments], cwd=project, check=True, env=os.environ | author)


def seen(results: Path) -> list[dict[str, str]]:
    """Return what the runs have told of where they are."""
    return [json.loads((run.path / "out" / "seen.json").read_text()) for run in runs_in(results)]


def errs(results: Path) -> list[float]:
    """Return the scores of all runs by ascending lr."""
    runs = sorted(runs_in(results), key=lambda run: run.spec().lr)
    return [dict(run.result() or {})["score"] for run in runs]


def only_copy(results: Path) -> ProjectCopy:
    (copy,) = project_copies(results)
    return copy


@pytest.mark.slow
@pytest.mark.usefixtures("process")
def test_an_edit_while_runs_wait_changes_none_of_them(project: Path, results: Path, grid: Ask) -> None:
    track(project, "train.py")  # its module is not tracked, and belongs to the code all the same
    # The first run edits the project, as its user might.
    edit = f"Path({str(project / 'factor.py')!r}).write_text('def of(lr):\\n    return 100\\n')"
    (project / "train.py").write_text(f"{TRAIN}{edit}\n")
    grid("--follow", runs=3)
    assert errs(results) == [1.25, 1.5, 2.0]
    assert "100" in (project / "factor.py").read_text()
    assert {each["folder"] for each in seen(results)} == {str(only_copy(results).path / "project")}


@pytest.mark.usefixtures("process")
def test_the_copy_has_the_code_and_leads_to_all_else(project: Path, results: Path, grid: Ask) -> None:
    (project / "conf").mkdir()
    (project / "conf" / "a.yaml").write_text("a: 1")
    (project / "conf" / "weights.bin").write_bytes(b"\0")
    (project / "large.txt").write_bytes(b"a" * (2**20 + 1))
    (project / "again").symlink_to("conf")
    (project / ".gitignore").write_text("data")
    track(project, "train.py", "conf")
    grid("--follow")
    copy = only_copy(results).path / "project"
    copied = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file() and not path.is_symlink()}
    assert {name for name in copied if "__pycache__" not in name} == {"train.py", "factor.py", "conf/a.yaml"}
    links = {name: str((copy / name).readlink()) for name in ("data", "large.txt", "conf/weights.bin", "sweep.yaml")}
    assert links == {name: str(project / name) for name in links}
    assert (copy / "data" / "words.txt").read_text() == "of, and, the"
    assert (copy / "again").resolve() == copy / "conf", "not to the project: edits there change nothing"


@pytest.mark.slow
@pytest.mark.usefixtures("process")
def test_equal_code_is_copied_once_and_what_was_lost_comes_back(project: Path, results: Path, grid: Ask) -> None:
    grid("--follow")
    first = only_copy(results)
    (first.path / "project" / "factor.py").unlink()
    (first.path / "project" / "train.py").write_text("raise SystemExit('edited')")
    (project / "new.bin").write_bytes(b"\0")
    (project / "more").mkdir()
    (project / "more" / "new.bin").write_bytes(b"\0")
    grid("--follow", runs=2)
    assert only_copy(results).path == first.path
    assert errs(results) == [1.25, 1.5]
    assert (first.path / "project" / "new.bin").is_file(), "what is new is in reach"
    assert (first.path / "project" / "more").is_symlink()


def test_a_path_out_of_the_project_is_refused_with_what_would_work(
    project: Path, results: Path, grid: Ask, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    told = grid(code=2, command=[sys.executable, "train.py", "{lr}", "{seed}", "--data=../data"]).stderr
    assert (
        "command: ../data leads out of the project, and runs train in a copy of it: write an absolute path, such as "
        f"{tmp_path / 'data'}, or `snapshot: false`" in " ".join(told.split())
    )
    grid("--dry-run", command=[sys.executable, "train.py", "{lr}", "{seed}", "--data=../data"], snapshot=False)


@pytest.mark.usefixtures("process")
def test_a_run_that_trains_in_place_is_refused_once_its_code_has_changed(
    project: Path, results: Path, grid: Ask
) -> None:
    edit = f"Path({str(project / 'factor.py')!r}).write_text('def of(lr):\\n    return 100\\n')"
    (project / "train.py").write_text(f"{TRAIN}{edit}\n")
    grid("--follow", runs=3, code=None, snapshot=False)
    rows = list(status(results).values())
    assert sorted(row["state"] for row in rows) == ["done", "failed", "failed"]
    assert all("factor.py was edited" in row["reason"] for row in rows if row["state"] == "failed")


@pytest.mark.slow
@pytest.mark.usefixtures("process")
def test_an_installed_package_of_the_project_is_imported_from_the_copy(
    project: Path, results: Path, grid: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "src").mkdir(parents=True)
    (project / "src" / "pyproject.toml").write_text("")
    (project / "factor.py").rename(project / "src" / "factor.py")
    (project / "lib" / "scripts").mkdir(parents=True, exist_ok=True)
    (project / "train.py").rename(project / "lib" / "scripts" / "train.py")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(project / "src"), os.environ["PYTHONPATH"]]))
    track(project, ".")
    command = [sys.executable, "-P", "train.py", "{lr}", "{seed}", "{out}"]
    grid("--follow", command=command, workdir="lib/scripts")
    assert seen(results)[0]["file"] == str(only_copy(results).path / "project" / "src" / "factor.py")


def test_code_that_all_may_write_to_is_refused_not_copied(project: Path, results: Path, grid: Ask) -> None:
    (project / "factor.py").chmod(0o666)
    said = " ".join(grid(code=2).stderr.split())
    assert "factor.py can be written by all users, and ettsweep executes it: remove that right (`chmod go-w " in said
    assert not project_copies(results)


@pytest.mark.usefixtures("process")
def test_nothing_of_a_project_that_all_may_write_to_by_now_is_linked_and_executed(
    project: Path, results: Path, grid: Ask
) -> None:
    """What git ignores is in no digest, and a module among it would hide one of Python's own."""
    track(project, "train.py", "factor.py")
    grid("--follow")
    project.chmod(0o777)
    (project / ".git" / "info" / "exclude").write_text("json.py")
    (project / "json.py").write_text("raise SystemExit('of somebody else')")
    said = " ".join(ettsweep("verify-optimum", "--results", results, code=2).stderr.split())
    assert f"{project} can be written by all users, and ettsweep executes files in {project}" in said
    assert not (only_copy(results).root / "json.py").is_symlink()
    with pytest.raises(InputError, match="can be written by all users"):  # as a worker that starts later says
        placed(results, next(iter(runs_in(results))).spec())


def test_a_copy_lies_where_copies_do(results: Path, grid: Ask, tmp_path: Path) -> None:
    grid()
    copy = only_copy(results)
    assert find_copy(results, copy.path.name) == copy
    shutil.copytree(copy.path, tmp_path / "elsewhere")
    assert find_copy(results, os.path.relpath(tmp_path / "elsewhere", copy.path.parent)) is None
    stated = json.loads((copy.path / "project.json").read_text())
    for folder in ("../../..", str(tmp_path)):
        (copy.path / "project.json").write_text(json.dumps(stated | {"folder": folder}))
        assert find_copy(results, copy.path.name) is None


def test_submissions_at_the_same_instant_make_one_copy(project: Path, results: Path, grid: Ask) -> None:
    grid("--dry-run")
    recipe = load_sweep_spec(project / "sweep.yaml", ranges={"lr": "0:0"}).bound().studies()[0].base
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda _: ensure_copies(results, [recipe]), range(12)))
    code = recipe.info.code
    assert code is not None
    assert only_copy(results).path.name == code.digest
    assert not only_copy(results).changed_files()


@pytest.mark.slow
@pytest.mark.usefixtures("process")
def test_code_above_the_grid_file_is_copied_and_nothing_is_put_beside_the_copy(
    project: Path, results: Path, tmp_path: Path
) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "m.py").write_text("")
    content = {
        "run": {
            "command": [sys.executable, "train.py", "{lr}", "{seed}", "{out}"],
            "score": {"name": "err", "mode": "min"},
            "code": "../shared/*.py",
        },
        "centre": {"lr": 0.25},
        "lr": {"range": [0, 0]},
    }
    (project / "sweep.yaml").write_text(yaml.safe_dump(content))
    elsewhere = tmp_path.parent / f"{tmp_path.name}-results"
    ettsweep("grid", project / "sweep.yaml", "--results", elsewhere, "--follow")
    assert errs(elsewhere) == [1.25]
    copy = only_copy(elsewhere).path
    assert {path.name for path in copy.iterdir()} == {"project", "project.json"}
    assert (copy / "project" / "shared" / "m.py").is_file()


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("open('../shared/x.txt')", "shared/x.txt"),
        ("sys.path.append('..'); import shared", "shared"),
        ("open('../other/x.txt')", None),
    ],
)
def test_a_path_beside_the_project_that_a_copy_lacks_is_told(
    project: Path, results: Path, grid: Ask, script: str, name: str | None
) -> None:
    shared = project.parent / "shared"
    shared.mkdir()
    (shared / "x.txt").write_text("41")
    (project / "train.py").write_text(f"import os, sys\n{script}\n")
    grid("--follow", code=None)
    (run,) = runs_in(results)
    reason = run.status().reason
    assert "Error: " in reason
    hint = name and f"{project.parent / name} is outside of it; use this absolute path, or `snapshot: false`"
    assert hint in reason if hint else "copy" not in reason
