"""Snapshots of the package that this process has imported, or of a small one in its place; real imports and kills."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import ettsweep
from ettsweep.launch import code_snapshot
from ettsweep.launch.cleanup import find_waste, remove
from ettsweep.launch.code_snapshot import find_unused, release_snapshots, snapshots, take_snapshot
from ettsweep.processes import process_identity
from ettsweep.provenance import code_files, provenance
from ettsweep.shipped_files import shipped

PACKAGE = Path(ettsweep.__file__).parent


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Return a function that has this process, as far as snapshots know, have imported the package from a folder."""

    def use(package: Path) -> None:
        for module in ("provenance", "launch.code_snapshot"):
            monkeypatch.setattr(f"ettsweep.{module}.package_dir", lambda: package)

    return use


@pytest.fixture
def small(tmp_path: Path, imported: Callable[[Path], None]) -> Path:
    """Return a package of two files, which stands for the one that this process has imported."""
    package = tmp_path / "checkout" / "ettsweep"
    (package / "runs").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "runs" / "spec.py").write_text("SPEC = 1\n")
    imported(package)
    return package


def test_a_snapshot_is_the_code_without_caches(results: Path) -> None:
    folder = take_snapshot(results)
    assert folder == results.resolve() / "code" / folder.name
    assert len(folder.name) == 16
    copied = files(folder / "ettsweep")
    grids = {name: content for name, content in copied.items() if name.startswith("_data/")}
    assert copied == code_files(PACKAGE) | grids
    assert "report/page.py" in copied
    assert not [name for name in copied if "__pycache__" in name]
    # Profiles may hold secrets.
    assert set(grids) == {f"_data/grids/{path.name}" for path in shipped("grids").glob("*.yaml")}
    assert snapshots(results) == [folder]


def test_what_is_imported_is_the_copy_whatever_becomes_of_the_original(
    tmp_path: Path, results: Path, imported: Callable[[Path], None]
) -> None:
    checkout = tmp_path / "checkout"
    shutil.copytree(PACKAGE, checkout / "ettsweep", ignore=shutil.ignore_patterns("__pycache__", "_data"))
    seeding = checkout / "ettsweep" / "seeding.py"
    seeding.write_text(seeding.read_text() + "\nMARK = 'before'\n")
    imported(checkout / "ettsweep")
    folder = take_snapshot(results)
    seeding.write_text(seeding.read_text().replace("before", "after"))
    program = (
        "from ettsweep import seeding; print(seeding.MARK, seeding.__file__)\n"
        "from ettsweep.study.grid_file import find_grid; print(find_grid('vit-digits'))"
    )
    environment = os.environ | {"PYTHONPATH": f"{folder}:{checkout}", "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, cwd="/", env=environment, check=True, capture_output=True, text=True).stdout
    package = folder / "ettsweep"
    assert said.splitlines() == [
        f"before {package / 'seeding.py'}",
        str(package / "_data" / "grids" / "vit-digits.yaml"),
    ]


def test_a_snapshot_of_a_snapshot_is_the_same_with_the_same_provenance(
    small: Path, tmp_path: Path, results: Path, imported: Callable[[Path], None]
) -> None:
    for command in ("init --quiet", "add .", "-c user.name=A -c user.email=a@example.org commit --quiet -m first"):
        subprocess.run(["git", *command.split()], cwd=small.parent, check=True)
    first = take_snapshot(results)
    stored = json.loads((first / "provenance.json").read_text())
    assert len(stored["git"]) == 40
    assert stored["snapshot"] == first.name
    imported(first / "ettsweep")
    assert provenance() == stored
    second = take_snapshot(tmp_path / "other")
    assert second.name == first.name
    assert files(second) == files(first)


def test_a_kill_before_the_rename_leaves_nothing(small: Path, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(path: Path) -> None:
        if path.name == "provenance.json":
            raise KeyboardInterrupt  # as a kill, it cleans nothing up

    with monkeypatch.context() as patched:
        patched.setattr(code_snapshot, "sync", kill)
        with pytest.raises(KeyboardInterrupt):
            take_snapshot(results)
    assert snapshots(results) == []
    (temporary,) = (results / "code").glob(".*.tmp")
    assert find_unused(results, ()) == {}, "this process lives: it may still become one"
    release_snapshots(results)
    assert find_unused(results, ()) == {temporary: "left by a kill"}
    folder = take_snapshot(results)
    assert snapshots(results) == [folder]


def test_a_snapshot_that_was_edited_or_purged_is_mended(small: Path, results: Path) -> None:
    folder = take_snapshot(results)
    before = files(folder)
    (folder / "ettsweep" / "runs" / "spec.py").write_text("edited")
    (folder / "ettsweep" / "__init__.py").unlink()
    (folder / "provenance.json").unlink()
    take_snapshot(results)
    assert files(folder) == before


def test_clean_removes_a_snapshot_once_no_live_submission_names_it(small: Path, results: Path) -> None:
    folder = take_snapshot(results)
    remove(find_waste(results))
    assert snapshots(results) == [folder], "this process may be about to submit"
    content = {"runs": [], "slots": [{"name": "cpu-0"}], "workers": [], "submitter": process_identity().to_json()}
    submission = results / "jobs" / "1" / "submission.json"
    submission.parent.mkdir(parents=True)
    submission.write_text(json.dumps({**content, "code": str(folder.resolve())}))
    release_snapshots(results)
    remove(find_waste(results))
    assert snapshots(results) == [folder]
    shutil.rmtree(submission.parent)
    waste = find_waste(results)
    assert folder in [item.path for item in waste]
    (small / "new.py").touch()
    other = take_snapshot(results)
    remove(waste)
    assert snapshots(results) == [other]
