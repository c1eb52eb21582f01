"""Owners of folders: ettsweep executes nothing from a folder that others may write to, unless its group is trusted.

Others are: an owner other than this user and root, all users, and a group other than the owner's private one (the
primary group, of the owner's name, without members). Folders above count too, unless they are sticky: a writer there
could replace the folder.
"""

import contextlib
import grp
import os
import pwd
import shlex
import stat
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ettsweep.errors import InputError

TRUST_VARIABLE = "ETTSWEEP_TRUST_GROUP"
"""Set by --trust-group, also for workers and jobs."""

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

UMASK = os.umask(0o077)
"""The umask at the start of this process."""
os.umask(UMASK)


def trusts_group() -> bool:
    """`True` if folders of other users, and group-writable ones, are trusted."""
    return os.environ.get(TRUST_VARIABLE, "0") not in ("", "0")


def trust_group(trusted: bool) -> None:
    """Trust groups, in this process and its children; else let no group write to their files."""
    os.environ.pop(TRUST_VARIABLE, None)
    if trusted:
        os.environ[TRUST_VARIABLE] = "1"
    os.umask(UMASK if trusted else UMASK | OTHERS_WRITE)


def check_folder(folder: Path, *, whole: bool = False) -> None:
    """Check that only this user may change the code in a folder, which need not exist yet.

    Args:
        folder: a folder, or a file.
        whole: whether to check everything in it too.

    Raises:
        InputError: others may.
    """
    _check(folder, _tree(folder.resolve()) if whole else ())


def check_run_folder(run: Path) -> None:
    """Check the folder of a run as `check_folder` does, and that it has no links, even with a trusted group.

    Files in `out` and in checkpoints belong to its program.

    Raises:
        InputError: others may change it, or it has a link.
    """
    run = run.parent.resolve() / run.name
    attempts = list(_entries(run / "attempts"))
    paths = [run, *_entries(run), *attempts, *(path for attempt in attempts for path in _entries(attempt))]
    if link := next((path for path in paths if path.is_symlink()), None):
        raise InputError(f"{link} is a link, and ettsweep follows no links in the folder of a run: remove it")
    _check(run, paths)


def _check(folder: Path, inside: Iterable[Path]) -> None:
    real = folder.resolve()
    above = dict.fromkeys((*real.parents, *folder.absolute().parents))  # a link on the path could be replaced too
    found = [other for path in above if (other := _others(path, is_above=True))]
    found += [other for path in (real, *inside) if (other := _others(path))]
    if not found:
        return
    first = next((other for other in found if not other.bits), found[0])
    if not first.bits:
        ways = "use a folder of yours, or trust its owner and group with --trust-group"
    elif first.bits == "g-w":
        ways = f"remove that right ({_chmod(real, found)}), or trust the group with --trust-group"
    elif first.path.lstat().st_mode & stat.S_ISVTX:  # such as /tmp
        ways = "use a folder of yours in it"
    else:
        ways = f"remove that right ({_chmod(real, found)}), or use a folder of yours"
    executed = "it" if first.path == real and real.is_file() else f"files in {folder}"
    raise InputError(f"{first.path} {first.text}, and ettsweep executes {executed}: {ways}")


class _Others(NamedTuple):
    """Others who may write to a path; `bits` are for chmod to remove, none from another owner."""

    path: Path
    uid: int
    text: str
    bits: str = ""


def _others(path: Path, *, is_above: bool = False) -> _Others | None:
    try:
        status = path.lstat()
    except OSError:
        return None  # a missing path executes nothing
    uid, mode, own = status.st_uid, status.st_mode, (0, os.geteuid())
    if stat.S_ISLNK(mode) or (is_above and mode & stat.S_ISVTX):
        return None
    if not mode & OTHERS_WRITE and (is_above or uid in own):
        return None
    shown_uid, has_modes = _kept_by(path if stat.S_ISDIR(mode) else path.parent, status.st_dev)
    if not (is_above or uid in (*own, shown_uid) or trusts_group()):
        return _Others(path, uid, f"belongs to {_user_name(uid)}")
    if has_modes and mode & stat.S_IWOTH:
        return _Others(path, uid, "can be written by all users", "go-w")
    if has_modes and mode & stat.S_IWGRP and not (trusts_group() or _is_private(path, status)):
        return _Others(path, uid, f"can be written by group {_group_name(status.st_gid)}", "g-w")
    return None


@cache
def _kept_by(folder: Path, device: int) -> tuple[int, bool]:
    """Return the owner of a file of this user in a folder, and whether modes are kept.

    SMB or sshfs may show one owner or mode for all files, which then says nothing.
    """
    import tempfile  # slow to import, and rarely needed

    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=folder) as probe:  # made with mode 600
        status = os.fstat(probe.fileno())
        if status.st_dev == device:
            return status.st_uid, not status.st_mode & OTHERS_WRITE
    return os.geteuid(), True


def _is_private(path: Path, status: os.stat_result) -> bool:
    """Return whether the path's owner is the only member of its group."""
    try:
        user, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    is_own = (user.pw_gid, user.pw_name) == (group.gr_gid, group.gr_name) and {*group.gr_mem} <= {user.pw_name}
    # With an access list, the group's bits are those of all its entries.
    return is_own and not (hasattr(os, "listxattr") and "system.posix_acl_access" in os.listxattr(path))


def _chmod(folder: Path, others: Iterable[_Others]) -> str:
    """Return the command, in backticks, that stops all others from writing."""
    bits = "go-w" if any(other.bits == "go-w" for other in others) else "g-w"
    above = list(dict.fromkeys(str(other.path) for other in others if other.path in folder.parents))
    commands = [shlex.join(["chmod", bits, *above])] if above else []
    if any(other.path == folder or folder in other.path.parents for other in others):
        commands.append(shlex.join(["chmod", *(["-R"] if folder.is_dir() else []), bits, str(folder)]))
    owners = {other.uid for other in others} - {os.geteuid()}
    by = f" by {' and '.join(map(_user_name, sorted(owners)))}" if owners and os.geteuid() != 0 else ""
    return f"`{' && '.join(commands)}`{by}"


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _entries(folder: Path) -> Iterator[Path]:
    """Yield the entries of a folder; none if it is missing, or a link."""
    with contextlib.suppress(OSError):
        if not folder.is_symlink():
            yield from folder.iterdir()


def _tree(folder: Path) -> Iterator[Path]:
    """Yield everything in a folder, without following links."""
    for parent, folders, names in os.walk(folder):
        yield from (Path(parent, name) for name in (*folders, *names))
