"""Two lists of scores, of tables or sweeps: which is better, by how much, and how many more seeds would decide?"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev, variance
from typing import Literal

from scipy.special import ndtri, stdtrit

from ettsweep.console import format_count
from ettsweep.errors import InputError
from ettsweep.metric import Metric
from ettsweep.readers.numbers import resolution
from ettsweep.runs.index import RunIndex, load_run_index
from ettsweep.runs.point import Point
from ettsweep.strategies.strategy import is_strategy, usual_name
from ettsweep.study.judgement import evaluate
from ettsweep.study.lattice import parse_point
from ettsweep.study.score_columns import Columns, Mode, mode_of
from ettsweep.study.score_table import STANDARD_INPUT, read_list
from ettsweep.study.seeds import is_verdict_seed
from ettsweep.study.study import Study
from ettsweep.study.sweep_store import SweepStore, load_sweep_store

Scores = Mapping[int, float | None]
"""Score by seed, or by number without seeds; None for a diverged run."""

MIN_SCORES = 2
"""Fewest scores of a list, or pairs: fewer have no spread."""

POWER = 0.75
"""Share of cases in which the forecast of seeds suffices, if the difference is what it seems."""

MAX_SEEDS = 10_000
"""Largest forecast of seeds."""


@dataclass(frozen=True)
class Comparison:
    """How much better one list is than another.

    Attributes:
        verdict: of the first list.
        advantage: by how much its mean is better.
        low, high: the interval of the advantage, at the confidence.
        pairs: number of common seeds by which they were compared; 0 without.
        more_seeds: further seeds of each that would decide, if the difference is what it seems; None if it is decided,
            or there would be too many.
        diverged: number of diverged runs of each, which were left out.
    """

    verdict: Literal["better", "worse", "unresolved"]
    advantage: float
    low: float
    high: float
    confidence: float
    pairs: int
    more_seeds: int | None
    diverged: tuple[int, int]


def compare(first: Scores, second: Scores, mode: Literal["min", "max"], confidence: float, paired: bool) -> Comparison:
    """Compare two lists of scores: by the differences of common seeds, or else by their means.

    A list with diverged runs never is the better one: they are left out, and rank last.

    Args:
        first: the list that is better or worse.
        second: the reference.
        mode: whether lower or higher is better.
        confidence: of the interval, two-sided.
        paired: whether equal keys are equal seeds.

    Raises:
        InputError: fewer than two scores.
    """
    sign = -1.0 if mode == "min" else 1.0
    lists = [{seed: sign * score for seed, score in each.items() if score is not None} for each in (first, second)]
    diverged = len(first) - len(lists[0]), len(second) - len(lists[1])
    if min(map(len, lists)) < MIN_SCORES:
        raise InputError("give at least two scores of each: a single one may be luck")
    common = sorted(lists[0].keys() & lists[1].keys()) if paired else []
    # Too few pairs say less than the lists themselves.
    is_paired = len(common) >= max(MIN_SCORES, min(map(len, lists)) / 2)
    # Of both together: zeros at the end of a number are lost.
    step = resolution([*lists[0].values(), *lists[1].values()]) or 0.0
    if is_paired:
        samples = [[lists[0][seed] - lists[1][seed] for seed in common]]
        step *= math.sqrt(2)
    else:
        samples = [list(each.values()) for each in lists]
    advantage = fmean(samples[0]) - (0.0 if is_paired else fmean(samples[1]))
    noise = _Noise([variance(each) for each in samples], step)
    counts = [len(each) for each in samples]
    half = noise.half_width(counts, confidence)
    low, high = advantage - half, advantage + half
    verdict: Literal["better", "worse", "unresolved"] = "unresolved"
    if low > 0 and not diverged[0]:
        verdict = "better"
    elif high < 0 and not diverged[1]:
        verdict = "worse"
    more = None if verdict != "unresolved" or low > 0 or high < 0 else _more_seeds(noise, counts, advantage, confidence)
    return Comparison(verdict, advantage, low, high, confidence, len(common) * is_paired, more, diverged)


def summary(name: str, scores: Scores) -> dict[str, object]:
    """Return a row on a list: its mean, its standard deviation and its number of scores."""
    values = [score for score in scores.values() if score is not None]
    return {"scores": name, "mean": fmean(values), "std": stdev(values), "runs": len(values)}


class _Noise:
    """The noise of lists of scores, or of the differences of one.

    Scores that are rounded to a step have a variance of step^2 / 12 at least. If theirs is below step^2 / 3, as if they
    had two values, more seeds do not average the rounding out, and the interval reaches a step to each side.

    Args:
        variances: of each list.
        step: to which values were rounded; of differences, sqrt 2 of it.
    """

    def __init__(self, variances: Sequence[float], step: float) -> None:
        self._variances = [max(variance, step**2 / 12) for variance in variances]
        # One step is not more than a step.
        self._least = step * (1 + 1e-9) if min(variances) < step**2 / 3 else 0.0

    def error(self, counts: Sequence[int]) -> float:
        """Return the standard error of the advantage for lists of so many scores each."""
        return math.sqrt(sum(variance / n for variance, n in zip(self._variances, counts, strict=True)))

    def half_width(self, counts: Sequence[int], confidence: float) -> float:
        """Return half the width of the interval for lists of so many scores each.

        Its degrees of freedom are those of the shorter list, so it holds for any variances and numbers (Mickey and
        Brown, 1966). Welch's, for 2 scores beside 30, hold in 87 of 100 cases instead of 95.
        """
        return max(self._least, self.error(counts) * float(stdtrit(min(counts) - 1, (1 + confidence) / 2)))


def _more_seeds(noise: _Noise, counts: Sequence[int], advantage: float, confidence: float) -> int | None:
    """Return how many more seeds of each decide in `POWER` of cases; None beyond `MAX_SEEDS`."""

    def tells(more: int) -> bool:
        numbers = [n + more for n in counts]
        return noise.half_width(numbers, confidence) + float(ndtri(POWER)) * noise.error(numbers) < abs(advantage)

    # More seeds decide more often: bisection finds the fewest.
    more = bisect_left(range(MAX_SEEDS + 1), True, lo=1, key=tells)
    return more if more <= MAX_SEEDS else None


def _notes(side: "Side") -> list[str]:
    """Return a warning if the scores of a side may be copies."""
    values = {score for score in side.scores.values() if score is not None}
    if len(values) > 1 or len(side.scores) < MIN_SCORES or not values:
        return [*side.notes]
    return [*side.notes, f"{side.name}: all seeds have identical scores: does training use its seed?"]


# --- what is compared -----------------------------------------------------------------------------------------------

BEST = "best"

FORM = "SWEEP, SWEEP/STRATEGY or STRATEGY, each alone for its best point, or with :LR,WD or :NAME=VALUE,..."


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes:
        name: for people.
        scores: by seed, or by number without seeds; None for a diverged run.
        has_seeds: whether they are by seed.
        notes: sentences on them.
        metric: of a sweep; None of a table.
        point: of a sweep.
        fresh: of the best point of a search, the scores of fresh seeds, which did not choose it.
    """

    name: str
    scores: Scores
    has_seeds: bool
    notes: Sequence[str] = ()
    metric: Metric | None = None
    point: Point | None = None
    fresh: Scores | None = None


