"""The command `ettsweep`, also as `python -m ettsweep`."""

import atexit
import gc
import os
import signal
import sys
from types import FrameType

MESSAGE = "ettsweep: interrupted\n"

COLLECT_EVERY = 200_000
"""New objects after which the garbage collector looks for cycles. Python's 700 would pass over all runs of a large
results folder again and again: a quarter of the time of `status`. Imports make some 80,000."""


def main() -> None:
    """Run the command line. Ctrl-C ends it without a traceback, with exit code 130."""
    gc.set_threshold(COLLECT_EVERY)
    atexit.register(gc.freeze)  # else Python looks for cycles in everything at exit
    if handled := signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else ignored, by nohup
        signal.signal(signal.SIGINT, _exit)
        # At exit, Python removes its handlers, and the signal would kill a finished command.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    from ettsweep.console import prepare_streams
    from ettsweep.files import set_missing_home

    prepare_streams()
    set_missing_home()
    from ettsweep import cli

    try:
        if handled:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            cli.main()
        finally:
            if handled:
                signal.signal(signal.SIGINT, _exit)  # no traceback from the interpreter's shutdown either
    except KeyboardInterrupt:
        sys.stderr.write(MESSAGE)
        sys.exit(130)


def _exit(number: int, frame: FrameType | None) -> None:
    """End at once: a module during import might catch an exception."""
    try:
        os.write(2, MESSAGE.encode())
    finally:
        os._exit(130)


if __name__ == "__main__":
    main()
