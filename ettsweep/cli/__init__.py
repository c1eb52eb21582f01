"""The command line: each command parses, calls one function, prints, and sets the exit code.

Only typer is imported here; a command imports what it needs, so that `--help` and completion start at once.
Exit codes: 0 yes; 1 not yet, no, or the environment failed; 2 wrong usage or input.
"""

import contextlib
import os
import signal
import sys

# Commands register when they are imported; `--help` lists them in this order.
from ettsweep.cli import data, runs, sweep, theory  # noqa: F401
from ettsweep.cli.options import app
from ettsweep.errors import EttsweepError
from ettsweep.output import note


def main() -> None:
    """Run the command line; an error of ours becomes a message and an exit code."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `ettsweep status | head` ends as any filter does
    try:
        app()
    except EttsweepError as error:
        note(f"ettsweep: {error}")
        sys.exit(error.exit_code)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what could not be written is not tried again at exit
        print(f"ettsweep: {error.filename or 'standard output'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("ettsweep: interrupted; what was submitted goes on", file=sys.stderr)
        sys.exit(130)
