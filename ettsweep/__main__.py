"""The command `ettsweep`, also as `python -m ettsweep`."""

import signal
import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it without a traceback, and while it is imported by the signal itself."""
    if heeded := signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else somebody has it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from ettsweep import cli

    try:
        if heeded:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            cli.main()
        finally:
            if heeded:
                signal.signal(signal.SIGINT, signal.SIG_DFL)  # what the interpreter still does has nothing to say
    except KeyboardInterrupt:
        sys.stderr.write("ettsweep: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
