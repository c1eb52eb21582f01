"""Options that several commands share: single options, groups of options, and the values made from them."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ettsweep.cli.parsers import parse_location, parse_path
from ettsweep.cli.prompts import repeat_option
from ettsweep.console import DEFAULT_RESULTS as DEFAULT_RESULTS
from ettsweep.console import Format, print_note
from ettsweep.errors import CorruptError, InputError, nearest_name, unknown_name
from ettsweep.extras import check_installed
from ettsweep.ownership import TRUST_VARIABLE, trust_group

if TYPE_CHECKING:
    from ettsweep.launch.profile import AnyProfile
    from ettsweep.runs.index import Run, RunIndex
    from ettsweep.study.budget import Budget
    from ettsweep.study.criterion import CriterionOptions
    from ettsweep.study.study import Study
    from ettsweep.study.sweep import LaunchSettings, Sweep
    from ettsweep.study.sweep_spec import SweepSpec
    from ettsweep.study.sweep_store import SweepStore
    from ettsweep.theory.subject import Subject


def require_folder(results: Path) -> Path:
    """Return the results folder of a command that reads it.

    Raises:
        InputError: it does not exist, or is not a folder.
    """
    if results.is_dir():
        return results
    if results.exists():
        raise InputError(f"--results: {results.resolve()} is not a folder")
    raise InputError(
        f"no results yet: {results.resolve()} does not exist; `ettsweep grid --model vit-digits` starts a sweep "
        "there, or pass --results DIR for another folder"
    )


def _results_option(callback: Callable[[Path], Path] | None = None) -> Any:
    return typer.Option(
        "--results",
        envvar="ETTSWEEP_RESULTS",
        help="Results folder.",
        parser=parse_path,
        metavar="DIR",
        callback=callback,
    )


def _trust_group(trusted: bool) -> bool:
    trust_group(trusted)
    return trusted


Results = Annotated[Path, _results_option()]
ExistingResults = Annotated[Path, _results_option(require_folder)]
Grid = Annotated[Path | None, typer.Argument(help="Grid file.", parser=parse_path, metavar="GRID", show_default=False)]
Model = Annotated[
    str | None,
    typer.Option("--model", help="Model or name of a grid; uses its grid file."),
]
Strategies = Annotated[
    list[str] | None,
    typer.Option(
        "--strategy",
        help="Scaling strategy: standard, ntk, hybrid, mup or s=0.25; repeatable.",
    ),
]
Sets = Annotated[
    list[str] | None, typer.Option("--set", help="Set a recipe field or a centre; repeatable.", metavar="KEY=VALUE")
]
Launch = Annotated[
    str | None,
    typer.Option(
        "--launch",
        help="Launch profile: a file or a name; by default the sweep's, else local.",
        parser=parse_location,
        metavar="PROFILE",
    ),
]
LaunchSets = Annotated[
    list[str] | None,
    typer.Option("--launch-set", help="Set a field of the launch profile; repeatable.", metavar="KEY=VALUE"),
]
Data = Annotated[
    str | None,
    typer.Option("--data", help="Data set: a folder, or hfds/OWNER/NAME.", parser=parse_location, metavar="DATA"),
]
SweepNames = Annotated[
    list[str] | None,
    typer.Option(
        "--sweep",
        "-s",
        help="Sweep name; repeatable. By default all sweeps.",
        metavar="NAME",
    ),
]
Lowest = Annotated[
    bool | None,
    typer.Option(
        "--min/--max",
        help="Whether low or high scores are better, if the metric's name does not say.",
        show_default=False,
    ),
]
ScoreColumn = Annotated[str, typer.Option("--score", help="Column of the scores.", metavar="NAME", show_default=False)]
SeedColumn = Annotated[str, typer.Option("--seed", help="Column of the seeds.", metavar="NAME", show_default=False)]
TrustGroup = Annotated[
    bool,
    typer.Option(
        "--trust-group",
        envvar=TRUST_VARIABLE,
        help="Run code in folders of other users, or in folders that a group can write to.",
        callback=_trust_group,
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Print the plan; change nothing.")]
Follow = Annotated[bool, typer.Option("--follow", help="Show progress until the runs end; Ctrl-C only detaches.")]
Form = Annotated[Format, typer.Option("--format", help="Output format.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


# --- groups ---------------------------------------------------------------------------------------------------------


def expand_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that typer can register, with each option group replaced by its options.

    A parameter annotated with a dataclass is a group: each field becomes an option, and the wrapped command gets an
    instance of the dataclass.
    """
    parameters = inspect.signature(command).parameters.values()
    groups: dict[str, Any] = {
        parameter.name: parameter.annotation for parameter in parameters if is_dataclass(parameter.annotation)
    }

    @wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    # Typer reads the annotations and, for the order in --help, the signature: both must list the single options.
    options = [
        o
        for parameter in parameters
        for o in (
            inspect.signature(parameter.annotation).parameters.values() if parameter.name in groups else [parameter]
        )
    ]
    run.__annotations__ = {option.name: option.annotation for option in options}
    # Keyword-only parameters may have defaults in any order.
    run.__signature__ = inspect.Signature([o.replace(kind=o.KEYWORD_ONLY) for o in options])  # type: ignore[attr-defined]
    return run


