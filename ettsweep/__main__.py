"""The command `ettsweep`, also as `python -m ettsweep`: Ctrl-C is heard from the first line of it, amid imports too."""

import os
import signal
import sys
from typing import Any

INTERRUPTED = "ettsweep: interrupted\n"


def main() -> None:
    """Run the command line."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else somebody has it ignored
            signal.signal(signal.SIGINT, _interrupt)
        from ettsweep import cli

        try:
            cli.main()
        finally:
            if signal.getsignal(signal.SIGINT) is _interrupt:
                signal.signal(signal.SIGINT, signal.SIG_DFL)  # what the interpreter still does has nothing to say
    except KeyboardInterrupt:
        sys.stderr.write(INTERRUPTED)
        sys.exit(130)


def _interrupt(number: int, frame: Any) -> None:
    """Raise KeyboardInterrupt; amid an import end at once, since some modules lose it and break at the next attempt."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # which a live picture hides
            os.write(2, f"{show_cursor}{INTERRUPTED}".encode())
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
