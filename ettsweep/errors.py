"""All errors of the package, in one tree.

    EttsweepError
    ├── InputError          exit 2   a wrong option, name, grid file, profile or value
    │   ├── SweepNameTakenError      a sweep of that name has other settings
    │   ├── ValuesAsRangeError       a range has values of lr or wd in place of log2 steps
    │   ├── TooFewPairsError         a text is too short for so many tokens
    │   └── CommandFailedError       a run's command has failed
    ├── StoppedError        exit 130 Ctrl-C, with a message on what keeps running
    ├── DeviceMemoryError   exit 1   a device has too little memory for the run
    ├── LostProcessError    exit 1   another process of the run is gone
    └── FailedError         exit 1   the input was right, but the work failed
        ├── DataMissingError         a data set is not where it should be
        ├── PackageMissingError      a package of an extra is not installed
        ├── StorageError             a folder cannot be written, the disk is full
        ├── CorruptError             a file of ours is truncated or was edited by hand
        ├── MetricsError             what a trainer wrote does not fit its reader
        └── LaunchError              jobs could not be submitted
            ├── SubmissionUnknownError    sbatch gave no answer: there may be jobs now
            └── SlurmUnavailableError     SLURM does not answer
                └── SlurmNotInstalledError

`ettsweep.cli` and the worker print the message, without a traceback, and exit. UndecodableError and GitError
are outside the tree, since callers handle them and no user sees them.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager


class EttsweepError(Exception):
    """Root of the tree; `str(error)` is the whole message for the user."""

    exit_code = 1


class InputError(EttsweepError):
    """The input is wrong; the message says what would work."""

    exit_code = 2

    @classmethod
    def of(cls, problems: Iterable[str]) -> "InputError":
        """Return one error for several problems, which a user can then fix at once."""
        return cls("\n".join(problems))


class SweepNameTakenError(InputError):
    """A sweep of that name has other settings; `free` is a similar name that is not in use."""

    def __init__(self, message: str, free: str) -> None:
        super().__init__(message)
        self.free = free


class ValuesAsRangeError(InputError):
    """A range has values of lr or wd in place of log2 steps; `options` are the nearest right ones, by name."""

    def __init__(self, message: str, options: Mapping[str, str]) -> None:
        super().__init__(message)
        self.options = options


class TooFewPairsError(InputError):
    """A text has too few byte pairs for so many tokens; it has enough for `max_tokens`."""

    def __init__(self, message: str, max_tokens: int = 0) -> None:  # the default is for unpickling, which sets it later
        super().__init__(message)
        self.max_tokens = max_tokens


class StoppedError(EttsweepError):
    """Ctrl-C; the message says what keeps running."""

    exit_code = 130


class DeviceMemoryError(EttsweepError):
    """A device has too little memory for the run."""


class CommandFailedError(InputError):
    """A run's command has failed with the exit code `code`; None if it is unknown."""

    def __init__(self, message: str, code: int | None) -> None:
        super().__init__(message)
        self.code = code


LOST = "another process of this run is gone"
"""Prefix of the message of a process that has lost another one of its run."""


class LostProcessError(EttsweepError):
    """Another process of the run is gone, and this one cannot continue."""


class FailedError(EttsweepError):
    """The input is right, but the work failed."""


class DataMissingError(FailedError):
    """A data set is not where it should be."""


class PackageMissingError(FailedError):
    """A package of an extra is needed, and not installed."""


class StorageError(FailedError):
    """A folder cannot be written, or the disk is full."""


class CorruptError(FailedError):
    """A file that ettsweep wrote is truncated, unreadable or was edited by hand."""


class MetricsError(FailedError):
    """What a trainer wrote does not fit its reader, such as two values of a metric at one step."""


class LaunchError(FailedError):
    """Jobs could not be submitted."""


class SubmissionUnknownError(LaunchError):
    """sbatch gave no answer, so there may be jobs now; the next query of SLURM finds out."""


class SlurmUnavailableError(LaunchError):
    """SLURM does not answer: the state of jobs is unknown."""


class SlurmNotInstalledError(SlurmUnavailableError):
    """SLURM is not installed on this machine: retrying does not help."""


class UndecodableError(Exception):
    """The bytes of an image cannot be decoded; `str(error)` says why."""


class GitError(Exception):
    """Git is missing, failed or took too long; the message says so."""


@contextmanager
def with_source(source: str) -> Iterator[None]:
    """Put the name of a file or an option before each line of an InputError raised within."""
    try:
        yield
    except InputError as error:
        raise InputError.of(f"{source}: {line}" for line in str(error).splitlines()) from None


def short_message(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return str(error).split("\n")[0] or type(error).__name__


def error_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its message."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])


def unknown_name(kind: str, name: str, choices: Iterable[str]) -> InputError:
    """Return the error for a name that is not in a registry, with the most similar one that is."""
    names = sorted(choices, key=str.casefold)
    near = nearest_name(name, names)
    hint = f"; did you mean {near!r}?" if near else "."
    return InputError(f"unknown {kind} {name!r}{hint} Known: {', '.join(names) or 'none'}")


def nearest_name(name: str, choices: Iterable[str]) -> str | None:
    """Return the most similar of some names, in any case; None if none is similar."""
    import difflib

    by_folded = {choice.casefold(): choice for choice in choices}
    near = difflib.get_close_matches(name.casefold(), by_folded, n=1)
    return by_folded[near[0]] if near else None
