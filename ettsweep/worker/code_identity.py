"""What tells one version of a user's code or data from another: digests that comments and formatting do not change."""

import ast
import contextlib
import glob
import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from ettsweep.errors import DataMissingError, EttsweepError
from ettsweep.files import cache_folder, dumps, read_json, write_atomic

DIGEST_DIGITS = 12
"""Hex digits of a digest of code or data in a spec."""

SAMPLE_BYTES = 2**20
"""Bytes at the beginning and at the end of a large file of data that its digest is made of."""

SETTLED_S = 2.0
"""A file that was changed so recently may change again without a new time."""


def digest_of(paths: Iterable[Path], folder: Path) -> str:
    """Return a digest of files of code, named relative to a folder; of Python it sees the syntax, without docstrings.

    Raises:
        DataMissingError: a file cannot be read.
    """
    digest = hashlib.sha256()
    for path in sorted(dict.fromkeys(paths)):
        try:
            status = path.stat()
            content = _normalised(path, status.st_size, status.st_mtime_ns, status.st_ino)
        except OSError as error:
            raise DataMissingError(f"code: {path}: cannot be read ({error.strerror})") from None
        digest.update(f"{os.path.relpath(path, folder)}\0{len(content)}\0".encode(errors="surrogateescape"))
        digest.update(content)
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
        DataMissingError: a pattern matches none, or is none.
    """
    paths = list[Path]()
    for pattern in patterns:
        try:
            found = sorted(path for path in folder.glob(pattern) if path.is_file() and _is_code(path, folder))
        except (ValueError, NotImplementedError) as error:
            raise DataMissingError(f"code: {pattern!r} is no pattern: {error}") from None
        if not found:
            raise DataMissingError(f"code: no file in {folder} matches {pattern}")
        paths += found
    return paths


def _is_code(path: Path, folder: Path) -> bool:
    """Whether a file that a pattern matches may be code: not in a hidden folder, one of results, or an environment."""
    parts = Path(os.path.relpath(path, folder)).parts
    if any((part.startswith(".") and part != "..") or part == "__pycache__" for part in parts):
        return False
    inside = [each for each in path.parents if each != folder and folder in each.parents]
    return not any((each / "pyvenv.cfg").exists() or (each / "runs").is_dir() for each in inside)


def with_imports(scripts: Iterable[Path], folders: Sequence[Path]) -> list[Path]:
    """Return scripts with the modules that they import, and those import in turn, as far as these lie beside them.

    Args:
        scripts: files; those that are no Python import nothing.
        folders: where modules lie, in the order in which Python would look, beside the folder of each script.
    """
    found, left = dict[Path, None](), [(path, (path.parent, *folders)) for path in scripts]
    while left:
        path, roots = left.pop()
        if path in found:
            continue
        found[path] = None
        left += [(module, roots) for module in _imported(path, roots)]
    return list(found)


def _imported(path: Path, roots: Sequence[Path]) -> Iterator[Path]:
    """Yield the files of modules in some folders that a file imports, packages above them too."""
    try:
        status = path.stat()
        imports = _import_statements(path, status.st_size, status.st_mtime_ns, status.st_ino)
    except OSError:
        return
    for level, name in imports:
        bases = (path.parents[level - 1],) if 0 < level <= len(path.parents) else roots
        yield from files_of_module(name.split("."), bases)


@cache
def _import_statements(path: Path, size: int, mtime_ns: int, inode: int) -> list[tuple[int, str]]:
    """Return the names that a script imports, each with its level; all but the path is for the cache."""
    if path.suffix != ".py":
        return []
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return []
    found = list[tuple[int, str]]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            stem = f"{node.module}." if node.module else ""
            names = [stem.rstrip("."), *(stem + alias.name for alias in node.names)]
            found += [(node.level, name) for name in names if name]
    return found


def files_of_module(parts: Sequence[str], roots: Sequence[Path]) -> Iterator[Path]:
    """Yield the files that are run to import a module, those of packages above it first, in each of some folders."""
    for root in roots:
        for length in range(1, len(parts) + 1):
            stem = root.joinpath(*parts[:length])
            yield from (each for each in (stem.with_suffix(".py"), stem / "__init__.py") if each.is_file())


# --- data -------------------------------------------------------------------------------------------------------------


def data_digest(names: Iterable[str], folder: Path, *, whole: bool = False) -> str:
    """Return a digest of files of data: their names, sizes and contents, of large ones both ends.

    Args:
        names: paths, or patterns, relative to the folder or not.
        folder: of the grid file.
        whole: whether large files are read whole, too.

    Raises:
        DataMissingError: one is missing.
    """
    digest, at = hashlib.sha256(), "data"
    try:
        for name in names:
            at = f"data: {name}"
            for path in _named(folder, name):
                for file in sorted(_files_of(path)):
                    status = file.stat()
                    stamp = (status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)
                    digest.update(f"{file.relative_to(path.parent)}\0{stamp[0]}\0".encode(errors="surrogateescape"))
                    read = _whole_digest if whole and stamp[0] > 2 * SAMPLE_BYTES else _sample
                    digest.update(read(file, *stamp))
    except OSError as error:
        raise DataMissingError(f"{at}: cannot be read ({error.strerror})") from None
    return digest.hexdigest()[:DIGEST_DIGITS]


def _named(folder: Path, name: str) -> list[Path]:
    path = folder / name
    if path.exists():
        return [path]
    if any("**" in part and part != "**" for part in Path(name).parts):
        raise DataMissingError(f"data: {name!r} is no pattern: ** stands for whole folders")
    # Unlike pathlib's it enters links, as folders of data are in a copy of a project.
    names = glob.iglob(name, root_dir=folder, recursive=True, include_hidden=True)  # noqa: PTH207
    found = [] if Path(name).is_absolute() else sorted(folder / each for each in names)
    if not found:
        raise DataMissingError(f"data: there is no {path}")
    return found


def _files_of(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    else:
        yield from (Path(parent, name) for parent, _, names in os.walk(path, followlinks=True) for name in names)


@cache
def _sample(path: Path, size: int, mtime_ns: int, inode: int, ctime_ns: int) -> bytes:
    """Return a digest of a file's content, of a large one's both ends. All but the path is for the cache."""
    with path.open("rb") as file:
        if size <= 2 * SAMPLE_BYTES:
            return hashlib.file_digest(file, "sha256").digest()
        ends = file.read(SAMPLE_BYTES)
        file.seek(-SAMPLE_BYTES, os.SEEK_END)
        return hashlib.sha256(ends + file.read()).digest()


@cache
def _whole_digest(path: Path, size: int, mtime_ns: int, inode: int, ctime_ns: int) -> bytes:
    """Return a digest of all of a large file's content, which is kept in the user's cache until the file changes."""
    # The time of modification may be set back, by copies in place too; that of the last change of any kind may not.
    stamp = f"{path.resolve()}\0{size}\0{mtime_ns}\0{inode}\0{ctime_ns}"
    key = hashlib.sha256(stamp.encode(errors="surrogateescape")).hexdigest()
    is_settled = time.time() - max(mtime_ns, ctime_ns) / 1e9 > SETTLED_S
    kept = cache_folder() / "data" / f"{key[:32]}.json"
    with contextlib.suppress(OSError, EttsweepError, ValueError):
        if is_settled and isinstance(text := read_json(kept).get("sha256"), str):
            return bytes.fromhex(text)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    if is_settled:
        with contextlib.suppress(OSError, EttsweepError):  # a full disk, or no home: it is read each time
            kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(kept, dumps({"sha256": digest.hex()}))
    return digest
