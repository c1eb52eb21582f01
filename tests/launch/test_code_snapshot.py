"""Real packages, real processes that import them from a snapshot, real kills."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import ettsweep
from ettsweep.launch.cleanup import find_waste, remove
from ettsweep.launch.code_snapshot import find_unused, snapshots, take_snapshot
from ettsweep.processes import process_identity
from ettsweep.provenance import code_files
from ettsweep.shipped_files import shipped

PACKAGE = Path(ettsweep.__file__).parent

TAKE = "import sys; from pathlib import Path; from ettsweep.launch.code_snapshot import take_snapshot; print(take_snapshot(Path(sys.argv[1])))"
SLOW = """
import time
from ettsweep.launch import code_snapshot
from ettsweep.launch.cleanup import find_waste, remove
def wait(path):
    if path.name == "provenance.json":
        print("copied", flush=True)
        time.sleep(600)
code_snapshot.sync = wait
"""


def environment(code: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(code), "PYTHONSAFEPATH": "1"}


def python(code: Path, program: str, *arguments: object) -> str:
    """Run a program that imports the package from a folder, and return what it prints."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    completed = subprocess.run(command, cwd="/", env=environment(code), check=True, capture_output=True, text=True)
    return completed.stdout.strip()


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def names(code: Path) -> set[str]:
    """Return what lies in the folder of all snapshots but the notes of those who took them."""
    return {path.name for path in code.iterdir() if path.suffix != ".json"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of this repository as far as it is code: package and grids."""
    folder = tmp_path / "checkout"
    ignore = shutil.ignore_patterns("__pycache__", "_data")
    shutil.copytree(PACKAGE, folder / "ettsweep", ignore=ignore)
    (folder / "grids").mkdir()
    for path in shipped("grids").glob("*.yaml"):
        shutil.copy(path, folder / "grids")
    return folder


def test_a_snapshot_is_the_code_without_caches(results: Path) -> None:
    folder = take_snapshot(results)
    assert folder == results.resolve() / "code" / folder.name
    assert len(folder.name) == 16
    copied = files(folder / "ettsweep")
    assert {name: content for name, content in copied.items() if not name.startswith("_data/")} == code_files(PACKAGE)
    assert "ettsweep/report/page.py" in files(folder)
    assert not [name for name in copied if "__pycache__" in name]
    assert "_data/grids/vit-b16.yaml" in copied
    assert not [name for name in copied if "_data/launch" in name], "they may hold secrets"
    assert names(results / "code") == {folder.name}


def test_what_is_imported_is_the_copy_whatever_becomes_of_the_original(checkout: Path, results: Path) -> None:
    seeding = checkout / "ettsweep" / "seeding.py"
    seeding.write_text(seeding.read_text() + "\nMARK = 'before'\n")
    folder = Path(python(checkout, TAKE, results))
    seeding.write_text(seeding.read_text().replace("before", "after"))
    (checkout / "grids" / "vit-digits.yaml").write_text("edited: true\n")
    program = "from ettsweep import seeding; print(seeding.MARK, seeding.__file__)"
    assert python(checkout, program) == f"after {seeding}"
    for path in (folder, f"{folder}:{checkout}"):
        assert python(Path(path), program) == f"before {folder / 'ettsweep' / 'seeding.py'}"
    program = "from ettsweep.study.grid_file import find_grid; print(find_grid('vit-digits'))"
    assert python(folder, program) == str(folder / "ettsweep" / "_data" / "grids" / "vit-digits.yaml")
    assert "edited" not in Path(python(folder, program)).read_text()


@pytest.mark.slow
def test_a_snapshot_of_a_snapshot_is_the_same_with_the_same_provenance(checkout: Path, tmp_path: Path) -> None:
    for command in ("init --quiet", "add .", "-c user.name=A -c user.email=a@example.org commit --quiet -m first"):
        subprocess.run(["git", *command.split()], cwd=checkout, check=True)
    (checkout / "ettsweep" / "new.py").write_text("NEW = 1\n")
    first = Path(python(checkout, TAKE, checkout / "results"))
    assert first.parent == checkout / "results" / "code"
    stored = json.loads((first / "provenance.json").read_text())
    assert len(stored["git"]) == 40
    program = "import json; from ettsweep.provenance import provenance; print(json.dumps(provenance()))"
    python(checkout, "import ettsweep, pathlib; pathlib.Path(ettsweep.__file__).parent.joinpath('new.py').unlink()")
    data = json.loads(python(first, program))
    assert data == stored
    assert data["snapshot"] == first.name
    second = Path(python(first, TAKE, tmp_path / "other"))
    assert second.name == first.name
    assert files(second / "ettsweep") == {
        name: content for name, content in files(first / "ettsweep").items() if "__pycache__" not in name
    }
    assert json.loads(python(second, program)) == stored


@pytest.mark.slow
def test_a_kill_before_the_rename_leaves_nothing_under_the_final_name(checkout: Path, results: Path) -> None:
    command = [sys.executable, "-c", SLOW + TAKE, str(results)]
    with subprocess.Popen(command, env=environment(checkout), stdout=subprocess.PIPE, text=True) as taker:
        assert taker.stdout is not None
        try:
            assert taker.stdout.readline() == "copied\n"
            assert snapshots(results) == []
            (temporary,) = names(results / "code")
            assert find_unused(results, ()) == {}  # it may still become one
        finally:
            taker.send_signal(signal.SIGKILL)
    assert snapshots(results) == []
    assert set(find_unused(results, ())) == {*(results / "code").iterdir()}
    assert find_unused(results, ())[results / "code" / temporary] == "left by a kill"
    folder = Path(python(checkout, TAKE, results))
    assert "ettsweep/runs/spec.py" in files(folder)
    assert python(folder, "import ettsweep; print(ettsweep.__file__)") == str(folder / "ettsweep" / "__init__.py")


def test_a_snapshot_that_was_edited_or_purged_is_mended(results: Path) -> None:
    folder = take_snapshot(results)
    before = files(folder)
    (folder / "ettsweep" / "runs" / "spec.py").write_text("edited")
    shutil.rmtree(folder / "ettsweep" / "study")
    (folder / "provenance.json").unlink()
    take_snapshot(results)
    assert files(folder) == before


def test_clean_removes_a_snapshot_once_no_live_submission_names_it(checkout: Path, results: Path) -> None:
    (checkout / "ettsweep" / "new.py").touch()
    folder = results / "code" / Path(python(checkout, TAKE, results)).name
    content = {"runs": [], "slots": [{"name": "cpu-0"}], "workers": [], "submitter": process_identity().to_json()}
    submission = results / "jobs" / "1" / "submission.json"
    submission.parent.mkdir(parents=True)
    submission.write_text(json.dumps({**content, "code": str(folder.resolve())}))
    remove(find_waste(results))
    assert snapshots(results) == [folder]
    shutil.rmtree(submission.parent)
    waste = find_waste(results)
    assert folder in [item.path for item in waste]
    snapshot = take_snapshot(results)  # of other code
    remove(waste)
    assert snapshots(results) == [results / "code" / snapshot.name]
