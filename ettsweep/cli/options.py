"""Options that commands share, alone or in groups, and what is read from them."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from ettsweep.cli import completion
from ettsweep.cli.prompts import repeated
from ettsweep.console import DEFAULT_RESULTS as DEFAULT_RESULTS
from ettsweep.console import Format, print_note
from ettsweep.errors import CorruptError, InputError, unknown_name

if TYPE_CHECKING:
    from ettsweep.launch.resolve import LaunchOptions
    from ettsweep.study.criterion import CriterionOptions
    from ettsweep.study.run_index import Run, RunIndex
    from ettsweep.study.study import Study
    from ettsweep.study.sweep import Sweep
    from ettsweep.study.sweep_spec import SweepSpec
    from ettsweep.study.sweep_store import SweepStore
    from ettsweep.study.verification import Budget

RunOrStudy = TypeVar("RunOrStudy", "Run", "Study")


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


# --- groups ---------------------------------------------------------------------------------------------------------


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the options of its groups in place of each parameter that is a group, a dataclass."""
    parameters = inspect.signature(command).parameters.values()
    groups: dict[str, Any] = {
        parameter.name: parameter.annotation for parameter in parameters if is_dataclass(parameter.annotation)
    }

    @wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    options = [
        o
        for parameter in parameters
        for o in (
            inspect.signature(parameter.annotation).parameters.values() if parameter.name in groups else [parameter]
        )
    ]
    run.__annotations__ = {option.name: option.annotation for option in options}
    run.__signature__ = inspect.Signature([o.replace(kind=o.KEYWORD_ONLY) for o in options])  # type: ignore[attr-defined]
    return run


