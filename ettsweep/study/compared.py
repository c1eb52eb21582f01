"""What `compare` compares: scores in files, and those of sweeps and their points."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ettsweep.console import format_count
from ettsweep.errors import EttsweepError, InputError
from ettsweep.metric import Metric
from ettsweep.runs.index import RunIndex, load_run_index
from ettsweep.runs.point import Point
from ettsweep.runs.trainables import IMPORTED
from ettsweep.strategies.strategy import parse_strategy, strategy_name
from ettsweep.study.comparison import MIN_SCORES
from ettsweep.study.judgement import evaluate
from ettsweep.study.lattice import parse_point
from ettsweep.study.score_rows import STANDARD_INPUT, Reading
from ettsweep.study.score_sources import is_storage
from ettsweep.study.seeds import is_verdict_seed
from ettsweep.study.stated_scores import read_list
from ettsweep.study.study import Study
from ettsweep.study.sweep_store import SweepStore, load_sweep_store

BEST = "best"

FORM = "SWEEP, SWEEP/STRATEGY or STRATEGY, each alone for its best point or with :LR,WD"


@dataclass(frozen=True)
class Side:
    """Scores that are compared with others.

    Attributes:
        name: for people.
        scores: by seed, or by number where there are no seeds; None of a run that diverged.
        has_seeds: whether they are by seed.
        notes: what there is to say of them.
        mode: whether lower or higher is better, where a sweep or a study of Optuna says so.
        metric: of a sweep; None of a file.
        take: which value of a curve the scores of a sweep are; None where no curve is known.
        point: of a sweep.
        fresh: of the best point of a search, the scores of fresh seeds, which did not choose it.
    """

    name: str
    scores: Mapping[int, float | None]
    has_seeds: bool
    notes: Sequence[str] = ()
    mode: Literal["min", "max"] | None = None
    metric: Metric | None = None
    take: Literal["best", "last"] | int | None = None
    point: Point | None = None
    fresh: Mapping[int, float | None] | None = None


def read_sides(
    first: str, second: str, reading: Reading, mode: Literal["min", "max"] | None, results: Path
) -> tuple[Side, Side, Literal["min", "max"]]:
    """Read two lists of scores, and return whether lower or higher is better.

    Each is a file or folder (see `study.score_rows`), or else names a point of a sweep in the results folder, by
    default the best. Best points are compared over fresh seeds where each has some, since those of a search flatter
    the point that they chose.

    Args:
        first: as it was typed.
        second: as it was typed.
        reading: how files are read.
        mode: as stated; None if it is not.
        results: folder of the sweeps.

    Raises:
        InputError: neither is there such a file nor such a point, or what is better is not known.
        CorruptError: a sweep cannot be read.
    """
    sweep_store: SweepStore | None = None
    run_index: RunIndex | None = None
    sides: dict[str, Side] = {}
    for text in (first, second):
        if is_storage(text):
            sides[text] = _of_list(text, reading)
        elif not _is_source(text):
            sweep_store = sweep_store or load_sweep_store(results)
            run_index = run_index or load_run_index(results)
            sides[text] = _of_sweep(text, sweep_store, run_index)
    metrics = [side.metric for side in sides.values() if side.metric]
    if len({(metric.column, metric.mode) for metric in metrics}) > 1:
        names = " and ".join(f"{side.name} {side.metric.label}" for side in sides.values() if side.metric)
        raise InputError(f"they have different scores: {names}")
    takes = {side.name: side.take for side in sides.values() if side.take is not None}
    if len(set(takes.values())) > 1:
        names = " and ".join(f"of {name} `take: {take}`" for name, take in takes.items())
        raise InputError(f"they have different values of a curve as scores: {names}")
    best = _best(sides, mode)
    for text in {first, second} - sides.keys():
        sides[text] = _of_list(text, replace(reading, mode=best))
    a, b = _fairly([sides[first], sides[second]])
    return a, b, best


def _best(sides: Mapping[str, Side], stated: Literal["min", "max"] | None) -> Literal["min", "max"]:
    """Return whether lower or higher is better, as an option or some sides say.

    Raises:
        InputError: neither says, or they disagree.
    """
    modes = {side.name: side.mode for side in sides.values() if side.mode}
    for name, mode in modes.items():
        if stated and mode != stated:
            raise InputError(f"--{stated}: of {name} the other end is best; leave the option out")
    if len(set(modes.values())) > 1:
        raise InputError(", and ".join(f"of {name} the {mode} is best" for name, mode in modes.items()))
    if best := stated or next(iter(modes.values()), None):
        return best
    raise InputError("--min or --max says whether low or high scores are better")


def _fairly(sides: Sequence[Side]) -> Sequence[Side]:
    """Return sides with the scores of fresh seeds where best points have them, else with a note on what chose them."""
    chosen = [side for side in sides if side.fresh is not None]
    if not chosen:
        return sides
    if all(side.fresh is not None and len(side.fresh) >= MIN_SCORES for side in chosen):
        return [side if side.fresh is None else replace(side, scores=side.fresh) for side in sides]
    note = "over the seeds of its search, which flatter the point that they chose: `ettsweep seeds` trains fresh ones"
    return [side if side.fresh is None else replace(side, notes=[f"{side.name}: {note}"]) for side in sides]


def _is_source(text: str) -> bool:
    return text == STANDARD_INPUT or Path(text).exists() or is_storage(text)


def _of_list(text: str, reading: Reading) -> Side:
    """Return the scores of a file, a folder or a storage."""
    scores, has_seeds, found = read_list(text, reading)
    return Side(found.source, scores, has_seeds, found.notes, found.mode)


def _of_sweep(text: str, sweep_store: SweepStore, run_index: RunIndex) -> Side:
    """Return the scores of a point of a sweep."""
    head, _, at = text.partition(":")
    study = _study(text, head, sweep_store)
    state = evaluate(study, run_index.family_runs(study.family))
    if at in ("", BEST):
        verdict = state.verdict()
        if verdict.point is None:
            raise InputError(f"{text}: no point of it is finished yet")
        point = verdict.point
    else:
        point = state.resolve_point(parse_point(at, text), text)
    runs = [run for run in run_index.family_runs(study.family) if state.steps(run.point) == state.steps(point)]
    scores = {run.seed: run.score for run in sorted(runs, key=lambda run: run.seed) if run.state.finished}
    fresh = None
    if at in ("", BEST):
        fresh = {seed: score for seed, score in scores.items() if not is_verdict_seed(study, seed)}
        scores = {seed: score for seed, score in scores.items() if seed not in fresh}
    name = f"{study.title} at {point}"
    unfinished = sum(not run.state.finished for run in runs)
    notes = [f"{name}: {format_count(unfinished, 'run')} not finished"] * bool(unfinished)
    # Of imported scores alone it is not known what they are.
    has_curve = study.base.trainable not in IMPORTED or any("steps" in (run.result or {}) for run in runs)
    metric = study.metric
    return Side(name, scores, True, notes, metric.mode, metric, metric.take if has_curve else None, point, fresh)


def _study(text: str, head: str, sweep_store: SweepStore) -> Study:
    """Return the study of a sweep, or of a strategy where one sweep alone has it.

    Raises:
        InputError: there is none, or several.
        CorruptError: the sweep cannot be read.
    """
    sweep, _, strategy = head.partition("/")
    if sweep in sweep_store.sweeps or sweep in sweep_store.broken:
        studies = list(sweep_store.select([sweep])[0].studies)
    else:
        strategy = strategy or sweep
        studies = [study for each in sweep_store.select() for study in each.studies]
        if not _is_strategy(strategy) or sweep != strategy:
            names = f"; sweeps there: {', '.join(sweep_store.sweeps)}" if sweep_store.sweeps else ""
            raise InputError(f"{text}: neither a file nor, in {sweep_store.results}, a sweep ({FORM}){names}")
    if strategy:
        name = strategy_name(parse_strategy(strategy))
        studies = [study for study in studies if study.strategy == name]
    if len(studies) != 1:
        choices = ", ".join(f"{study.sweep}/{study.strategy}" for study in studies)
        which = f"one of {choices} is expected" if studies else f"no sweep of {sweep_store.results} has this strategy"
        raise InputError(f"{text}: {which}")
    return studies[0]


def _is_strategy(text: str) -> bool:
    try:
        parse_strategy(text)
    except EttsweepError:
        return False
    return True
