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
from ettsweep.runs.spec import MAX_SEED, USUAL_AXES, Labels, Recipe, RecipeInfo, RunSpec, StrategySpec
from ettsweep.runs.state import State, Status
from ettsweep.schema import NotInId, validate
from ettsweep.study.criterion import Criterion
from ettsweep.study.lattice import EDGE_AXIS, MAX_AXES, MAX_UNEVEN, Axis, free_axes
from ettsweep.study.score_columns import OTHER_NAMES, Columns, columns_like, find_columns, mode_of
from ettsweep.study.seeds import RACING_SEEDS
from ettsweep.study.study import Study, VariantValues

STANDARD_INPUT = "-"

STATE_NAMES = "state|status"

NO_SETTING = (
    r"(?:^|[./_ ])(?:id|name|run|tags|notes|created|updated|started|ended|date|time\w*|runtime|duration|step|epoch)$"
)
"""Names of columns that say nothing of how a run was trained."""

FINISHED_STATES = ("finished", "complete", "completed", "succeeded", "success", "done", "diverged")
"""States of runs that count, by Weights & Biases, MLflow, Optuna, SLURM, ettsweep and others."""

ROUNDING = 0.005
"""Share by which equal values of lr or wd may differ, since tables may have three digits."""

MAX_FILLED = 4
"""Most values of an even axis, as a multiple of those in the table; with more, its steps are uneven."""

SECOND_AXIS = rf"(?:.*_)?(?:bs|batch(?:[_ -]?size)?|{OTHER_NAMES['wd']}|warm_?up.*|momentum|beta_?\d)"
"""Names of settings that are searched beside a learning rate."""

