"""What tells one version of a user's code or data from another: digests that comments and formatting do not change."""

import ast
import hashlib
import os
import stat
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from ettsweep.errors import DataMissingError
from ettsweep.ownership import user_name

DIGEST_DIGITS = 12
"""Hex digits of a digest of code or data in a spec."""

SCRIPT_SUFFIXES = (".py", ".sh")

MAX_FILES = 1000
"""Most scripts of a folder that is no git work tree: more are hardly one program."""

SAMPLE_BYTES = 2**20
"""Bytes at the beginning and at the end of a large file of data that its digest is made of."""


def digest_of(paths: Iterable[Path]) -> str:
    """Return a digest of files of code; of Python it sees the syntax alone, without docstrings.

    Raises:
        DataMissingError: a file cannot be read.
    """
    digest = hashlib.sha256()
    for path in dict.fromkeys(paths):
        try:
            status = path.stat()
            digest.update(_normalised(path, status.st_size, status.st_mtime_ns, status.st_ino))
        except OSError as error:
            raise DataMissingError(f"code: {path}: cannot be read ({error.strerror})") from None
    return digest.hexdigest()[:DIGEST_DIGITS]


@cache
def _normalised(path: Path, size: int, mtime_ns: int, inode: int) -> bytes:
    """Return the content of a file, of Python its syntax tree without docstrings; all but the path is for the cache."""
    data = path.read_bytes()
    if path.suffix != ".py":
        return data
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError):
        return data
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = node.body[0] if node.body else None
            value = first.value if isinstance(first, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                node.body[:1] = [] if len(node.body) > 1 or isinstance(node, ast.Module) else [ast.Pass()]
    return ast.unparse(tree).encode()  # as `ast.dump`, but hardly different between versions of Python


def matching_files(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """Return the files of code that patterns name, relative to a folder.

    Raises:
        DataMissingError: a pattern matches none.
    """
    paths = list[Path]()
    for pattern in patterns:
        matches = sorted(path for path in folder.glob(pattern) if path.is_file() and _is_code(path))
        if not matches:
            raise DataMissingError(f"code: no file in {folder} matches {pattern}")
        paths += matches
    return paths


def scripts_below(folder: Path) -> list[Path]:
    """Return the scripts in a folder and below: in a git work tree, those that git tracks.

    Raises:
        DataMissingError: there are too many to be one program.
    """
    tracked = _tracked(folder)
    if tracked is not None:
        return sorted(folder / name for name in tracked if (folder / name).is_file())
    found = list[Path]()
    for parent, folders, names in os.walk(folder):
        if "pyvenv.cfg" in names or ("runs" in folders and {"jobs", "sweeps"} & set(folders)):
            folders[:], names = [], []  # an environment, or results of ettsweep
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        found += [Path(parent, name) for name in sorted(names) if name.endswith(SCRIPT_SUFFIXES)]
        if len(found) > MAX_FILES:
            raise DataMissingError(
                f"code: {folder} has more than {MAX_FILES} scripts, and git tracks none of them: name those that "
                "change the numbers, as `code: ['*.py', 'src/**/*.py']`, or give them a `version`"
            )
    return found


def _tracked(folder: Path) -> list[str] | None:
    """Return the scripts below a folder that git tracks, relative to it; None outside of a work tree or without git."""
    command = ["git", "-C", str(folder), "ls-files", "-z", "--", *(f"*{suffix}" for suffix in SCRIPT_SUFFIXES)]
    try:
        listed = subprocess.run(command, capture_output=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    names = [os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    return names if listed.returncode == 0 and names else None


def _is_code(path: Path) -> bool:
    """Whether a file that a pattern matches may be code: not in a hidden folder, one of results, or an environment."""
    hidden = any(part.startswith(".") or part == "__pycache__" for part in path.parts[1:])
    in_results = any((parent / "runs").is_dir() and (parent / "jobs").is_dir() for parent in path.parents)
    return not (hidden or in_results or any((parent / "pyvenv.cfg").exists() for parent in path.parents))


def not_trusted(path: Path) -> str:
    """Return why code is not executed: it belongs to another user, or all may write to it."""
    status = path.stat()
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to {user_name(status.st_uid)}"
    return "can be written by all" if status.st_mode & stat.S_IWOTH else ""


# --- data -------------------------------------------------------------------------------------------------------------


def data_digest(paths: Iterable[Path]) -> str:
    """Return a digest of files of data: their names, sizes and contents, of large ones both ends.

    Raises:
        DataMissingError: one is missing.
    """
    digest = hashlib.sha256()
    for path in paths:
        try:
            for file in sorted(_files_of(path)):
                status = file.stat()
                digest.update(f"{file.relative_to(path.parent)}\0{status.st_size}\0".encode(errors="surrogateescape"))
                digest.update(_sample(file, status.st_size, status.st_mtime_ns, status.st_ino))
        except OSError as error:
            raise DataMissingError(f"data: {path}: cannot be read ({error.strerror})") from None
    return digest.hexdigest()[:DIGEST_DIGITS]


def _files_of(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        yield from (Path(parent, name) for parent, _, names in os.walk(path, followlinks=True) for name in names)
    else:
        raise DataMissingError(f"data: there is no {path}")


@cache
def _sample(path: Path, size: int, mtime_ns: int, inode: int) -> bytes:
    """Return a digest of a file's content, of a large one's both ends. All but the path is for the cache."""
    with path.open("rb") as file:
        if size <= 2 * SAMPLE_BYTES:
            return hashlib.file_digest(file, "sha256").digest()
        ends = file.read(SAMPLE_BYTES)
        file.seek(-SAMPLE_BYTES, os.SEEK_END)
        return hashlib.sha256(ends + file.read()).digest()
