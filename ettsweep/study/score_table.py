"""Build a study from existing scores in a table, without training."""

import codecs
import csv
import io
import json
import math
import re
import reprlib
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from ettsweep.console import format_count
from ettsweep.errors import InputError
from ettsweep.extras import check_installed
from ettsweep.metric import Metric, valid_score
from ettsweep.powers import parse_number
from ettsweep.readers.numbers import decimal_points, metric_value
from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import Run
from ettsweep.runs.point import Point
from ettsweep.runs.spec import MAX_SEED, Labels, Recipe, RecipeInfo, RunSpec, StrategySpec
from ettsweep.runs.state import State, Status
from ettsweep.schema import NotInId, validate
from ettsweep.study.criterion import Criterion
from ettsweep.study.lattice import MAX_UNEVEN, Axis
from ettsweep.study.score_columns import OTHER_NAMES, columns_like, find_columns
from ettsweep.study.seeds import RACING_SEEDS
from ettsweep.study.study import Study

COLUMNS = ("lr", "wd", "seed", "score")
"""Columns of a table of runs; wd and seed may be missing."""

LIST_COLUMNS = ("seed", "score")
"""Columns of a list of scores; seed may be missing."""

STANDARD_INPUT = "-"

STATE_NAMES = "state|status"

FINISHED_STATES = ("finished", "complete", "completed", "succeeded", "success", "done", "diverged")
"""States of runs that count, by Weights & Biases, MLflow, Optuna, SLURM, ettsweep and others."""

ROUNDING = 0.005
"""Share by which equal values of lr or wd may differ, since tables may have three digits."""

MAX_FILLED = 4
"""Most values of an even axis, as a multiple of those in the table; with more, its steps are uneven."""

SHOWN = 4
"""Rows that a note lists one by one."""


# --- the table --------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """Values by column, unparsed, and their place in the table, such as line 3."""

    values: Mapping[str, Any]
    place: str


@dataclass(frozen=True)
class ScoreTable:
    """A table of scores.

    Attributes:
        source: its path; `-` for standard input.
        rows: the runs.
        names: names of columns by those of `COLUMNS`, where they differ.
        notes: sentences on the rows, for people.
    """

    source: str
    rows: Sequence[Row]
    names: Mapping[str, str]
    notes: Sequence[str] = ()

    def name(self, key: str) -> str:
        """Return the name of a column."""
        return self.names.get(key, key)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row.values))


