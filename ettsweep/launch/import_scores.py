"""What `import` keeps: scores of a source, the runs they belong to, and the sweep that asks for these."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from ettsweep.errors import InputError
from ettsweep.launch.follow import read_run_index
from ettsweep.launch.resolve import LaunchOptions
from ettsweep.metric import Metric
from ettsweep.runs.trainables import IMPORTED
from ettsweep.strategies.strategy import parse_strategy, strategy_name
from ettsweep.study.criterion import CriterionOptions
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.importing import (
    ImportPlan,
    carry_out,
    check_changed,
    is_numbers_alone,
    numbers_alone,
    plan_import,
)
from ettsweep.study.score_rows import STANDARD_INPUT, Reading
from ettsweep.study.score_sources import is_storage
from ettsweep.study.stated_scores import StatedScore, read_scores
from ettsweep.study.study import Study
from ettsweep.study.sweep import Sweep
from ettsweep.study.sweep_spec import SweepSpec
from ettsweep.study.sweep_store import SweepStore, load_sweep_store, sanitize_name
from ettsweep.study.sweep_updates import check_name, extend_sweep, find_compatible


@dataclass(frozen=True)
class ImportRequest:
    """Scores to keep, and as what.

    Attributes:
        source: see `study.score_rows.read_rows`.
        reading: how it is read; its mode and take count where no program says others.
        mode, take: as stated; None if they are not.
        name: of the sweep; None for the grid file's, else that of the source.
        grid: grid file whose runs they are; None for those of a sweep, or numbers alone.
        strategy: of the runs; None where there is one alone.
        sets: `key=value` for the recipe of the grid.
        criterion: options of the verdict.
        note: the user's, on the sweep.
    """

    source: str
    reading: Reading
    mode: Literal["min", "max"] | None = None
    take: Literal["best", "last"] | int | None = None
    name: str | None = None
    grid: Path | None = None
    strategy: str | None = None
    sets: Sequence[str] = ()
    criterion: CriterionOptions = field(default_factory=CriterionOptions)
    note: str | None = None


@dataclass(frozen=True)
class ResolvedImport:
    """Scores with the sweep that they are imported into.

    Attributes:
        name: of the sweep.
        sweep_spec: what is requested of it.
        study: that the runs belong to.
        scores: each lr, wd and seed once.
        notes: what there is to say of them.
    """

    name: str
    sweep_spec: SweepSpec
    study: Study
    scores: Sequence[StatedScore]
    notes: Sequence[str] = ()


def resolve_import(request: ImportRequest, results: Path) -> ResolvedImport:
    """Return the scores of a request, and the sweep that they are imported into.

    Raises:
        InputError: the source cannot be read, or does not fit the grid file or the sweep.
        SweepNameTakenError: the sweep of this name has another recipe or lattice.
        DataMissingError: the runs of the grid depend on data that are missing.
    """
    sweep_store = load_sweep_store(results)
    if request.grid is not None:
        name = request.name or check_name(request.grid.stem)
        requested = load_sweep_spec(request.grid, overrides=request.sets)
        sweep_spec = LaunchOptions().resolve_grid(requested.with_criterion(request.criterion), results, name)
        return _into(request, name, sweep_spec, sweep_spec.studies(name))
    if request.sets:
        raise InputError("--set: it is for --grid, or leave it out")
    if request.name is not None and (sweep := _existing(sweep_store, request.name)) and not is_numbers_alone(sweep):
        latest = sweep.latest_spec([request.strategy] if request.strategy else [])
        return _into(request, request.name, latest.with_criterion(request.criterion), sweep.studies)
    if request.strategy:
        raise InputError("--strategy: it is for --grid, or leave it out")
    return _numbers(request, sweep_store)


def _existing(sweep_store: SweepStore, name: str) -> Sweep | None:
    return sweep_store.select([name])[0] if name in sweep_store.sweeps or name in sweep_store.broken else None


def _into(request: ImportRequest, name: str, sweep_spec: SweepSpec, studies: Sequence[Study]) -> ResolvedImport:
    """Return an import into a family whose program is known, and so its score."""
    study, metric = _choose(studies, request.strategy, name), studies[0].metric
    if request.mode and request.mode != metric.mode:
        raise InputError(f"--{request.mode}: of {metric.column}, the score of {name}, the {metric.mode} is best")
    if request.take is not None and request.take != metric.take:
        raise InputError(f"--take {request.take}: the score of {name} is {metric.label}; leave the option out")
    reading = replace(request.reading, mode=metric.mode, take=metric.take)
    if Path(request.source).is_dir():
        reading = replace(reading, names={"score": metric.column, **reading.names})
    scores, found = read_scores(request.source, reading)
    if found.mode and found.mode != metric.mode:
        raise InputError(f"{found.source}: the {found.mode} is best there, of {name} the {metric.mode}")
    if found.score != metric.column:
        scores = [_renamed(score, found.score, metric) for score in scores]
    other_seeds = sorted({score.seed for score in scores} - set(study.seeds))
    seeds = ", ".join(map(str, other_seeds))
    note = f"seeds {seeds} are none of the sweep's: they count as fresh, and enter no verdict" if seeds else ""
    return ResolvedImport(name, sweep_spec, study, scores, [*found.notes, *filter(None, [note])])


def _renamed(score: StatedScore, name: str, metric: Metric) -> StatedScore:
    """Return a score whose curve has the name of a metric."""
    history = [{metric.column if key == name else key: value for key, value in line.items()} for line in score.history]
    return score._replace(history=history)


def _choose(studies: Sequence[Study], strategy: str | None, name: str) -> Study:
    wanted = None if strategy is None else strategy_name(parse_strategy(strategy))
    found = [study for study in studies if wanted in (None, study.strategy)]
    if len(found) != 1:
        names = ", ".join(study.strategy for study in studies)
        raise InputError(f"--strategy: which one of {name} are the scores of? It has {names}")
    return found[0]


def _numbers(request: ImportRequest, sweep_store: SweepStore) -> ResolvedImport:
    if request.mode is None and not is_storage(request.source):
        raise InputError("--min or --max says whether low or high scores are better")
    scores, found = read_scores(request.source, request.reading)
    if request.mode and found.mode and request.mode != found.mode:
        raise InputError(f"--{request.mode}: of {found.source} the {found.mode} is best")
    mode = request.mode or found.mode
    assert mode is not None
    if request.name is None and request.source == STANDARD_INPUT:
        raise InputError("--name: what the sweep of the scores from standard input is to be called")
    name = request.name or check_name(sanitize_name(Path(found.source).stem))
    sweep = _existing(sweep_store, name)
    if sweep is not None and not is_numbers_alone(sweep):
        raise InputError(
            f"there is a sweep {name}, whose runs are trained: --name {name} imports the scores into it, another "
            "--name makes a sweep of their own"
        )
    sweep_spec = numbers_alone(scores, name, found.score, mode, request.reading, sweep)
    sweep_spec = sweep_spec.model_copy(update={"criterion": request.criterion or None})
    find_compatible(sweep_store, name, sweep_spec)
    study = sweep.studies[0] if sweep else sweep_spec.studies(name)[0]
    return ResolvedImport(name, sweep_spec, study, scores, found.notes)


@dataclass(frozen=True)
class Imported:
    """What became of an import.

    Attributes:
        plan: what it does.
        change: a line on how the sweep changed; empty if it did not.
    """

    plan: ImportPlan
    change: str = ""


def import_scores(
    request: ImportRequest, resolved: ResolvedImport, results: Path, *, replaces: bool, dry_run: bool
) -> Imported:
    """Write the runs of an import and its request, the request first; in a dry run, nothing.

    A command that is killed leaves some of the runs, and the same command writes the others.

    Args:
        request: what was asked for.
        resolved: the same, resolved.
        results: the results folder.
        replaces: whether scores that differ from those imported before are taken.
        dry_run: whether nothing is written.

    Raises:
        InputError: a score is off the lattice, or differs from the one imported before.
        StorageError: the results folder cannot be written.
    """
    run_index = read_run_index(results, writes=not dry_run)
    plan = plan_import(resolved.study, resolved.scores, run_index)
    check_changed(plan, run_index, replaces=replaces)
    if dry_run:
        return Imported(plan)
    points = plan.points if resolved.study.base.trainable in IMPORTED else ()
    change = extend_sweep(results, resolved.name, resolved.sweep_spec, request.note, points)
    carry_out(results, plan)
    return Imported(plan, change)
