"""Snapshots of projects: copies of users' code made at submission, so that edits do not change runs that wait.

    code/<digest>/
      project.json    the folder that was copied; its time is when the copy was last asked for
      codes/          a file for each code of ids that the copy has: its digest, and that of the files that count as it
      project/        the copy

Copied is what git tracks, or, where there is no git, all of a small folder, and in any case the files that ids of runs
are made of. All else is a link to where it lies, such as data, outputs and files above 10 MB. A run trains in the copy
that its submission names, or in the latest with the code of its id, see `placed`, and compares the code there with what
it was: also what is linked, or was edited in the copy.
"""

import contextlib
import hashlib
import os
import shutil
import stat
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ettsweep.errors import CorruptError, GitError, LaunchError
from ettsweep.files import dumps, folder_names, read_json, storage_errors, write_atomic
from ettsweep.launch.code_snapshot import moving_into_place, reserve_snapshot, snapshots
from ettsweep.ownership import OTHERS_WRITE
from ettsweep.provenance import code_digest, git_files
from ettsweep.runs.trainable import Trainable
from ettsweep.runs.trainable_hooks import OwnCode

PROJECT_FILE, CODES, COPY = "project.json", "codes", "project"

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
        codes: code of recipes that it has: of each digest, those of the files in the copy that count as it.
        asked_s: when it was last asked for, in seconds since the epoch.
    """

    path: Path
    project: Path
    codes: dict[str, tuple[str, ...]]
    asked_s: float

    def moved(self, folder: Path) -> Path | None:
        """Return where a folder of the project lies in the copy; None for one outside the project."""
        return self.path / COPY / folder.relative_to(self.project) if folder.is_relative_to(self.project) else None


def take_project_snapshots(results: Path, recipes: Iterable[Trainable]) -> dict[str, str]:
    """Copy the projects of recipes, unless there are equal copies; return the names of copies by digest of the code.

    Recipes whose code has changed since their ids were made are left alone: they train in earlier copies.

    Raises:
        StorageError: the results folder cannot be written.
        LaunchError: a project cannot be read.
    """
    names = dict[str, str]()
    for code, recipe in {code: recipe for recipe in recipes if (code := recipe.own_code())}.items():
        if code.is_copied and not recipe.changes() and not _is_copy(results, code.folder):
            paths = list(recipe.code_paths())
            if root := project_root(code):
                names[code.digest] = _take(results.resolve(), root, recipe, code, paths)
    return names


def _take(results: Path, root: Path, recipe: Trainable, code: OwnCode, paths: Iterable[Path]) -> str:
    try:
        contents = {name: (root / name).read_bytes() for name in sorted(_copied_files(root, paths, results))}
        digest = code_digest({**contents, "\0project": os.fsencode(root)})
        folder, temporary = reserve_snapshot(results, digest)
        if folder.is_dir():
            _refresh(folder / COPY, root, contents, results)
        else:
            with moving_into_place(temporary, folder):
                (temporary / COPY).mkdir()
                _refresh(temporary / COPY, root, contents, results)
                write_atomic(temporary / PROJECT_FILE, dumps({"project": str(root)}))
    except OSError as error:
        raise LaunchError(
            f"{error.filename or root}: cannot be copied into a snapshot: {error.strerror}; `snapshot: false` under "
            "`run:` has runs train in the project itself"
        ) from error
    moved = recipe.with_code_in(folder / COPY / code.folder.relative_to(root)).content_digest()
    _add_code(folder, code.digest, moved)
    return folder.name


def _add_code(folder: Path, digest: str, content: str) -> None:
    """Note that a copy has some code, and was asked for: a file for each, so that no submission loses another's."""
    text = dumps({"code": digest, "content": content})
    path = folder / CODES / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    with storage_errors(path):
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            write_atomic(path, text)
        os.utime(folder / PROJECT_FILE)


def project_root(code: OwnCode) -> Path | None:
    """Return the folder to copy: of the repository, else the one that all of the code lies in; None for too much."""
    folders = [code.folder, *code.other_folders]
    for folder in (code.folder, *code.folder.parents):
        if (folder / ".git").exists() and all(each.is_relative_to(folder) for each in folders):
            return folder
    root = Path(os.path.commonpath(folders))
    return None if root == Path(root.anchor) else root


def _copied_files(root: Path, code: Iterable[Path], results: Path) -> set[str]:
    """Return the files that are copied, relative to the project."""
    try:
        named = _without_data(root, git_files(root))
    except GitError:
        named = _all_files(root, results)
    inside = (os.path.relpath(os.path.normpath(path), root) for path in code)
    return {
        name
        for name in {*named, *(name for name in inside if not name.startswith(os.pardir))}
        if _can_be_copied(root / name)
    }


