"""The command `ettsweep`, also as `python -m ettsweep`."""

import signal
import sys


def main() -> None:
    """Run the command line. Ctrl-C ends it without a traceback; during imports, the signal kills the process."""
    if handled := signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else ignored, by nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from ettsweep import cli

    try:
        if handled:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            cli.main()
        finally:
            if handled:
                signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback from the interpreter's shutdown either
    except KeyboardInterrupt:
        sys.stderr.write("ettsweep: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