@dataclass(frozen=True)
class FamilyOptions:
    """Options that select families. An option that is not given selects everything."""

    sweep: SweepNames = None
    model: Annotated[
        list[str] | None,
        typer.Option(help="Model name, or WIDTHxDEPTH; repeatable."),
    ] = None
    strategy: Strategies = None
    family: Annotated[list[str] | None, typer.Option(help="Family id or a prefix of it; repeatable.")] = None

    def __bool__(self) -> bool:
        # A subclass's fields count too: `retry --state failed` is a selection.
        return any(vars(self).values())

    @property
    def as_arguments(self) -> list[str]:
        """The given options as command-line arguments, for a suggested command that selects the same families."""
        values_by_option = {
            "--sweep": self.sweep,
            "--model": self.model,
            "--strategy": self.strategy,
            "--family": self.family,
        }
        return [
            argument for option, values in values_by_option.items() for argument in repeat_option(option, values or [])
        ]

    def load(self, results: Path) -> "SweepStore":
        """Read all sweeps. Unless --sweep is given, print a note for each sweep that cannot be read."""
        from ettsweep.study.sweep_store import load_sweep_store

        sweep_store = load_sweep_store(results)
        # `sweeps` raises for a broken sweep that --sweep names.
        for name, problem in {} if self.sweep else sweep_store.broken.items():
            print_note(f"sweep {name} is left out: {problem}")
        return sweep_store

    def sweeps(self, sweep_store: "SweepStore") -> "list[Sweep]":
        """Return the sweeps of --sweep; by default all readable ones.

        Raises:
            InputError: No sweep has a given name.
            CorruptError: A named sweep cannot be read.
        """
        return sweep_store.select(self.sweep or [])

    def studies(self, sweep_store: "SweepStore") -> "list[Study]":
        """Return the selected studies, at least one.

        Raises:
            InputError: There are no sweeps yet, or no study matches all options.
            CorruptError: No sweep can be read.
        """
        studies = [study for sweep in self.sweeps(sweep_store) for study in sweep.studies]
        if not studies:
            if sweep_store.broken:
                raise CorruptError("no sweep can be read")
            raise InputError(f"{sweep_store.results}: no sweeps yet; `ettsweep grid --model vit-digits` starts one")
        # First each option alone: "no study has model X" is clearer than "no study matches all options".
        self._check_filters("study", sweep_store.studies)
        selected = self.matching_studies(sweep_store)
        if not selected:
            available = ", ".join(f"{s.sweep} {s.model} {s.strategy} ({s.family})" for s in studies)
            filters = " ".join(f"{option} {name}" for option, _, names in self._filters() for name in names)
            raise InputError(f"no study matches all of {filters}; available: {available}")
        return selected

    def matching_studies(self, sweep_store: "SweepStore") -> "list[Study]":
        """Return the selected studies; the list may be empty."""
        return [study for sweep in self.sweeps(sweep_store) for study in sweep.studies if self._fits([study])]

    def runs(self, run_index: "RunIndex", sweep_store: "SweepStore") -> "list[Run]":
        """Return the selected runs; without --sweep, runs that belong to no sweep are among them.

        Raises:
            InputError: A sweep does not exist, or no run or study has a given model, strategy or family.
        """
        from ettsweep.study.sweep_store import runs_of_sweeps

        runs = runs_of_sweeps(run_index.runs.values(), sweep_store, self.sweep or ())
        self._check_run_filters(run_index, sweep_store)
        return self._fitting_runs(runs, sweep_store)

    def studies_of_runs(self, runs: "Sequence[Run]", sweep_store: "SweepStore") -> "list[Study]":
        """Return the studies that contain any of `runs`: those of --sweep, by default of all sweeps."""
        sweeps = self.sweeps(sweep_store) if self.sweep else sweep_store.sweeps.values()
        of_runs = [(run, {study.family for study in sweep_store.studies_by_family.of(run)}) for run in runs]
        return [
            study
            for study in chain.from_iterable(sweep.studies for sweep in sweeps)
            if any(study.family in families and study.is_on_lattice(study.point_of(run)) for run, families in of_runs)
        ]

    def _filters(self) -> list[tuple[str, str, list[str]]]:
        """Return (option, kind of name, accepted values) for each given filter."""
        from ettsweep.strategies.strategy import usual_name

        # "s=0.250" and "s=0.25" are one strategy: compare normalised names.
        strategies = [usual_name(name) for name in self.strategy or []]
        options = [("model", self.model), ("strategy", strategies), ("family", self.family)]
        return [(f"--{attribute}", attribute, names) for attribute, names in options if names]

    def _check_run_filters(self, run_index: "RunIndex", sweep_store: "SweepStore") -> None:
        self._check_filters("run or study", chain(run_index.runs.values(), sweep_store.studies))

    def _check_filters(self, kind: str, items: "Iterable[Run | Study]") -> None:
        """Check that each value of each filter occurs in `items`, in any sweep; `kind` names them in the message."""
        one_per_family = {item.family: item for item in items}.values()
        for option, attribute, names in self._filters():
            available = sorted({_value(member, attribute) for member in one_per_family})
            for name in names:
                if not any(_matches(member, attribute, [name]) for member in one_per_family):
                    near = nearest_name(name, available) if attribute == "model" else None
                    meant = f"did you mean {near!r}? Available" if near else "available"
                    hint = f"{meant}: {', '.join(available)}" if available else "there are none yet"
                    raise InputError(f"{option} {name}: no {kind} matches; {hint}")

    def _fitting_runs(self, runs: "Sequence[Run]", sweep_store: "SweepStore") -> "list[Run]":
        one_per_family, studies = {run.family: run for run in runs}, sweep_store.studies_by_family
        families = {family for family, run in one_per_family.items() if self._fits([run, *studies.of(run)])}
        return [run for run in runs if run.family in families]

    def _fits(self, either: "Sequence[Run | Study]") -> bool:
        """`True` if each filter matches one of these: a run, or a study that it belongs to."""
        return all(any(_matches(each, attribute, names) for each in either) for _, attribute, names in self._filters())


