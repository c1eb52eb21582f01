"""Scores that exist already, in a table; and the study and runs that they make, of which none is trained here."""

import csv
import io
import json
import math
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ettsweep.console import format_count
from ettsweep.errors import InputError, nearest_name
from ettsweep.extras import check_installed
from ettsweep.metric import Metric
from ettsweep.powers import parse_number
from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import Run
from ettsweep.runs.point import Point
from ettsweep.runs.spec import MAX_SEED, RunSpec, StrategySpec
from ettsweep.runs.state import State, Status
from ettsweep.runs.trainable import Labels, Trainable
from ettsweep.schema import validate
from ettsweep.study.criterion import Criterion
from ettsweep.study.lattice import Axis
from ettsweep.study.seeds import RACING_SEEDS
from ettsweep.study.study import Study

COLUMNS = ("lr", "wd", "seed", "score")
"""Columns of a table of runs; wd and seed may be missing."""

LIST_COLUMNS = ("seed", "score")
"""Columns of a list of scores; seed may be missing."""

STANDARD_INPUT = "-"

FINISHED_STATES = ("finished", "complete", "done", "diverged")
"""Values of a column `state` whose runs count: of Weights & Biases, of Optuna, of ettsweep."""

OFF_LATTICE = 0.1
"""Share of a step by which values of lr or wd may be off even steps in log2: people write 0.3 between 0.1 and 1."""

SHOWN = 4
"""Rows that a note lists one by one."""


# --- the table --------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """Values by column, as they were read, and their place in the table, such as line 3."""

    values: Mapping[str, Any]
    place: str


@dataclass(frozen=True)
class Table:
    """A table of scores.

    Attributes:
        source: its path; `-` for standard input.
        rows: the runs.
        names: names of columns by those of `COLUMNS`, where they differ.
        notes: what there is to say of the rows, for people.
    """

    source: str
    rows: Sequence[Row]
    names: Mapping[str, str]
    notes: Sequence[str] = ()

    def name(self, key: str) -> str:
        """Return the name of a column."""
        return self.names.get(key, key)

    def has(self, name: str) -> bool:
        """Whether any row has a column."""
        return any(name in row.values for row in self.rows)


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


def read_table(source: str, names: Mapping[str, str], columns: Sequence[str], needed: Sequence[str] = ()) -> Table:
    """Read a table: CSV or TSV with a header, objects of JSON, Parquet; or numbers alone, one a line.

    Rows of runs that did not finish are left out where a column `state` says so, as in exports of Weights & Biases
    and Optuna.

    Args:
        source: a path; `-` for standard input.
        names: of columns, where they differ from those of `columns`.
        columns: those that are read, the score last.
        needed: those that have to be there, beside the score.

    Raises:
        InputError: it cannot be read, or lacks a column.
    """
    try:
        data = sys.stdin.buffer.read() if source == STANDARD_INPUT else Path(source).read_bytes()
        rows = list(_rows(source, data, names.get("score", "score")))
    except OSError as error:
        raise InputError(f"{source}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: cannot be read: no text in UTF-8, from byte {error.start}") from None
    except csv.Error as error:
        raise InputError(f"{source}: {error}") from None
    if not rows:
        raise InputError(
            f"{source}: no rows: a header and a line for each run are expected, such as {','.join(columns)}"
        )
    table = _finished(Table(source, rows, names))
    _check_columns(table, columns, needed)
    return table


def _rows(source: str, data: bytes, score: str) -> Iterator[Row]:
    if data.startswith(b"PAR1"):
        return _parquet_rows(source, data)
    text = data.decode("utf-8-sig")
    if text.lstrip().startswith(("{", "[")):
        return _json_rows(source, text)
    return _csv_rows(source, text, score)


