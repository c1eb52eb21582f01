"""Provenance of the running code: commit, digest, package versions, host.

It does not write into a user's repository, or record environment variables.
"""

import contextlib
import hashlib
import os
import platform
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import ettsweep
from ettsweep.errors import CorruptError, GitError
from ettsweep.files import Json, read_json

PROVENANCE_FILE = "provenance.json"
"""File beside the package in a code snapshot: the provenance of the copied code."""

PACKAGES = (
    *("torch", "numpy", "timm", "torchvision", "scikit-learn", "scipy", "tokenizers", "datasets", "pyarrow", "pillow"),
    *("triton", "nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
)
"""Distributions that can change numbers."""

OTHER_PACKAGES = (
    *("transformers", "accelerate", "lightning", "pytorch-lightning", "deepspeed", "xformers", "flash-attn"),
    *("jax", "jaxlib", "flax", "optax", "tensorflow", "keras", "xgboost", "lightgbm"),
)
"""Further ones of users' own code."""

GIT_PATIENCE_S = 10.0
"""Time limit of a git call: a hanging file system must not keep runs from training."""

KEPT_GIT_VARIABLES = ("GIT_CONFIG", "GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM", "GIT_EXEC_PATH")
"""Variables that configure git; the others (GIT_DIR, GIT_INDEX_FILE, ...) could point it at another repository."""


def provenance() -> Json:
    """Return the provenance of the code that this process has imported.

    Call it early: it reads the current files. In a code snapshot, `git` is as stored with it.

    Returns:
        git: commit as by `git describe`, with -dirty if files were changed; null if no repository tracks the package.
        problem: why git failed; else null.
        code: digest of the package's files; equal code has equal digests wherever it lies.
        snapshot: name of the snapshot, or null.
        packages, python, platform, host: of this process.
    """
    package = package_dir()
    packages = {"ettsweep": ettsweep.__version__}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            packages[name] = version(name)
    data: Json = {
        "git": None,
        "problem": None,
        "code": None,
        "snapshot": None,
        "packages": packages,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
    }
    try:
        files = code_files(package)
        data["code"] = code_digest(files)
        stored = stored_provenance(package)
        if stored is None:
            data["git"] = git_commit(package)
        else:
            data |= {"snapshot": package.parent.name, "git": stored.get("git"), "problem": stored.get("problem")}
    except (OSError, GitError) as error:
        data["problem"] = str(error)
    return data


def belongs_to_environment(program: Path) -> bool:
    """Whether a program is a Python, or lies in a Python environment."""
    prefix = program.parent.parent
    return program.name.startswith("python") or any((prefix / name).exists() for name in ("pyvenv.cfg", "conda-meta"))


@cache
def installed_versions(program: Path) -> dict[str, str]:
    """Return the versions of packages that can change numbers, by name, in the Python environment of a program.

    It imports and starts nothing, so the environment may be of another interpreter.
    """
    folders = list(program.parent.parent.glob("lib*/python*"))
    # A system may have several versions of Python.
    folders = [each for each in folders if each.name == program.resolve().name] or folders
    found = dict[str, str]()
    for path in sorted(path for folder in folders for path in folder.glob("*-packages/*.dist-info")):
        name, _, number = path.name.removesuffix(".dist-info").rpartition("-")
        name = name.replace("_", "-").replace(".", "-").lower()
        if name in (*PACKAGES, *OTHER_PACKAGES):
            found[name] = number
    return found


def launcher_version(program: Path, module: str = "") -> dict[str, str]:
    """Return the version of the installed package of a program or module; empty for none."""
    top = module.partition(".")[0]
    for path in program.parent.parent.glob("lib*/python*/*-packages/*.dist-info"):
        try:
            text = (path / ("RECORD" if top else "entry_points.txt")).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if any(line.partition("/" if top else "=")[0].strip() == (top or program.name) for line in text.splitlines()):
            name, _, number = path.name.removesuffix(".dist-info").rpartition("-")
            return {name.replace("_", "-").replace(".", "-").lower(): number}
    return {}


# --- code -----------------------------------------------------------------------------------------------------------


def package_dir() -> Path:
    """Return the folder that this process imported the package from."""
    return Path(ettsweep.__file__).resolve().parent


def code_files(package: Path) -> dict[str, bytes]:
    """Return the content of each file of the package by its relative path, without caches, hidden files and `_data`."""
    files = {}
    for folder, folders, names in os.walk(package):
        folders[:] = [f for f in folders if not f.startswith(".") and f not in ("__pycache__", "_data")]
        for name in names:
            path = Path(folder, name)
            if not name.startswith((".", "#")) and not name.endswith((".pyc", "~")) and path.is_file():
                files[path.relative_to(package).as_posix()] = path.read_bytes()
    return files


def code_digest(files: Mapping[str, bytes]) -> str:
    """Return 16 hex digits of the SHA-256 over relative paths and contents."""
    total = hashlib.sha256()
    for name, content in sorted(files.items()):
        total.update(os.fsencode(f"{name}\0{len(content)}\0") + content)
    return total.hexdigest()[:16]


def stored_provenance(package: Path) -> Json | None:
    """Return the provenance stored in a code snapshot; None outside of one."""
    try:
        stored = read_json(package.parent / PROVENANCE_FILE)
    except (FileNotFoundError, CorruptError):
        return None
    return stored if stored.get("snapshot") == package.parent.name else None


# --- git ------------------------------------------------------------------------------------------------------------


def git_commit(package: Path) -> str | None:
    """Return the commit of a package, with `-dirty` if tracked files differ; None if no repository tracks it.

    Raises:
        GitError: git failed in the repository of the package.
    """
    if not any((folder / ".git").exists() for folder in package.parents):
        return None
    if not git_names(package, "ls-files", "-z", "--", "__init__.py"):
        return None  # a virtual environment inside another checkout
    commit = os.fsdecode(_git("describe", "--always", "--long", "--abbrev=40", folder=package)).strip()
    # `describe --dirty` would refresh the index on disk.
    changed = _git("status", "--porcelain", "--untracked-files=no", folder=package)
    return f"{commit}-dirty" if changed else commit


def git_names(folder: Path, *arguments: str) -> list[str]:
    """Return the names that git prints with NUL between them, for files below a folder of a repository.

    Raises:
        GitError: git failed.
    """
    return [name for name in os.fsdecode(_git(*arguments, folder=folder)).split("\0") if name]


def _git(*arguments: str, folder: Path) -> bytes:
    """Run git without writes, and return its output."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k.startswith(KEPT_GIT_VARIABLES)}
    env |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_PAGER": "cat", "LC_ALL": "C"}
    command = [
        "git",
        "-c",
        "core.fsmonitor=false",
        *arguments,
    ]  # a monitor would keep running
    # Files, not pipes: a child of git may hold a pipe open long after git has exited.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        except FileNotFoundError:
            raise GitError("git is not installed") from None
        try:
            code = process.wait(GIT_PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise GitError(f"git took more than {GIT_PATIENCE_S:g} s") from None
        if code:
            err.seek(0)
            lines = err.read().decode(errors="replace").strip().splitlines()
            raise GitError(f"git {arguments[0]}: {lines[0] if lines else f'exit code {code}'}")
        out.seek(0)
        return out.read()
