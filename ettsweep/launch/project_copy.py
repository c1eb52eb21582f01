"""Copies of users' projects: runs train in them, and later edits change no run.

    code/<digest>/
      project.json    the folder of the project and of its grid file, and the digest of each file of the code
      project/        the copy

ettsweep copies the files of the code, see `ettsweep.project_code`, and links all else, such as data, outputs and large
files.
"""

import contextlib
import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from ettsweep.errors import CorruptError, EttsweepError, InputError, LaunchError, StorageError
from ettsweep.file_digests import file_digest
from ettsweep.files import dumps, read_json, write_atomic
from ettsweep.launch.code_snapshot import moving_into_place, reserve_snapshot, snapshots
from ettsweep.ownership import OTHERS_WRITE, check_folder
from ettsweep.project_code import COPY, NO_CODE, PROJECT_FILE, ProjectCode, is_project_copy, root_of_copy
from ettsweep.runs.folder import code_dir
from ettsweep.runs.spec import OwnCode, Recipe, kind_of

AnyRecipe = TypeVar("AnyRecipe", bound=Recipe)


@dataclass(frozen=True)
class ProjectCopy:
    """A copy of a project.

    Attributes:
        path: its folder in `code/`.
        project: the original, to which links lead.
        place: path of the grid file's folder, relative to the project.
        files: digests of its code, by paths relative to the grid file's folder.
    """

    path: Path
    project: Path
    place: str
    files: dict[str, str]

    @property
    def root(self) -> Path:
        return self.path / COPY

    @property
    def folder(self) -> Path:
        """The folder of the grid file in the copy."""
        return self.root / self.place

    def changed_files(self) -> list[str]:
        """Return the files that were edited or deleted since: some sites delete files that nobody reads for weeks."""
        return [name for name, digest in self.files.items() if _digest(self.folder / name) != digest]


def ensure_copies(results: Path, recipes: Iterable[Recipe], other_results: Path | None = None) -> None:
    """Copy the projects of recipes, if copies are missing.

    Args:
        results: the results folder.
        recipes: of the runs.
        other_results: a results folder that may have the copies.

    Raises:
        StorageError: the results folder cannot be written.
        LaunchError: a copy is missing, and the project has other code now.
        InputError: others may have written its code, or may write to a folder of the project.
    """
    for code, recipe in {code: recipe for recipe in recipes if (code := recipe.info.code)}.items():
        if code.copy == NO_CODE:
            check_folder(code.folder)  # programs start in it
        if code.copy in ("", NO_CODE) or _is_whole(results, recipe, code):
            continue
        if other_results and (other := find_copy(other_results, code.copy)) and not other.changed_files():
            take_copy(results, ProjectCode(other.root, other.folder, other.files))
            continue
        project = kind_of(recipe).project_code(recipe)
        assert project is not None
        if project.digest != code.copy:
            raise LaunchError(
                f"code {code.copy}: {results} has no copy of it, and {code.folder} has other code now; train with "
                "that by `ettsweep retry --new-code`, or by `ettsweep grid` with another --name"
            )
        take_copy(results, project)


def _is_whole(results: Path, recipe: Recipe, code: OwnCode) -> bool:
    """Whether a copy has all of its files; if so, link new files of the project that are not code.

    Raises:
        InputError: others may write where links of the copy lead.
    """
    copy = find_copy(results, code.copy)
    if copy is None or copy.changed_files():
        return False
    reserve_snapshot(results, code.copy)  # from here on, `clean` keeps it
    _check_project(copy)
    now = None
    with contextlib.suppress(EttsweepError):  # the project may be gone
        now = kind_of(recipe).project_code(recipe)
    if now is not None and os.path.relpath(now.folder, now.root) == copy.place:
        _check_folders(now.folder, now.files)
        _link_others(copy.root, now.root, {*copy.files, *now.files}, copy.place, results.resolve())
    return True


def take_copy(results: Path, code: ProjectCode) -> None:
    """Copy a project as it is now, or repair its copy.

    Raises:
        StorageError: the results folder cannot be written.
        LaunchError: a file cannot be read.
        InputError: others may have written one.
    """
    _check_files(code)  # a copy would hide that another user wrote the original
    results, place = results.resolve(), os.path.relpath(code.folder, code.root)
    folder, temporary = reserve_snapshot(results, code.digest)
    try:
        if folder.is_dir():
            _write(folder / COPY, code, place, results)
        else:
            with moving_into_place(temporary, folder):
                (temporary / COPY).mkdir()
                _write(temporary / COPY, code, place, results)
                content = {"project": str(code.root), "folder": place, "files": dict(code.files)}
                write_atomic(temporary / PROJECT_FILE, dumps(content))
    except OSError as error:
        raise LaunchError(
            f"cannot copy {error.filename or code.root}: {error.strerror}; to train in the project itself, set "
            "`snapshot: false` under `run:`"
        ) from error


def _check_files(code: ProjectCode) -> None:
    _check_folders(code.folder, code.files)
    for name in code.files:
        check_folder(code.folder / name)


def _check_project(copy: ProjectCopy) -> None:
    """Check the folders of the project: a copy links into them, for example to modules that git ignores."""
    _check_folders(copy.project / copy.place, copy.files)


def _check_folders(folder: Path, names: Iterable[str]) -> None:
    for path in dict.fromkeys((folder, *((folder / name).parent for name in names))):
        check_folder(path)