EXACT = 1e-3
"""Share of a step by which steps may differ and be equal, since values are rounded."""

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
        columns: what its columns are.
        notes: sentences on the rows, for people.
    """

    source: str
    rows: Sequence[Row]
    columns: Columns
    notes: Sequence[str] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of all columns."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row.values))


def read_table(source: str, stated: Columns, has_axes: bool = True) -> ScoreTable:
    """Read a table: CSV, TSV or Markdown with a header, objects of JSON, Parquet; or numbers alone, one a line.

    Unfinished runs are left out, by a column `state` or `status` as in exports of Weights & Biases, Optuna and MLflow.

    Args:
        source: a path; `-` for standard input.
        stated: its columns, as far as options state them.
        has_axes: whether it has axes; else it is a list of scores.

    Raises:
        InputError: it cannot be read, or lacks a column.
    """
    example = "lr,seed,score" if has_axes else "seed,score"
    try:
        data = sys.stdin.buffer.read() if source == STANDARD_INPUT else Path(source).read_bytes()
        rows = list(_rows(source, data, stated.score or "score"))
    except OSError as error:
        raise InputError(f"{source}: cannot be read: {error.strerror or error}") from None
    except csv.Error as error:
        raise InputError(f"{source}: {error}") from None
    if not rows:
        raise InputError(f"{source}: no rows: a header and a line for each run are expected, such as {example}")
    table = _finished(ScoreTable(source, rows, stated))
    columns, notes = find_columns(source, table.names, stated, has_axes)
    table = replace(table, columns=columns, notes=[*table.notes, *notes])
    return replace(table, notes=[*table.notes, *_disagreements(table)])


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
    body = [header, *lines[skipped + 1 :]]
    if header.startswith("|"):  # Markdown, whose second line is a rule
        delimiter, body = "|", [line.strip().strip("|") if re.search("[^-|: ]", line) else "" for line in body]
    reader = csv.reader(body, delimiter=delimiter, skipinitialspace=True)
    names = [name.strip() for name in next(reader)]
    if twice := [name for name, count in Counter(names).items() if name and count > 1]:
        raise InputError(f"{source}: several columns are called {_some(twice)}: each needs a name of its own")
    for cells in ([cell.strip() for cell in row] for row in reader):
        if not any(cells):
            continue
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
    state = next(iter(columns_like(table.names, STATE_NAMES)), None)
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


def _disagreements(table: ScoreTable) -> Iterator[str]:
    """Yield a note on each further column for lr, wd or seed that has other values."""
    columns = table.columns
    for key, name in [*columns.axes.items(), ("seed", columns.seed)]:
        for other in columns_like(table.names, OTHER_NAMES.get(key, "")):
            for row in table.rows if name and other != name else ():
                read, also = (metric_value(row.values.get(each)) for each in (name, other))
                if read is not None and also is not None and not math.isclose(read, also, rel_tol=ROUNDING):
                    option = f"--seed {other}" if key == "seed" else f"--axes {key}={other}"
                    yield (
                        f"{table.source}: {key} is read from column {name}; column {other} has other values, such as "
                        f"{also:g} for {read:g} ({row.place}); {option} reads that"
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

    values: Mapping[str, float]
    seed: int
    value: float | None


class Scores(NamedTuple):
    """Scores of a table, or of the rows that have the same values of its columns `by`.

    Attributes:
        variant: these values as printed, by column; empty without such columns.
        paired: whether runs of one seed have something in common; else repeats of a point are independent.
    """

    variant: dict[str, str]
    scores: list[Score]
    paired: bool


def read_scores(source: str, stated: Columns) -> tuple[list[Scores], ScoreTable]:
    """Read the scores of runs, each point and seed once, and return them with their table.

    A score that is empty, "diverged", not finite or too large means a diverged run; a note lists them. Without a column
    of seeds, repeats of a point are independent.

    Args:
        source: see `read_table`.
        stated: columns that options state.

    Raises:
        InputError: it cannot be read, or a row is wrong.
    """
    table = read_table(source, stated)
    columns = table.columns
    empty = {
        name: [row.place for row in table.rows if row.values.get(name) in (None, "")]
        for name in filter(None, (*columns.axes.values(), columns.seed))
    }
    # Trackers export columns that no run has filled.
    unused = {name for name, places in empty.items() if len(places) == len(table.rows)}
    axes = {name: column for name, column in columns.axes.items() if column not in unused or name == EDGE_AXIS}
    columns = replace(columns, axes=axes, seed="" if columns.seed in unused else columns.seed)
    table = replace(table, columns=columns)
    for name, places in empty.items():
        if places and name not in unused:
            raise InputError(f"{source}, {places[0]}: no {name}, which other rows have")
    read = [_score(f"{source}, {row.place}", row.values, columns) for row in table.rows]
    notes, exact = list[str](), dict[str, dict[float, float]]()
    for name in columns.axes:
        exact[name], rounded = one_value(name, {score.values[name] for score in read})
        notes += rounded
    read = [score._replace(values={name: exact[name][value] for name, value in score.values.items()}) for score in read]
    groups: dict[tuple[str, ...], list[int]] = {}
    labels = {column: _labels([row.values.get(column) for row in table.rows]) for column in columns.by}
    for k in range(len(table.rows)):
        groups.setdefault(tuple(labels[column][k] for column in columns.by), []).append(k)
    found = [
        _one_table(
            dict(zip(columns.by, values, strict=True)),
            [read[k] for k in members],
            [table.rows[k] for k in members],
            table,
            notes,
        )
        for values, members in groups.items()
    ]
    said = [*table.notes, *(f"{source}: {note}" for note in notes)]
    if diverged := [row.place for row, score in zip(table.rows, read, strict=True) if score.value is None]:
        said.append(f"{source}: {format_count(len(diverged), 'run')} diverged: {_some(diverged)}")
    return found, replace(table, notes=said)


def _one_table(
    variant: dict[str, str], scores: Sequence[Score], rows: Sequence[Row], table: ScoreTable, notes: Sequence[str]
) -> Scores:
    """Return scores of which each point and seed is there once; independent repeats get a seed each.

    Raises:
        InputError: a point and seed is there twice, or a column that is neither an axis nor in `by` tells repeats
            apart.
    """
    first: dict[tuple[Point, int], int] = {}
    for k, score in enumerate(scores):
        point = Point(score.values)
        if (other := first.setdefault((point, score.seed), k)) == k:
            continue
        if others := _others(table, rows):
            options = _options(table.columns, others, rows)
            raise InputError(
                f"{table.source}, {rows[k].place}: {point.words} is there several times ({rows[other].place}), with "
                f"different {' and '.join(others)}. Add {options}, or delete columns that only name the runs"
            )
        if table.columns.seed:
            raise InputError(
                f"{table.source}, {rows[k].place}: {point.words}, seed {score.seed} is there twice "
                f"({rows[other].place}){''.join(f'; {note}' for note in notes)}"
            )
        return Scores(variant, [each._replace(seed=number) for number, each in enumerate(scores)], paired=False)
    return Scores(variant, list(scores), paired=True)


def _options(columns: Columns, others: Sequence[str], rows: Sequence[Row]) -> str:
    """Return the options for settings that tell runs apart: one is an axis, if there is room; none follows from others.

    The axis is the one with a usual name, else that of most values.
    """
    axes, rest = [*columns.axes.values()], list(others)
    if len(axes) < MAX_AXES:
        numbers = [name for name in rest if all(_is_number(str(row.values.get(name, ""))) for row in rows)]
        axes += (columns_like(numbers, SECOND_AXIS) or numbers)[:1]
        rest = [name for name in rest if name not in axes]
    groups = len(_settings(rows, [*axes, *columns.by, *rest]))
    for name in [*rest]:
        fewer = [each for each in rest if each != name]
        if len(_settings(rows, [*axes, *columns.by, *fewer])) == groups:
            rest = fewer
    by = [*columns.by, *rest]
    return " ".join([f"--axes {','.join(axes)}", *([f"--by {','.join(by)}"] if by else [])])


def _settings(rows: Sequence[Row], names: Sequence[str]) -> set[tuple[str, ...]]:
    """Return the different values of some columns together."""
    return {tuple(str(row.values.get(name, "")) for name in names) for row in rows}


def _others(table: ScoreTable, rows: Sequence[Row]) -> list[str]:
    """Return the columns that tell runs of one point and seed apart, settings not stated; that of most values first."""
    columns = table.columns
    known = {*columns.axes.values(), columns.seed, columns.score, *columns.by}
    settings = []
    for name in table.names:
        values = [str(row.values.get(name, "")) for row in rows]
        # A score is none, nor what names each run, nor how long it took.
        is_setting = 1 < len({*values}) <= len(rows) / 2 and not mode_of(name) and not re.search(NO_SETTING, name, re.I)
        if name not in known and is_setting:
            settings.append(name)
    apart: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for row in rows:
        at = tuple(str(row.values.get(name)) for name in (*columns.axes.values(), columns.seed))
        apart.setdefault(at, set()).add(tuple(str(row.values.get(name, "")) for name in settings))
    varying = [
        k for k in range(len(settings)) if any(len({each[k] for each in members}) > 1 for members in apart.values())
    ]
    return [
        settings[k] for k in sorted(varying, key=lambda k: -len({str(row.values.get(settings[k])) for row in rows}))
    ]


def _labels(values: Sequence[object]) -> list[str]:
    """Return a label for each value: numbers have six digits, or all if two of them would have one label."""
    numbers = [metric_value(value if isinstance(value, int | float) else str(value)) for value in values]
    short = {n: f"{n:.6g}" for n in numbers if n is not None}
    if len({*short.values()}) < len(short):
        short = {n: repr(n).removesuffix(".0") for n in short}
    return [str(v) if n is None else short[n] for v, n in zip(values, numbers, strict=True)]


def _is_rounded(low: float, high: float) -> bool:
    """`True` if one of two values is the other one with fewer digits, but three."""
    if high > low * (1 + ROUNDING) or (low == round(low) and high == round(high)):
        return low == high
    digits = [len(f"{value:.6e}".partition("e")[0].rstrip("0")) - 1 for value in (low, high)]
    return math.isclose(*(float(f"{value:.{max(3, min(digits))}g}") for value in (low, high)), rel_tol=1e-9)


def one_value(name: str, values: Collection[float]) -> tuple[dict[float, float], list[str]]:
    """Return the value that each counts as, and notes: values that differ only by rounding are one.

    Of these, the one with most digits counts, up to six: 0.0009765625, not 0.000977, and 0.3, not 0.1 + 0.2. Others
    that are close, such as 0.995 and 0.999 or 1090 and 1095, are values of their own.
    """
    groups = list[list[float]]()
    for value in sorted(values):
        if groups and _is_rounded(groups[-1][0], value):
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


def read_list(source: str, stated: Columns) -> tuple[dict[int, float | None], bool, ScoreTable]:
    """Read a list of scores by seed, or else by number, None for diverged runs; whether it has seeds; and its table.

    Args:
        source: see `read_table`.
        stated: columns that options state.

    Raises:
        InputError: it cannot be read, or a row is wrong.
    """
    table = read_table(source, stated, has_axes=False)
    name = table.columns.seed
    scores: dict[int, float | None] = {}
    for number, row in enumerate(table.rows):
        at = f"{source}, {row.place}"
        seed = _seed(at, row.values, name) if name else number
        if seed in scores:
            raise InputError(f"{at}: {name} {seed} is there twice; one row for each seed is expected")
        scores[seed] = _value(at, row.values, table.columns.score)
    return scores, bool(name), table


def _score(at: str, row: Mapping[str, Any], columns: Columns) -> Score:
    values = {}
    for name, column in columns.axes.items():
        try:
            value = parse_number(str(row.get(column)))
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= 0):
            got = reprlib.repr(row.get(column))
            raise InputError(f"{at}: {column}: a number of at least 0 is expected, got {got}")
        if name == EDGE_AXIS and not value:
            raise InputError(f"{at}: {column}: a number above 0 is expected, got 0")
        values[name] = value
    seed = _seed(at, row, columns.seed) if columns.seed else 0
    return Score(values, seed, _value(at, row, columns.score))


def _seed(at: str, values: Mapping[str, Any], name: str) -> int:
    value = values.get(name)
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
        source: name of the table, and of the part of it.
        column: of the score.
        mode: whether lower or higher is better.
        margin_is: see `Metric`.
        paired: see `RecipeInfo`.
        usual_axes: which of lr and wd it has.
    """

    trainable: Literal["table"] = "table"
    source: str
    column: str
    mode: Literal["min", "max"]
    margin_is: Annotated[Literal["share", "difference"], NotInId()] = "share"
    paired: Annotated[bool, NotInId()] = True
    usual_axes: Annotated[tuple[str, ...], NotInId()] = ()

    @property
    def info(self) -> RecipeInfo:  # they have no kind, since they are not trained
        metric = Metric(self.column, self.mode, self.column, "last", margin_is=self.margin_is)
        return RecipeInfo(metric=metric, labels=Labels(self.source), axes=self.usual_axes, paired=self.paired)


