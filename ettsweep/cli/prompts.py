"""Interaction with the user: progress, confirmation, Ctrl-C, and suggested commands."""

import contextlib
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import typer

from ettsweep.console import escape_control
from ettsweep.errors import InputError, StoppedError, SweepNameTakenError, ValuesAsRangeError

if TYPE_CHECKING:
    from rich.console import Console


def progress_console() -> "Console":
    """Return a console on standard error for progress; standard output is for results."""
    from rich.console import Console

    return Console(stderr=True, soft_wrap=not sys.stderr.isatty())  # do not break lines in a log file


def can_show_screen() -> bool:
    """`True` if the user sits at a terminal that can show a full-screen application."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    # A "dumb" terminal, such as the shell of an editor, cannot move the cursor.
    return all(stream.isatty() for stream in streams) and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def shell_command(*arguments: str) -> str:
    """Return an ettsweep command in backquotes, quoted for a shell."""
    return f"`{shlex.join(['ettsweep', *arguments])}`"


def repeat_option(option: str, values: Iterable[str]) -> list[str]:
    """Return the arguments that give an option several values: `--state a --state b`."""
    return [argument for value in values for argument in (option, value)]


def runs_go_on(selection: Sequence[str]) -> str:
    """Return the message on Ctrl-C while runs keep running."""
    return f"the runs keep running: {shell_command('watch', *selection)} shows them"


@contextlib.contextmanager
def detach_on_interrupt(follows: bool = True, selection: Sequence[str] = ()) -> Iterator[None]:
    """On Ctrl-C in a command that follows runs, report that submitted runs keep running.

    The message suggests `watch` with the options that selected the runs.

    Raises:
        StoppedError: the user pressed Ctrl-C while runs were followed.
    """
    try:
        yield
    except KeyboardInterrupt:
        if not follows:
            raise
        raise StoppedError(f"interrupted; {runs_go_on(selection)}") from None


@contextlib.contextmanager
def suggest_command() -> Iterator[None]:
    """If a sweep's name is taken, or a range has values, add the same command with options that work to the error."""
    try:
        yield
    except SweepNameTakenError as error:
        raise InputError(f"{error}; for a separate sweep:\n  {_this_command({'--name': error.free})}") from None
    except ValuesAsRangeError as error:
        if not error.options:
            raise
        raise InputError(f"{error}:\n  {_this_command(error.options)}") from None


def _this_command(options: Mapping[str, str]) -> str:
    """Return the command line for a shell, with the values of some options replaced or added."""
    from ettsweep.config import hide_secrets

    arguments = [hide_secrets(argument) for argument in sys.argv[1:]]  # without secrets of --launch-set
    for key, new in options.items():
        option, _, name = key.partition(" ")  # of --range lr, that of another axis stays
        value = f"{name}={new}" if name else new
        for index, argument in enumerate(arguments):
            is_separate = argument == option and arguments[index + 1].startswith(f"{name}=" if name else "")
            if is_separate or argument.startswith(f"{option}={name}=" if name else f"{option}="):
                # "--name x" takes two arguments, "--name=x" one.
                del arguments[index : index + 1 + (argument == option)]
                break
        # A value such as -1:1 would look like an option.
        arguments += [f"{option}={value}"] if value.startswith("-") else [option, value]
    return shlex.join(["ettsweep", *arguments])


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation unless --yes is given.

    Raises:
        typer.Exit: The answer was no; exit code 1.
        InputError: There is no answer, such as without a terminal.
        KeyboardInterrupt: The user pressed Ctrl-C.
    """
    if yes:
        return
    try:
        # On standard error, as standard output may be piped into a file.
        confirmed = typer.confirm(escape_control(question), err=True)
    except typer.Abort as abort:
        sys.stderr.write("\n")  # the question's line has no end yet
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise InputError("no answer; pass --yes to skip this question") from None
    if not confirmed:
        raise typer.Exit(1)
