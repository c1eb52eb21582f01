"""The code of a run: files of the user's project, whose copy runs train in, and whose digest is in their ids.

The code is text files of up to 1 MB that git does not ignore (without git, all), and files that the grid file names, of
any kind and size. The digest is of contents and of paths relative to the grid file's folder: clones share it.
"""

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from ettsweep.console import format_count
from ettsweep.errors import DataMissingError, GitError, InputError
from ettsweep.file_digests import DIGEST_DIGITS, file_digest
from ettsweep.files import cache_folder, lock_dir
from ettsweep.provenance import git_names
from ettsweep.schema import ListOfOne, StrictModel

MAX_TEXT_BYTES = 2**20
"""Larger files are code only if they are named."""

MAX_FILES = 20_000
"""Most files of a project; more are a mistake, such as a home folder without git."""

CACHES = frozenset({"__pycache__", "node_modules", "site-packages"})

DOCS_AND_TESTS = frozenset({"docs", "doc", "tests", "test"})
"""Folders without code."""

OUTPUTS = frozenset({"wandb", "mlruns", "lightning_logs", "outputs", "multirun", "runs", "logs", "checkpoints"})
"""Folders of outputs, unless git tracks their files or they are Python packages."""

LOGS = (".ipynb", ".log", ".out", ".err")
"""Ends of names of notebooks, and of output of shells and SLURM, unless git tracks them."""

_TEST_OR_DOC = re.compile(r"test_.*\.py|.*_test\.py|conftest\.py|.*\.(md|rst)|(README|LICENSE|CHANGELOG)(\.txt)?")
_GRID_FILE = re.compile(r"^centre(_\w+)?:", re.MULTILINE)
_TOP_KEY = re.compile(r"^(\w+):", re.MULTILINE)
_TRAINS = re.compile(r"\b(command|function|trainable):")
_PROFILE = re.compile(r"^kind:\s*[\"']?(local|slurm)\b", re.MULTILINE)
_RUN_ID = re.compile(r"[0-9a-f]{12}")

SWEEP_HEADER = "# What this sweep was asked for, in order; ettsweep appends to it.\n"
"""First line of the file of a sweep."""


def _checked(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        if not pattern.strip("/") or Path(pattern).is_absolute():
            raise ValueError(f"patterns of files beside the grid file are expected, got {pattern!r}")
    normal = (os.path.normpath(pattern) for pattern in patterns)
    return tuple("**" if pattern == "." else pattern for pattern in normal)


Patterns = Annotated[tuple[str, ...], Field(strict=False), ListOfOne]
CodePatterns = Annotated[Patterns, AfterValidator(_checked)]


class CodeRule(StrictModel):
    """The files that are the code; `code:` in a grid file, in which a list means `add`.

    Attributes:
        add: patterns of further files, of any kind and size.
        only: patterns of all code files; empty for the usual ones.
        exclude: patterns of files and folders that are not code.
    """

    add: CodePatterns = ()
    only: CodePatterns = ()
    exclude: CodePatterns = ()

    def names(self, name: str) -> bool:
        """Whether a file is named."""
        return _any_matches((*self.add, *self.only), name)

    def allows(self, name: str) -> bool:
        """Whether a file may be code, named or not."""
        return not _any_matches(self.exclude, name) and (not self.only or _any_matches(self.only, name))


def as_code_rule(value: object) -> object:
    """Return a rule as a mapping: a list of patterns adds files."""
    return {"add": value} if isinstance(value, str | list) else value


def _any_matches(patterns: Iterable[str], name: str) -> bool:
    """Whether a pattern matches a file or a folder above it; without a slash, at any depth."""
    parts = name.split("/")
    for pattern in patterns:
        wanted = pattern.split("/")
        if len(wanted) == 1 and any(fnmatchcase(part, pattern) for part in parts):
            return True
        if any(_match_parts(wanted, parts[:count]) for count in range(1, len(parts) + 1)):
            return True
    return False


def _match_parts(wanted: list[str], parts: list[str]) -> bool:
    if not wanted:
        return not parts
    if wanted[0] == "**":
        return any(_match_parts(wanted[1:], parts[count:]) for count in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], wanted[0]) and _match_parts(wanted[1:], parts[1:])


