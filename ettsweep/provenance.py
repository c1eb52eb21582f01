"""Where the code of this process comes from: commit, uncommitted changes, package versions, host.

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
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import ettsweep
from ettsweep.errors import CorruptError, GitError
from ettsweep.files import Json, read_json

PROVENANCE_FILE = "provenance.json"
"""Beside the package of a snapshot: the provenance of the code that it was copied from."""

PACKAGES = (
    *("torch", "numpy", "timm", "torchvision", "scikit-learn", "scipy", "tokenizers", "datasets", "pyarrow", "pillow"),
    *("triton", "nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
)
"""Distributions that can change numbers."""

MAX_DIFF_BYTES = 2**20
GIT_PATIENCE_S = 10.0
"""Seconds that all calls of git may take together: a file system that hangs must not keep runs from training."""

KEPT_GIT_VARIABLES = ("GIT_CONFIG", "GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM", "GIT_EXEC_PATH")
"""How git is set up; all others (GIT_DIR, GIT_INDEX_FILE, ...) would point it at another repository."""


def provenance() -> Json:
    """Return the provenance of the code that this process has imported.

    Call it early: it looks at the files as they are now. In a snapshot, git is what was stored when it was made.

    Returns:
        git: commit, dirty, diff (of the package, untracked files included), diff_truncated (parts were left out:
            binary ones, or what is beyond the limit); null where the package is tracked by no git repository.
        problem: why git is null where it should not be; else null.
        code: digest of the package's files, alike for equal code wherever it lies.
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
        data["code"] = digest(files)
        stored = stored_provenance(package)
        if stored is None:
            data["git"] = git_state(package, files)
        else:
            data |= {"snapshot": package.parent.name, "git": stored.get("git"), "problem": stored.get("problem")}
    except (OSError, GitError) as error:
        data["problem"] = str(error)
    return data


def summary(data: Json) -> Json:
    """Return a provenance with the length and digest of its diff in place of the text."""
    git = data.get("git")
    if not isinstance(git, dict):
        return data
    diff = str(git.get("diff") or "").encode()
    rest = {key: value for key, value in git.items() if key != "diff"}
    return {**data, "git": {**rest, "diff_bytes": len(diff), "diff_sha256": hashlib.sha256(diff).hexdigest()}}


# --- code -----------------------------------------------------------------------------------------------------------


def package_dir() -> Path:
    """Return the folder of the package that this process has imported."""
    return Path(ettsweep.__file__).resolve().parent


def code_files(package: Path) -> dict[str, bytes]:
    """Return the content of each file of the package by its relative path; no caches, no hidden files, no `_data`."""
    files = {}
    for folder, folders, names in os.walk(package):
        folders[:] = [f for f in folders if not f.startswith(".") and f not in ("__pycache__", "_data")]
        for name in names:
            path = Path(folder, name)
            if not name.startswith((".", "#")) and not name.endswith((".pyc", "~")) and path.is_file():
                files[path.relative_to(package).as_posix()] = path.read_bytes()
    return files


def digest(files: Mapping[str, bytes]) -> str:
    """Return 16 hex digits of the SHA-256 over relative paths and contents."""
    total = hashlib.sha256()
    for name, content in sorted(files.items()):
        total.update(os.fsencode(f"{name}\0{len(content)}\0") + content)
    return total.hexdigest()[:16]


def stored_provenance(package: Path) -> Json | None:
    """Return what was stored beside the package when it was copied into a snapshot; None for any other package."""
    try:
        stored = read_json(package.parent / PROVENANCE_FILE)
    except (FileNotFoundError, CorruptError):
        return None
    return stored if stored.get("snapshot") == package.parent.name else None


# --- git ------------------------------------------------------------------------------------------------------------


def git_state(package: Path, files: Mapping[str, bytes]) -> Json | None:
    """Return commit and changes of a package with these `code_files`; None where no repository tracks it.

    Raises:
        GitError: it lies in a repository of which git says nothing.
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
    kept, dirty, truncated = _readable(text)
    return {"commit": commit, "dirty": dirty, "diff": kept, "diff_truncated": truncated}


def _git(arguments: tuple[str, ...], folder: Path, codes: tuple[int, ...], patience_s: float) -> bytes:
    """Run git where it changes nothing, and return its output; `codes`: the exit codes that are no failure."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k.startswith(KEPT_GIT_VARIABLES)}
    env |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_PAGER": "cat", "LC_ALL": "C"}
    # `git diff` would write the index after having looked at it; a monitor would be started, and stay.
    off = ("diff.autoRefreshIndex", "core.fsmonitor", "diff.relative", "diff.suppressBlankEmpty")
    options = [word for name in off for word in ("-c", f"{name}=false")]
    # Files and not pipes: what git has started may hold those open when git itself is long gone.
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
            words = err.read().decode(errors="replace").strip().splitlines()
            raise GitError(f"git {arguments[0]}: {words[0] if words else f'exit code {code}'}")
        out.seek(0)
        return out.read()


def _readable(text: bytes) -> tuple[str, bool, bool]:
    """Return the changes that are text and fit, whether there are any, and whether some were left out.

    Whole files are kept or left out, so that what is kept can be applied.
    """
    kept, size, dirty, truncated = [], 0, False, False
    head = b"diff --git "
    for section in (b"\n" + text).split(b"\n" + head)[1:]:
        dirty = True
        whole = head + section.removesuffix(b"\n") + b"\n"
        try:
            words = whole.decode()
        except UnicodeDecodeError:
            words = ""
        if not words or b"\nBinary files " in whole or size + len(whole) > MAX_DIFF_BYTES:
            truncated = True
            continue
        kept.append(words)
        size += len(whole)
    return "".join(kept), dirty, truncated
