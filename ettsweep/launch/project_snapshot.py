"""Snapshots of projects: copies of users' code made at submission, so that edits do not change runs that wait.

    code/<digest>/
      project.json    the folder that was copied, when it was last asked for, and the digests of code that the copy has
      project/        the copy

Copied is what git tracks, or, where there is no git, all of a small folder, and in any case the files that ids of runs
are made of. All else is a link to where it lies, such as data, outputs and files above 10 MB. A run trains in the
latest copy with the code of its id, see `placed`; the project itself is used where there is none.
"""

import contextlib
import json
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ettsweep.errors import CorruptError, GitError, LaunchError
from ettsweep.files import read_json, storage_errors, write_atomic
from ettsweep.launch.code_snapshot import reserve_snapshot, snapshots
from ettsweep.ownership import OTHERS_WRITE, make_private, problem_of, problem_of_code
from ettsweep.provenance import code_digest, git_files
from ettsweep.runs.trainable import OwnCode, Trainable

PROJECT_FILE = "project.json"
COPY = "project"

MAX_FILE_BYTES = 10 * 2**20
"""Larger files are linked."""

MAX_FILES, MAX_BYTES = 1000, 100 * 2**20
"""Of a folder without git that is copied whole; of a larger one, only what ids are made of."""

LEFT_OUT = ("__pycache__", ".venv", "node_modules")
"""Folders that are neither copied nor part of a small folder; the first is not even linked."""

AnyTrainable = TypeVar("AnyTrainable", bound=Trainable)


@dataclass(frozen=True)
class ProjectSnapshot:
    """A copy of a project.

    Attributes:
        path: its folder in `code/`.
        project: the folder that was copied.
        codes: digests of the code of recipes that it has.
        asked_s: when it was last asked for, in seconds since the epoch.
    """

    path: Path
    project: Path
    codes: tuple[str, ...]
    asked_s: float

    def moved(self, folder: Path) -> Path | None:
        """Return where a folder of the project lies in the copy; None for one outside the project."""
        return self.path / COPY / folder.relative_to(self.project) if folder.is_relative_to(self.project) else None


def take_project_snapshots(results: Path, recipes: Iterable[Trainable]) -> None:
    """Copy the projects of recipes, unless there are equal copies.

    Recipes whose code has changed since their ids were made are left alone: they train in earlier copies.

    Raises:
        StorageError: the results folder cannot be written.
        LaunchError: a project cannot be read.
    """
    done = set[OwnCode]()
    for recipe in recipes:
        code = recipe.own_code()
        if code is None or code in done:
            continue
        done.add(code)
        if not recipe.changes() and not _is_copy(results, code.folder):
            paths = list(recipe.code_paths())
            for path in (code.folder, *code.other_folders, *paths):
                if problem := problem_of_code(path):  # a copy would be this user's own, whoever wrote the original
                    raise LaunchError(f"{path}: {problem}, so that it is not executed")
            _take(results.resolve(), code, paths)


def _take(results: Path, code: OwnCode, paths: Iterable[Path]) -> None:
    root = project_root(code)
    if root is None:
        return
    try:
        contents = {name: (root / name).read_bytes() for name in sorted(set(_copied_files(root, paths, results)))}
        digest = code_digest({**contents, "\0project": os.fsencode(root)})
        folder, temporary = reserve_snapshot(results, digest, lambda folder: bool(problem_of(folder)))
        if folder.is_dir():
            _refresh(folder / COPY, root, contents)
        else:
            _write(temporary, folder, root, contents)
    except OSError as error:
        raise LaunchError(
            f"{error.filename or root}: cannot be copied into a snapshot: {error.strerror}; `snapshot: false` under "
            "`run:` has runs train in the project itself"
        ) from error
    known = _read(folder)
    codes = dict.fromkeys((*(known.codes if known else ()), code.digest))
    content = {"project": str(root), "codes": list(codes), "asked_s": time.time()}
    write_atomic(folder / PROJECT_FILE, json.dumps(content))


def project_root(code: OwnCode) -> Path | None:
    """Return the folder to copy: of the repository, else the one that all of the code lies in; None for too much."""
    folders = [code.folder, *code.other_folders]
    for folder in (code.folder, *code.folder.parents):
        if (folder / ".git").exists() and all(each.is_relative_to(folder) for each in folders):
            return folder
    root = Path(os.path.commonpath(folders))
    return None if root == Path(root.anchor) else root


def _copied_files(root: Path, code: Iterable[Path], results: Path) -> Iterator[str]:
    """Yield the files that are copied, relative to the project."""
    try:
        tracked = git_files(root)
    except GitError:
        tracked = None
    names = set(_all_files(root, results) if tracked is None else tracked)
    names |= {os.path.relpath(path, root) for path in code if path.is_relative_to(root)}
    for name in names:
        path = root / name
        with contextlib.suppress(OSError):  # tracked, and removed
            if not path.is_symlink() and path.is_file() and path.stat().st_size <= MAX_FILE_BYTES:
                yield name