@dataclass(frozen=True)
class ProjectCode:
    """The code of a project.

    Attributes:
        root: the folder of the project.
        folder: of the grid file, in it.
        files: digests of contents by paths relative to `folder`.
        named: those that are code only because they are named.
    """

    root: Path
    folder: Path
    files: Mapping[str, str]
    named: frozenset[str] = frozenset()

    @property
    def digest(self) -> str:
        return digest_of_files(self.files)

    def differences(self, before: Mapping[str, str], rule_before: CodeRule, rule: CodeRule) -> list[str]:
        """Return how the code differs from earlier code, a phrase a file, for files that both rules allow."""
        phrases = []
        for name in sorted({*before, *self.files}):
            then, now = before.get(name), self.files.get(name)
            if then == now or not (rule_before.allows(name) and rule.allows(name)):
                continue
            if then is None:
                if not (name in self.named and not rule_before.names(name)):  # else it was named since
                    phrases.append(f"{name} is new")
            elif now is not None:
                phrases.append(f"{name} was edited")
            elif (there := _digest_or_none(self.folder / name)) != then:  # else git ignores it since, say
                phrases.append(f"{name} was edited" if there else f"{name} is gone")
        return phrases


def digest_of_files(files: Mapping[str, str]) -> str:
    """Return the digest of code, given digests of its files by name."""
    text = "".join(f"{name}\0{digest}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:DIGEST_DIGITS]


NO_CODE = digest_of_files({})
"""Digest of code without files, as of an installed program."""


def find_code(
    folder: Path,
    rule: CodeRule,
    *,
    named: Iterable[Path] = (),
    data: Iterable[Path] = (),
    folders: Iterable[Path] = (),
) -> ProjectCode:
    """Return the code of the project of a grid file.

    Args:
        folder: of the grid file.
        rule: the files that are the code.
        named: files that the grid file names elsewhere.
        data: files and folders of data, which are not code.
        folders: further folders with code.

    Raises:
        DataMissingError: a file cannot be read, or a pattern matches none.
        InputError: the files cannot be listed, or are too many.
    """
    folder = Path(os.path.normpath(folder))
    if not folder.is_dir():
        raise DataMissingError(f"code: there is no folder {folder}")
    root = project_root(folder, folders)
    left_out = {os.path.normpath(path) for path in (*data, lock_dir(), cache_folder())}
    listed = set[Path]() if rule.only else set(_Listing(root, folder).files()) - _own_output()
    more = {Path(os.path.normpath(path)) for path in (() if rule.only else named)}
    more = {path for path in more if path.is_relative_to(root) and not _is_of_others(path, root)}
    more |= set(_matching(folder, (*rule.add, *rule.only)))
    files, only_named = dict[str, str](), set[str]()
    for path in listed | more:
        name = path.name if path.parent == folder else os.path.relpath(path, folder)
        if not _any_matches(rule.exclude, name) and left_out.isdisjoint(map(str, (path, *path.parents))):
            files[name] = _digest_of(path)
            if path not in listed:
                only_named.add(name)
    return ProjectCode(root, folder, files, frozenset(only_named))


def project_root(folder: Path, folders: Iterable[Path] = ()) -> Path:
    """Return the folder of a project: its repository, or else the common parent of its folders.

    Raises:
        InputError: they have no common parent.
    """
    all_folders = [folder, *(Path(os.path.normpath(each)) for each in folders)]
    for each in (folder, *folder.parents):
        if (each / ".git").exists() and all(inner.is_relative_to(each) for inner in all_folders):
            return each
    root = Path(os.path.commonpath(all_folders))
    if root == Path(root.anchor) != folder:
        raise InputError(f"code: {' and '.join(map(str, all_folders))} have no folder in common: move them together")
    return root


def _own_output() -> set[Path]:
    """Return the files of this command's output, as of `ettsweep grid ... > grid.txt`."""
    paths = set[Path]()
    for number in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISREG(os.fstat(number).st_mode):
                paths.add(Path(f"/proc/self/fd/{number}").readlink())
    return paths


def _digest_of(path: Path) -> str:
    try:
        return file_digest(path).hex()
    except OSError as error:
        raise DataMissingError(f"code: {path}: cannot be read ({error.strerror})") from None


def _digest_or_none(path: Path) -> str | None:
    try:
        return file_digest(path).hex()
    except OSError:
        return None


# --- which files ------------------------------------------------------------------------------------------------------


class _Listing:
    """The files of a project that are code without being named.

    Args:
        root: the folder of the project.
        folder: of the grid file; its own names, such as tests, exclude no file.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self._shares = dict.fromkeys((root, folder, *folder.parents), 0)

    def files(self) -> Iterator[Path]:
        try:
            names = list(self._tracked_or_not(self._root) if (self._root / ".git").exists() else self._all())
        except GitError as error:
            raise InputError(f"code: {self._root}: its files cannot be listed ({error}); {_CURE}") from None
        if len(names) > MAX_FILES:
            raise InputError(f"code: {self._root} has more than {format_count(MAX_FILES, 'file')}; {_CURE}")
        for name, is_tracked in names:
            path = self._root / name
            if self._has_code(path.parent, is_tracked) and _is_code_name(path.name, is_tracked) and _is_text(path):
                yield path

    def _tracked_or_not(self, folder: Path) -> Iterator[tuple[str, bool]]:
        """Yield the names of files of a repository, relative to the root, and whether git tracks each."""
        inside = "" if folder == self._root else f"{folder.relative_to(self._root)}/"
        repositories = list[str]()
        for line in git_names(folder, "ls-files", "-s", "-z"):
            name = line.partition("\t")[2]
            if line.startswith("160000 "):
                repositories.append(name)
            else:
                yield inside + name, True
        # Whole folders first: listing results takes long.
        untracked = ("ls-files", "-o", "--exclude-standard", "-z")
        others = git_names(folder, *untracked, "--directory")
        entered = [name for name in others if name.endswith("/") and self._has_code(folder / name, is_tracked=False)]
        if entered:
            others += git_names(folder, "--literal-pathspecs", *untracked, "--", *entered)
        yield from ((inside + name, False) for name in others if not name.endswith("/"))
        for name in dict.fromkeys((*repositories, *(name for name in others if name.endswith("/")))):
            if (folder / name / ".git").exists():
                yield from self._tracked_or_not(folder / name)

    def _all(self) -> Iterator[tuple[str, bool]]:
        """Yield the names of all files of a folder without git."""
        count = 0
        for parent, folders, names in os.walk(self._root):
            folders[:] = [name for name in folders if self._has_code(Path(parent, name), is_tracked=False)]
            yield from ((os.path.relpath(Path(parent, name), self._root), False) for name in names)
            if (count := count + len(names)) > MAX_FILES:
                return

    def _has_code(self, folder: Path, is_tracked: bool) -> bool:
        """Which files in a folder may be code: 0 for all, 1 for those that git tracks, 2 for none."""
        if folder not in self._shares:
            name = folder.name
            if name in CACHES or name in DOCS_AND_TESTS or name.startswith(".git") or _is_results(folder):
                share = 2
            else:
                share = int(name.startswith(".") or _is_environment(folder) or _is_output(folder))
            self._shares[folder] = share
        return self._shares[folder] <= is_tracked and (
            folder == self._root or self._has_code(folder.parent, is_tracked)
        )


_CURE = "name the code: `code: {only: [train.py, src]}` under `run:`"


def _is_code_name(name: str, is_tracked: bool) -> bool:
    if name.startswith(".git") or _TEST_OR_DOC.fullmatch(name):
        return False
    return is_tracked or not (name.startswith(".") or name.endswith(LOGS))


def _is_results(folder: Path) -> bool:
    """Whether a folder is one of results, which has runs or sweeps, or a report."""
    if (folder / "report.html").exists() and (folder / "tables").is_dir():
        return True
    runs, sweeps, jobs, code = (folder / name for name in ("runs", "sweeps", "jobs", "code"))
    if not any(each.is_dir() for each in (runs, sweeps, jobs, code)):
        return False
    marks = sweeps.glob("*.try.json"), jobs.glob("*/submission.json"), code.glob("*/project.json")
    return (
        any(True for paths in marks for _ in paths)
        or any(_RUN_ID.fullmatch(path.name) for path in runs.glob("*"))
        or any(map(_is_sweep, sweeps.glob("*.yaml")))
    )


def _is_sweep(path: Path) -> bool:
    """Whether a file is a sweep recorded by ettsweep: a project may have grid files in a folder of that name."""
    try:
        with path.open("rb") as file:
            return file.read(len(SWEEP_HEADER)) == SWEEP_HEADER.encode()
    except OSError:
        return False


def _is_environment(folder: Path) -> bool:
    return (folder / "pyvenv.cfg").exists() or (folder / "conda-meta").is_dir()


def _is_output(folder: Path) -> bool:
    return folder.name in OUTPUTS and not (folder / "__init__.py").exists()


def _is_text(path: Path) -> bool:
    """Whether a file is text of the size of code, and not a grid file or launch profile."""
    try:
        status = path.stat()
        if not path.is_file() or status.st_size > MAX_TEXT_BYTES or not os.access(path, os.R_OK):
            return False
        return _is_text_of(path, status.st_size, status.st_mtime_ns, status.st_ino)
    except OSError:  # tracked but removed, or a dangling link
        return False


@cache
def _is_text_of(path: Path, size: int, mtime_ns: int, inode: int) -> bool:
    content = path.read_bytes()
    if b"\0" in content:
        return False
    if path.suffix not in (".yaml", ".yml"):
        return True
    text = content.decode(errors="replace")
    return not (_is_grid_file(text) or _PROFILE.search(text))


def _is_grid_file(text: str) -> bool:
    """Whether a YAML file states what to sweep: centres, or other axes of a program or model."""
    keys = {*_TOP_KEY.findall(text)}
    trains = {"model", "recipe"} <= keys or ("run" in keys and _TRAINS.search(text))
    return bool(_GRID_FILE.search(text) or (keys & {"axes", "lr", "wd"} and trains))


def _matching(folder: Path, patterns: Iterable[str]) -> Iterator[Path]:
    """Yield the files that match patterns, relative to a folder; a folder means all files in it.

    Raises:
        DataMissingError: a pattern matches none, or is not a pattern.
    """
    for pattern in patterns:
        try:
            found = sorted(folder.glob(pattern))
        except (ValueError, NotImplementedError) as error:
            raise DataMissingError(f"code: {pattern!r} is not a pattern: {error}") from None
        files = [file for path in found for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]
        if not _is_hidden(pattern):
            files = [file for file in files if not _is_hidden(os.path.relpath(file, folder))]
        files = [Path(os.path.normpath(file)) for file in files if not _is_of_others(file, folder)]
        if not files:
            raise DataMissingError(f"code: no file in {folder} matches {pattern}")
        yield from files


def _is_hidden(name: str) -> bool:
    return any(part in CACHES or (part.startswith(".") and part != "..") for part in name.split("/"))


def _is_of_others(path: Path, root: Path) -> bool:
    """Whether a file lies in an environment of Python or in results."""
    inside = [each for each in path.parents if each != root and root in each.parents]
    return any(_is_environment(each) or _is_results(each) for each in inside)


# --- in a copy --------------------------------------------------------------------------------------------------------

PROJECT_FILE, COPY = "project.json", "project"
"""Files of the folder of a copy: its description, and the copied project; see `launch.project_copy`."""


def is_project_copy(path: Path) -> bool:
    """Whether a snapshot is a copy of a project."""
    return (path / PROJECT_FILE).is_file()


def root_of_copy(folder: Path) -> Path | None:
    """Return the copy of a project that contains a folder; None outside of copies."""
    above = (folder, *folder.parents)
    return next((each for each in above if each.name == COPY and is_project_copy(each.parent)), None)


def import_folders(folder: Path) -> list[Path]:
    """Return the folders of a copy that may hold an installed package; none outside of copies.

    An editable installation would import the project itself.
    """
    root, found = root_of_copy(folder), list[Path]()
    for each in (folder, *folder.parents) if root else ():
        is_packed = any((each / name).exists() for name in ("pyproject.toml", "setup.py"))
        if (each / "src").is_dir() and (is_packed or each == root):
            found.append(each / "src")
        elif is_packed:
            found.append(each)
        if each == root:
            break
    return found
