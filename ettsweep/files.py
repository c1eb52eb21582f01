"""Files that survive a kill: whole files appear by one rename, lines are appended, JSON is strict."""

import contextlib
import errno
import json
import math
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ettsweep.errors import CorruptError, InputError, StorageError, with_source

Json = dict[str, Any]


DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
DISK_FULL_MESSAGE = "the disk is full; free some space (`ettsweep clean` removes unneeded files)"


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn an OSError on `path` into a StorageError with a remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            problem = DISK_FULL_MESSAGE
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            problem = f"cannot be written ({error.strerror}); choose another folder with --results or ETTSWEEP_RESULTS"
        else:
            problem = f"cannot be written ({error.strerror or error}); choose another folder"
        raise StorageError(f"{path}: {problem}") from error


def is_full(folder: Path) -> bool:
    """`True` if the disk of a folder has no space left for this user's files."""
    disk = os.statvfs(folder)
    free_blocks, free_files = (
        (disk.f_bfree, disk.f_ffree) if os.geteuid() == 0 else (disk.f_bavail, disk.f_favail)  # root has a reserve
    )
    return free_blocks == 0 or (free_files == 0 and disk.f_files > 0)


@contextlib.contextmanager
def naming_option(option: str, folder: Path) -> Iterator[None]:
    """Name `option` as the remedy in a StorageError about `folder`, unless the disk is full."""
    try:
        yield
    except StorageError as error:
        cause = error.__cause__
        if not isinstance(cause, OSError) or cause.errno in DISK_FULL:
            raise
        problem = f"cannot be written ({cause.strerror or cause}); choose another folder with {option}"
        raise StorageError(f"{folder}: {problem}") from cause


# --- regular files ----------------------------------------------------------------------------------------------------

KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFLNK: "a link"}
"""Kinds that are not regular files; all others are devices."""


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor, without waiting for a FIFO or device.

    To write, it follows no link, which could lead to any file of this user.

    Raises:
        OSError: it cannot be opened, or is not a regular file; `strerror` names its kind.
    """
    is_written = flags & (os.O_WRONLY | os.O_RDWR)
    flags |= os.O_NONBLOCK | os.O_CLOEXEC | (os.O_NOFOLLOW if is_written else 0)
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV, errno.EISDIR) or (is_written and error.errno == errno.ELOOP):
            mode = (path.lstat() if is_written else path.stat()).st_mode
            raise _irregular(path, mode) from None
        raise
    if not stat.S_ISREG(mode := os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _irregular(path, mode)
    return descriptor


def _irregular(path: Path, mode: int) -> OSError:
    return OSError(errno.EINVAL, f"it is {KINDS.get(stat.S_IFMT(mode), 'a device')}, not a file", str(path))


class PathBelow:
    """An attribute of an object with a `path`: a path below it, joined on access.

    Joining a path takes as long as reading a small file.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, owner: Any, owner_class: type) -> Path:
        folder: Path = owner.path
        return folder / self.name


def read_file(path: Path) -> bytes:
    """Return the content of a regular file; raises an OSError as `open_regular` does."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read()


def append_text(path: Path, text: str) -> None:
    """Append to a regular file in one write, creating it if missing; raises an OSError as `open_regular` does."""
    with os.fdopen(open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
        file.write(text.encode(errors="backslashreplace"))  # paths may not be UTF-8


# --- whole files ------------------------------------------------------------------------------------------------------


def write_atomic(
    path: Path,
    data: bytes | str | Callable[[Path], None],
    *,
    exclusive: bool = False,
    mode: int = 0o666,
    synced: bool = True,
) -> bool:
    """Write a whole file: readers find the old content or the new, even after a kill at any instant.

    Args:
        path: of the file.
        data: content, or a function that writes it to a given path.
        exclusive: keep an existing file, and return False.
        mode: permissions of the file, less the umask.
        synced: whether to sync it to disk; else a crash of the machine may lose some of it.

    Raises:
        StorageError: the file cannot be written; the temporary file is removed.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(16).hex()}.tmp")
    with storage_errors(path):
        try:
            if mode != 0o666:
                temporary.touch(mode)  # before others could read its content
            if callable(data):
                data(temporary)
            else:
                temporary.write_bytes(data.encode(errors="backslashreplace") if isinstance(data, str) else data)
            if synced:
                sync(temporary)
            if exclusive:
                try:
                    os.link(temporary, path)
                except OSError:
                    if not path.exists():
                        raise
                    return path.samefile(temporary)  # over NFS, a retransmitted link reports EEXIST for its own success
            else:
                temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    return True


def remove_folder(folder: Path) -> None:
    """Remove a folder: a kill at any instant leaves it whole, or under a hidden name for `clean`.

    Raises:
        StorageError: it cannot be removed.
    """
    hidden = folder.with_name(f".{folder.name}.{os.urandom(16).hex()}.tmp")
    with storage_errors(folder):
        folder.rename(hidden)
        shutil.rmtree(hidden)


