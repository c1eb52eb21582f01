"""Every error that a user can meet, in one tree.

    EttsweepError
    ├── InputError          exit 2   a wrong option, name, grid file, profile or value
    ├── StoppedError        exit 130 Ctrl-C, where the command has something to say of what it leaves
    └── FailedError         exit 1   the input was fine, the world was not
        ├── DataMissingError         a data set is not where it was looked for
        ├── StorageError             a folder cannot be written, the disk is full
        ├── CorruptError             a file of ours is truncated or was edited by hand
        └── LaunchError              jobs could not be submitted

Only `ettsweep.cli` catches them: it prints the message, without a traceback, and exits.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class EttsweepError(Exception):
    """Root of the tree; `str(error)` is the whole message for the user."""

    exit_code = 1


class InputError(EttsweepError):
    """What was asked for is not possible; the message says what would be."""

    exit_code = 2

    @classmethod
    def of(cls, problems: Iterable[str]) -> "InputError":
        """Join several problems, so that a user mends all of them at once."""
        return cls("\n".join(problems))


class StoppedError(EttsweepError):
    """Ctrl-C; the message says what is kept."""

    exit_code = 130


class FailedError(EttsweepError):
    """The request was sound but could not be carried out."""


class DataMissingError(FailedError):
    """A data set is not where it was looked for."""


class StorageError(FailedError):
    """A folder cannot be written, or the disk is full."""


class CorruptError(FailedError):
    """A file of ours is truncated, unreadable or was edited by hand."""


class LaunchError(FailedError):
    """Jobs could not be submitted."""


@contextmanager
def located(where: str) -> Iterator[None]:
    """Put a file's name before each line of an InputError that does not know it."""
    try:
        yield
    except InputError as error:
        raise InputError.of(f"{where}: {line}" for line in str(error).splitlines()) from None


def first_line(error: BaseException) -> str:
    """Return what an error says first, its type where it says nothing."""
    return str(error).split("\n")[0] or type(error).__name__


def unknown_name(what: str, name: str, known: Iterable[str]) -> InputError:
    """Return the error for a name that is not in a registry, with the nearest known one."""
    import difflib

    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return InputError(f"unknown {what} {name!r}{hint} Known: {', '.join(names) or 'none'}")
