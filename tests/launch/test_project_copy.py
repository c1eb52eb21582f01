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
from ettsweep.launch.project_copy import ProjectCopy, ensure_copies, find_copy, missing_in_copy, placed, project_copies
from ettsweep.runs.spec import Recipe
from ettsweep.study.grid_file import load_sweep_spec

TRAIN = """import json, os, sys
from pathlib import Path

import factor

lr, seed, out = float(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
print("[ettsweep]", json.dumps({"step": 1, "err": factor.of(lr)}), flush=True)
(out / "seen.json").write_text(json.dumps({"folder": os.getcwd(), "file": factor.__file__}))
"""
FACTOR = "def of(lr):\n    return 1 + lr\n"
COMMAND = [sys.executable, "train.py", "{lr}", "{seed}", "{out}"]

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


def has_its_first_run_edit_it(project: Path) -> None:
    """Have a project be edited while its other runs wait, as its user might."""
    edit = f"Path({str(project / 'factor.py')!r}).write_text('def of(lr):\\n    return 100\\n')"
    (project / "train.py").write_text(f"{TRAIN}{edit}\n")


def write_grid(project: Path, **block: Any) -> Path:
    """Write the grid file of the script, with other values for some keys of `run`."""
    content = {"run": {"command": COMMAND, "score": {"name": "err", "mode": "min"}} | block, "centre": {"lr": 0.25}}
    (project / "sweep.yaml").write_text(yaml.safe_dump(content))
    return project / "sweep.yaml"


@pytest.fixture
def grid(project: Path, results: Path) -> Ask:
    """Return a function that requests runs of the script."""

    def ask(*options: object, runs: int = 1, code: int | None = 0, **block: Any) -> Any:
        arguments = "grid", write_grid(project, **block), "--results", results, "--launch-set", "slots=1"
        return ettsweep(*arguments, "--range", f"lr=0:{runs - 1}", *options, code=code)

    return ask


def recipe_of(project: Path, **block: Any) -> Recipe:
    """Return what runs of the script train, as the project is now."""
    return load_sweep_spec(write_grid(project, **block), ranges={"lr": "0:0"}).bound().studies()[0].base


def copied(project: Path, results: Path, **block: Any) -> ProjectCopy:
    """Make the copy that runs of the script would train in, or mend it, and return it."""
    ensure_copies(results, [recipe_of(project, **block)])
    return only_copy(results)


def only_copy(results: Path) -> ProjectCopy:
    (copy,) = project_copies(results)
    return copy


def track(project: Path, *names: str) -> None:
    """Have git track some files of a project."""
    author = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    for arguments in (["init", "-q"], ["add", *names], ["commit", "-qm", "first"]):
        subprocess.run(["git", *arguments], cwd=project, check=True, env=os.environ | author)


def seen(results: Path) -> list[dict[str, str]]:
    """Return what the runs have told of where they are."""
    return [json.loads((run.path / "out" / "seen.json").read_text()) for run in runs_in(results)]


# --- where runs train -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("process")
def test_an_edit_while_runs_wait_changes_none_of_them(project: Path, results: Path, grid: Ask) -> None:
    has_its_first_run_edit_it(project)
    track(project, "train.py")  # its module is not tracked, and belongs to the code all the same
    grid("--follow", runs=3)
    runs = sorted(runs_in(results), key=lambda run: run.spec().lr)
    assert [dict(run.result() or {})["score"] for run in runs] == [1.25, 1.5, 2.0]
    assert "100" in (project / "factor.py").read_text()
    assert {each["folder"] for each in seen(results)} == {str(only_copy(results).folder)}


@pytest.mark.usefixtures("process")
def test_a_run_that_trains_in_place_is_refused_once_its_code_changed(project: Path, results: Path, grid: Ask) -> None:
    has_its_first_run_edit_it(project)
    grid("--follow", runs=2, code=None, snapshot=False)
    rows = sorted(status(results).values(), key=lambda row: str(row["state"]))
    assert [row["state"] for row in rows] == ["done", "failed"]
    assert "factor.py was edited" in rows[1]["reason"]


@pytest.mark.slow
@pytest.mark.usefixtures("process")
def test_an_installed_package_of_the_project_is_imported_from_the_copy(
    project: Path, results: Path, grid: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, folder in (("factor.py", "src"), ("train.py", "lib/scripts")):
        (project / folder).mkdir(parents=True)
        (project / name).rename(project / folder / name)
    (project / "src" / "pyproject.toml").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(project / "src"), prepend=os.pathsep)
    track(project, ".")
    grid("--follow", command=[sys.executable, "-P", *COMMAND[1:]], workdir="lib/scripts")
    assert seen(results)[0]["file"] == str(only_copy(results).root / "src" / "factor.py")


# --- what a copy has --------------------------------------------------------------------------------------------------


