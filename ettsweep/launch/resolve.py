"""Resolve and plan requests: a grid, fresh seeds, retries, or one run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ettsweep.config import options_by_key
from ettsweep.errors import DataMissingError, EttsweepError, InputError
from ettsweep.launch.folders import check_source
from ettsweep.launch.follow import CommandContext, read_index_to_plan, read_run_index
from ettsweep.launch.launcher import Launcher
from ettsweep.launch.project_copy import ensure_copies, take_copy
from ettsweep.launch.slurm_cache import watch_heartbeats
from ettsweep.launch.submit import check_plan, check_resources
from ettsweep.launch.sweep_code import with_code_of
from ettsweep.runs.data_location import resolve_data
from ettsweep.runs.index import Run
from ettsweep.runs.spec import Recipe, RunSpec, kind_of
from ettsweep.runs.state import State
from ettsweep.schema import Source, fields_outside_id, locating, validate
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.judgement import evaluate_all
from ettsweep.study.lattice import POINT_OPTIONS, Centre
from ettsweep.study.plan import Plan, make_plan
from ettsweep.study.seeds import fresh_seeds
from ettsweep.study.study import Study
from ettsweep.study.sweep import LaunchSettings, Sweep
from ettsweep.study.sweep_spec import SweepSpec
from ettsweep.study.sweep_store import extend_sweep, find_compatible, free_sweep_name, load_sweep_store
from ettsweep.study.verdict import Verdict


def resolve_request(
    sweep_spec: SweepSpec,
    results: Path,
    name: str,
    data: str | None,
    *,
    same_numbers: bool = False,
    notify: Callable[[str], None] = lambda text: None,
) -> SweepSpec:
    """Return a grid's spec for the sweep of a name, with its corpus and its code resolved.

    Args:
        sweep_spec: the grid's.
        results: the results folder.
        name: of the sweep, which need not exist.
        data: path of the data set; by default the grid's, else the sweep's.
        same_numbers: treat changed code as that of the sweep.
        notify: receives a line on the code.

    Raises:
        SweepNameTakenError: the sweep of this name has another spec; another name would work.
        DataMissingError: data of its runs are missing.
    """
    sweep_store = load_sweep_store(results)
    sweep = sweep_store.sweeps.get(name)
    resolved = with_data(sweep_spec, data or sweep_spec.data or (sweep.sweep_specs[-1].data if sweep else None)).bound()
    sweep = find_compatible(sweep_store, name, resolved)
    if sweep_spec.recipes != resolved.recipes:  # else it is the sweep's own spec
        free_name = free_sweep_name(sweep_store, name)
        resolved, note = with_code_of(sweep, resolved, results, free_name, same_numbers=same_numbers)
        notify(note)
    return resolved


def with_data(sweep_spec: SweepSpec, data: str | None) -> SweepSpec:
    """Return a sweep spec with the absolute path of its data, if there is one.

    Raises:
        InputError: it reads none.
    """
    return sweep_spec.model_copy(update={"data": absolute_data_path(data, sweep_spec.recipe) if data else None})


def absolute_data_path(data: str, recipe: Recipe) -> str:
    """Return the absolute path of the data of a recipe.

    Raises:
        InputError: it reads none.
    """
    if not recipe.info.data_kind:
        raise InputError(f"--data: {recipe.info.no_data_reason}")
    return resolve_data(data)


def data_paths(sweeps: Sequence[Sweep], data: str | None, *, check: bool) -> dict[str, str]:
    """Return the paths of the data of sweeps, by kind of task.

    Args:
        sweeps: of the runs.
        data: path of the data set; by default that of each sweep.
        check: whether they must exist: a dry run may be on another machine.

    Raises:
        DataMissingError: a data set is missing.
    """
    paths, missing = dict[str, str](), dict[str, list[str]]()
    for sweep in sweeps:
        last = sweep.sweep_specs[-1]
        resolved = with_data(last, data or last.data)
        paths |= resolved.data_paths
        try:
            if check:
                resolved.check_data()
        except DataMissingError as error:
            missing.setdefault(str(error), []).append(f"{sweep.name} ({resolved.recipe.info.labels.model})")
    if missing:
        raise DataMissingError("\n".join(f"sweep {', '.join(names)}: {problem}" for problem, names in missing.items()))
    return paths


def resolve_run(
    grid: Path,
    strategy: str | None,
    sets: Sequence[str],
    lr: float | None,
    wd: float | None,
    seed: int | None,
    data: str | None,
) -> tuple[RunSpec, str | None]:
    """Return the spec of one run of a grid file, and the path of its data.

    `lr` and `wd` default to the centre, `strategy` and `seed` to the grid's first, `data` to the grid's.
    """
    start = None if lr is None or wd is None else validate(Centre, {"lr": lr, "wd": wd}, POINT_OPTIONS)
    sweep_spec = load_sweep_spec(grid, [strategy] if strategy else [], sets, start=start)
    sweep_spec = with_data(sweep_spec, data or sweep_spec.data).bound()
    spec = sweep_spec.studies()[0].spec_at(lr, wd, seed)
    with locating(Source(str(grid), options_by_key(sets))):
        kind_of(spec).check_axes(spec, {name: [value] for name, value in spec.point.values.items()}, ())
    return spec, sweep_spec.data


# --- plans ----------------------------------------------------------------------------------------------------------

RETRY_STATES = (State.FAILED, State.CANCELLED, State.INTERRUPTED, State.MISSING)
"""States of runs that `retry` selects by default."""

RETRY_NAMED_STATES = (*RETRY_STATES, State.UNKNOWN, State.DONE, State.DIVERGED)
"""States of runs that `retry` accepts by run id: it gives up unknown owners only on demand, and a finished run may have
lost its metrics."""


def plan_grid(sweep_spec: SweepSpec, context: CommandContext, launcher: Launcher) -> tuple[Plan, str]:
    """Return the plan for the runs of a grid.

    For a search, check the run at each study's centre only. A dry run returns obstacles to submission as text beside
    the plan, and does not ask SLURM.

    Args:
        sweep_spec: the resolved grid.
        context: how the command carries out the plan.
        launcher: of the runs.

    Raises:
        InputError: a run cannot be trained with these settings.
        DataMissingError: the data are missing, or are not those of the runs.
        LaunchError: SLURM refuses the profile, or does not answer.
    """
    specs = sweep_spec.specs() or [study.base for study in sweep_spec.studies()]
    run_ids = {spec.run_id for spec in specs}
    run_index = read_index_to_plan(context, lambda run: run.id in run_ids)
    plan = make_plan(specs, run_index)
    check_resources([planned.spec for planned in plan.to_launch], launcher)
    try:
        # Fail before anything is recorded.
        check_plan(context.results, plan, launcher, dry_run=context.dry_run)
        # A plan with nothing to launch can be shown without the data.
        if plan.to_launch or not context.dry_run:
            sweep_spec.check_data(count=bool(plan.to_launch))
    except EttsweepError as error:
        if not context.dry_run:
            raise
        return plan, str(error)
    return plan, ""


def record_grid(results: Path, name: str, sweep_spec: SweepSpec, launch: LaunchSettings) -> str:
    """Record a grid, its launch settings and its code in the sweep of a name.

    Returns:
        A line on how the sweep changed.
    """
    check_source(sweep_spec.recipe, Path(sweep_spec.grid))
    ensure_copies(results, [study.base for study in sweep_spec.studies()])
    return extend_sweep(results, name, sweep_spec, launch)


def plan_seeds(studies: Sequence[Study], context: CommandContext, count: int) -> tuple[Plan, list[Verdict]]:
    """Return the plan that reruns each verified optimum over fresh seeds, and the verdicts without an optimum."""
    if without := [study.title for study in studies if not study.base.info.seeded]:
        raise InputError(f"{', '.join(without)}: no fresh seeds, since the grid file has `seeds: none`")
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
    runs: Sequence[Run],
    context: CommandContext,
    launcher: Launcher,
    notify: Callable[[str], None],
    *,
    new_code: bool = False,
) -> tuple[Plan, list[Run]]:
    """Retry runs that failed or whose owner seems dead, from their last checkpoint.

    Skip runs whose state has changed since. Return the plan, and the runs found alive.

    Args:
        runs: the chosen runs.
        context: how the command carries out the plan.
        launcher: of the runs.
        notify: receives a line for each watched heartbeat, which takes a while, and one on code.
        new_code: treat code as it is now as that of the runs and their sweeps.

    Raises:
        InputError, LaunchError: they cannot be submitted, and remain unchanged.
    """
    unknown = [run for run in runs if run.state is State.UNKNOWN]
    for run in unknown:
        notify(f"run {run.id}: {run.status.reason}; watching its heartbeat")
    # A heartbeat proves life if the process and SLURM are out of reach.
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
        notify("the runs train with the code of their sweep; pass --new-code for the project as it is now")
    # Before any run is reset: an error must leave all unchanged.
    ensure_copies(context.results, specs)
    check_plan(context.results, make_plan(specs, run_index, force_ids=ids), launcher)
    for run in chosen:
        run.dir.retry()
    return make_plan(specs, read_run_index(context.results), force_ids=ids), alive


def _as_now(spec: RunSpec, base: RunSpec | None) -> RunSpec:
    """Return a spec with settings outside of its id as in its sweep: its copy, and how it stops."""
    names = fields_outside_id(type(spec)) if base else ()
    return spec.model_copy(update={name: getattr(base, name) for name in names})


def _with_new_code(results: Path, runs: Sequence[Run], bases: Mapping[str, RunSpec]) -> dict[str, RunSpec]:
    """Treat the project as it is now as the code of runs and their sweeps; return specs by family.

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
            had = last.recipe.info.code
            assert had is not None
            extend_sweep(results, sweep.name, last.with_code(replace(had, digest=code.digest, copy=code.copy)))
    return changed
