"""Options that commands share, alone or in groups, and what is read from them."""

import contextlib
import inspect
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ettsweep.cli import completion
from ettsweep.errors import CorruptError, InputError, TakenError, unknown_name
from ettsweep.output import Format, harmless, note

if TYPE_CHECKING:
    from rich.console import Console

    from ettsweep.launch.demand import Place
    from ettsweep.sweep.ledger import Ledger, Run
    from ettsweep.sweep.search import Search
    from ettsweep.sweep.sweeps import Sweep, Sweeps

RunOrSearch = TypeVar("RunOrSearch", "Run", "Search")


Results = Annotated[Path, typer.Option("--results", envvar="ETTSWEEP_RESULTS", help="Results folder.")]
Grid = Annotated[Path | None, typer.Option("--grid", help="Grid file.", metavar="FILE")]
Model = Annotated[
    str | None,
    typer.Option("--model", help="Model name; takes the one grid file for it.", autocompletion=completion.grid_models),
]
Strategies = Annotated[
    list[str] | None,
    typer.Option(
        "--strategy",
        help="standard, ntk, hybrid, mup or s=0.25; repeatable.",
        autocompletion=completion.strategies,
    ),
]
Sets = Annotated[
    list[str] | None, typer.Option("--set", help="key=value for any recipe field, or a centre.", metavar="KEY=VALUE")
]
Launch = Annotated[
    str | None,
    typer.Option(
        "--launch",
        help="Launch profile: a file or a name; the grid's, or local, by default.",
        autocompletion=completion.profiles,
    ),
]
LaunchSets = Annotated[
    list[str] | None, typer.Option("--launch-set", help="key=value for a profile field.", metavar="KEY=VALUE")
]
Data = Annotated[str | None, typer.Option("--data", help="Where the data set is: a folder, or hfds/OWNER/NAME.")]
SweepNames = Annotated[
    list[str] | None,
    typer.Option(
        "--sweep",
        "-s",
        help="Sweep; repeatable. Without: all that are not archived.",
        metavar="NAME",
        autocompletion=completion.sweeps,
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and change nothing.")]
Follow = Annotated[bool, typer.Option("--follow", help="Stay and show progress; Ctrl-C only detaches.")]
Form = Annotated[Format, typer.Option("--format", help="How to print.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

DEFAULT_RESULTS = Path("results")


# --- groups ---------------------------------------------------------------------------------------------------------


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the options of its groups in place of each parameter that is a group, a dataclass."""
    own = inspect.signature(command).parameters.values()
    groups: dict[str, Any] = {p.name: p.annotation for p in own if is_dataclass(p.annotation)}

    @wraps(command)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    options = [
        o for p in own for o in (inspect.signature(p.annotation).parameters.values() if p.name in groups else [p])
    ]
    run.__annotations__ = {option.name: option.annotation for option in options}
    run.__signature__ = inspect.Signature([o.replace(kind=o.KEYWORD_ONLY) for o in options])  # type: ignore[attr-defined]
    return run


@dataclass(frozen=True)
class Families:
    """The families that a command is about; what is not given does not narrow it."""

    sweep: SweepNames = None
    model: Annotated[
        list[str] | None, typer.Option(help="Model name; repeatable.", autocompletion=completion.models)
    ] = None
    strategy: Strategies = None
    family: Annotated[list[str] | None, typer.Option(help="Family id, or the start of one; repeatable.")] = None

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def load(self, results: Path) -> "Sweeps":
        """Read all sweeps; where none is named, say which ones are left out since they cannot be read."""
        from ettsweep.sweep.sweeps import load_sweeps

        sweeps = load_sweeps(results)
        for name, problem in {} if self.sweep else sweeps.broken.items():
            note(f"sweep {name} is left out: {problem}")
        return sweeps

    def sweeps(self, sweeps: "Sweeps") -> "list[Sweep]":
        """Return the sweeps that are meant; without a name, all that are not archived and can be read.

        Raises:
            InputError: there is none of a name.
            CorruptError: one that is named cannot be read.
        """
        return sweeps.chosen(self.sweep or [])

    def searches(self, sweeps: "Sweeps") -> "list[Search]":
        """Return the searches that have been asked for and are meant.

        Raises:
            InputError: there is none.
            CorruptError: none that is meant can be read.
        """
        known = [search for sweep in self.sweeps(sweeps) for search in sweep.searches]
        if not known:
            if sweeps.named:
                raise InputError(f"all sweeps are archived: {', '.join(sweeps.named)}; name one with --sweep")
            if sweeps.broken:
                raise CorruptError("no sweep can be read")
            raise InputError(
                f"{sweeps.results}: no grid has been asked for yet; `ettsweep grid --model vit-digits` asks for one"
            )
        found = self._among(known)
        if not found:
            told = ", ".join(f"{s.sweep} {s.model} {s.strategy} ({s.family})" for s in known)
            raise InputError(f"no search fits these options; there are: {told}")
        return found

    def runs(self, ledger: "Ledger", sweeps: "Sweeps") -> "list[Run]":
        """Return the runs that are meant: those that belong to the sweeps and, where none is named, to none.

        Raises:
            InputError: a sweep or a family is not there.
        """
        from ettsweep.sweep.sweeps import holders

        meant = {sweep.name for sweep in self.sweeps(sweeps)}
        belong = {run.id: set(holders(sweeps.searches, run.family, run.spec)) for run in ledger.runs.values()}
        runs = [r for r in ledger.runs.values() if belong[r.id] & meant or not (self.sweep or belong[r.id])]
        known = {run.family for run in runs}
        for prefix in self.family or []:
            if not any(family.startswith(prefix) for family in known):
                raise unknown_name("family", prefix, known)
        asked = [search for found in sweeps.searches.values() for search in found]
        there: list[Run | Search] = [*ledger.runs.values(), *asked]
        models = {one.model for one in there}
        for name in self.model or []:
            if name not in models:
                raise unknown_name("model", name, models)
        strategies = {one.strategy for one in there}
        for name in _strategies(self.strategy):
            if name not in strategies:
                raise InputError(f"no run is of strategy {name}; there are: {', '.join(sorted(strategies)) or 'none'}")
        return self._among(runs)

    def holding(self, runs: "Sequence[Run]", sweeps: "Sweeps") -> "list[Search]":
        """Return the searches on whose lattices some runs lie, of the sweeps that are named or of all."""
        meant = self.sweeps(sweeps) if self.sweep else sweeps.named.values()
        return [
            search
            for search in chain.from_iterable(sweep.searches for sweep in meant)
            if any(run.family == search.family and search.holds(run.point) for run in runs)
        ]

    def _among(self, found: Sequence[RunOrSearch]) -> list[RunOrSearch]:
        strategies = _strategies(self.strategy)
        return [
            one
            for one in found
            if (not self.model or one.model in self.model)
            and (not strategies or one.strategy in strategies)
            and (not self.family or one.family.startswith(tuple(self.family)))
        ]


def _strategies(given: Sequence[str] | None) -> set[str]:
    from ettsweep.scaling.strategies import parse_strategy, strategy_name

    return {strategy_name(parse_strategy(name)) for name in given or []}


@dataclass(frozen=True)
class Runs(Families):
    """The runs that a command is about."""

    run: Annotated[
        list[str] | None,
        typer.Argument(help="Runs, by id or the start of one.", show_default=False, autocompletion=completion.runs),
    ] = None
    state: Annotated[
        list[str] | None,
        typer.Option(help="State, such as failed; repeatable.", autocompletion=completion.states),
    ] = None

    def runs(self, ledger: "Ledger", sweeps: "Sweeps") -> "list[Run]":
        """Return the runs that are meant; those that are named may be of any sweep.

        Raises:
            InputError: a run, a sweep or a family is not there, or there is no such state.
        """
        from ettsweep.runs.state import State
        from ettsweep.sweep.ledger import find_run

        for name in self.state or []:
            if name not in list(State):
                raise unknown_name("state", name, [s.value for s in State])
        ids = {find_run(ledger, prefix) for prefix in self.run or []}
        if ids and not self.sweep:
            found = self._among([ledger.runs[run] for run in ids if run in ledger.runs])
        else:
            found = [run for run in super().runs(ledger, sweeps) if not ids or run.id in ids]
        return [run for run in found if not self.state or run.state in self.state]

    def need_some(self, all_: bool) -> None:
        """Refuse to take all runs for meant where nothing is said."""
        if not self and not all_:
            raise InputError("say which runs: ids, --sweep, --family, --strategy, --model, --state or --all")


@dataclass(frozen=True)
class Training:
    """Where runs train, where their metrics go, and where their data are."""

    launch: Launch = None
    launch_set: LaunchSets = None
    log: Annotated[
        list[str] | None,
        typer.Option(
            help="Write metrics there too: tensorboard or wandb; repeatable.",
            metavar="SINK",
            autocompletion=completion.sinks,
        ),
    ] = None
    data: Data = None

    def place(self) -> "Place":
        """Return what these options say.

        Raises:
            InputError: there is no such sink, or its package is missing.
        """
        from ettsweep.launch.demand import Place

        sets = list(self.launch_set or [])
        if self.log:
            from ettsweep.training.sinks import SINKS, check_sinks

            for name in self.log:
                if name not in SINKS:
                    raise unknown_name("sink", name, SINKS)
            check_sinks(self.log)
            sets.append(f"log=[{', '.join(self.log)}]")
        return Place(self.launch, tuple(sets), self.data)


# --- conduct --------------------------------------------------------------------------------------------------------


def console() -> "Console":
    """Return the console that progress is shown on."""
    from rich.console import Console

    return Console(stderr=True, soft_wrap=not sys.stderr.isatty())  # a file has no edge to wrap at


@contextlib.contextmanager
def detaching(follows: bool = True, code: int = 1) -> Iterator[None]:
    """Have Ctrl-C leave a command that follows runs, with exit code 1, not yet: what was submitted goes on."""
    try:
        yield
    except KeyboardInterrupt:
        if not follows:
            raise
        note("detached; the runs go on: `ettsweep watch` shows them")
        raise typer.Exit(code) from None


@contextlib.contextmanager
def retyped_with(option: str) -> Iterator[None]:
    """Where a name is taken, say the same command with a free one."""
    try:
        yield
    except TakenError as error:
        from ettsweep.config import hidden

        words = [hidden(word) for word in sys.argv[1:]]
        for k, word in enumerate(words):
            if word == option or word.startswith(f"{option}="):
                del words[k : k + 1 + (word == option)]
                break
        raise InputError(
            f"{error}; for a sweep of its own:\n  {shlex.join(['ettsweep', *words, option, error.free])}"
        ) from None


def go_on(told: str) -> bool:
    """Ask a person whether a climb may go on, given what that costs; where nobody is there, it may not."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    try:
        return typer.confirm(f"{told}; go on?", err=True)
    except typer.Abort:  # what the climb has found is shown all the same
        note("")
        return False


def confirm(question: str, yes: bool) -> None:
    """Ask before something is done, unless --yes was said; a no ends the command."""
    if yes:
        return
    try:
        agreed = typer.confirm(harmless(question), err=True)
    except typer.Abort:
        raise InputError("nobody answered; --yes says yes beforehand") from None
    if not agreed:
        raise typer.Exit(1)
