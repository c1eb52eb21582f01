"""The command line: each command parses, calls one function, prints, and sets the exit code.

Only typer is imported here. Each command imports what it needs when it runs, so that `--help` and completion are fast.
Exit codes: 0 success; 1 negative or not finished, or the environment failed; 2 wrong usage or input.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from ettsweep import __version__
from ettsweep.cli import (
    compare_command,
    data_text,
    doctor,
    help,
    init_command,
    named_sweeps,
    reader_commands,
    run_commands,
    search_command,
    sweep_commands,
    theory_commands,
    try_command,
    verdict_command,
)
from ettsweep.cli.options import expand_option_groups
from ettsweep.console import escape_control, print_note
from ettsweep.errors import EttsweepError
from ettsweep.extras import INSTALL, missing_text
from ettsweep.ownership import trust_group, trusts_group


def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    """Print the version for --version."""
    trust_group(trusts_group())
    if version:
        print(f"ettsweep {__version__}")
        raise typer.Exit


COMMANDS: dict[str, Callable[..., None]] = {
    "init": init_command.init,
    "try": try_command.try_,
    "grid": sweep_commands.grid,
    "search": search_command.search,
    "verify-optimum": sweep_commands.verify_optimum,
    "seeds": sweep_commands.seeds,
    "report": sweep_commands.report,
    "status": run_commands.status,
    "watch": run_commands.watch,
    "logs": run_commands.logs,
    "show": run_commands.show_run,
    "cancel": run_commands.cancel,
    "retry": run_commands.retry,
    "clean": run_commands.clean,
    "train": run_commands.train,
    "map": theory_commands.map_,
    "scales": theory_commands.scales,
    "check-scaling": theory_commands.check_scaling,
    "read": reader_commands.read,
    "verdict": verdict_command.verdict,
    "compare": compare_command.compare,
    "doctor": doctor.doctor,
}
"""Commands by name."""


def make_app(name: str = "") -> typer.Typer:
    """Return the command line with all commands or, since typer needs time for each, with the named one only."""
    app = typer.Typer(
        name="ettsweep",
        cls=help.Group,
        help="Tune the learning rate and weight decay of any training script, and see when you can stop.",
        no_args_is_help=True,
        # Rich tracebacks print local variables, which may hold secrets of an environment.
        pretty_exceptions_enable=False,
        # Rich would read brackets in help texts, such as low:high[:step], as markup.
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    # Without this, `ettsweep --version` would fail for lack of a command.
    app.callback(invoke_without_command=True)(root)
    for command in [name] if name else COMMANDS:
        app.command(command, cls=help.Command)(expand_option_groups(COMMANDS[command]))
    if not name:
        for group in (named_sweeps.app, data_text.app):
            app.add_typer(group)
    return app


def _run_app() -> None:
    # An option before a command, such as --help, may need all of them.
    name = next((word for word in sys.argv[1:2] if word in COMMANDS), "")
    try:
        make_app(name)()
    except SystemExit as end:
        if end.code == 130:  # typer's exit code for Ctrl-C
            print_note("ettsweep: interrupted")
        raise
    except EttsweepError as error:
        print_note(f"ettsweep: {error}")
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in INSTALL:
            raise
        print_note(f"ettsweep: {missing_text('this', module)}")
        sys.exit(1)
    finally:
        sys.stdout.flush()  # at exit, an error of writing could not be reported any more


def main() -> None:
    """Run the command line. An `EttsweepError` or `OSError` becomes a message and an exit code, without a traceback."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `ettsweep status | head` ends quietly
    from ettsweep.processes import unbind_threads

    unbind_threads()  # before a command imports torch and starts workers
    try:
        _run_app()
    except OSError as error:
        with contextlib.suppress(OSError):
            # Standard output may be a full disk: at exit, Python would flush to it again and print a second error.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        message = f"ettsweep: {error.filename or 'standard output'}: {error.strerror or error}"
        print(escape_control(message), file=sys.stderr)
        sys.exit(1)
