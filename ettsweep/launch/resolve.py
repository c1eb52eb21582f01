"""Resolve what a command requests and on which machines: a grid, fresh seeds, retries, or one run in this process."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ettsweep.config import hide_secrets, options_by_key
from ettsweep.errors import DataMissingError, EttsweepError, InputError, SweepNameTakenError
from ettsweep.launch.folders import check_source
from ettsweep.launch.follow import CommandContext, read_index_to_plan, read_run_index
from ettsweep.launch.launcher import Launcher
from ettsweep.launch.profile import AnyProfile, load_profile, profile_file
from ettsweep.launch.project_copy import ensure_copies, take_copy
from ettsweep.launch.slurm_cache import watch_heartbeats
from ettsweep.launch.submit import check_plan, check_resources
from ettsweep.launch.sweep_code import with_code_of
from ettsweep.runs.contract import Recipe, kind_of
from ettsweep.runs.data_location import resolve_data
from ettsweep.runs.index import Run
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State
from ettsweep.schema import Source, fields_outside_id, locating, validate
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.judgement import evaluate_all
from ettsweep.study.lattice import POINT_OPTIONS, Centre
from ettsweep.study.plan import Plan, make_plan
from ettsweep.study.seeds import fresh_seeds
from ettsweep.study.study import Study
from ettsweep.study.sweep_spec import SweepSpec
from ettsweep.study.sweep_store import SweepStore, extend_sweep, find_compatible, free_sweep_name, load_sweep_store
from ettsweep.study.tried import check_tried
from ettsweep.study.verdict import Verdict
from ettsweep.units import gib_of, seconds_of


@dataclass(frozen=True)
class LaunchOptions:
    """Command-line options on where runs train.

    Attributes:
        launch: name or file of the launch profile; None for the sweep's own.
        launch_set: `key=value` overrides of its fields.
        data: path of the data set; None for the grid's, or the one in the user's environment.
    """

    launch: str | None = None
    launch_set: tuple[str, ...] = ()
    data: str | None = None

    def apply_to(self, sweep_spec: SweepSpec) -> SweepSpec:
        """Return a sweep spec with these options applied to its launch profile and data path."""
        launch, sets = sweep_spec.launch, sweep_spec.launch_set
        if self.launch is not None:
            path = profile_file(self.launch)
            launch = str(path.resolve()) if path and path.is_file() else self.launch
            sets = ()  # overrides of the old profile do not apply to the new one
        last_by_key = {text.partition("=")[0]: text for text in (*sets, *self.launch_set)}  # the last of a key wins
        data = self.data or sweep_spec.data
        data_path = absolute_data_path(data, sweep_spec.recipe) if data else None
        return sweep_spec.model_copy(
            update={"launch": launch, "launch_set": tuple(last_by_key.values()), "data": data_path}
        )

    def resolve_grid(
        self,
        sweep_spec: SweepSpec,
        results: Path,
        name: str,
        *,
        same_numbers: bool = False,
        notify: Callable[[str], None] = lambda text: None,
    ) -> SweepSpec:
        """Return a grid's spec with its corpus, its code and its launch profile resolved.

        The profile is the one in these options, else the one with which the sweep was launched before. A new sweep uses
        the profile of the other sweeps in the folder if they all have the same. With `same_numbers`, own code that has
        changed counts as that of the sweep; `notify` receives a line on it.

        Raises:
            SweepNameTakenError: the sweep of this name has another spec; under another name this one would be valid.
            InputError: it would not be valid, because of its profile or the size of its model.
            DataMissingError: its runs depend on data that are missing.
        """
        sweep_store = load_sweep_store(results)
        sweeps = [sweep_store.sweeps[name]] if name in sweep_store.sweeps else sweep_store.select()
        # Only the latest spec of a sweep counts: it may have moved to another profile.
        profiles = {(last.launch, last.launch_set) for last in (sweep.sweep_specs[-1] for sweep in sweeps)}
        if len(profiles) == 1:
            launch, sets = profiles.pop()
            sweep_spec = sweep_spec.model_copy(update={"launch": launch, "launch_set": sets})
        if name in sweep_store.sweeps and sweep_spec.data is None:
            sweep_spec = sweep_spec.model_copy(update={"data": sweeps[0].sweep_specs[-1].data})
        resolved = self.apply_to(sweep_spec).bound()
        try:
            sweep = find_compatible(sweep_store, name, resolved)
            if sweep_spec.recipe != resolved.recipe:  # else it is the sweep's own spec
                free_name = free_sweep_name(sweep_store, name)
                resolved, note = with_code_of(sweep, resolved, results, free_name, same_numbers=same_numbers)
                notify(note)
        except SweepNameTakenError:
            profile, _ = load_launch(resolved, dry_run=True)
            # Otherwise the user would choose another name only to meet this error.
            check_resources([study.base for study in resolved.studies()], profile)
            raise
        return resolved

    def resolve_studies(
        self, studies: Sequence[Study], sweep_store: SweepStore, *, dry_run: bool = False
    ) -> tuple[Launcher, dict[str, str]]:
        """Return the profile and the data paths, by kind of task, for more runs of studies.

        Raises:
            InputError: the sweeps were launched with different profiles, so the user must choose.
            DataMissingError: a data set is missing.
        """
        sweep_by_profile: dict[tuple[str, tuple[str, ...]], str] = {}
        data: dict[str, str] = {}
        missing: dict[str, list[str]] = {}
        for sweep in sweep_store.select(list({study.sweep for study in studies})) if studies else ():
            resolved = self.apply_to(sweep.sweep_specs[-1])
            sweep_by_profile.setdefault((resolved.launch, resolved.launch_set), sweep.name)
            if resolved.data:
                data[resolved.recipe.info.data_kind] = resolved.data
            # A dry run may be on a machine without the data.
            if dry_run:
                continue
            try:
                resolved.check_data()
            except DataMissingError as error:
                missing.setdefault(str(error), []).append(f"{sweep.name} ({resolved.recipe.info.labels.model})")
        if missing:
            raise DataMissingError(
                "\n".join(f"sweep {', '.join(names)}: {problem}" for problem, names in missing.items())
            )
        if len(sweep_by_profile) > 1:
            choices = [
                (sweep, "with", name, *map(hide_secrets, sets)) for (name, sets), sweep in sweep_by_profile.items()
            ]
            listing = "; ".join(map(" ".join, choices))
            raise InputError(
                f"these sweeps were launched differently ({listing}); choose with --launch, or narrow them with --sweep"
            )
        # Without sweeps there is nothing to launch; the profile is loaded all the same, to check the options.
        name, sets = next(iter(sweep_by_profile), (self.launch or "local", self.launch_set))
        return load_profile(name, sets, is_executed=not dry_run), data

    def resolve_retries(
        self, studies: Sequence[Study], sweep_store: SweepStore, more_memory: str | None, more_time: str | None
    ) -> tuple[Launcher, dict[str, str]]:
        """Return the profile and the data paths for retries, in jobs with more memory or time if texts say how much.

        Raises:
            InputError: as in `resolve_studies`; or a text is no amount, or no more than the profile has anyway, or runs
                train on this machine.
            DataMissingError: a data set is missing.
        """
        profile, data = self.resolve_studies(studies, sweep_store)
        sets, problems = [], []
        for option, text, field, read in (
            ("--more-memory", more_memory, "mem_gb", gib_of),
            ("--more-time", more_time, "time_min", lambda text: math.ceil(seconds_of(text) / 60)),
        ):
            if text is None:
                continue
            if not hasattr(profile, field):
                raise InputError(f"{option} {text}: these runs train on this machine; only jobs of SLURM have a limit")
            try:
                amount = read(text)
            except ValueError as error:
                problems.append(f"{option}: {error}")
                continue
            if (had := getattr(profile, field)) is not None and amount <= had:
                problems.append(f"{option} {text}: is no more than {field}: {had:g} of the launch profile")
            sets.append(f"{field}={amount:g}")
        if problems:
            raise InputError.of(problems)
        if not sets:
            return profile, data
        return replace(self, launch_set=(*self.launch_set, *sets)).resolve_studies(studies, sweep_store)

    def resolve_local(self, spec: RunSpec) -> tuple[AnyProfile, str | None]:
        """Return the profile and the data path, if given, for training a run in this process.

        Raises:
            DataMissingError: the data set is missing.
            InputError: the profile is for SLURM, or the model does not fit into memory.
        """
        data = absolute_data_path(self.data, spec) if self.data else None
        kind_of(spec).check_data(spec, data, False)
        profile = load_profile(self.launch or "local", self.launch_set, is_executed=True)
        if not profile.resolve_slots():
            raise InputError(
                f"--launch {self.launch}: `train` trains here, in this process; `grid` and `retry` submit to SLURM"
            )
        check_resources([spec], profile)
        return profile, data


def absolute_data_path(data: str, recipe: Recipe) -> str:
    """Return the absolute path of the data of a recipe.

    Raises:
        InputError: it reads none.
    """
    if not recipe.info.data_kind:
        raise InputError(f"--data: {recipe.info.no_data_reason}")
    return resolve_data(data)


def load_launch(sweep_spec: SweepSpec, *, dry_run: bool = False) -> tuple[Launcher, dict[str, str]]:
    """Return the profile of a resolved sweep spec, and its data path by kind of task.

    Raises:
        InputError: it is wrong; or, unless in a dry run, others may change it.
    """
    data = {sweep_spec.recipe.info.data_kind: sweep_spec.data} if sweep_spec.data else {}
    return load_profile(sweep_spec.launch, sweep_spec.launch_set, is_executed=not dry_run), data


# --- plans ----------------------------------------------------------------------------------------------------------

RETRY_STATES = (State.FAILED, State.CANCELLED, State.INTERRUPTED, State.MISSING)
"""States of runs that `retry` selects by default."""

RETRY_NAMED_STATES = (*RETRY_STATES, State.UNKNOWN, State.DONE, State.DIVERGED)
"""States of runs that `retry` accepts by run id: unknown owners are given up only on demand, and a finished run may
have lost its metrics."""


def plan_grid(
    sweep_spec: SweepSpec,
    context: CommandContext,
    name: str,
    notify: Callable[[str], None] = lambda text: None,
) -> tuple[Plan, str]:
    """Return the plan for the runs of a grid, and record the grid in its sweep unless it is a dry run.

    For a search, the run at each study's centre stands for all that may be suggested. In a dry run, what would prevent
    submission is returned as text beside the plan; SLURM is not asked.

    Args:
        sweep_spec: the resolved grid.
        context: how the command carries out the plan.
        name: name of the sweep.
        notify: receives a line on how the sweep changed.

    Raises:
        InputError: a run cannot be trained with these settings, or `ettsweep try` saw that its seeds do not differ.
        DataMissingError: the data are missing, or are not those that the runs need.
        LaunchError: SLURM refuses the profile, or does not answer.
    """
    studies = sweep_spec.studies()
    notify(check_tried(context.results, name, studies[0], sweep_spec.grid))
    specs = sweep_spec.specs() or [study.base for study in studies]
    run_ids = {spec.run_id for spec in specs}
    run_index = read_index_to_plan(context, lambda run: run.id in run_ids)
    plan = make_plan(specs, run_index)
    check_resources([planned.spec for planned in plan.to_launch], context.profile)
    try:
        # What cannot be submitted must fail before anything is recorded.
        check_plan(context.results, plan, context.profile, dry_run=context.dry_run)
        # A plan with nothing to launch can be shown without the data.
        if plan.to_launch or not context.dry_run:
            sweep_spec.check_data(count=bool(plan.to_launch))
    except EttsweepError as error:
        if not context.dry_run:
            raise
        return plan, str(error)
    if not context.dry_run:
        check_source(sweep_spec.recipe, Path(sweep_spec.grid))
        ensure_copies(context.results, [study.base for study in studies])
        notify(extend_sweep(context.results, name, sweep_spec))
    return plan, ""


def plan_seeds(studies: Sequence[Study], context: CommandContext, count: int) -> tuple[Plan, list[Verdict]]:
    """Return the plan that reruns each verified optimum over fresh seeds, and the verdicts without an optimum."""
    if without := [study.title for study in studies if not study.base.info.seeded]:
        raise InputError(
            f"{', '.join(without)}: `seeds: none` says that its runs have no seed, so there are no fresh ones"
        )
    families = {study.family for study in studies}
    run_index = read_index_to_plan(context, lambda run: run.family in families)
    specs: list[RunSpec] = []
    unverified: list[Verdict] = []
    for study_state in evaluate_all(studies, run_index):
        study, verdict = study_state.study, study_state.verdict()
        if verdict.point is not None and verdict.verdict in ("optimal", "unsearched"):
            specs += study_state.specs([verdict.point], fresh_seeds(study, count))
        else:
            unverified.append(verdict)
    return make_plan(specs, run_index), unverified


def retryable(runs: Sequence[Run], *, by_id: bool) -> list[Run]:
    """Return the runs that `retry` may train again: more states if the user gave run ids."""
    states_to_retry = RETRY_NAMED_STATES if by_id else RETRY_STATES
    return [run for run in runs if run.state in states_to_retry]


def plan_retries(
    runs: Sequence[Run], context: CommandContext, notify: Callable[[str], None], *, new_code: bool = False
) -> tuple[Plan, list[Run]]:
    """Retry runs that failed or whose owner shows no sign of life, from their last checkpoint.

    A run whose state has changed since the user chose it is skipped. Return the plan, and the runs found alive.

    Args:
        runs: the chosen runs.
        context: how the command carries out the plan.
        notify: receives a line for each run whose heartbeat is watched, which takes a while, and one on own code.
        new_code: own code as it is now counts as that of the runs, and of their sweeps.

    Raises:
        InputError, LaunchError: they cannot be submitted; then they stay unchanged.
    """
    unknown = [run for run in runs if run.state is State.UNKNOWN]
    for run in unknown:
        notify(f"run {run.id}: {run.status.reason}; watching its heartbeat")
    # A beating heart proves life where neither the process nor SLURM can be asked.
    beating = watch_heartbeats([run.dir for run in unknown])
    alive = [run for run in unknown if run.id in beating]
    run_index = read_run_index(context.results)  # runs may have changed while the user decided
    chosen = [run for run in runs if run.id not in beating and run_index.status_of(run.id).state is run.state]
    ids = {run.id for run in chosen}
    bases = {study.family: study.base for study in context.studies}
    if new_code:
        bases |= _with_new_code(context.results, chosen, bases)
    specs = [_as_now(run.spec, bases.get(run.family)) for run in chosen]
    if not new_code and any(run.base.info.code for run in chosen):
        notify("they train with the code of their sweep; --new-code takes the project as it is now")
    # Before any run is reset: an error must leave all of them as they were.
    ensure_copies(context.results, specs)
    check_plan(context.results, make_plan(specs, run_index, force_ids=ids), context.profile)
    for run in chosen:
        run.dir.retry()
    return make_plan(specs, read_run_index(context.results), force_ids=ids), alive


def _as_now(spec: RunSpec, base: RunSpec | None) -> RunSpec:
    """Return a spec with all that is in no id as its sweep has it: the copy that it trains in, how it stops."""
    names = fields_outside_id(type(spec)) if base else ()
    return spec.model_copy(update={name: getattr(base, name) for name in names})


def _with_new_code(results: Path, runs: Sequence[Run], bases: Mapping[str, RunSpec]) -> dict[str, RunSpec]:
    """Have the project as it is now count as the code of runs, and of their sweeps; return specs by family.

    Raises:
        DataMissingError: a file of it is missing.
        LaunchError: it cannot be copied.
    """
    changed = dict[str, RunSpec]()
    for spec in {run.family: bases.get(run.family, run.spec) for run in runs}.values():
        kind, code = kind_of(spec), spec.info.code
        project = kind.project_code(spec)
        if code and project:
            take_copy(results, project)
            changed[spec.family_id] = kind.with_code(spec, replace(code, copy=project.digest))
    for sweep in load_sweep_store(results).select():
        if changed.keys() & {study.family for study in sweep.studies}:
            last = sweep.sweep_specs[-1]
            code = next(changed[study.family] for study in sweep.studies if study.family in changed).info.code
            assert code is not None
            recipe, had = last.recipe, last.recipe.info.code
            assert had is not None
            recipe = kind_of(recipe).with_code(recipe, replace(had, digest=code.digest, copy=code.copy))
            extend_sweep(results, sweep.name, last.model_copy(update={"recipe": recipe}))
    return changed


def resolve_run(
    grid: Path,
    strategy: str | None,
    sets: Sequence[str],
    lr: float | None,
    wd: float | None,
    seed: int | None,
    launch_options: LaunchOptions,
) -> tuple[RunSpec, LaunchOptions]:
    """Return the spec of one run of a grid file, and the launch options with the grid's data path.

    `lr` and `wd` default to the centre, `strategy` and `seed` to the grid's first.
    """
    start = None if lr is None or wd is None else validate(Centre, {"lr": lr, "wd": wd}, POINT_OPTIONS)
    sweep_spec = launch_options.apply_to(load_sweep_spec(grid, [strategy] if strategy else [], sets, start=start))
    spec = sweep_spec.bound().studies()[0].spec_at(lr, wd, seed)
    with locating(Source(str(grid), options_by_key(sets))):
        kind_of(spec).check_axes(spec, [spec.lr], [spec.wd], ())
    return spec, replace(launch_options, data=sweep_spec.data)