def _csv_rows(source: str, text: str, score: str) -> Iterator[Row]:
    """Yield the rows of a table with a header; numbers without a header are scores."""
    header = text.partition("\n")[0]
    if _is_number(header):
        lines = ((line, each) for line, each in enumerate(text.splitlines(), 1) if each.strip())
        yield from (Row({score: each}, f"line {line}") for line, each in lines)
        return
    delimiter = max(",;\t", key=header.count)
    reader = csv.DictReader(text.splitlines(), delimiter=delimiter, skipinitialspace=True)
    names = Counter(name.strip() for name in reader.fieldnames or ())
    if twice := [name for name, count in names.items() if name and count > 1]:
        raise InputError(f"{source}: several columns are called {_some(twice)}: each needs a name of its own")
    for row in reader:
        if None in row.values():
            cells = sum(isinstance(cell, str) for cell in row.values())
            raise InputError(
                f"{source}, line {reader.line_num}: {format_count(cells, 'cell')}, the header has {len(row)}: an empty "
                "score is that of a run that diverged, and has its comma"
            )
        values = {key.strip(): value for key, value in row.items() if isinstance(key, str)}
        yield Row(values, f"line {reader.line_num}")


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
            raise InputError(f"{source}: {error}" if is_list else f"{source}, {place}: {error}") from None
        objects = [(f"row {n}", row) for n, row in enumerate(content, 1)] if is_list else [(place, content)]
        for at, row in objects:
            if not isinstance(row, dict):
                raise InputError(f"{source}, {at}: an object is expected, such as {{'lr': 0.01, 'score': 0.5}}")
            yield Row(row, at)


def _parquet_rows(source: str, data: bytes) -> Iterator[Row]:
    check_installed(f"{source}: a table in Parquet", "pyarrow")
    from pyarrow import ArrowException, parquet

    try:
        rows = parquet.read_table(io.BytesIO(data)).to_pylist()
    except ArrowException as error:
        raise InputError(f"{source}: cannot be read as Parquet: {error}") from None
    yield from (Row(row, f"row {number}") for number, row in enumerate(rows, 1))


def _finished(table: Table) -> Table:
    """Return a table without the runs that did not finish, by its column `state`."""
    state = next((name for name in table.rows[0].values if name.lower() == "state"), None)
    if state is None:
        return table
    kept, others = [], list[str]()
    for row in table.rows:
        if str(row.values.get(state)).lower() in FINISHED_STATES:
            kept.append(row)
        else:
            others.append(row.place)
    if not kept:
        raise InputError(
            f"{table.source}: no run has finished: its column {state} is never {', '.join(FINISHED_STATES)}"
        )
    note = f"{table.source}: {format_count(len(others), 'run')} left out, not finished: {_some(others)}"
    return replace(table, rows=kept, notes=[note] * bool(others))


def _check_columns(table: Table, columns: Sequence[str], needed: Sequence[str]) -> None:
    known = tuple(dict.fromkeys(key for row in table.rows for key in row.values))
    for key in columns:
        name = table.name(key)
        if name not in known and (key in table.names or key in (*needed, "score")):
            near = nearest_name(name, known)
            hint = f"; did you mean {near}?" if near else "."
            raise InputError(
                f"{table.source}: no column {name}{hint} It has {', '.join(known)}; --column {key}=NAME says which is "
                f"{key}"
            )


def _some(names: Collection[str]) -> str:
    """Return some names with commas between; of many, the first."""
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


def read_scores(source: str, names: Mapping[str, str]) -> tuple[list[Score], Table]:
    """Read the scores of runs, each lr, wd and seed once, and return them with their table.

    A score that is empty, "diverged" or not finite is that of a run that diverged; a note says which are.

    Args:
        source: see `read_table`.
        names: of columns, where they differ from `COLUMNS`.

    Raises:
        InputError: it cannot be read, or a row says something else.
    """
    table = read_table(source, names, COLUMNS, needed=("lr",))
    scores, places = [], dict[tuple[float, float, int], str]()
    for row in table.rows:
        at = f"{source}, {row.place}"
        score = _score(at, row.values, table)
        lr, wd, seed, _ = score
        if (other := places.setdefault((lr, wd, seed), row.place)) != row.place:
            raise InputError(
                f"{at}: lr {lr:g}, wd {wd:g}, seed {seed} is there twice ({other})"
                f"{'' if table.has(table.name('seed')) else '; a column seed tells repeats apart'}"
            )
        scores.append(score)
    if diverged := [row.place for row, score in zip(table.rows, scores, strict=True) if score.value is None]:
        note = f"{source}: {format_count(len(diverged), 'run')} diverged: {_some(diverged)}"
        table = replace(table, notes=[*table.notes, note])
    return scores, table


