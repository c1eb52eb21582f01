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


def shell_command(*words: str) -> str:
    """Return a command as messages have it, to be typed."""
    return f"`{shlex.join(['ettsweep', *words])}`"


def repeated(option: str, values: Iterable[str]) -> list[str]:
    """Return an option as it is typed of several values: once for each."""
    return [word for value in values for word in (option, value)]


def detached(meant: Sequence[str]) -> str:
    """Say what is to be said where somebody leaves the runs that some options mean."""
    return f"detached; the runs go on: {shell_command('watch', *meant)} shows them"


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

        words = [hidden(word) for word in sys.argv[1:]]
        for k, word in enumerate(words):
            if word == option or word.startswith(f"{option}="):
                del words[k : k + 1 + (word == option)]
                break
        raise InputError(
            f"{error}; for a sweep of its own:\n  {shlex.join(['ettsweep', *words, option, error.free])}"
        ) from None


def go_on(told: str) -> bool:
    """Ask a person whether a climb may go on, given what that costs; where nobody is there, it may not."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    try:
        return typer.confirm(f"{told}; go on?", err=True)
    except typer.Abort:  # what the climb has found is shown all the same
        print_note("")
        return False


def confirm(question: str, yes: bool) -> None:
    """Ask before something is done, unless --yes was said; a no ends the command."""
    if yes:
        return
    try:
        agreed = typer.confirm(escape_control(question), err=True)
    except typer.Abort:
        raise InputError("nobody answered; --yes says yes beforehand") from None
    if not agreed:
        raise typer.Exit(1)
