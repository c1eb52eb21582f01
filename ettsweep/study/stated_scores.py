"""Scores that somebody has already, as a study and its runs, which are not trained here."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from ettsweep.console import format_count
from ettsweep.errors import InputError
from ettsweep.files import Json, finite
from ettsweep.metric import Metric
from ettsweep.powers import parse_number
from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import Run
from ettsweep.runs.point import Point
from ettsweep.runs.result import Origin
from ettsweep.runs.spec import MAX_SEED, RunSpec, StrategySpec
from ettsweep.runs.state import State, Status
from ettsweep.runs.trainable import Labels, Trainable
from ettsweep.schema import validate
from ettsweep.study.criterion import Criterion
from ettsweep.study.lattice import Axis
from ettsweep.study.score_rows import COLUMNS, Reading, Row, Rows, shown
from ettsweep.study.score_sources import read_rows
from ettsweep.study.score_tables import is_number
from ettsweep.study.seeds import RACING_SEEDS
from ettsweep.study.study import Study

OFF_LATTICE = 0.1
"""Share of a step by which values of lr or wd may be off even steps in log2: people write 0.3 between 0.1 and 1."""


class StatedScore(NamedTuple):
    """The score of a run that somebody has trained; None if it diverged."""

    lr: float
    wd: float
    seed: int
    score: float | None
    origin: Origin
    history: Sequence[Json] = ()


class ImportedRecipe(Trainable):
    """What is known of runs whose scores are all there is: there is no program that could train them.

    Attributes:
        source: name of the table, or of the sweep as which they are kept.
        column: of the score.
        mode: whether lower or higher is better.
        take: which value of a curve it is.
    """

    trainable: Literal["imported"] = "imported"
    source: str
    column: str
    mode: Literal["min", "max"]
    take: Literal["best", "last"] | int = "last"

    @property
    def metric(self) -> Metric:
        return Metric(self.column, self.mode, self.column, self.take)

    @property
    def labels(self) -> Labels:
        return Labels(self.source)

    @classmethod
    def from_block(cls, block: dict[str, Any], overrides: Sequence[str], location: str, folder: Path) -> Self:
        raise InputError(f"{location}: imported scores come without a program: `ettsweep import` makes their sweep")

    @property
    def no_program(self) -> str:
        return (
            f"{self.source}: its scores were imported, and no program is known that could train more runs: train those "
            "that --dry-run lists yourself, and import their scores too; or import all with --grid FILE, whose `run: "
            "command:` trains them (docs/own-code.md)"
        )


def shown_seed(study: Study, seed: int) -> int:
    """Return a seed as it is told to whoever trains: those of racing follow on those of the table."""
    return max(study.seeds) + 1 + seed - RACING_SEEDS[0] if seed in RACING_SEEDS else seed


# --- runs as they are stated ------------------------------------------------------------------------------------------


def read_scores(source: str, reading: Reading) -> tuple[list[StatedScore], Rows]:
    """Read the scores of a source, and return them with the rows that they are from.

    A score that is empty, "diverged" or not finite is that of a run that diverged; a note says which are.

    Args:
        source: see `read_rows`.
        reading: how.

    Raises:
        InputError: it cannot be read, or a row says something else.
    """
    found = read_rows(source, reading, needed=("lr",))
    names = {key: reading.name(key) for key in COLUMNS} | {"score": found.score}
    scores = [_score(found.origin(row), row, names) for row in found.rows]
    places: dict[tuple[float, float, int], str] = {}
    for score in scores:
        place, key = score.origin.place, (score.lr, score.wd, score.seed)
        if (other := places.setdefault(key, place)) != place:
            raise InputError(
                f"{score.origin}: lr {score.lr:g}, wd {score.wd:g}, seed {score.seed} is there twice ({other})"
                f"{'' if found.has(names['seed']) else '; a column seed tells repeats apart'}"
            )
    if diverged := [score.origin.place for score in scores if score.score is None]:
        note = f"{found.source}: {format_count(len(diverged), 'run')} diverged: {shown(diverged)}"
        found = replace(found, notes=[*found.notes, note])
    return scores, found


def read_list(source: str, reading: Reading) -> tuple[dict[int, float | None], bool, Rows]:
    """Read a list of scores by seed, None of runs that diverged; whether it has seeds, else they are numbers; its rows.

    Args:
        source: see `read_rows`; or numbers, one a line.
        reading: how.

    Raises:
        InputError: it cannot be read, or a row says something else.
    """
    found = read_rows(source, reading, ("seed", "score"))
    has_seeds = found.has(name := reading.name("seed"))
    scores: dict[int, float | None] = {}
    for number, row in enumerate(found.rows):
        at = str(found.origin(row))
        seed = _seed(at, row.values, name) if has_seeds else number
        if seed in scores:
            raise InputError(f"{at}: {name} {seed} is there twice; one row for each seed is expected")
        scores[seed] = _score_value(at, row.values, found.score)
    return scores, has_seeds, found


def column_names(stated: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """Return the names of columns that are stated as `COLUMN=NAME`.

    Raises:
        InputError: it is no such column.
    """
    names = dict(text.partition("=")[::2] for text in stated)
    for key, name in names.items():
        if key not in known or not name:
            raise InputError(f"--column: one of {', '.join(f'{each}=NAME' for each in known)} is expected, got {key}")
    return names


def _score(origin: Origin, row: Row, names: Mapping[str, str]) -> StatedScore:
    at, values = str(origin), row.values

    def number(key: str, default: float | None = None) -> float:
        value = values.get(names[key])
        if value in (None, "") and default is not None:
            return default
        try:
            result = parse_number(str(value))
        except ValueError:
            result = math.nan
        if not (math.isfinite(result) and result >= 0):
            raise InputError(f"{at}: {names[key]}: a number of at least 0 is expected, got {value!r}")
        return result

    lr, wd = number("lr"), number("wd", 0.0)
    if not lr:
        raise InputError(f"{at}: {names['lr']}: a number above 0 is expected, got 0")
    seed, score = _seed(at, values, names["seed"]), _score_value(at, values, names["score"])
    return StatedScore(lr, wd, seed, score, origin, [finite(line) for line in row.history])


def _seed(at: str, row: Mapping[str, Any], name: str) -> int:
    value = row.get(name)
    if value in (None, ""):
        return 0
    if not is_number(str(value)) or float(value) != (seed := int(float(value))) or not 0 <= seed <= MAX_SEED:
        raise InputError(f"{at}: {name}: a whole number of at least 0 is expected, got {value!r}")
    return seed


def _score_value(at: str, row: Mapping[str, Any], name: str) -> float | None:
    if name not in row:
        raise InputError(f"{at}: no {name}; it has {', '.join(row)}: the score of a run that diverged is null")
    value = row[name]
    if value is None or str(value).strip().lower() in ("", "diverged"):
        return None
    try:
        score = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{at}: {name}: a number is expected, got {value!r}") from None
    return score if math.isfinite(score) else None


# --- the study --------------------------------------------------------------------------------------------------------


def make_study(
    scores: Sequence[StatedScore], source: str, column: str, mode: Literal["min", "max"], criterion: Criterion
) -> tuple[Study, list[Run], list[str]]:
    """Return a study of scores, their runs, and a line on each axis whose values were moved onto even steps.

    Args:
        scores: each lr, wd and seed once.
        source: name of the table, for people.
        column: of the score.
        mode: whether lower or higher is better.
        criterion: of the verdict.

    Raises:
        InputError: lr and wd are no lattice, or a single point.
    """
    lr_axis, lr_at, lr_note = axis_of("lr", {score.lr for score in scores})
    wd_axis, wd_at, wd_note = axis_of("wd", {score.wd for score in scores})
    if lr_axis.fixed and wd_axis.fixed:
        raise InputError(f"{source}: a single point has no neighbours: several lr or wd are expected")
    seeds_at: dict[Point, list[int]] = {}
    for score in scores:
        seeds_at.setdefault(Point(lr_at[score.lr], wd_at[score.wd]), []).append(score.seed)
    # New neighbours are to have the seed that most points have.
    seeds = tuple(seed for seed, _ in Counter(sorted(score.seed for score in scores)).most_common())
    recipe = ImportedRecipe(source=source, column=column, mode=mode)
    origin = next(iter(seeds_at))
    base = RunSpec.of(recipe, StrategySpec(s=None), origin.lr, origin.wd, seeds[0])
    stated_seeds = {point: tuple(members) for point, members in seeds_at.items()}
    study = Study(base, lr_axis, wd_axis, seeds, tuple(stated_seeds), criterion=criterion, stated_seeds=stated_seeds)
    runs = []
    for lr, wd, seed, value, *_ in scores:
        spec = base.with_point(lr_at[lr], wd_at[wd], seed)
        state = State.DIVERGED if value is None else State.DONE
        runs.append(Run(RunDir(Path(spec.run_id)), spec, Status(state), {"score": value}))
    return study, runs, [note for note in (lr_note, wd_note) if note]


def axis_of(name: str, values: Iterable[float]) -> tuple[Axis, dict[float, float], str]:
    """Return the axis of some values, the lattice value of each, and a note if any was moved onto it.

    Raises:
        InputError: their logs are not even steps apart, up to `OFF_LATTICE`.
    """
    ordered = sorted(values)
    if len(ordered) == 1:
        return Axis(fixed=True), {ordered[0]: ordered[0]}, ""
    if not ordered[0]:
        raise InputError(f"{name}: 0 is infinitely many steps from {ordered[1]:g}: leave out its rows, or all others")
    logs = [math.log2(value) for value in ordered]
    hops = [b - a for a, b in pairwise(logs)]
    if same := [pair for pair, hop in zip(pairwise(ordered), hops, strict=True) if not hop]:
        raise InputError(f"{name}: {same[0][0]} and {same[0][1]} differ by rounding alone: write them alike")
    counts = [round(hop / min(hops)) for hop in hops]
    step = (logs[-1] - logs[0]) / sum(counts)
    at = [*accumulate(counts, initial=0)]
    off = max(abs(log - logs[0] - number * step) / step for log, number in zip(logs, at, strict=True))
    if off > OFF_LATTICE:
        raise InputError(
            f"{name}: {', '.join(f'{value:g}' for value in ordered)}: even steps in log are expected, these are "
            f"{', '.join(f'{2**hop:.3g}' for hop in hops)} times apart: leave out the rows between them"
        )
    if off < 1e-6:
        step = round(step, 6)
    # Before any is moved: it has limits within which a power of 2 is finite.
    axis = validate(Axis, {"low": 0.0, "high": step * at[-1], "step": step}, f"{name} in log2")
    moved = {value: ordered[0] * 2.0 ** (number * step) for value, number in zip(ordered, at, strict=True)}
    note = f"{name}: values count as {2**step:.3g} times apart, up to {off:.0%} of a step" if off > 1e-3 else ""
    return axis, moved, note
