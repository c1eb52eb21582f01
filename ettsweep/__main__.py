"""The command `ettsweep`, also as `python -m ettsweep`: Ctrl-C is heard from the first line of it, amid imports too."""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

INTERRUPTED = "ettsweep: interrupted\n"


def main() -> None:
    """Run the command line."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else somebody has it ignored
            signal.signal(signal.SIGINT, _interrupt)
        try:
            from ettsweep import cli

            cli.main()
        finally:
            if signal.getsignal(signal.SIGINT) is _interrupt:
                signal.signal(signal.SIGINT, signal.SIG_DFL)  # what the interpreter still does has nothing to say
    except KeyboardInterrupt:
        sys.stderr.write(INTERRUPTED)
        sys.exit(130)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; amid an import after it, since some modules lose it, and break at the next attempt.

    Pressed again meanwhile, Ctrl-C ends the command at once.
    """
    importer = _importer(frame)
    if importer is None:
        raise KeyboardInterrupt
    if sys.gettrace() is _look_away:
        show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # which a live picture hides
        os.write(2, f"{show_cursor}{INTERRUPTED}".encode())
        os._exit(130)
    importer.f_trace = _raise
    sys.settrace(_look_away)


def _importer(frame: FrameType | None) -> FrameType | None:
    """Return where the command itself imports something, if it is at that: importing has that import others."""
    importer = None
    while frame is not None and frame.f_code is not main.__code__:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            importer = frame.f_back
        frame = frame.f_back
    return importer


def _look_away(*event: object) -> None:
    """Trace nothing of what is called: only the frame that imports, by its next line."""


def _raise(*event: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