def _can_be_copied(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:  # tracked, and removed
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size <= MAX_FILE_BYTES and os.access(path, os.R_OK)


def _without_data(root: Path, tracked: Collection[str]) -> list[str]:
    """Return tracked files but those in folders of data, such as a `.gitkeep`: each other file would be a link."""
    by_folder = Counter(name.rpartition("/")[0] for name in tracked)
    crowded = set[str]()
    for folder, count in by_folder.items():
        with contextlib.suppress(OSError):
            if len(os.listdir(root / folder)) > MAX_FILES + count:
                crowded.add(folder)
    return [name for name in tracked if name.rpartition("/")[0] not in crowded]


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
        if len(names) > MAX_FILES:
            return []
        with contextlib.suppress(OSError):
            size += sum(Path(parent, name).lstat().st_size for name in files)
        if size > MAX_BYTES:
            return []
    return names


def _refresh(copy: Path, root: Path, contents: dict[str, bytes], results: Path) -> None:
    """Write what is missing in a copy, or has been edited there, and link what is not copied."""
    folders = {parent for name in contents for parent in Path(name).parents}
    for name in sorted(folders | {Path()}):
        (copy / name).mkdir(exist_ok=True)
        for entry in Path(root, name).iterdir():
            if Path(name, entry.name) in folders or str(Path(name, entry.name)) in contents:
                continue
            link = copy / name / entry.name
            # Results have the copies: who looks through all folders would go in circles.
            is_of_results = entry.is_relative_to(results)
            if entry.name != LEFT_OUT[0] and not is_of_results and not os.path.lexists(link):
                with contextlib.suppress(FileExistsError):  # another process was faster
                    link.symlink_to(entry)
    for file, content in contents.items():
        path = copy / file
        # Untouched files keep their times: Python's caches of compiled code go by them.
        if path.is_symlink() or not path.is_file() or path.read_bytes() != content:
            # Not synced, for speed: who trains there compares the code, and the next submission writes the rest anew.
            write_atomic(path, content, synced=False)
            shutil.copystat(root / file, path)
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~OTHERS_WRITE)


# --- where a run trains -----------------------------------------------------------------------------------------------


def placed(results: Path, recipe: AnyTrainable, name: str | None = None) -> AnyTrainable:
    """Return a recipe with its code in a copy: that of a name, else, where the project has changed, the latest with it.

    Where there is none, or the project has the code, the recipe is unchanged.
    """
    code = recipe.own_code()
    if code is None or not code.is_copied:
        return recipe
    copies = _having(code, project_snapshots(results))
    chosen = next((each for each in copies if each.path.name == name), None)
    if chosen is None and copies and recipe.changes():
        chosen = copies[-1]
    if chosen is None or not (moved := chosen.moved(code.folder)) or not moved.is_dir():
        return recipe
    return recipe.with_code_in(moved, chosen.codes[code.digest])


def _having(code: OwnCode, copies: Iterable[ProjectSnapshot]) -> list[ProjectSnapshot]:
    """Return the copies that have some code, the latest last."""
    having = (each for each in copies if code.digest in each.codes and each.moved(code.folder))
    return sorted(having, key=lambda each: each.asked_s)


def import_folders(folder: Path) -> list[Path]:
    """Return the folders of a copy that an installed package may be imported from; none outside of copies.

    An editable installation would import the project itself.
    """
    for root in (folder, *folder.parents):
        if root.name == COPY and is_project_snapshot(root.parent):
            return package_folders(folder, root)
    return []


def package_folders(folder: Path, root: Path) -> list[Path]:
    """Return where packages of a project lie if they are installed as editable: from a folder up to the root."""
    found = list[Path]()
    for each in (folder, *folder.parents):
        is_packed = any((each / name).exists() for name in ("pyproject.toml", "setup.py"))
        if (each / "src").is_dir() and (is_packed or each == root):
            found.append(each / "src")
        elif is_packed:
            found.append(each)
        if each == root:
            break
    return found


def project_snapshots(results: Path) -> list[ProjectSnapshot]:
    """Return all copies."""
    return [snapshot for path in snapshots(results.resolve()) if (snapshot := _read(path))]


def find_unused_projects(results: Path, recipes: Iterable[Trainable]) -> list[Path]:
    """Return the folders of copies that no run of these recipes would train in."""
    codes, copies = {code for recipe in recipes if (code := recipe.own_code())}, project_snapshots(results)
    used = {having[-1].path for code in codes if (having := _having(code, copies))}
    return [each.path for each in copies if each.path not in used]


def is_project_snapshot(path: Path) -> bool:
    """Whether a snapshot is one of a project."""
    return (path / PROJECT_FILE).is_file()


def _read(path: Path) -> ProjectSnapshot | None:
    codes: dict[str, tuple[str, ...]] = {}
    try:
        project, asked_s = Path(read_json(path / PROJECT_FILE)["project"]), (path / PROJECT_FILE).stat().st_mtime
        for name in folder_names(path / CODES):
            if name.startswith("."):  # being written
                continue
            data = read_json(path / CODES / name)
            codes[data["code"]] = (*codes.get(data["code"], ()), data["content"])
    except (OSError, CorruptError, KeyError, TypeError):
        return None
    return ProjectSnapshot(path, project, codes, asked_s)


def _is_copy(results: Path, folder: Path) -> bool:
    return any(folder.is_relative_to(each.path) for each in project_snapshots(results))
