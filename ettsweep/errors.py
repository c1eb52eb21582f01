"""Every error of this package, in one tree, and in no other module.

    EttsweepError
    ├── InputError          exit 2   a wrong option, name, grid file, profile or value
    │   ├── TakenError               a sweep of that name asks for something else
    │   └── TooFewPairsError         a text is too short for so many tokens
    ├── StoppedError        exit 130 Ctrl-C, where the command has something to say of what it leaves
    ├── DeviceMemoryError   exit 1   a device has too little memory for what was asked of it
    ├── LostPeerError       exit 1   another process of the run is gone
    └── FailedError         exit 1   the input was fine, the world was not
        ├── DataMissingError         a data set is not where it was looked for
        ├── StorageError             a folder cannot be written, the disk is full
        ├── CorruptError             a file of ours is truncated or was edited by hand
        └── LaunchError              jobs could not be submitted
            ├── UnansweredError      sbatch was asked, and there may be jobs now
            └── NoAnswerError        SLURM does not answer
                └── NotHereError     SLURM is not on this machine

Only `ettsweep.cli` catches them: it prints the message, without a traceback, and exits. Outside the tree is what no
user meets, since whoever calls has an answer to it: UndecodableError, GitError.
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


class SweepNameTakenError(InputError):
    """A sweep of that name asks for something else; `free` is a telling name that none has."""

    def __init__(self, message: str, free: str) -> None:
        super().__init__(message)
        self.free = free


class TooFewPairsError(InputError):
    """A text has too few pairs to join for so many tokens; it has enough for `most`."""

    def __init__(self, message: str, most: int = 0) -> None:  # the default is for unpickling, which sets it later
        super().__init__(message)
        self.most = most


class StoppedError(EttsweepError):
    """Ctrl-C; the message says what is kept."""

    exit_code = 130


class DeviceMemoryError(EttsweepError):
    """A device has too little memory for what was asked of it."""


class LostProcessError(EttsweepError):
    """Another process of the run is gone, so that this one cannot go on."""


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


class SubmissionUnknownError(LaunchError):
    """sbatch was asked, and it is not known whether there are jobs now; the next look at SLURM tells."""


class SlurmUnavailableError(LaunchError):
    """SLURM does not answer: nothing is known, and nothing may be concluded."""


class SlurmNotInstalledError(SlurmUnavailableError):
    """SLURM is not on this machine: waiting does not help."""


class UndecodableError(Exception):
    """The bytes of an image are there, but no image is made of them; `str(error)` says why."""


class GitError(Exception):
    """Git is missing, failed or took too long; the message says so."""


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


def error_line(error: BaseException) -> str:
    """Return the type of an error, and what it says first."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0] if said else ''}"


def unknown_name(what: str, name: str, known: Iterable[str]) -> InputError:
    """Return the error for a name that is not in a registry, with the nearest known one."""
    import difflib

    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return InputError(f"unknown {what} {name!r}{hint} Known: {', '.join(names) or 'none'}")