def _write(root: Path, code: ProjectCode, place: str, results: Path) -> None:
    for name, digest in code.files.items():
        source, path = code.folder / name, Path(os.path.normpath(root / place / name))
        # Keep the times of unchanged files: Python's caches of compiled code compare them.
        if _digest(path) == digest:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
        try:
            shutil.copy2(source, temporary)
            temporary.chmod(stat.S_IMODE(temporary.stat().st_mode) & ~OTHERS_WRITE)
            if _digest(temporary) != digest:
                raise LaunchError(f"{source}: you edited it while ettsweep copied it; run the command again")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    (root / place).mkdir(parents=True, exist_ok=True)
    _link_others(root, code.root, code.files, place, results)


def _link_others(copy: Path, root: Path, files: Iterable[str], place: str, results: Path) -> None:
    """Link all paths that are not copied to the originals."""
    copied = {os.path.normpath(os.path.join(place, name)) for name in files}  # noqa: PTH118
    folders = {Path(place), *Path(place).parents, *(parent for name in copied for parent in Path(name).parents)}
    for folder in folders:
        try:
            entries = list((root / folder).iterdir())
        except OSError:  # the project has moved, or lost the folder
            continue
        (copy / folder).mkdir(parents=True, exist_ok=True)
        for entry in entries:
            name = folder / entry.name
            # Results contain the copies: searches through folders would loop.
            if name in folders or str(name) in copied or entry.name == "__pycache__" or entry.is_relative_to(results):
                continue
            target, link = entry, copy / name
            if entry.is_symlink() and entry.is_dir() and (inside := entry.resolve()).is_relative_to(root):
                target = Path(os.path.relpath(root / inside.relative_to(root), entry.parent))  # to the copy of it
            if os.path.lexists(link):
                if link.exists() or not link.is_symlink():
                    continue
                link.unlink(missing_ok=True)  # of a project that is gone
            with contextlib.suppress(FileExistsError):  # another process was faster
                link.symlink_to(target)


def _digest(path: Path) -> str:
    try:
        return "" if path.is_symlink() else file_digest(path).hex()
    except OSError:
        return ""


# --- where a run trains -----------------------------------------------------------------------------------------------


def placed(results: Path, recipe: AnyRecipe) -> AnyRecipe:
    """Return a recipe with its folder in its copy.

    Raises:
        InputError: the copy is missing, or others may change it or the project; or it trains in the project, which was
            edited since.
    """
    code = recipe.info.code
    if code is not None and code.copy == NO_CODE:
        check_folder(code.folder)
    if code is None or code.copy in ("", NO_CODE):
        return recipe
    copy = find_copy(results, code.copy)
    if code.is_copied:
        if copy is None:
            raise InputError(f"code {code.copy}: {code_dir(results)} has no copy of it; request the run again")
        check_folder(copy.path, whole=True)
        _check_project(copy)
        moved: AnyRecipe = kind_of(recipe).with_code(recipe, replace(code, folder=copy.folder))
        return moved
    now = kind_of(recipe).project_code(recipe)
    assert now is not None
    _check_files(now)
    if now.digest != code.copy:
        edits = now.differences(copy.files, code.rule, code.rule) if copy else ()
        edited = f": {', '.join(edits)}" if edits else ""
        raise InputError(f"you edited the code in {code.folder} after you requested the run{edited}; restore it")
    return recipe


def missing_in_copy(folder: Path, text: str) -> str:
    """Return advice if an error names a path or module beside the project, which its copy lacks.

    Args:
        folder: where the program runs, perhaps in a copy.
        text: the error.
    """
    root = root_of_copy(folder)
    copy = _read(root.parent) if root else None
    if root is None or copy is None:
        return ""
    names = re.findall(r"[^\s'\"`:,;()\[\]<>=]+", text)
    modules = re.findall(r"No module named '(\w+)", text)
    paths = [Path(os.path.normpath(folder / name)) for name in names]
    paths += [root.parent / f"{name}{end}" for name in modules for end in ("", ".py")]
    for path in paths:
        original = Path(os.path.normpath(copy.project / os.path.relpath(path, root)))
        with contextlib.suppress(OSError, ValueError):  # not a path, or a folder of others
            if not (path.is_relative_to(root) or path.exists()) and original.exists():
                return (
                    f"runs train in a copy of the project, and {original} is outside of it; use this absolute path, "
                    "or `snapshot: false` under `run:`"
                )
    return ""


# --- which there are --------------------------------------------------------------------------------------------------


def find_copy(results: Path, digest: str) -> ProjectCopy | None:
    """Return the copy with a digest, which a file may state; None without one."""
    path = code_dir(results) / digest
    return _read(path) if digest.isalnum() and is_project_copy(path) else None


def project_copies(results: Path) -> list[ProjectCopy]:
    """Return all copies."""
    return [copy for path in snapshots(results) if is_project_copy(path) and (copy := _read(path))]


def find_unused_copies(results: Path, used: Sequence[OwnCode]) -> list[Path]:
    """Return the folders of copies that no code uses."""
    named = {digest for code in used for digest in (code.digest, code.copy)}
    return [each.path for each in project_copies(results) if each.path.name not in named]


def _read(path: Path) -> ProjectCopy | None:
    with contextlib.suppress(OSError, CorruptError, KeyError, TypeError, ValueError, StorageError):
        data = read_json(path / PROJECT_FILE)
        files = {str(name): str(digest) for name, digest in data["files"].items()}
        place = os.path.normpath(str(data["folder"]))
        if not Path(place).is_absolute() and os.pardir not in Path(place).parts:
            return ProjectCopy(path, Path(str(data["project"])), place, files)
    return None
