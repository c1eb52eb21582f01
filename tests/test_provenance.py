"""Real repositories with a small package, which stands for the one that this process has imported."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from support.commandline import wait_for
from support.own_code import processes_with

import ettsweep
from ettsweep.provenance import code_digest, launcher_version, provenance


def git(folder: Path, *arguments: object) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    command = ["git", *identity, *map(str, arguments)]
    return subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True, text=True).stdout


def commit_all(folder: Path) -> None:
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")


def package_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have this process, as far as provenance knows, have imported the package from a folder; return the package."""
    package = folder / "ettsweep"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "seeding.py").write_text("SEED = 0\n")
    monkeypatch.setattr("ettsweep.provenance.package_dir", lambda: package)
    return package


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the package in a folder `code` of a repository, committed."""
    package = package_in(tmp_path / "checkout" / "code", monkeypatch)
    commit_all(tmp_path / "checkout")
    return package


def everything(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def recorded(**env: str) -> dict[str, Any]:
    """Return the provenance that is recorded in an environment with more variables."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        return provenance()


def test_a_checkout_is_its_commit_and_what_differs_from_it(package: Path) -> None:
    clean = recorded(MY_TOKEN="s3cr3t-t0ken")
    commit = git(package, "rev-parse", "HEAD").strip()
    assert clean["git"] == commit
    assert clean["problem"] is clean["snapshot"] is None
    assert clean["packages"]["ettsweep"] == ettsweep.__version__
    assert clean["packages"]["numpy"] == version("numpy")
    assert (clean["host"], clean["python"]) == (os.uname().nodename, sys.version.split()[0])
    assert "s3cr3t" not in json.dumps(clean), "nothing of the environment"
    git(package, "tag", "-a", "v1", "-m", "first")
    (package / "new.py").write_text("NEW = 1\n")
    added = provenance()
    assert (added["git"], added["code"] == clean["code"]) == (f"v1-0-g{commit}", False)
    (package / "seeding.py").write_text("# changed\n")
    assert provenance()["git"] == f"v1-0-g{commit}-dirty"


def test_nothing_is_written_into_the_repository_nor_read_from_another(package: Path, tmp_path: Path) -> None:
    os.utime(package / "seeding.py", (0, 0))  # the index would be refreshed; touched is not changed
    before = everything(tmp_path / "checkout")
    other = {"GIT_DIR": str(tmp_path / "elsewhere"), "GIT_INDEX_FILE": str(tmp_path / "index")}
    assert recorded(**other, GIT_TRACE=str(tmp_path / "trace"))["git"] == git(package, "rev-parse", "HEAD").strip()
    assert everything(tmp_path / "checkout") == before
    assert not (tmp_path / "trace").exists()


def test_a_package_installed_in_another_checkout_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("mine = 1\n")
    (tmp_path / ".gitignore").write_text(".venv\n")
    commit_all(tmp_path)
    package_in(tmp_path / ".venv" / "site-packages", monkeypatch)
    data = provenance()
    assert data["git"] is data["problem"] is None


# --- a git that fails -------------------------------------------------------------------------------------------------


def fake_git(folder: Path, script: str) -> str:
    """Return a PATH on which git is a shell script."""
    folder.mkdir()
    (folder / "git").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "git").chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


@pytest.mark.usefixtures("package")
def test_why_git_failed_is_recorded(tmp_path: Path) -> None:
    refusing = fake_git(tmp_path / "bin", "echo fatal: dubious ownership >&2; exit 128")
    for path, problem in (("/nowhere", "git is not installed"), (refusing, "git ls-files: fatal: dubious ownership")):
        data = recorded(PATH=path)
        assert (data["git"], data["problem"]) == (None, problem)


@pytest.mark.usefixtures("package")
def test_git_that_hangs_is_killed_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ettsweep.provenance.GIT_PATIENCE_S", 0.5)
    data = recorded(PATH=fake_git(tmp_path / "bin", f"HANGS_IN={tmp_path} sleep 600 & wait"))
    assert (data["git"], data["problem"]) == (None, "git took more than 0.5 s")
    wait_for(lambda: not processes_with(f"HANGS_IN={tmp_path}"), "the end of what git has started")


# --- names and versions -----------------------------------------------------------------------------------------------


def test_the_digest_is_of_names_and_contents() -> None:
    digest = code_digest({"a.py": b"1", "b.py": b"b.py"})
    assert digest == code_digest({"b.py": b"b.py", "a.py": b"1"})
    for other in ({"a.py": b"1"}, {"c.py": b"1", "b.py": b"b.py"}, {"a.py": b"1b.py", "b.py": b""}):
        assert code_digest(other) != digest


def test_the_version_of_an_installed_launcher_is_that_of_its_package(tmp_path: Path) -> None:
    packages = tmp_path / "lib/python3.12/site-packages"
    for name, file, text in (
        ("Llama_Factory-1.2", "entry_points.txt", "[console_scripts]\nllama-train-2 = a:b\nllama-train = a:c\n"),
        ("other-9", "entry_points.txt", "[console_scripts]\nllama = a:b\n"),
        ("axolotl-3.4", "RECORD", "axolotl/cli/__init__.py,sha256=,0\n"),
    ):
        (packages / f"{name}.dist-info").mkdir(parents=True)
        (packages / f"{name}.dist-info" / file).write_text(text)
    assert launcher_version(tmp_path / "bin" / "llama-train") == {"llama-factory": "1.2"}
    assert launcher_version(tmp_path / "bin" / "python", "axolotl.cli") == {"axolotl": "3.4"}
    assert launcher_version(tmp_path / "bin" / "train.py") == {}