def _all_files(root: Path, results: Path) -> list[str]:
    """Return the files of a small folder; none of a large one."""
    names, size = list[str](), 0
    for parent, folders, files in os.walk(root):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and name not in LEFT_OUT
            and not Path(parent, name, "pyvenv.cfg").exists()
            and Path(parent, name) != results
            and not Path(parent, name, "runs").is_dir()  # other results
        ]
        names += [os.path.relpath(Path(parent, name), root) for name in files if not name.startswith(".")]
        with contextlib.suppress(OSError):
            size += sum(Path(parent, name).lstat().st_size for name in files)
        if len(names) > MAX_FILES or size > MAX_BYTES:
            return []
    return names


def _write(temporary: Path, folder: Path, root: Path, contents: dict[str, bytes]) -> None:
    """Write a copy and move it into place; if another process was faster, keep its equal copy."""
    with storage_errors(folder):
        try:
            temporary.mkdir(0o700)
            (temporary / COPY).mkdir()
            _refresh(temporary / COPY, root, contents)
            make_private(temporary)
            temporary.chmod(0o755)
            temporary.rename(folder)  # fails on a folder that is not empty
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            if not folder.is_dir():
                raise


def _refresh(copy: Path, root: Path, contents: dict[str, bytes]) -> None:
    """Write what is missing in a copy, or has been edited there, and link what is not copied."""
    folders = {parent for name in contents for parent in Path(name).parents}
    for name in sorted(folders | {Path()}):
        (copy / name).mkdir(exist_ok=True)
        for entry in os.scandir(root / name):
            link = copy / name / entry.name
            if Path(name, entry.name) in folders or str(Path(name, entry.name)) in contents:
                continue
            if entry.name != LEFT_OUT[0] and not os.path.lexists(link):
                link.symlink_to(entry.path)
    for file, content in contents.items():
        path = copy / file
        # Untouched files keep their times: Python's caches of compiled code go by them.
        if path.is_symlink() or not path.is_file() or path.read_bytes() != content:
            # Not synced: what a crash of the machine leaves half written is found here the next time.
            temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
            temporary.write_bytes(content)
            temporary.replace(path)
            shutil.copystat(root / file, path)
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~OTHERS_WRITE)


# --- where a run trains -----------------------------------------------------------------------------------------------


def placed(results: Path, recipe: AnyTrainable) -> AnyTrainable:
    """Return a recipe with its code in the latest copy that has the code of its id; unchanged if there is none."""
    code = recipe.own_code()
    if code is None:
        return recipe
    latest = max(
        (each for each in project_snapshots(results) if code.digest in each.codes and each.moved(code.folder)),
        key=lambda each: each.asked_s,
        default=None,
    )
    moved = latest.moved(code.folder) if latest else None
    return recipe.with_code_in(moved) if moved and moved.is_dir() else recipe


def import_folders(folder: Path) -> list[Path]:
    """Return the folders of a copy that an installed package may be imported from; none outside of copies.

    An editable installation would import the project itself.
    """
    for root in (folder, *folder.parents):
        if root.name == COPY and (root.parent / PROJECT_FILE).is_file():
            if (root / "src").is_dir():
                return [root / "src"]
            return [root] if any((root / name).exists() for name in ("pyproject.toml", "setup.py")) else []
    return []


def project_snapshots(results: Path) -> list[ProjectSnapshot]:
    """Return the copies of this user, which nobody else can have changed."""
    found = (_read(path) for path in snapshots(results.resolve()) if not problem_of(path))
    return [snapshot for snapshot in found if snapshot]


def find_unused_projects(results: Path, recipes: Iterable[Trainable]) -> list[Path]:
    """Return the folders of copies that no run of these recipes would train in."""
    by_code = {code: recipe for recipe in recipes if (code := recipe.own_code())}
    folders = [code.folder for recipe in by_code.values() if (code := placed(results, recipe).own_code())]
    return [
        each.path
        for each in project_snapshots(results)
        if not any(folder.is_relative_to(each.path) for folder in folders)
    ]


def is_project_snapshot(path: Path) -> bool:
    """Whether a snapshot is one of a project."""
    return (path / PROJECT_FILE).is_file() or (path / COPY).is_dir()


def _read(path: Path) -> ProjectSnapshot | None:
    try:
        data = read_json(path / PROJECT_FILE)
        return ProjectSnapshot(path, Path(data["project"]), tuple(map(str, data["codes"])), float(data["asked_s"]))
    except (FileNotFoundError, CorruptError, KeyError, TypeError, ValueError):
        return None


def _is_copy(results: Path, folder: Path) -> bool:
    return any(folder.is_relative_to(each.path) for each in project_snapshots(results))