@dataclass(frozen=True)
class FamilyOptions:
    """The families that a command is about; what is not given does not narrow it."""

    sweep: SweepNames = None
    model: Annotated[
        list[str] | None, typer.Option(help="Model name; repeatable.", autocompletion=completion.models)
    ] = None
    strategy: Strategies = None
    family: Annotated[list[str] | None, typer.Option(help="Family id, or the start of one; repeatable.")] = None

    def __bool__(self) -> bool:
        return any(vars(self).values())

    @property
    def as_arguments(self) -> list[str]:
        """The options that were given: what a command has to have that is to be about the same families."""
        values_by_option = {
            "--sweep": self.sweep,
            "--model": self.model,
            "--strategy": self.strategy,
            "--family": self.family,
        }
        return [argument for option, values in values_by_option.items() for argument in repeated(option, values or [])]

    def load(self, results: Path) -> "SweepStore":
        """Read all sweeps; where none is named, say which ones are left out since they cannot be read."""
        from ettsweep.study.sweep_store import load_sweep_store

        sweep_store = load_sweep_store(results)
        for name, problem in {} if self.sweep else sweep_store.broken.items():
            print_note(f"sweep {name} is left out: {problem}")
        return sweep_store

    def sweeps(self, sweep_store: "SweepStore") -> "list[Sweep]":
        """Return the sweeps that are meant; without a name, all that are not archived and can be read.

        Raises:
            InputError: there is none of a name.
            CorruptError: one that is named cannot be read.
        """
        return sweep_store.chosen(self.sweep or [])

    def searches(self, sweep_store: "SweepStore") -> "list[Study]":
        """Return the searches that have been asked for and are meant.

        Raises:
            InputError: there is none, or none of a model, strategy or family.
            CorruptError: none that is meant can be read.
        """
        studies = [study for sweep in self.sweeps(sweep_store) for study in sweep.studies]
        if not studies:
            if sweep_store.named:
                raise InputError(f"all sweeps are archived: {', '.join(sweep_store.named)}; name one with --sweep")
            if sweep_store.broken:
                raise CorruptError("no sweep can be read")
            raise InputError(
                f"{sweep_store.results}: nothing was swept yet; `ettsweep grid --model vit-digits` starts a sweep"
            )
        self._check("search", chain.from_iterable(sweep_store.searches.values()))
        selected = self.any_searches(sweep_store)
        if not selected:
            available = ", ".join(f"{s.sweep} {s.model} {s.strategy} ({s.family})" for s in studies)
            filters = " ".join(f"{option} {name}" for option, _, names in self._narrowing() for name in names)
            raise InputError(f"{filters}: no search that is meant is of all of it; there are: {available}")
        return selected

    def any_searches(self, sweep_store: "SweepStore") -> "list[Study]":
        """Return the searches that are meant, of which there may be none."""
        return self._among([study for sweep in self.sweeps(sweep_store) for study in sweep.studies])

    def runs(self, run_index: "RunIndex", sweep_store: "SweepStore") -> "list[Run]":
        """Return the runs that are meant: those that belong to the sweeps and, where none is named, to none.

        Raises:
            InputError: a sweep is not there, or nothing is of a model, strategy or family.
        """
        from ettsweep.study.sweep_store import belonging

        runs = belonging(run_index.runs.values(), sweep_store, self.sweep or ())
        self._check_runs(run_index, sweep_store)
        return self._among(runs)

    def holding(self, runs: "Sequence[Run]", sweep_store: "SweepStore") -> "list[Study]":
        """Return the searches on whose lattices some runs lie, of the sweeps that are named or of all."""
        sweeps = self.sweeps(sweep_store) if self.sweep else sweep_store.named.values()
        return [
            study
            for study in chain.from_iterable(sweep.studies for sweep in sweeps)
            if any(run.family == study.family and study.holds(run.point) for run in runs)
        ]

    def _narrowing(self) -> list[tuple[str, str, list[str]]]:
        """Return each option that was given and narrows: its name, the attribute that it is about, and its values."""
        from ettsweep.strategies.strategy import parse_strategy, strategy_name

        strategies = [strategy_name(parse_strategy(name)) for name in self.strategy or []]
        options = [("model", self.model), ("strategy", strategies), ("family", self.family)]
        return [(f"--{attribute}", attribute, names) for attribute, names in options if names]

    def _check_runs(self, run_index: "RunIndex", sweep_store: "SweepStore") -> None:
        """Check that there is a run, or a search for one, of each value of each option."""
        self._check("run or search", chain(run_index.runs.values(), *sweep_store.searches.values()))

    def _check(self, kind: str, items: "Iterable[Run | Study]") -> None:
        """Check that each value of each option is that of something that is there, in whatever sweep."""
        items = list(items)
        for option, attribute, names in self._narrowing():
            available = sorted({getattr(member, attribute) for member in items})
            for name in names:
                if not any(_fits(value, attribute, [name]) for value in available):
                    hint = f"there are: {', '.join(available)}" if available else "there is none yet"
                    raise InputError(f"{option} {name}: no {kind} is of it; {hint}")

    def _among(self, runs: Sequence[RunOrStudy]) -> list[RunOrStudy]:
        filters = self._narrowing()
        return [
            run
            for run in runs
            if all(_fits(getattr(run, attribute), attribute, names) for _, attribute, names in filters)
        ]


def _fits(value: str, attribute: str, names: Sequence[str]) -> bool:
    """Say whether a model, strategy or family is one of some; of a family the start will do."""
    return value.startswith(tuple(names)) if attribute == "family" else value in names