def read_sides(
    first: str, second: str, names: Columns, mode: Literal["min", "max"] | None, results: Path
) -> tuple[Side, Side, Literal["min", "max"]]:
    """Read two lists of scores, and return whether lower or higher is better.

    Each is a table (see `study.score_table`), or a point of a sweep in the results folder, by default the best. Best
    points are compared over fresh seeds if each has some: those of a search make their point look better than it is.

    Args:
        first: as it was typed.
        second: as it was typed.
        names: of columns of tables.
        mode: as stated; None if it is not.
        results: folder of the sweeps.

    Raises:
        InputError: there is no such file or point, or low or high is not known to be better.
        CorruptError: a sweep cannot be read.
    """
    sweep_store: SweepStore | None = None
    run_index: RunIndex | None = None
    sides: dict[str, Side] = {}
    columns: dict[str, None] = {}
    for text in dict.fromkeys((first, second)):
        if text == STANDARD_INPUT or Path(text).exists():
            scores, has_seeds, table = read_list(text, names)
            sides[text] = Side(text, scores, has_seeds, table.notes)
            columns[table.columns.score] = None
        else:
            sweep_store = sweep_store or load_sweep_store(results)
            run_index = run_index or load_run_index(results)
            sides[text] = _of_sweep(text, sweep_store, run_index)
    best = _best([side for side in sides.values() if side.metric], mode, columns)
    a, b = (replace(side, notes=_notes(side)) for side in _fairly([sides[first], sides[second]]))
    return a, b, best