def _value(item: "Run | Study", attribute: str) -> str:
    """Return the family, model or strategy of a run or study."""
    from ettsweep.study.study import Study, strategy_of

    if attribute == "family":
        return item.family
    if attribute == "model":
        return item.base.info.labels.model
    return item.strategy if isinstance(item, Study) else strategy_of(item.base)


def _matches(item: "Run | Study", attribute: str, names: Sequence[str]) -> bool:
    value = _value(item, attribute)
    if attribute == "family":  # ids are long hashes: a prefix is enough
        return value.startswith(tuple(names))
    return value in names or (attribute == "model" and item.base.info.short_name in names)


@dataclass(frozen=True)
class ModelOptions:
    """Options that name a model and its scaling for commands on scaling theory."""

    grid: Grid = None
    model: Annotated[str | None, typer.Option(help="Model name, or WIDTHxDEPTH.")] = None
    optimizer: Annotated[
        Literal["adamw", "sgd", "muon"] | None, typer.Option(help="Optimizer; by default the grid's, else adamw.")
    ] = None
    mlp_factor: Annotated[
        Literal["ignore", "include"] | None,
        typer.Option(
            help="Whether factors depend on M, the ratio of MLP width to width; by default the grid's, else ignore."
        ),
    ] = None

    def load(self) -> "Subject":
        """Return the model, its optimizer, and whether factors depend on M.

        Raises:
            InputError: None or both of a grid file and --model are given, or the given one is not valid.
        """
        from ettsweep.theory.subject import load_subject

        return load_subject(self.model, self.grid, self.optimizer, self.mlp_factor)


@dataclass(frozen=True)
class RunOptions(FamilyOptions):
    """Options that select runs."""

    run: Annotated[
        list[str] | None,
        typer.Argument(help="Run ids, or prefixes of them.", show_default=False),
    ] = None
    state: Annotated[
        list[str] | None,
        typer.Option(help="State of a run, such as failed; repeatable."),
    ] = None

    @property
    def as_arguments(self) -> list[str]:
        """The given options as arguments, without --state: runs may have another state when the command is typed."""
        return [*(self.run or []), *super().as_arguments]

    def runs(self, run_index: "RunIndex", sweep_store: "SweepStore") -> "list[Run]":
        """Return the selected runs. Runs given by id may be of any sweep.

        Raises:
            InputError: A run, sweep or state does not exist, or no run or study has a given model, strategy or family.
        """
        from ettsweep.runs.index import find_run_id
        from ettsweep.runs.state import State

        for name in self.state or []:
            if name not in list(State):
                raise unknown_name("state", name, [s.value for s in State])
        # A set, since two prefixes may be of one run.
        ids = {find_run_id(run_index, prefix) for prefix in self.run or []}
        # Ids select among all runs; broken folders have an id, but no run.
        if ids and not self.sweep:
            self._check_run_filters(run_index, sweep_store)
            runs = self._fitting_runs([run_index.runs[run] for run in ids if run in run_index.runs], sweep_store)
        else:
            runs = [run for run in super().runs(run_index, sweep_store) if not ids or run.id in ids]
        return [run for run in runs if not self.state or run.state in self.state]

    def require_selection(self, all_: bool) -> None:
        """Raise InputError if nothing is selected and --all is not given."""
        if not self and not all_:
            raise InputError("select runs by id, --sweep, --family, --strategy, --model or --state, or pass --all")