@dataclass(frozen=True)
class RunOptions(FamilyOptions):
    """The runs that a command is about."""

    run: Annotated[
        list[str] | None,
        typer.Argument(help="Runs, by id or the start of one.", show_default=False, autocompletion=completion.runs),
    ] = None
    state: Annotated[
        list[str] | None,
        typer.Option(help="State, such as failed; repeatable.", autocompletion=completion.states),
    ] = None

    @property
    def as_arguments(self) -> list[str]:
        """What was given but for states, which runs change."""
        return [*(self.run or []), *super().as_arguments]

    def runs(self, run_index: "RunIndex", sweep_store: "SweepStore") -> "list[Run]":
        """Return the runs that are meant; those that are named may be of any sweep.

        Raises:
            InputError: a run or a sweep is not there, nothing is of a model, strategy or family, or no such state is.
        """
        from ettsweep.runs.state import State
        from ettsweep.study.run_index import find_run

        for name in self.state or []:
            if name not in list(State):
                raise unknown_name("state", name, [s.value for s in State])
        ids = {find_run(run_index, prefix) for prefix in self.run or []}
        if ids and not self.sweep:
            self._check_runs(run_index, sweep_store)
            runs = self._among([run_index.runs[run] for run in ids if run in run_index.runs])
        else:
            runs = [run for run in super().runs(run_index, sweep_store) if not ids or run.id in ids]
        return [run for run in runs if not self.state or run.state in self.state]

    def need_some(self, all_: bool) -> None:
        """Refuse to take all runs for meant where nothing is said."""
        if not self and not all_:
            raise InputError("say which runs: ids, --sweep, --family, --strategy, --model, --state or --all")


@dataclass(frozen=True)
class TrainingOptions:
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

    def place(self) -> "LaunchOptions":
        """Return what these options say.

        Raises:
            InputError: there is no such sink, or its package is missing.
        """
        from ettsweep.launch.resolve import LaunchOptions

        sets = list(self.launch_set or [])
        if self.log:
            from ettsweep.trainer.training.loggers import METRIC_LOGGERS, check_loggers

            for name in self.log:
                if name not in METRIC_LOGGERS:
                    raise unknown_name("sink", name, METRIC_LOGGERS)
            check_loggers(self.log)
            sets.append(f"log=[{', '.join(self.log)}]")
        return LaunchOptions(self.launch, tuple(sets), self.data)


@dataclass(frozen=True)
class BudgetOptions:
    """What a command that goes on by itself may train."""

    max_runs: Annotated[int | None, typer.Option(min=0, help="Submit no more than this many runs.")] = None
    max_seeds: Annotated[int | None, typer.Option(min=1, help="Race with at most this many seeds a point.")] = None
    max_hours: Annotated[float | None, typer.Option(min=0, help="Submit at most this many device hours.")] = None

    def budget(self, studies: "Sequence[Study]") -> "Budget":
        """Return them as a budget for some searches.

        Raises:
            InputError: one asks for more seeds a point than they allow.
        """
        from ettsweep.study.verification import Budget

        return Budget(self.max_runs, self.max_seeds, self.max_hours).checked(studies)


@dataclass(frozen=True)
class VerdictOptions:
    """How verdicts are given; what is not given here stays as the sweep has it, or the grid file."""

    rule: Annotated[
        Literal["bound", "paper"] | None,
        typer.Option(help="What makes a point optimal: a bound, or the comparison of means. Kept in the sweep."),
    ] = None
    confidence: Annotated[
        str | None,
        typer.Option(help="Confidence of a bound: 0.95, or 95%. Kept in the sweep.", metavar="SHARE"),
    ] = None
    margin: Annotated[
        str | None,
        typer.Option(
            help="By how much a neighbour may be better: 0.02, or 2%, of a loss; 0.002, or 0.2%, is 0.2 points of an "
            "accuracy. Kept in the sweep.",
            metavar="SHARE",
        ),
    ] = None

    def stated(self) -> "CriterionOptions":
        """Return what these options say.

        Raises:
            InputError: it is no confidence, or no margin.
        """
        from ettsweep.schema import validate
        from ettsweep.study.criterion import CriterionOptions

        try:
            return validate(CriterionOptions, vars(self), "criterion")
        except InputError as error:
            raise InputError(str(error).replace("criterion: ", "--")) from None

    def of(self, sweep_spec: "SweepSpec") -> "SweepSpec":
        """Return a grid's request with what the options say in place of what the file does."""
        from ettsweep.study.criterion import CriterionOptions

        return sweep_spec.model_copy(
            update={"criterion": self.stated().over(sweep_spec.criterion or CriterionOptions()) or None}
        )
