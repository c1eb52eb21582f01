"""How commands deal with whoever typed them: progress, questions, Ctrl-C, what to type instead."""

import contextlib
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import typer

from ettsweep.console import escape_control, print_note
from ettsweep.errors import InputError, SweepNameTakenError

if TYPE_CHECKING:
    from rich.console import Console


def console() -> "Console":
    """Return the console that progress is shown on."""
    from rich.console import Console

    return Console(stderr=True, soft_wrap=not sys.stderr.isatty())  # a file has no edge to wrap at


def has_screen() -> bool:
    """Say whether a person sits at a terminal that can show a whole screen."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return all(stream.isatty() for stream in streams) and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def shell_command(*arguments: str) -> str:
    """Return a command as messages have it, to be typed."""
    return f"`{shlex.join(['ettsweep', *arguments])}`"


def repeated(option: str, values: Iterable[str]) -> list[str]:
    """Return an option as it is typed of several values: once for each."""
    return [argument for value in values for argument in (option, value)]


def detached(selection: Sequence[str]) -> str:
    """Say what is to be said where somebody leaves the runs that some options mean."""
    return f"detached; the runs go on: {shell_command('watch', *selection)} shows them"


@contextlib.contextmanager
def detaching(follows: bool = True, code: int = 1, meant: Sequence[str] = ()) -> Iterator[None]:
    """Have Ctrl-C leave a command that follows runs, with exit code 1, not yet: what was submitted goes on.

    `meant` are the options that name these runs.
    """
    try:
        yield
    except KeyboardInterrupt:
        if not follows:
            raise
        print_note(detached(meant))
        raise typer.Exit(code) from None


@contextlib.contextmanager
def retyped_with(option: str) -> Iterator[None]:
    """Where a name is taken, say the same command with a free one."""
    try:
        yield
    except SweepNameTakenError as error:
        from ettsweep.config import hidden

        arguments = [hidden(argument) for argument in sys.argv[1:]]
        for index, argument in enumerate(arguments):
            if argument == option or argument.startswith(f"{option}="):
                del arguments[index : index + 1 + (argument == option)]
                break
        raise InputError(
            f"{error}; for a sweep of its own:\n  {shlex.join(['ettsweep', *arguments, option, error.free])}"
        ) from None


def go_on(cost: str) -> bool:
    """Ask a person whether a climb may go on, given what that costs; where nobody is there, it may not."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    try:
        return typer.confirm(f"{cost}; go on?", err=True)
    except typer.Abort:  # what the climb has found is shown all the same
        print_note("")
        return False


def confirm(question: str, yes: bool) -> None:
    """Ask before something is done, unless --yes was said; a no ends the command."""
    if yes:
        return
    try:
        confirmed = typer.confirm(escape_control(question), err=True)
    except typer.Abort:
        raise InputError("nobody answered; --yes says yes beforehand") from None
    if not confirmed:
        raise typer.Exit(1)
