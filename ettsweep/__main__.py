"""The command `ettsweep`, also as `python -m ettsweep`: Ctrl-C is heard from its first instant."""

import os
import sys
from types import FrameType

STOPPED = "ettsweep: interrupted; what was submitted goes on\n"


def main() -> None:
    """Run the command line."""
    try:
        import signal

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else somebody has it ignored
            signal.signal(signal.SIGINT, _interrupt)
        from ettsweep import cli

        try:
            cli.main()
        finally:
            if signal.getsignal(signal.SIGINT) is _interrupt:
                signal.signal(signal.SIGINT, signal.SIG_DFL)  # what the interpreter still does has nothing to say
    except KeyboardInterrupt:
        sys.stderr.write(STOPPED)
        sys.exit(130)


def _interrupt(signal: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; amid an import end at once, since some modules lose it and break at the next attempt."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            os.write(2, STOPPED.encode())
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