def column_names(stated: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """Return the names of columns stated as `COLUMN=NAME`.

    Raises:
        InputError: there is no such column.
    """
    names = dict(text.partition("=")[::2] for text in stated)
    for key, name in names.items():
        if key not in known or not name:
            raise InputError(f"--column: one of {', '.join(f'{each}=NAME' for each in known)} is expected, got {key}")
    return names


def read_table(source: str, names: Mapping[str, str], columns: Sequence[str], needed: Sequence[str] = ()) -> ScoreTable:
    """Read a table: CSV or TSV with a header, objects of JSON, Parquet; or numbers alone, one a line.

    Unfinished runs are left out, by a column `state` or `status` as in exports of Weights & Biases, Optuna and MLflow.

    Args:
        source: a path; `-` for standard input.
        names: of columns, where they differ from those of `columns`.
        columns: those to read, the score last.
        needed: those that must exist, beside the score.

    Raises:
        InputError: it cannot be read, or lacks a column.
    """
    try:
        data = sys.stdin.buffer.read() if source == STANDARD_INPUT else Path(source).read_bytes()
        rows = list(_rows(source, data, names.get("score", "score")))
    except OSError as error:
        raise InputError(f"{source}: cannot be read: {error.strerror or error}") from None
    except csv.Error as error:
        raise InputError(f"{source}: {error}") from None
    if not rows:
        raise InputError(
            f"{source}: no rows: a header and a line for each run are expected, such as {','.join(columns)}"
        )
    table = _finished(ScoreTable(source, rows, names))
    names, notes = find_columns(source, table.columns, names, columns, needed)
    table = replace(table, names=names, notes=[*table.notes, *notes])
    return replace(table, notes=[*table.notes, *_disagreements(table, columns)])


def _rows(source: str, data: bytes, score: str) -> Iterator[Row]:
    if data.startswith(b"PAR1"):
        return _parquet_rows(source, data)
    is_utf_16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = data.decode("utf-16" if is_utf_16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        text = f"\0{error.start}"
    if "\0" in text:
        raise InputError(f"{source}: not text in UTF-8: save it as CSV in UTF-8, as JSON or as Parquet")
    if text.lstrip().startswith(("{", "[")):
        return _json_rows(source, text)
    return _csv_rows(source, text, score)


def _csv_rows(source: str, text: str, score: str) -> Iterator[Row]:
    """Yield the rows of a table with a header; numbers without a header are scores."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    hint = re.fullmatch(r'"?sep=(.)"?', lines[0].strip(" "))  # Excel's own
    skipped = 1 if hint else 0
    while skipped < len(lines) - 1 and (not lines[skipped].strip() or _is_remark(lines[skipped])):
        skipped += 1
    header = "" if skipped == len(lines) else lines[skipped].removeprefix("#").strip(" ")
    if _is_number(header):
        numbered = ((line, each) for line, each in enumerate(lines, 1) if line > skipped and each.strip())
        yield from (Row({score: each}, f"line {line}") for line, each in numbered)
        return
    delimiter = hint[1] if hint else max(",;\t", key=header.count)
    reader = csv.reader([header, *lines[skipped + 1 :]], delimiter=delimiter, skipinitialspace=True)
    names = [name.strip() for name in next(reader)]
    if twice := [name for name, count in Counter(names).items() if name and count > 1]:
        raise InputError(f"{source}: several columns are called {_some(twice)}: each needs a name of its own")
    for cells in filter(any, reader):
        place = f"line {skipped + reader.line_num}"
        if len(cells) != len(names):
            cure = (
                "a diverged run has an empty score, but keeps its comma"
                if len(cells) < len(names)
                else "write decimals with a point, or separate columns by semicolons"
            )
            raise InputError(
                f"{source}, {place}: {format_count(len(cells), 'cell')}, the header has {len(names)}: {cure}"
            )
        try:
            values = decimal_points(cells) if delimiter == ";" else cells
        except ValueError as error:
            raise InputError(f"{source}, {place}: {error}") from None
        yield Row(dict(zip(names, values, strict=True)), place)


def _is_remark(line: str) -> bool:
    return line.startswith("#") and not any(mark in line for mark in ",;\t")


def _json_rows(source: str, text: str) -> Iterator[Row]:
    """Yield the rows of a list of objects, or of an object a line."""
    is_list = text.lstrip().startswith("[")
    parts = [(source, text)] if is_list else [(f"line {n}", each) for n, each in enumerate(text.splitlines(), 1)]
    for place, each in parts:
        if not each.strip():
            continue
        try:
            content = json.loads(each)  # with NaN, which many programs write
        except (ValueError, RecursionError) as error:
            where = source if is_list else f"{source}, {place}"
            raise InputError(f"{where}: {error}; a list of objects, or an object a line, is expected") from None
        objects = [(f"row {n}", row) for n, row in enumerate(content, 1)] if is_list else [(place, content)]
        for at, row in objects:
            if not isinstance(row, dict):
                raise InputError(f'{source}, {at}: an object is expected, such as {{"lr": 0.01, "score": 0.5}}')
            yield Row(row, at)


def _parquet_rows(source: str, data: bytes) -> Iterator[Row]:
    check_installed(f"{source}: a table in Parquet", "pyarrow")
    from pyarrow import ArrowException, parquet

    try:
        rows = parquet.read_table(io.BytesIO(data)).to_pylist()
    except ArrowException as error:
        raise InputError(f"{source}: cannot be read as Parquet: {error}") from None
    yield from (Row(row, f"row {number}") for number, row in enumerate(rows, 1))


def _finished(table: ScoreTable) -> ScoreTable:
    """Return a table without unfinished runs, by its column of states."""
    state = next(iter(columns_like(table.columns, STATE_NAMES)), None)
    if state is None:
        return table
    kept = [row for row in table.rows if _word(row, state) in FINISHED_STATES]
    others = [row for row in table.rows if _word(row, state) not in FINISHED_STATES]
    states = Counter(_word(row, state) or "empty" for row in others)
    if not kept:
        raise InputError(
            f"{table.source}: no run has finished: its column {state} is {_some(states)}, never "
            f"{', '.join(FINISHED_STATES)}; rename it if it means something else"
        )
    counts = ", ".join(f"{count} {word}" for word, count in states.most_common())
    places = _some([row.place for row in others])
    note = f"{table.source}: {format_count(len(others), 'run')} left out, not finished ({counts}): {places}"
    return replace(table, rows=kept, notes=[note] * bool(others))


def _word(row: Row, name: str) -> str:
    return str(row.values.get(name) or "").strip().lower()


def _disagreements(table: ScoreTable, columns: Sequence[str]) -> Iterator[str]:
    """Yield a note on each further column for lr, wd or seed that has other values."""
    for key in columns:
        name = table.name(key)
        for other in columns_like(table.columns, OTHER_NAMES.get(key, "")):
            for row in table.rows if other != name else ():
                read, also = (metric_value(row.values.get(each)) for each in (name, other))
                if read is not None and also is not None and not math.isclose(read, also, rel_tol=ROUNDING):
                    yield (
                        f"{table.source}: {key} is read from column {name}; column {other} has other values, such as "
                        f"{also:g} for {read:g} ({row.place}); --column {key}={other} reads that"
                    )
                    break


def _some(names: Collection[str]) -> str:
    """Return names with commas between; of many, the first."""
    listed = list(names)
    return ", ".join(listed[:SHOWN]) + (f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else "")


def _is_number(text: str) -> bool:
    """Return whether a text is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


# --- its scores -------------------------------------------------------------------------------------------------------


class Score(NamedTuple):
    """The score of a run; None if it diverged."""

    lr: float
    wd: float
    seed: int
    value: float | None


def read_scores(source: str, names: Mapping[str, str]) -> tuple[list[Score], ScoreTable]:
    """Read the scores of runs, each lr, wd and seed once, and return them with their table.

    A score that is empty, "diverged", not finite or too large means a diverged run; a note lists them.

    Args:
        source: see `read_table`.
        names: of columns, where they differ from `COLUMNS`.

    Raises:
        InputError: it cannot be read, or a row is wrong.
    """
    table = read_table(source, names, COLUMNS, needed=("lr",))
    for name in map(table.name, ("wd", "seed")):
        empty = [row.place for row in table.rows if row.values.get(name) in (None, "")]
        if 0 < len(empty) < len(table.rows):
            raise InputError(f"{source}, {empty[0]}: no {name}, which other rows have")
    read = [_score(f"{source}, {row.place}", row.values, table) for row in table.rows]
    lrs, lr_notes = one_value("lr", {score.lr for score in read})
    wds, wd_notes = one_value("wd", {score.wd for score in read})
    scores = [score._replace(lr=lrs[score.lr], wd=wds[score.wd]) for score in read]
    places = dict[tuple[float, float, int], str]()
    for row, (lr, wd, seed, _) in zip(table.rows, scores, strict=True):
        if (other := places.setdefault((lr, wd, seed), row.place)) != row.place:
            point = Point(lr, wd, table.name("wd") in table.columns)
            raise InputError(
                f"{source}, {row.place}: {point.words}, seed {seed} is there twice ({other})"
                f"{'' if table.name('seed') in table.columns else '; a column seed tells repeats apart'}"
                f"{''.join(f'; {note}' for note in (*lr_notes, *wd_notes))}"
            )
    notes = [*table.notes, *(f"{source}: {note}" for note in (*lr_notes, *wd_notes))]
    if diverged := [row.place for row, score in zip(table.rows, scores, strict=True) if score.value is None]:
        notes.append(f"{source}: {format_count(len(diverged), 'run')} diverged: {_some(diverged)}")
    return scores, replace(table, notes=notes)


def one_value(name: str, values: Collection[float]) -> tuple[dict[float, float], list[str]]:
    """Return the value that each counts as, and notes: values that differ only by rounding are one.

    Of these, the one with most digits counts, up to six: 0.0009765625, not 0.000977, and 0.3, not 0.1 + 0.2.
    """
    groups = list[list[float]]()
    for value in sorted(values):
        if groups and value <= groups[-1][0] * (1 + ROUNDING):
            groups[-1].append(value)
        else:
            groups.append([value])
    exact = [
        max(group, key=lambda value: (len(f"{value:.6e}".partition("e")[0].rstrip("0")), -len(repr(value))))
        for group in groups
    ]
    notes = [
        f"{name}: {', '.join(repr(value) for value in group)} differ by rounding alone, and count as {best!r}"
        for group, best in zip(groups, exact, strict=True)
        if len(group) > 1
    ]
    return {value: best for group, best in zip(groups, exact, strict=True) for value in group}, notes


def read_list(source: str, names: Mapping[str, str]) -> tuple[dict[int, float | None], bool, ScoreTable]:
    """Read a list of scores by seed, or else by number, None for diverged runs; whether it has seeds; and its table.

    Args:
        source: see `read_table`.
        names: of columns, where they differ from `LIST_COLUMNS`.

    Raises:
        InputError: it cannot be read, or a row is wrong.
    """
    table = read_table(source, names, LIST_COLUMNS)
    has_seeds = (name := table.name("seed")) in table.columns
    scores: dict[int, float | None] = {}
    for number, row in enumerate(table.rows):
        at = f"{source}, {row.place}"
        seed = _seed(at, row.values, name) if has_seeds else number
        if seed in scores:
            raise InputError(f"{at}: {name} {seed} is there twice; one row for each seed is expected")
        scores[seed] = _value(at, row.values, table.name("score"))
    return scores, has_seeds, table


def _score(at: str, values: Mapping[str, Any], table: ScoreTable) -> Score:
    def number(key: str, default: float | None = None) -> float:
        value = values.get(table.name(key))
        if value in (None, "") and default is not None:
            return default
        try:
            result = parse_number(str(value))
        except ValueError:
            result = math.nan
        if not (math.isfinite(result) and result >= 0):
            raise InputError(f"{at}: {table.name(key)}: a number of at least 0 is expected, got {reprlib.repr(value)}")
        return result

    lr, wd = number("lr"), number("wd", 0.0)
    if not lr:
        raise InputError(f"{at}: {table.name('lr')}: a number above 0 is expected, got 0")
    return Score(lr, wd, _seed(at, values, table.name("seed")), _value(at, values, table.name("score")))


def _seed(at: str, values: Mapping[str, Any], name: str) -> int:
    value = values.get(name)
    if value in (None, ""):
        return 0
    number = metric_value(value)
    if number is None or not number.is_integer() or not 0 <= number <= MAX_SEED:
        raise InputError(
            f"{at}: {name}: a whole number from 0 to {MAX_SEED} is expected, got {reprlib.repr(value)}; others can be "
            "numbered 0, 1, 2"
        )
    return int(number)


def _value(at: str, values: Mapping[str, Any], name: str) -> float | None:
    if name not in values:
        raise InputError(f"{at}: no {name}; it has {', '.join(values)}: the score of a run that diverged is null")
    value = values[name]
    if value is None or str(value).strip().lower() in ("", "diverged"):
        return None
    score = metric_value(value if isinstance(value, int | float) else str(value))
    if score is None:
        raise InputError(f"{at}: {name}: a number is expected, got {reprlib.repr(value)}")
    return valid_score(score)


# --- the study --------------------------------------------------------------------------------------------------------


class TableRecipe(Recipe):
    """Recipe of runs of which only scores are known.

    Attributes:
        source: name of the table.
        column: of the score.
        mode: whether lower or higher is better.
        margin_is: see `Metric`.
        wd_is_known: whether the table has wd, above 0.
    """

    trainable: Literal["table"] = "table"
    source: str
    column: str
    mode: Literal["min", "max"]
    margin_is: Annotated[Literal["share", "difference"], NotInId()] = "share"
    wd_is_known: Annotated[bool, NotInId()] = True

    @property
    def info(self) -> RecipeInfo:  # they have no kind, since they are not trained
        metric = Metric(self.column, self.mode, self.column, "last", margin_is=self.margin_is)
        return RecipeInfo(metric=metric, labels=Labels(self.source), has_wd=self.wd_is_known)


def shown_seed(study: Study, seed: int) -> int:
    """Return a seed for messages: those of racing continue the table's."""
    return max(study.seeds) + 1 + seed - RACING_SEEDS[0] if seed in RACING_SEEDS else seed


def make_study(
    scores: Sequence[Score], recipe: TableRecipe, criterion: Criterion
) -> tuple[Study, list[Run], list[str]]:
    """Return a study of scores, their runs, and a note on each uneven axis.

    Args:
        scores: each lr, wd and seed once.
        recipe: of their runs.
        criterion: of the verdict.

    Raises:
        InputError: 0 is one of several wd, or there is a single point.
    """
    lr_axis, lr_note = axis_of("lr", {score.lr for score in scores})
    wd_axis, wd_note = axis_of("wd", {score.wd for score in scores})
    if lr_axis.fixed and wd_axis.fixed:
        raise InputError(f"{recipe.source}: a single point has no neighbours: several lr or wd are expected")
    has_wd = any(score.wd for score in scores)
    recipe = recipe.model_copy(update={"wd_is_known": has_wd})
    seeds_at: dict[Point, list[int]] = {}
    for score in scores:
        seeds_at.setdefault(Point(score.lr, score.wd, has_wd), []).append(score.seed)
    # New neighbours get the seed that most points have.
    seeds = tuple(seed for seed, _ in Counter(sorted(score.seed for score in scores)).most_common())
    origin = next(iter(seeds_at))
    base = RunSpec.of(recipe, StrategySpec(s=None), origin.lr, origin.wd, seeds[0])
    stated_seeds = {point: tuple(members) for point, members in seeds_at.items()}
    study = Study(base, lr_axis, wd_axis, seeds, tuple(stated_seeds), criterion=criterion, stated_seeds=stated_seeds)
    runs = []
    for lr, wd, seed, value in scores:
        spec = base.with_point(lr, wd, seed)
        state = State.DIVERGED if value is None else State.DONE
        runs.append(Run(RunDir(Path(spec.run_id)), spec, Status(state), {"score": value}))
    return study, runs, [note for note in (lr_note, wd_note) if note]


def axis_of(name: str, values: Iterable[float]) -> tuple[Axis, str]:
    """Return the axis of some values, and a note if its steps are not quite even.

    Raises:
        InputError: 0 is among several values.
    """
    ordered = sorted(values)
    if len(ordered) == 1:
        return Axis(fixed=True), ""
    if not ordered[0]:
        raise InputError(f"{name}: 0 is infinitely many steps from {ordered[1]:g}: leave out its rows, or all others")
    logs = [math.log2(value) for value in ordered]
    hops = [b - a for a, b in pairwise(logs)]
    counts = [round(hop / min(hops)) for hop in hops]
    step = (logs[-1] - logs[0]) / sum(counts)
    at = [*accumulate(counts, initial=0)]
    off = max(abs(log - logs[0] - number * step) / step for log, number in zip(logs, at, strict=True))
    # Before a list: limits keep powers of 2 finite.
    even = validate(Axis, {"low": 0.0, "high": round(step, 2) * at[-1], "step": round(step, 2)}, f"{name} in log2")
    if off < 1e-6 and abs(step - even.step) < 1e-6:
        return even, ""
    if off <= MAX_UNEVEN and at[-1] < MAX_FILLED * len(ordered):
        # Values missing in the table are steps too.
        by_number = dict(zip(at, ordered, strict=True))
        listed = [by_number.get(k, ordered[0] * 2.0 ** (k * step)) for k in range(at[-1] + 1)]
        note = f"{name}: ettsweep treats values as evenly spaced (x{2**step:.3g}, off by up to {off:.0%} of a step)"
        return Axis.of(listed), note if off > 1e-3 else ""
    apart = f"x{2 ** min(hops):.3g} to x{2 ** max(hops):.3g}"
    return Axis.of(ordered), f"{name}: steps are uneven ({apart}); neighbours are the next values"