def shown_seed(study: Study, seed: int) -> int:
    """Return a seed for messages: those of racing continue the table's."""
    return max(study.seeds) + 1 + seed - RACING_SEEDS[0] if seed in RACING_SEEDS else seed


def make_study(
    scores: Sequence[Score],
    recipe: TableRecipe,
    criterion: Criterion,
    variant: VariantValues | None = None,
    variant_number: int = 0,
) -> tuple[Study, list[Run], list[str]]:
    """Return a study of scores, their runs, and a note on each uneven axis.

    Args:
        scores: each point and seed once.
        recipe: of their runs.
        criterion: of the verdict.
        variant: what tells them from others of the table.
        variant_number: their place among these, from 0.

    Raises:
        InputError: there is a single point.
    """
    axes, notes = dict[str, Axis](), list[str]()
    for name in scores[0].values:
        if any(score.values[name] for score in scores):  # else nothing is known of it
            axes[name], note = axis_of(name, {score.values[name] for score in scores})
            notes += [note] * bool(note)
    if not free_axes(axes):
        names = " or ".join(scores[0].values)
        raise InputError(f"{recipe.source}: a single point has no neighbours: several {names} are expected")
    recipe = recipe.model_copy(update={"usual_axes": tuple(name for name in axes if name in USUAL_AXES)})
    seeds_at: dict[Point, list[int]] = {}
    for score in scores:
        seeds_at.setdefault(Point({name: score.values[name] for name in axes}), []).append(score.seed)
    # New neighbours get the seed that most points have.
    seeds = tuple(seed for seed, _ in Counter(sorted(score.seed for score in scores)).most_common())
    # A list counts from its centre, which has a log.
    origin = Point({n: axis.centre or next(iter(seeds_at))[n] for n, axis in axes.items()})
    base = RunSpec.of(recipe, StrategySpec(s=None), origin.values, seeds[0]).model_copy(
        update={"variant": {**(variant or {})}}
    )
    stated_seeds = {point: tuple(members) for point, members in seeds_at.items()}
    study = Study(base, axes, seeds, tuple(stated_seeds), criterion=criterion, stated_seeds=stated_seeds)
    study = replace(study, variant=variant or {}, variant_number=variant_number)
    runs = []
    for values, seed, value in scores:
        spec = base.with_point(Point({name: values[name] for name in axes}), seed)
        state = State.DIVERGED if value is None else State.DONE
        runs.append(Run(RunDir(Path(spec.run_id)), spec, Status(state), {"score": value}))
    return study, runs, notes


