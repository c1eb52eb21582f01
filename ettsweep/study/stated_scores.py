"""Scores that somebody has already, as a study and its runs: nothing is trained, and nothing is kept."""

import csv
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ettsweep.errors import InputError, nearest_name
from ettsweep.metric import Metric
from ettsweep.powers import parse_number
from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import Run
from ettsweep.runs.point import Point
from ettsweep.runs.spec import MAX_SEED, RunSpec, Seeds, StrategySpec
from ettsweep.runs.state import State, Status
from ettsweep.runs.trainable import Labels, RunContext, Trainable
from ettsweep.schema import validate
from ettsweep.study.criterion import Criterion
from ettsweep.study.lattice import Axis
from ettsweep.study.seeds import RACING_SEEDS
from ettsweep.study.study import Study

COLUMNS = ("lr", "wd", "seed", "score")
"""Columns of a table of scores; wd and seed may be missing."""

OFF_LATTICE = 0.1
"""Share of a step by which values of lr or wd may be off even steps in log2: people write 0.3 between 0.1 and 1."""

STANDARD_INPUT = "-"


class StatedScore(NamedTuple):
    """The score of a run that somebody has trained; None if it diverged."""

    lr: float
    wd: float
    seed: int
    score: float | None


class ScoresRecipe(Trainable):
    """What a table of scores tells of its runs, which are not trained here.

    Attributes:
        source: name of the table.
        column: of the score.
        mode: whether lower or higher is better.
    """

    trainable: Literal["scores"] = "scores"
    source: str
    column: str
    mode: Literal["min", "max"]

    @property
    def metric(self) -> Metric:
        return Metric(self.column, self.mode, self.column, "last")

    @property
    def labels(self) -> Labels:
        return Labels(self.source)

    def train(self, run: RunContext) -> None:
        raise InputError(f"{self.source}: there is no program for these scores")


@dataclass(frozen=True)
class StatedStudy(Study):
    """A study of scores that somebody has already, in which points may have different seeds.

    Attributes:
        stated_seeds: the seeds of each point.
    """

    stated_seeds: Mapping[Point, Seeds] = field(default_factory=dict)

    @cached_property
    def seeds_by_point(self) -> dict[Point, Seeds]:
        return dict(self.stated_seeds)

    def shown_seed(self, seed: int) -> int:
        """Return a seed as it is told: those of racing follow on those of the table."""
        return max(self.seeds) + 1 + seed - RACING_SEEDS[0] if seed in RACING_SEEDS else seed


# --- the table --------------------------------------------------------------------------------------------------------


def read_scores(path: Path, names: Mapping[str, str]) -> list[StatedScore]:
    """Read a table of scores: CSV with a header, or lines of JSON.

    A score that is empty, "diverged" or not finite is that of a run that diverged.

    Args:
        path: of the table; `-` for standard input.
        names: names of its columns by those of `COLUMNS`, where they differ.

    Raises:
        InputError: it cannot be read, or a row says something else.
    """
    rows, found = _rows(path, names, COLUMNS, ("lr", "score"))
    known = dict.fromkeys(key for _, row in rows for key in row)
    scores = [_score(f"{path}, line {line}", row, found) for line, row in rows]
    lines: dict[StatedScore, int] = {}
    for (line, _), score in zip(rows, scores, strict=True):
        if other := lines.setdefault(score._replace(score=None), line) - line:
            raise InputError(
                f"{path}, line {line}: lr {score.lr:g}, wd {score.wd:g}, seed {score.seed} is there twice (line "
                f"{line + other}){'' if found['seed'] in known else '; a column seed tells repeats apart'}"
            )
    return scores


def read_list(path: Path, names: Mapping[str, str]) -> tuple[dict[int, float | None], bool]:
    """Read a list of scores by seed, None of runs that diverged, and whether it has seeds; else they are numbered.

    Args:
        path: of a table with a column of scores, or of numbers, one a line; `-` for standard input.
        names: names of the columns `seed` and `score`, where they differ.

    Raises:
        InputError: it cannot be read, or a row says something else.
    """
    rows, found = _rows(path, names, ("seed", "score"), ("score",))
    has_seeds = any(found["seed"] in row for _, row in rows)
    scores: dict[int, float | None] = {}
    for number, (line, row) in enumerate(rows):
        at = f"{path}, line {line}"
        seed = _seed(at, row, found["seed"]) if has_seeds else number
        if seed in scores:
            raise InputError(f"{at}: {found['seed']} {seed} is there twice; one row for each seed is expected")
        scores[seed] = _score_value(at, row, found["score"])
    return scores, has_seeds


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