@dataclass(frozen=True)
class LaunchOptions:
    """Options for the launch profile and for metric loggers."""

    launch: Launch = None
    launch_set: LaunchSets = None
    log: Annotated[
        list[str] | None,
        typer.Option(
            help="Log metrics to tensorboard or wandb too; repeatable.",
            metavar="LOGGER",
        ),
    ] = None
    trust_group: TrustGroup = False

    def settings(self, sweeps: "Sequence[Sweep]", *, is_new: bool = False) -> "LaunchSettings":
        """Return where runs of some sweeps train, see `choose_launch`.

        Raises:
            InputError: A metric logger does not exist, or the sweeps were launched differently.
            PackageMissingError: The logger's package is not installed.
        """
        from ettsweep.launch.profile import choose_launch

        overrides = list(self.launch_set or [])
        if self.log:
            from ettsweep.runs.metric_loggers import METRIC_LOGGERS

            for name in self.log:
                if name not in METRIC_LOGGERS:
                    raise unknown_name("metric logger", name, METRIC_LOGGERS)
                check_installed(f"--log {name}", name)
            # --log is short for setting `trainer.log` of the profile.
            overrides.append(f"trainer.log=[{', '.join(self.log)}]")
        return choose_launch(self.launch, overrides, sweeps, is_new=is_new)

    def launcher(self, sweeps: "Sequence[Sweep]", *, is_executed: bool) -> "AnyProfile":
        """Return the launcher of the runs of some sweeps; raises as `settings` and `load_profile` do."""
        from ettsweep.launch.profile import load_profile

        launch = self.settings(sweeps)
        return load_profile(launch.profile, launch.overrides, is_executed=is_executed)

    def settings_of_grid(self, sweep_store: "SweepStore", name: str) -> "LaunchSettings":
        """Return where the runs of a grid train: as those of the sweep of this name or, if it is new, of all others."""
        own = sweep_store.sweeps.get(name)
        return self.settings([own] if own else sweep_store.select(), is_new=own is None)


@dataclass(frozen=True)
class BudgetOptions:
    """Limits of the runs that a command may submit by itself."""

    max_runs: Annotated[int | None, typer.Option(min=0, help="Submit at most this many runs.")] = None
    max_seeds: Annotated[int | None, typer.Option(min=1, help="Train at most this many seeds per point.")] = None
    max_hours: Annotated[float | None, typer.Option(min=0, help="Submit at most this many device hours.")] = None

    def budget(self, studies: "Sequence[Study]") -> "Budget":
        """Return the limits as a budget for `studies`.

        Raises:
            InputError: A study requires more seeds per point than --max-seeds allows.
        """
        from ettsweep.study.budget import Budget

        return Budget(self.max_runs, self.max_seeds, self.max_hours).check(studies)


@dataclass(frozen=True)
class VerdictOptions:
    """Options of the criterion for an optimum; the sweep or the grid file has the values of all others."""

    rule: Annotated[
        Literal["bound", "paper"] | None,
        typer.Option(help="Rule for an optimum: a confidence bound, or the paper's means. Saved in the sweep."),
    ] = None
    confidence: Annotated[
        str | None,
        typer.Option(help="Confidence of the bound, such as 0.95 or 95%. Saved in the sweep.", metavar="SHARE"),
    ] = None
    margin: Annotated[
        str | None,
        typer.Option(
            help="How much better a neighbour may be, such as 2% of the score. For the accuracy of a shipped model, "
            "0.2% is 0.2 percentage points. With score: {margin: difference}, 0.2 is a difference. Saved in the sweep.",
            metavar="SHARE",
        ),
    ] = None

    @property
    def as_arguments(self) -> list[str]:
        """These options as command-line arguments."""
        return [text for name, value in vars(self).items() if value is not None for text in (f"--{name}", value)]

    def criterion_options(self) -> "CriterionOptions":
        """Return these options as `CriterionOptions`.

        Raises:
            InputError: The confidence or the margin is not valid.
        """
        from ettsweep.schema import Source, validate
        from ettsweep.study.criterion import CriterionOptions

        source = Source("criterion", {(name,): f"--{name}" for name in CriterionOptions.model_fields})
        return validate(CriterionOptions, vars(self), source)

    def apply_to(self, sweep_spec: "SweepSpec") -> "SweepSpec":
        """Return a copy of `sweep_spec` whose criterion has these options in place of the grid file's.

        Raises:
            InputError: An option is not valid, or selects the rule bound for runs without a seed.
        """
        return sweep_spec.with_criterion(self.criterion_options())
