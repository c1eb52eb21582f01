"""Options that commands share, and what is read from them."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ettsweep.errors import InputError
from ettsweep.output import Format, note

if TYPE_CHECKING:
    from rich.console import Console

    from ettsweep.launch.place import Place
    from ettsweep.sweep.ledger import Selection
    from ettsweep.sweep.search import Search


Results = Annotated[Path, typer.Option("--results", envvar="ETTSWEEP_RESULTS", help="Results folder.")]
Grid = Annotated[Path | None, typer.Option("--grid", help="Grid file.", metavar="FILE")]
Model = Annotated[str | None, typer.Option("--model", help="Model name; takes the one grid file for it.")]
Strategies = Annotated[
    list[str] | None, typer.Option("--strategy", help="standard, ntk, hybrid, mup or s=0.25; repeatable.")
]
Sets = Annotated[
    list[str] | None, typer.Option("--set", help="key=value for any recipe field, or a centre.", metavar="KEY=VALUE")
]
Launch = Annotated[
    str | None,
    typer.Option("--launch", help="Launch profile: a file or a name; the grid's, or local, by default."),
]
LaunchSets = Annotated[
    list[str] | None, typer.Option("--launch-set", help="key=value for a profile field.", metavar="KEY=VALUE")
]
Log = Annotated[
    list[str] | None,
    typer.Option("--log", help="Write metrics there too: tensorboard or wandb; repeatable.", metavar="SINK"),
]
Data = Annotated[str | None, typer.Option("--data", help="Where the data set is: a folder, or hfds/OWNER/NAME.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and change nothing.")]
Follow = Annotated[bool, typer.Option("--follow", help="Stay and show progress; Ctrl-C only detaches.")]
Form = Annotated[Format, typer.Option("--format", help="How to print.")]
Runs = Annotated[list[str] | None, typer.Argument(help="Runs, by id or the start of one.", show_default=False)]
Families = Annotated[list[str] | None, typer.Option("--family", help="Family id, or the start of one; repeatable.")]
States = Annotated[list[str] | None, typer.Option("--state", help="State, such as failed; repeatable.")]
Models = Annotated[list[str] | None, typer.Option("--model", help="Model name; repeatable.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

Optimizer = Annotated[Literal["adamw", "sgd"], typer.Option(help="Optimizer.")]

DEFAULT_RESULTS = Path("results")


def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    """Print the version, where that is asked for."""
    if version:
        from ettsweep import __version__

        print(f"ettsweep {__version__}")
        raise typer.Exit


# --- what options mean ----------------------------------------------------------------------------------------------


def console() -> "Console":
    """Return the console that progress is shown on."""
    from rich.console import Console

    return Console(stderr=True, soft_wrap=not sys.stderr.isatty())  # a file has no edge to wrap at


@contextlib.contextmanager
def detaching(follows: bool = True) -> Iterator[None]:
    """Have Ctrl-C leave a command that follows runs with exit code 0: what was submitted goes on."""
    try:
        yield
    except KeyboardInterrupt:
        if not follows:
            raise
        note("detached; the runs go on: `ettsweep watch` shows them")
        raise typer.Exit(0) from None


def numbers(text: str | None, option: str, example: str) -> list[int]:
    """Return whole numbers that are given with commas between them.

    Raises:
        InputError: they are not.
    """
    if text is None:
        return []
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option}: whole numbers with commas are expected, such as {example}, got {text!r}") from None


def place(launch: str | None, launch_set: list[str] | None, log: list[str] | None, data: str | None) -> "Place":
    """Return what options say of where runs train, where their metrics go, and where their data are.

    Raises:
        InputError: there is no such sink, or its package is missing.
    """
    from ettsweep.launch.place import Place

    sets = list(launch_set or [])
    if log:
        from ettsweep.errors import unknown_name
        from ettsweep.training.sinks import SINKS, check_sinks

        for name in log:
            if name not in SINKS:
                raise unknown_name("sink", name, SINKS)
        check_sinks(log)
        sets.append(f"log=[{', '.join(log)}]")
    return Place(launch, tuple(sets), data)


def asked_searches(
    results: Path,
    models: list[str] | None,
    strategies: list[str] | None,
    families: list[str] | None,
) -> "list[Search]":
    """Return the searches that have been asked for and that fit the options.

    Raises:
        InputError: there is none.
    """
    from ettsweep.scaling.strategies import parse_strategy
    from ettsweep.sweep.search import load_requests, searches

    requests = load_requests(results)
    if not requests:
        raise InputError(f"{results}: no grid has been asked for yet; `ettsweep grid --model vit-digits` asks for one")
    wanted = {parse_strategy(name) for name in strategies or []}
    found = [
        search
        for search in searches(requests)
        if (not wanted or search.base.strategy.s in wanted)
        and (not models or search.model in models)
        and (not families or search.family.startswith(tuple(families)))
    ]
    if not found:
        known = ", ".join(f"{s.model} {s.strategy} ({s.family})" for s in searches(requests))
        raise InputError(f"no search fits these options; there are: {known}")
    return found


def selection(
    runs: list[str] | None,
    models: list[str] | None,
    strategies: list[str] | None,
    families: list[str] | None,
    states: list[str] | None,
) -> "Selection":
    """Return which runs are meant.

    Raises:
        InputError: there is no such state.
    """
    from ettsweep.errors import unknown_name
    from ettsweep.runs.state import State
    from ettsweep.sweep.ledger import Selection

    for name in states or []:
        if name not in list(State):
            raise unknown_name("state", name, [s.value for s in State])
    return Selection(
        tuple(runs or ()),
        tuple(families or ()),
        tuple(strategies or ()),
        tuple(models or ()),
        tuple(State(name) for name in states or ()),
    )


def need_some(*selectors: object) -> None:
    """Refuse to take all runs for meant where nothing is said."""
    if not any(selectors):
        raise InputError("say which runs: ids, --family, --strategy, --model, --state or --all")


def confirm(question: str, count: int, yes: bool) -> None:
    """Ask before something is done to several runs, unless --yes was said; a no ends the command."""
    if count > 1 and not yes:
        try:
            agreed = typer.confirm(question)
        except typer.Abort:
            raise InputError("nobody answered; --yes says yes beforehand") from None
        if not agreed:
            raise typer.Exit(1)