def _rows(
    path: Path, names: Mapping[str, str], columns: Sequence[str], needed: Sequence[str]
) -> tuple[list[tuple[int, dict[str, Any]]], dict[str, str]]:
    """Return the rows of a table, each with its line, and the names of some columns, of which some are needed."""
    try:
        text = sys.stdin.read() if str(path) == STANDARD_INPUT else path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    try:
        rows = list(_json_rows(path, text) if text.lstrip().startswith("{") else _csv_rows(text, columns))
    except csv.Error as error:
        raise InputError(f"{path}: {error}") from None
    if not rows:
        raise InputError(f"{path}: no rows: a header and a line for each run are expected, such as {','.join(columns)}")
    found = {key: names.get(key, key) for key in columns}
    known = dict.fromkeys(key for _, row in rows for key in row)
    for key, name in found.items():
        if name not in known and (key in names or key in needed):
            near = nearest_name(name, tuple(known))
            hint = f"; did you mean {near}?" if near else "."
            raise InputError(
                f"{path}: no column {name}{hint} It has {', '.join(known)}; --column {key}=NAME says which is {key}"
            )
    return rows, found


def _csv_rows(text: str, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a table with a header, each with its line; numbers without a header are the last column."""
    header = text.partition("\n")[0]
    if _is_number(header):
        yield from ((line, {columns[-1]: each}) for line, each in enumerate(text.splitlines(), 1) if each.strip())
        return
    delimiter = max(",;\t", key=header.count)
    reader = csv.DictReader(text.splitlines(), delimiter=delimiter, skipinitialspace=True)
    for row in reader:
        yield reader.line_num, {key.strip(): value for key, value in row.items() if isinstance(key, str)}


def _json_rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, each in enumerate(text.splitlines(), 1):
        if not each.strip():
            continue
        try:
            row = json.loads(each)  # with NaN, which many programs write
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {line}: {error}") from None
        if not isinstance(row, dict):
            raise InputError(f"{path}, line {line}: an object is expected, such as {{'lr': 0.01, 'score': 0.5}}")
        yield line, row


def _score(at: str, row: Mapping[str, Any], names: Mapping[str, str]) -> StatedScore:
    def number(key: str, default: float | None = None) -> float:
        value = row.get(names[key])
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
    return StatedScore(lr, wd, _seed(at, row, names["seed"]), _score_value(at, row, names["score"]))


def _seed(at: str, row: Mapping[str, Any], name: str) -> int:
    value = row.get(name)
    if value in (None, ""):
        return 0
    if not _is_number(str(value)) or float(value) != (seed := int(float(value))) or not 0 <= seed <= MAX_SEED:
        raise InputError(f"{at}: {name}: a whole number of at least 0 is expected, got {value!r}")
    return seed


def _score_value(at: str, row: Mapping[str, Any], name: str) -> float | None:
    value = row.get(name)
    if value is None or str(value).strip().lower() in ("", "diverged"):
        return None
    try:
        score = float(value)
    except (TypeError, ValueError):
        raise InputError(f"{at}: {name}: a number is expected, got {value!r}") from None
    return score if math.isfinite(score) else None


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


# --- the study --------------------------------------------------------------------------------------------------------


def make_study(
    scores: Sequence[StatedScore], source: str, column: str, mode: Literal["min", "max"], criterion: Criterion
) -> tuple[StatedStudy, list[Run], list[str]]:
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
    lr_axis, lr_at, lr_note = _axis("lr", {score.lr for score in scores})
    wd_axis, wd_at, wd_note = _axis("wd", {score.wd for score in scores})
    if lr_axis.fixed and wd_axis.fixed:
        raise InputError(f"{source}: a single point has no neighbours: several lr or wd are expected")
    seeds_at: dict[Point, list[int]] = {}
    for score in scores:
        seeds_at.setdefault(Point(lr_at[score.lr], wd_at[score.wd]), []).append(score.seed)
    # New neighbours are to have the seed that most points have.
    seeds = tuple(seed for seed, _ in Counter(sorted(score.seed for score in scores)).most_common())
    recipe = ScoresRecipe(source=source, column=column, mode=mode)
    origin = next(iter(seeds_at))
    base = RunSpec.of(recipe, StrategySpec(s=None), origin.lr, origin.wd, seeds[0])
    stated_seeds = {point: tuple(members) for point, members in seeds_at.items()}
    study = StatedStudy(
        base, lr_axis, wd_axis, seeds, tuple(stated_seeds), criterion=criterion, stated_seeds=stated_seeds
    )
    runs = []
    for lr, wd, seed, value in scores:
        spec = base.with_point(lr_at[lr], wd_at[wd], seed)
        state = State.DIVERGED if value is None else State.DONE
        runs.append(Run(RunDir(Path(spec.run_id)), spec, Status(state), {"score": value}))
    return study, runs, [note for note in (lr_note, wd_note) if note]


def _axis(name: str, values: Iterable[float]) -> tuple[Axis, dict[float, float], str]:
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
    moved = {value: ordered[0] * 2.0 ** (number * step) for value, number in zip(ordered, at, strict=True)}
    note = f"{name}: values count as {2**step:.3g} times apart, up to {off:.0%} of a step" if off > 1e-3 else ""
    return validate(Axis, {"low": 0.0, "high": step * at[-1], "step": step}, f"{name} in log2"), moved, note