def test_the_copy_has_the_code_and_leads_to_all_else(project: Path, results: Path) -> None:
    (project / "conf").mkdir()
    (project / "conf" / "a.yaml").write_text("a: 1")
    (project / "conf" / "weights.bin").write_bytes(b"\0")
    (project / "large.txt").write_bytes(b"a" * (2**20 + 1))
    (project / "again").symlink_to("conf")
    (project / ".gitignore").write_text("data")
    track(project, "train.py", "conf")
    copy = copied(project, results).root
    files = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file() and not path.is_symlink()}
    assert files == {"train.py", "factor.py", "conf/a.yaml"}
    links = {name: str((copy / name).readlink()) for name in ("data", "large.txt", "conf/weights.bin", "sweep.yaml")}
    assert links == {name: str(project / name) for name in links}
    assert (copy / "data" / "words.txt").read_text() == "of, and, the"
    assert (copy / "again").resolve() == copy / "conf", "not to the project: edits there change nothing"


def test_equal_code_is_copied_once_and_what_was_lost_comes_back(project: Path, results: Path) -> None:
    first = copied(project, results)
    (first.root / "factor.py").unlink()
    (first.root / "train.py").write_text("raise SystemExit('edited')")
    (project / "new.bin").write_bytes(b"\0")
    (project / "more").mkdir()
    assert copied(project, results) == first
    assert [(first.root / name).read_text() for name in ("train.py", "factor.py")] == [TRAIN, FACTOR]
    assert (first.root / "new.bin").is_file(), "what is new is in reach"
    assert (first.root / "more").is_symlink()


def test_code_above_the_grid_file_is_copied_and_nothing_is_put_beside_the_copy(project: Path, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "m.py").write_text("")
    copy = copied(project, tmp_path.parent / f"{tmp_path.name}-results", code="../shared/*.py")
    assert {path.name for path in copy.path.iterdir()} == {"project", "project.json"}
    assert (copy.root / "shared" / "m.py").is_file()
    assert (copy.folder / "train.py").exists()


def test_submissions_at_the_same_instant_make_one_copy(project: Path, results: Path) -> None:
    recipe = recipe_of(project)
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda _: ensure_copies(results, [recipe]), range(12)))
    assert recipe.info.code is not None
    assert only_copy(results).path.name == recipe.info.code.digest
    assert not only_copy(results).changed_files()


def test_a_copy_lies_where_copies_do(project: Path, results: Path, tmp_path: Path) -> None:
    copy = copied(project, results)
    assert find_copy(results, copy.path.name) == copy
    shutil.copytree(copy.path, tmp_path / "elsewhere")
    assert find_copy(results, os.path.relpath(tmp_path / "elsewhere", copy.path.parent)) is None
    stated = json.loads((copy.path / "project.json").read_text())
    for folder in ("../../..", str(tmp_path)):
        (copy.path / "project.json").write_text(json.dumps(stated | {"folder": folder}))
        assert find_copy(results, copy.path.name) is None


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_path_out_of_the_project_is_refused_with_what_would_work(project: Path, grid: Ask, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    told = " ".join(grid(code=2, command=[*COMMAND, "--data=../data"]).stderr.split())
    assert "command: ../data leads out of the project, and runs train in a copy of it: write an absolute path" in told
    assert f"such as {tmp_path / 'data'}, or `snapshot: false`" in told
    grid("--dry-run", command=[*COMMAND, "--data=../data"], snapshot=False)


@pytest.mark.usefixtures("process")
def test_a_path_beside_the_project_that_a_copy_lacks_is_told(project: Path, results: Path, grid: Ask) -> None:
    shared = project.parent / "shared"
    shared.mkdir()
    (shared / "x.txt").write_text("41")
    (project / "train.py").write_text("open('../shared/x.txt')\n")
    grid("--follow", code=None)
    (run,) = runs_in(results)
    hint = f"{shared / 'x.txt'} is outside of it; use this absolute path, or `snapshot: false`"
    assert hint in run.status().reason
    folder = only_copy(results).folder
    assert f"{shared} is outside of it" in missing_in_copy(folder, "ModuleNotFoundError: No module named 'shared'")
    assert missing_in_copy(folder, "FileNotFoundError: '../other/x.txt'") == ""


def test_code_that_all_may_write_to_is_refused_not_copied(project: Path, results: Path, grid: Ask) -> None:
    (project / "factor.py").chmod(0o666)
    said = " ".join(grid(code=2).stderr.split())
    assert "factor.py can be written by all users, and ettsweep executes it: remove that right (`chmod go-w " in said
    assert not project_copies(results)


def test_nothing_of_a_project_that_all_may_write_to_by_now_is_linked_and_executed(project: Path, results: Path) -> None:
    """What git ignores is in no digest, and a module among it would hide one of Python's own."""
    track(project, "train.py", "factor.py")
    copy, recipe = copied(project, results), recipe_of(project)
    project.chmod(0o777)
    (project / ".git" / "info" / "exclude").write_text("json.py")
    (project / "json.py").write_text("raise SystemExit('of somebody else')")
    for use in (lambda: ensure_copies(results, [recipe]), lambda: placed(results, recipe)):  # by commands and workers
        with pytest.raises(InputError, match="can be written by all users, and ettsweep executes files in"):
            use()
    assert not (copy.root / "json.py").is_symlink()
