"""Real repositories with a copy of the package, imported by a process of its own."""

import json
import os
import shutil
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import ettsweep
from ettsweep.provenance import code_digest, launcher_version, provenance

PACKAGE = Path(ettsweep.__file__).parent
CODE = "import json; from ettsweep.provenance import provenance; print(json.dumps(provenance()))"


def git(folder: Path, *arguments: object) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    command = ["git", *identity, *map(str, arguments)]
    return subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True, text=True).stdout


def copy_package(folder: Path) -> Path:
    """Copy the package, without the caches that an import would leave, and return the copy."""
    return Path(shutil.copytree(PACKAGE, folder / "ettsweep", ignore=shutil.ignore_patterns("__pycache__")))


def recorded(folder: Path, **env: str) -> dict[str, Any]:
    """Return the provenance that a process records which imports the package from a folder."""
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", **env}
    completed = subprocess.run(
        [sys.executable, "-c", CODE], cwd="/", env=env, check=True, capture_output=True, text=True
    )
    data: dict[str, Any] = json.loads(completed.stdout)
    return data


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a repository with the package in a folder `code` of it, committed."""
    folder = tmp_path / "checkout"
    copy_package(folder / "code")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder / "code"


def everything(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_checkout_is_its_commit_and_what_differs_from_it(checkout: Path, tmp_path: Path) -> None:
    clean = recorded(checkout, MY_TOKEN="s3cr3t-t0ken")
    commit = git(checkout, "rev-parse", "HEAD").strip()
    assert clean["git"] == commit
    assert clean["problem"] is clean["snapshot"] is None
    assert clean["packages"]["ettsweep"] == ettsweep.__version__
    assert clean["packages"]["numpy"] == version("numpy")
    assert (clean["host"], clean["python"]) == (os.uname().nodename, sys.version.split()[0])
    assert "s3cr3t" not in json.dumps(clean), "nothing of the environment"

    # Nothing is written into the repository, nor read from another.
    git(checkout, "tag", "-a", "v1", "-m", "first")
    for path in (checkout / "ettsweep").glob("*.py"):
        os.utime(path, (0, 0))  # the index would be refreshed; touched is not changed
    before = everything(checkout.parent)
    other = {"GIT_DIR": str(tmp_path / "elsewhere"), "GIT_INDEX_FILE": str(tmp_path / "index")}
    assert recorded(checkout, **other, GIT_TRACE=str(tmp_path / "trace"))["git"] == f"v1-0-g{commit}"
    assert everything(checkout.parent) == before
    assert not (tmp_path / "trace").exists()

    (checkout / "ettsweep" / "new.py").write_text("NEW = 1\n")
    added = recorded(checkout)
    assert (added["git"], added["code"] == clean["code"]) == (f"v1-0-g{commit}", False)
    (checkout / "ettsweep" / "seeding.py").write_text("# changed\n")
    assert recorded(checkout)["git"] == f"v1-0-g{commit}-dirty"

    (tmp_path / "empty").mkdir()
    data = recorded(checkout, PATH=str(tmp_path / "empty"))
    assert (data["git"], data["problem"]) == (None, "git is not installed")
    data = recorded(checkout, PATH=fake_git(tmp_path / "bin", "echo fatal: dubious ownership >&2; exit 128"))
    assert (data["git"], data["problem"]) == (None, "git ls-files: fatal: dubious ownership")


def test_a_package_installed_inside_a_checkout_of_something_else_has_no_commit(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("mine = 1\n")
    (tmp_path / ".gitignore").write_text(".venv\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    copy_package(tmp_path / ".venv" / "site-packages")
    data = recorded(tmp_path / ".venv" / "site-packages")
    assert data["git"] is data["problem"] is None


def fake_git(folder: Path, script: str) -> str:
    """Return a PATH on which git is a shell script."""
    folder.mkdir()
    (folder / "git").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "git").chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_git_that_hangs_is_killed_with_its_children(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fake_git(tmp_path / "bin", f"sleep 600 & echo $! > {tmp_path / 'pid'}; wait")
    monkeypatch.setenv("PATH", path)
    monkeypatch.setattr("ettsweep.provenance.package_dir", lambda: checkout / "ettsweep")
    for patience_s in (1.0, 10.0, 60.0):  # until it has got so far as to hang
        monkeypatch.setattr("ettsweep.provenance.GIT_PATIENCE_S", patience_s)
        data = provenance()
        assert (data["git"], data["problem"]) == (None, f"git took more than {patience_s:g} s")
        if pid := (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip():
            break
    child = Path(f"/proc/{pid}/stat")
    for _ in range(1000):
        if not child.exists() or child.read_text().rsplit(")", 1)[1].split()[0] in "ZX":
            break
        time.sleep(0.01)
    else:
        pytest.fail("what git has started is left")


def test_the_digest_is_of_names_and_contents() -> None:
    digest = code_digest({"a.py": b"1", "b.py": b"b.py"})
    assert digest == code_digest({"b.py": b"b.py", "a.py": b"1"})
    for other in ({"a.py": b"1"}, {"c.py": b"1", "b.py": b"b.py"}, {"a.py": b"1b.py", "b.py": b""}):
        assert code_digest(other) != digest


@pytest.mark.parametrize(
    ("program", "module", "installed"), [("llama-train", "", "1.2"), ("python", "axolotl.cli", "3.4")]
)
def test_the_version_of_an_installed_launcher_is_that_of_its_package(
    tmp_path: Path, program: str, module: str, installed: str
) -> None:
    packages = tmp_path / "lib/python3.12/site-packages"
    for name, file, text in (
        ("Llama_Factory-1.2", "entry_points.txt", "[console_scripts]\nllama-train-2 = a:b\nllama-train = a:c\n"),
        ("other-9", "entry_points.txt", "[console_scripts]\nllama = a:b\n"),
        ("axolotl-3.4", "RECORD", "axolotl/cli/__init__.py,sha256=,0\n"),
    ):
        (packages / f"{name}.dist-info").mkdir(parents=True)
        (packages / f"{name}.dist-info" / file).write_text(text)
    names = {"1.2": "llama-factory", "3.4": "axolotl"}
    assert launcher_version(tmp_path / "bin" / program, module) == {names[installed]: installed}
    assert launcher_version(tmp_path / "bin" / "train.py") == {}
