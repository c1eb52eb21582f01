"""Ownership: in a folder that several users share, what one of them executes or writes to belongs to this user alone.

A file or folder is private if this user owns it, nobody else can write to it, and it is no link. Others may read it.
"""

import contextlib
import os
import pwd
import stat
import tempfile
from functools import cache
from pathlib import Path

from ettsweep.errors import CorruptError, OwnershipError
from ettsweep.files import Json, open_regular, parse_object

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def problem_of(path: Path, status: os.stat_result | None = None) -> str:
    """Return why a file or folder is not private; empty if it is, or if it does not exist.

    Args:
        path: the file or folder.
        status: of what was opened under this path; by default what lies there now, which may be a link.
    """
    if status is None:
        try:
            status = path.lstat()
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"cannot be read ({error.strerror})"
    if stat.S_ISLNK(status.st_mode):
        return "is a link"
    uid, has_modes = os.geteuid(), True
    if status.st_uid != uid or status.st_mode & OTHERS_WRITE:
        uid, has_modes = _kept_by(path.parent, status.st_dev)
    if status.st_uid != uid:
        return f"belongs to {user_name(status.st_uid)}"
    return "can be written by others" if has_modes and status.st_mode & OTHERS_WRITE else ""


def keeps_owners(folder: Path) -> bool:
    """`True` if files in a folder show who owns them and who may write; `True` also if it does not exist."""
    try:
        return _kept_by(folder, folder.stat().st_dev) == (os.geteuid(), True)
    except OSError:
        return True


@cache
def _kept_by(folder: Path, device: int) -> tuple[int, bool]:
    """Return which owner a file of this user has in a folder, and whether modes are kept.

    File systems such as SMB or sshfs may show one owner or mode for all files: then it says nothing.
    """
    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=folder) as probe:  # made with mode 600
        status = os.fstat(probe.fileno())
        if status.st_dev == device and not folder.is_symlink():
            return status.st_uid, not status.st_mode & OTHERS_WRITE
    return os.geteuid(), True


def user_name(uid: int) -> str:
    """Return the name of a user, or the number of one without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def problem_of_code(path: Path) -> str:
    """Return why code is not executed: it belongs to another user, or all may write to it; empty if it may be."""
    status = path.stat()
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to {user_name(status.st_uid)}"
    return "can be written by all" if status.st_mode & stat.S_IWOTH else ""


def check_private(path: Path, status: os.stat_result | None = None) -> None:
    """Check that a file or folder is private, see `problem_of`.

    Raises:
        OwnershipError: it is not.
    """
    if problem := problem_of(path, status):
        raise OwnershipError(
            f"{path}: {problem}: nothing is executed from there, or written to it, but by its owner alone "
            "(docs/shared-filesystems.md)"
        )


def tree_problem(folder: Path) -> str:
    """Return which file or folder of a tree is not private, and why; empty if all are."""
    if problem := problem_of(folder):
        return f"{folder}: {problem}"
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            if problem := problem_of(path := Path(parent, name)):
                return f"{path}: {problem}"
    return ""


def make_private(folder: Path) -> None:
    """Take away from all others the right to write into a tree of this user, whatever its umask."""
    for parent, folders, names in os.walk(folder):
        for path in (Path(parent), *(Path(parent, name) for name in (*folders, *names))):
            if (mode := path.lstat().st_mode) & OTHERS_WRITE and not stat.S_ISLNK(mode):
                path.chmod(stat.S_IMODE(mode) & ~OTHERS_WRITE)


def read_private_json(path: Path) -> Json:
    """Read a JSON object from a private file in a private folder.

    Raises:
        FileNotFoundError: there is none.
        OwnershipError: it is not private.
        CorruptError: it is no JSON object, or cannot be read.
    """
    check_private(path.parent)
    check_private(path)
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            check_private(path, os.fstat(file.fileno()))  # of what was opened: the name may lead elsewhere by now
            return parse_object(path, file.read())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CorruptError(f"{path}: cannot be read: {error.strerror}") from error