def _best(sides: Sequence[Side], stated: Mode | None, columns: Iterable[str]) -> Mode:
    """Return whether lower or higher is better: by an option, by sweeps, or else by the names of columns of scores.

    Raises:
        InputError: none of these says it, or they disagree.
    """
    metrics = {side.name: side.metric for side in sides if side.metric}
    if len({(metric.column, metric.mode, metric.take) for metric in metrics.values()}) > 1:
        names = " and ".join(f"{name} {metric.label}" for name, metric in metrics.items())
        raise InputError(f"they have different scores: {names}")
    for name, metric in metrics.items():
        if stated and metric.mode != stated:
            better = "low" if metric.mode == "min" else "high"
            raise InputError(f"--{stated}: {better} scores are better in {name}; leave out the option")
    if best := stated or next((metric.mode for metric in metrics.values()), None):
        return best
    if len(modes := {mode_of(name) for name in columns}) == 1 and (mode := modes.pop()):
        return mode
    raise InputError(f"add --min or --max: is a low or a high {next(iter(columns))} better?")


def _fairly(sides: Sequence[Side]) -> Sequence[Side]:
    """Return sides with the scores of fresh seeds if all best points have them, else with a note on their seeds."""
    chosen = [side for side in sides if side.fresh is not None]
    if not chosen:
        return sides
    if all(side.fresh is not None and len(side.fresh) >= MIN_SCORES for side in chosen):
        return [side if side.fresh is None else replace(side, scores=side.fresh) for side in sides]
    note = "the seeds of its search chose it, so it looks better than it is: `ettsweep seeds` trains fresh ones"
    return [side if side.fresh is None else replace(side, notes=[f"{side.name}: {note}"]) for side in sides]


def _of_sweep(text: str, sweep_store: SweepStore, run_index: RunIndex) -> Side:
    """Return the scores of a point of a sweep."""
    head, _, at = text.partition(":")
    study = _study(text, head, sweep_store)
    members = run_index.family_runs(study.base, study.axes)
    state = evaluate(study, members)
    if at in ("", BEST):
        verdict = state.verdict()
        if verdict.point is None:
            raise InputError(f"{text}: no point of it is finished yet")
        point = verdict.point
    else:
        point = state.resolve_point(parse_point(at, text, study.centre, study.free), text)
    steps = state.steps(point)
    runs = [run for run in members if state.steps(study.point_of(run)) == steps]
    scores = {run.seed: run.score for run in sorted(runs, key=lambda run: run.seed) if run.state.finished}
    fresh = None
    if at in ("", BEST):
        fresh = {seed: score for seed, score in scores.items() if not is_verdict_seed(study, seed)}
        scores = {seed: score for seed, score in scores.items() if seed not in fresh}
    name = f"{study.title} at {point}"
    unfinished = sum(not run.state.finished for run in runs)
    notes = [f"{name}: {format_count(unfinished, 'run')} not finished"] * bool(unfinished)
    return Side(name, scores, True, notes, study.metric, point, fresh)


def _study(text: str, head: str, sweep_store: SweepStore) -> Study:
    """Return the study of a sweep, or of a strategy that only one sweep has.

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
        if sweep != strategy or not (is_strategy(strategy) or strategy in {study.strategy for study in studies}):
            names = f"; sweeps there: {', '.join(sweep_store.sweeps)}" if sweep_store.sweeps else ""
            raise InputError(f"{text}: no such file, and no such sweep in {sweep_store.results} ({FORM}){names}")
    if strategy:
        name = usual_name(strategy)
        studies = [study for study in studies if study.strategy == name]
    if len(studies) != 1:
        choices = ", ".join(f"{study.sweep}/{study.strategy}" for study in studies)
        which = f"one of {choices} is expected" if studies else f"no sweep of {sweep_store.results} has this strategy"
        raise InputError(f"{text}: {which}")
    return studies[0]