def axis_of(name: str, values: Iterable[float]) -> tuple[Axis, str]:
    """Return the axis of some values, and a note if its steps are not quite even; 0 is a level of its own."""
    every = sorted(values)
    if len(every) == 1:
        return Axis(fixed=True), ""
    ordered = [value for value in every if value]
    if len(ordered) < 2:
        return Axis.of(every), ""
    zero = every[: len(every) - len(ordered)]
    logs = [math.log2(value) for value in ordered]
    hops = [b - a for a, b in pairwise(logs)]
    counts = [round(hop / min(hops)) for hop in hops]
    step = (logs[-1] - logs[0]) / sum(counts)
    at = [*accumulate(counts, initial=0)]
    off = max(abs(log - logs[0] - number * step) / step for log, number in zip(logs, at, strict=True))
    if off < 1e-6 and abs(step - round(step, 2)) < 1e-6 and not zero:
        # Before a list: limits keep powers of 2 finite.
        even = {"low": 0.0, "high": round(step, 2) * at[-1], "step": round(step, 2)}
        return validate(Axis, even, f"{name} in log2"), ""
    if name not in USUAL_AXES and _is_linear(every):
        return Axis.of(every, scale="linear"), ""
    has_gaps = at[-1] >= len(ordered)
    if off <= (EXACT if has_gaps else MAX_UNEVEN) and at[-1] < MAX_FILLED * len(ordered):
        # Values missing in the table are steps too.
        by_number = dict(zip(at, ordered, strict=True))
        listed = [by_number.get(k, ordered[0] * 2.0 ** (k * step)) for k in range(at[-1] + 1)]
        note = f"{name}: ettsweep treats values as evenly spaced (x{2**step:.3g}, off by up to {off:.0%} of a step)"
        return Axis.of([*zero, *listed]), note if off > EXACT else ""
    apart = f"x{2 ** min(hops):.3g} to x{2 ** max(hops):.3g}"
    return Axis.of(every), f"{name}: steps are uneven ({apart}); neighbours are the next values"


def _is_linear(values: Sequence[float]) -> bool:
    """Whether three or more ascending values, such as 0, 0.1, 0.2, differ by equal steps."""
    mean = (values[-1] - values[0]) / (len(values) - 1)
    return len(values) > 2 and all(abs(high - low - mean) <= EXACT * mean for low, high in pairwise(values))