def sync(path: Path) -> None:
    descriptor = open_regular(path)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_names(folder: Path) -> None:
    """Sync the names in a folder: a file that was renamed or linked there survives a crash."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    import hashlib  # loads OpenSSL, which is slow

    with os.fdopen(open_regular(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


NO_HOME = "/dev/null"
"""Home folder of users without one; not even root can create it, or write below it."""


def set_missing_home() -> None:
    """Set HOME if no home folder is known, as in containers: on import, some packages fail without one."""
    if _home_of("~") is None:
        os.environ["HOME"] = NO_HOME


def expand_home(path: str) -> str:
    """Return a path with a leading `~` or `~user` replaced by that home folder.

    A shell does not do so in `--results=~/x`, in environment variables and in files.

    Raises:
        InputError: there is no such user, or no home folder is known.
    """
    first, slash, rest = path.partition("/")
    if not first.startswith("~"):
        return path
    home = _home_of(first)
    if home is None:
        problem = "no home folder is known (HOME is not set)" if first == "~" else f"there is no user {first[1:]}"
        raise InputError(f"{path}: {problem}; give the whole path, or ./{path} for a name that begins with ~")
    return home + slash + rest


def _home_of(tilde: str) -> str | None:
    """Return the folder of `~` or `~user`; None if it is unknown."""
    if tilde == "~" and os.environ.get("HOME") in ("", NO_HOME):  # empty, it would stand for the root folder
        return None
    home = os.path.expanduser(tilde)  # noqa: PTH111 (pathlib raises)
    return None if home == tilde else home


def cache_folder() -> Path:
    """Return the user's folder for files that can be made again; without a home, an unwritable one."""
    with contextlib.suppress(InputError):
        return Path(expand_home(os.environ.get("XDG_CACHE_HOME") or "~/.cache")) / "ettsweep"
    return Path(NO_HOME) / ".cache" / "ettsweep"


SLOTS_ENV = "ETTSWEEP_SLOTS"
"""Environment variable with another folder for slot locks; processes with different folders share no slots."""


def lock_dir() -> Path:
    """Return the folder of this user's slot locks on this host, which may not exist."""
    # Not TMPDIR or XDG_RUNTIME_DIR: a login, a cron job and a batch job of one user must meet at the same slots.
    with with_source(SLOTS_ENV):
        return Path(expand_home(os.environ.get(SLOTS_ENV) or f"/tmp/ettsweep-{os.getuid()}"))


def dumps(value: object) -> str:
    """Return strict JSON; NaN and infinity raise a ValueError (see `finite`)."""
    return json.dumps(value, allow_nan=False)


def loads(data: bytes | str) -> Any:
    """Parse strict JSON. Integers may still be too large for a float, and 1e999 is infinite: see `number`.

    Raises:
        ValueError: it is not JSON, has NaN or infinity, or is nested too deeply.
    """
    try:
        # json.loads makes a new decoder at each call.
        return _DECODER.decode(data if isinstance(data, str) else data.decode("utf-8", "surrogatepass"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def loads_fast(data: bytes) -> Any:
    """Parse strict JSON as `loads` does, three times as fast, but import pydantic.

    Raises:
        ValueError: as `loads`.
    """
    from pydantic_core import from_json

    try:
        return from_json(data, allow_inf_nan=False)
    except ValueError:  # it refuses lone surrogates and deep nesting, which json accepts, with other messages
        return loads(data)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def number(value: object) -> float | None:
    """Return a number from a file as a finite float, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        as_float = float(value)
    except OverflowError:
        return None
    return as_float if math.isfinite(as_float) else None


def read_json(path: Path) -> Json:
    """Read a JSON object that this module wrote.

    Raises:
        FileNotFoundError: there is none.
        CorruptError: it is not a JSON object, or cannot be read.
    """
    try:
        data = read_file(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CorruptError(f"{path}: cannot be read: {error.strerror}") from error
    return parse_object(path, data)


def parse_object(path: Path, data: bytes) -> Json:
    """Parse a JSON object; `path` is for messages.

    Raises:
        CorruptError: it is not a JSON object.
    """
    try:
        value = loads(data)
    except ValueError as error:
        raise CorruptError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CorruptError(f"{path}: not a JSON object")
    return value


def folder_names(folder: Path) -> list[str]:
    """Return the sorted names in a folder; none if there is no such folder.

    Path.glob would return none for an unreadable folder too.

    Raises:
        CorruptError: it is no folder, or cannot be read.
    """
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except OSError as error:
        if isinstance(error, NotADirectoryError) and not folder.exists():
            return []  # a folder above it is a file
        raise CorruptError(f"{folder}: cannot be read: {error.strerror}") from error


def json_or_empty(path: Path) -> Json:
    """Read a JSON object, or return an empty one if the file is missing or unreadable."""
    try:
        return read_json(path)
    except (CorruptError, FileNotFoundError):
        return {}


def read_lines(path: Path, holding: bytes = b"") -> list[Json]:
    """Read a .jsonl file, up to the first broken line; a last line without its end is dropped.

    Lines without the bytes `holding` are skipped without being parsed.
    """
    lines: list[Json] = []
    try:
        data = read_file(path)
    except OSError:
        return []
    for raw in data.split(b"\n")[:-1]:
        if holding not in raw:
            continue
        try:
            value = loads(raw)
        except ValueError:
            break
        if not isinstance(value, dict):
            break
        lines.append(value)
    return lines


def first_json_line(path: Path) -> Json | None:
    """Return the first complete line of a .jsonl file, or None."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            line = file.readline(4096)
        value = loads(line) if line.endswith(b"\n") else None
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


TAIL_BYTES = 8192
"""Bytes at the end of a .jsonl file that hold its last two lines, of less than 4 KiB each."""


def last_json_line(path: Path, holding: bytes = b"") -> Json | None:
    """Return the last complete line of a .jsonl file that has the bytes `holding`; None if it is not near the end."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]
        value = loads(next(line for line in reversed(lines) if holding in line))
    except (OSError, StopIteration, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write_counter(path: Path, count: int) -> None:
    """Write a counter in place, to a file of constant size.

    Clients of a network file system cache the folder's listing, and see a replaced file late; an existing one is
    revalidated whenever it is opened.
    """
    descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.pwrite(descriptor, b"%20d\n" % count, 0)
    finally:
        os.close(descriptor)


def read_counter(path: Path) -> str:
    """Return the text of a counter; empty if it cannot be read."""
    try:
        return read_file(path).decode()
    except (OSError, ValueError):
        return ""
