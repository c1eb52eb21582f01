"""Provenance of the running code: commit, uncommitted changes, package versions, host.

Nothing here writes into a user's repository, and no environment variable is recorded.
"""

import contextlib
import hashlib
import os
import platform
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import ettsweep
from ettsweep.errors import CorruptError, GitError
from ettsweep.files import Json, read_json

PROVENANCE_FILE = "provenance.json"
"""Beside the package in a code snapshot: the provenance of the code that was copied."""

PACKAGES = (
    *("torch", "numpy", "timm", "torchvision", "scikit-learn", "scipy", "tokenizers", "datasets", "pyarrow", "pillow"),
    *("triton", "nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
)
"""Distributions that can change numbers."""

OTHER_PACKAGES = (
    *("transformers", "accelerate", "lightning", "pytorch-lightning", "deepspeed", "xformers", "flash-attn"),
    *("jax", "jaxlib", "flax", "optax", "tensorflow", "keras", "xgboost", "lightgbm"),
)
"""Further ones that users' own code may train with."""

MAX_DIFF_BYTES = 2**20
GIT_PATIENCE_S = 10.0
"""Time limit of all git calls together: a hanging file system must not keep runs from training."""

KEPT_GIT_VARIABLES = ("GIT_CONFIG", "GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM", "GIT_EXEC_PATH")
"""Variables that configure git; the others (GIT_DIR, GIT_INDEX_FILE, ...) could point it at another repository."""


def provenance() -> Json:
    """Return the provenance of the code that this process has imported.

    Call it early: it reads the files as they are now. In a code snapshot, git is what was stored with it.

    Returns:
        git: commit, dirty, diff (of the package, with untracked files), diff_truncated (binary files or those beyond
            the size limit are left out); null if no git repository tracks the package.
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
            data["git"] = git_state(package, files)
        else:
            data |= {"snapshot": package.parent.name, "git": stored.get("git"), "problem": stored.get("problem")}
    except (OSError, GitError) as error:
        data["problem"] = str(error)
    return data


def belongs_to_environment(program: Path) -> bool:
    """Whether a program is a Python, or one that lies in a Python environment of its own."""
    prefix = program.parent.parent
    return program.name.startswith("python") or any((prefix / name).exists() for name in ("pyvenv.cfg", "conda-meta"))


@cache
def installed_versions(program: Path) -> dict[str, str]:
    """Return the versions of packages that can change numbers, by name, in the Python environment of a program.

    Nothing of it is imported or started, so that it may be that of another interpreter.
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
    """Return the version of the installed package that has a program, or a module that Python runs; empty for none."""
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


def summary(data: Json) -> Json:
    """Return a provenance with the size and digest of its diff in place of the text."""
    git = data.get("git")
    if not isinstance(git, dict):
        return data
    diff = str(git.get("diff") or "").encode()
    without_diff = {key: value for key, value in git.items() if key != "diff"}
    return {**data, "git": {**without_diff, "diff_bytes": len(diff), "diff_sha256": hashlib.sha256(diff).hexdigest()}}


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
    """Return the provenance stored in a code snapshot, or None if the package is none."""
    try:
        stored = read_json(package.parent / PROVENANCE_FILE)
    except (FileNotFoundError, CorruptError):
        return None
    return stored if stored.get("snapshot") == package.parent.name else None


# --- git ------------------------------------------------------------------------------------------------------------


def git_state(package: Path, files: Mapping[str, bytes]) -> Json | None:
    """Return commit and changes of a package with these `code_files`, or None if no repository tracks it.

    Raises:
        GitError: git failed in the repository that the package lies in.
    """
    if not any((folder / ".git").exists() for folder in package.parents):
        return None
    until_s = time.monotonic() + GIT_PATIENCE_S

    def git(*arguments: str, at: Path = package, codes: tuple[int, ...] = (0,)) -> bytes:
        return _git(arguments, at, codes, until_s - time.monotonic())

    tracked = set(os.fsdecode(git("ls-files", "-z", "--", ".")).split("\0"))
    if "__init__.py" not in tracked:
        return None  # a virtual environment inside a checkout of something else
    commit = git("rev-parse", "HEAD").decode().strip()
    top = (package / os.fsdecode(git("rev-parse", "--show-cdup")).strip()).resolve()
    plain = ("--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--src-prefix=a/", "--dst-prefix=b/")
    text = git("diff", *plain, "HEAD", "--", ".")
    for name in sorted(set(files) - tracked):
        path = str((package / name).relative_to(top))
        text += git("diff", *plain, "--no-index", "--", os.devnull, path, at=top, codes=(0, 1))
    diff, dirty, truncated = _readable(text)
    return {"commit": commit, "dirty": dirty, "diff": diff, "diff_truncated": truncated}


def git_names(folder: Path, *arguments: str) -> list[str]:
    """Return the names that git prints with NUL between them, for files below a folder of a repository.

    Raises:
        GitError: git failed.
    """
    return [name for name in os.fsdecode(_git(arguments, folder, (0,), GIT_PATIENCE_S)).split("\0") if name]


def _git(arguments: tuple[str, ...], folder: Path, codes: tuple[int, ...], patience_s: float) -> bytes:
    """Run git so that it writes nothing, and return its output; `codes` are the exit codes of success."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k.startswith(KEPT_GIT_VARIABLES)}
    env |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_PAGER": "cat", "LC_ALL": "C"}
    # `git diff` would refresh the index on disk; a file system monitor would be started, and stay.
    off = ("diff.autoRefreshIndex", "core.fsmonitor", "diff.relative", "diff.suppressBlankEmpty")
    options = [argument for name in off for argument in ("-c", f"{name}=false")]
    # Files, not pipes: a child of git may hold a pipe open long after git has exited.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                ["git", *options, *arguments],
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
            code = process.wait(max(patience_s, 0.001))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise GitError(f"git took more than {GIT_PATIENCE_S:g} s") from None
        if code not in codes:
            err.seek(0)
            lines = err.read().decode(errors="replace").strip().splitlines()
            raise GitError(f"git {arguments[0]}: {lines[0] if lines else f'exit code {code}'}")
        out.seek(0)
        return out.read()


def _readable(text: bytes) -> tuple[str, bool, bool]:
    """Return the diff as text within the size limit, whether there are changes, and whether files were left out.

    Files are kept whole or left out, so that the diff can be applied.
    """
    texts, size, dirty, truncated = [], 0, False, False
    head = b"diff --git "
    for section in (b"\n" + text).split(b"\n" + head)[1:]:
        dirty = True
        section_bytes = head + section.removesuffix(b"\n") + b"\n"
        try:
            section_text = section_bytes.decode()
        except UnicodeDecodeError:
            section_text = ""
        if not section_text or b"\nBinary files " in section_bytes or size + len(section_bytes) > MAX_DIFF_BYTES:
            truncated = True
            continue
        texts.append(section_text)
        size += len(section_bytes)
    return "".join(texts), dirty, truncated