def read_list(source: str, names: Mapping[str, str]) -> tuple[dict[int, float | None], bool, Table]:
    """Read a list of scores by seed, None of runs that diverged; whether it has seeds, else numbers; and its table.

    Args:
        source: see `read_table`.
        names: of columns, where they differ from `LIST_COLUMNS`.

    Raises:
        InputError: it cannot be read, or a row says something else.
    """
    table = read_table(source, names, LIST_COLUMNS)
    has_seeds = table.has(name := table.name("seed"))
    scores: dict[int, float | None] = {}
    for number, row in enumerate(table.rows):
        at = f"{source}, {row.place}"
        seed = _seed(at, row.values, name) if has_seeds else number
        if seed in scores:
            raise InputError(f"{at}: {name} {seed} is there twice; one row for each seed is expected")
        scores[seed] = _value(at, row.values, table.name("score"))
    return scores, has_seeds, table


def _score(at: str, values: Mapping[str, Any], table: Table) -> Score:
    def number(key: str, default: float | None = None) -> float:
        value = values.get(table.name(key))
        if value in (None, "") and default is not None:
            return default
        try:
            result = parse_number(str(value))
        except ValueError:
            result = math.nan
        if not (math.isfinite(result) and result >= 0):
            raise InputError(f"{at}: {table.name(key)}: a number of at least 0 is expected, got {value!r}")
        return result

    lr, wd = number("lr"), number("wd", 0.0)
    if not lr:
        raise InputError(f"{at}: {table.name('lr')}: a number above 0 is expected, got 0")
    return Score(lr, wd, _seed(at, values, table.name("seed")), _value(at, values, table.name("score")))


def _seed(at: str, values: Mapping[str, Any], name: str) -> int:
    value = values.get(name)
    if value in (None, ""):
        return 0
    if not _is_number(str(value)) or float(value) != (seed := int(float(value))) or not 0 <= seed <= MAX_SEED:
        raise InputError(f"{at}: {name}: a whole number of at least 0 is expected, got {value!r}")
    return seed


def _value(at: str, values: Mapping[str, Any], name: str) -> float | None:
    if name not in values:
        raise InputError(f"{at}: no {name}; it has {', '.join(values)}: the score of a run that diverged is null")
    value = values[name]
    if value is None or str(value).strip().lower() in ("", "diverged"):
        return None
    try:
        score = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{at}: {name}: a number is expected, got {value!r}") from None
    return score if math.isfinite(score) else None


# --- the study --------------------------------------------------------------------------------------------------------


class TableRecipe(Trainable):
    """What is known of runs whose scores are all there is.

    Attributes:
        source: name of the table.
        column: of the score.
        mode: whether lower or higher is better.
    """

    trainable: Literal["table"] = "table"
    source: str
    column: str
    mode: Literal["min", "max"]

    @property
    def metric(self) -> Metric:
        return Metric(self.column, self.mode, self.column, "last")

    @property
    def labels(self) -> Labels:
        return Labels(self.source)


def shown_seed(study: Study, seed: int) -> int:
    """Return a seed as it is told to whoever trains: those of racing follow on those of the table."""
    return max(study.seeds) + 1 + seed - RACING_SEEDS[0] if seed in RACING_SEEDS else seed


def make_study(
    scores: Sequence[Score], source: str, column: str, mode: Literal["min", "max"], criterion: Criterion
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
    recipe = TableRecipe(source=source, column=column, mode=mode)
    origin = next(iter(seeds_at))
    base = RunSpec.of(recipe, StrategySpec(s=None), origin.lr, origin.wd, seeds[0])
    stated_seeds = {point: tuple(members) for point, members in seeds_at.items()}
    study = Study(base, lr_axis, wd_axis, seeds, tuple(stated_seeds), criterion=criterion, stated_seeds=stated_seeds)
    runs = []
    for lr, wd, seed, value in scores:
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
