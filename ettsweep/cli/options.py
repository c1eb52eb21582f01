"""Options that commands share, and what is read from them; the application that commands register with."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ettsweep.errors import InputError
from ettsweep.output import Format, note

if TYPE_CHECKING:
    from rich.console import Console

    from ettsweep.sweep.ledger import Selection
    from ettsweep.sweep.request import Search


app = typer.Typer(
    name="ettsweep",
    help="Find, and prove, the best learning rate and weight decay of a Transformer under a scaling strategy.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

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


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        from ettsweep import __version__

        print(f"ettsweep {__version__}")
        raise typer.Exit


# --- helpers: arguments in, text out ----------------------------------------------------------------------------------


def _console() -> "Console":
    from rich.console import Console

    return Console(stderr=True, soft_wrap=not sys.stderr.isatty())  # a file has no edge to wrap at


class _detaching:  # noqa: N801 (reads as a statement)
    """Ctrl-C leaves the command, with exit code 0: what was submitted goes on."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is KeyboardInterrupt:
            note("detached; the runs go on: `ettsweep watch` shows them")
            raise typer.Exit(0)


def _numbers(text: str | None, option: str, example: str) -> list[int]:
    if text is None:
        return []
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option}: whole numbers with commas are expected, such as {example}, got {text!r}") from None


def _point(text: str | None) -> Any:
    if text is None:
        return None
    from ettsweep.sweep.lattice import parse_point

    return parse_point(text, "--at")


def _with_log(launch_set: list[str] | None, log: list[str] | None) -> list[str] | None:
    """Return what is set in the profile, with the sinks that metrics go to.

    Raises:
        InputError: there is no such sink, or its package is missing.
    """
    if not log:
        return launch_set
    from ettsweep.errors import unknown_name
    from ettsweep.training.sinks import SINKS, check_sinks

    for name in log:
        if name not in SINKS:
            raise unknown_name("sink", name, SINKS)
    check_sinks(log)
    return [*(launch_set or []), f"log=[{', '.join(log)}]"]


def _searches(
    results: Path,
    models: list[str] | None,
    strategies: list[str] | None,
    families: list[str] | None,
) -> "list[Search]":
    from ettsweep.scaling.strategies import parse_strategy
    from ettsweep.sweep.request import load_requests, searches

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


def _selection(
    runs: list[str] | None,
    models: list[str] | None,
    strategies: list[str] | None,
    families: list[str] | None,
    states: list[str] | None,
) -> "Selection":
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


def _need_some(*selectors: object) -> None:
    if not any(selectors):
        raise InputError("say which runs: ids, --family, --strategy, --model, --state or --all")


def _confirm(question: str, count: int, yes: bool) -> None:
    if count > 1 and not yes:
        try:
            agreed = typer.confirm(question)
        except typer.Abort:
            raise InputError("nobody answered; --yes says yes beforehand") from None
        if not agreed:
            raise typer.Exit(1)
