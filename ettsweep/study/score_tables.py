"""Scores in tables: CSV, lines of JSON, and what Weights & Biases exports, a table of runs or the chart of a metric."""

import csv
import hashlib
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from ettsweep.console import format_count
from ettsweep.errors import InputError, MetricsError
from ettsweep.readers.numbers import step_number
from ettsweep.study.score_rows import STANDARD_INPUT, Reading, Row, Rows, shown, value_in

KEPT_STATE = "finished"
"""State of runs in an export of Weights & Biases whose scores count; others have crashed, or still train."""

STEP_COLUMNS = ("Step", "_step", "Relative Time (Process)", "Relative Time (Wall)", "Wall Time")
"""First columns of an exported chart of Weights & Biases."""


# --- tables -----------------------------------------------------------------------------------------------------------


def read_table(path: Path, reading: Reading, columns: Sequence[str]) -> Rows:
    """Read a table.

    Args:
        path: of it; `-` for standard input.
        reading: the names of its columns; of a chart, what the score of a curve is.
        columns: those that may be looked up, the score last.

    Raises:
        InputError: it cannot be read, or a line says something else.
    """
    try:
        data = sys.stdin.buffer.read() if str(path) == STANDARD_INPUT else path.read_bytes()
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: cannot be read: no text in UTF-8, from byte {error.start}") from None
    sha256 = hashlib.sha256(data).hexdigest()
    try:
        rows = list(
            _json_rows(path, text)
            if text.lstrip().startswith("{")
            else _csv_rows(path, text, reading.name(columns[-1]))
        )
    except csv.Error as error:
        raise InputError(f"{path}: {error}") from None
    if not rows:
        raise InputError(f"{path}: no rows: a header and a line for each run are expected, such as {','.join(columns)}")
    header = list(rows[0].values)
    if next(iter(header), "") in STEP_COLUMNS and any(" - " in name for name in header):
        return _chart(path, rows, reading, columns, sha256)
    notes: list[str] = []
    if "Name" in header and "State" in header:
        rows, notes = _exported_runs(path, rows, reading, columns)
    return Rows(str(path), rows, reading.name("score"), sha256, notes)


def _csv_rows(path: Path, text: str, last: str) -> Iterator[Row]:
    """Yield the rows of a table with a header; numbers without a header are its last column."""
    header = text.partition("\n")[0]
    if is_number(header):
        lines = ((line, each) for line, each in enumerate(text.splitlines(), 1) if each.strip())
        yield from (Row({last: each}, f"line {line}") for line, each in lines)
        return
    delimiter = max(",;\t", key=header.count)
    reader = csv.DictReader(text.splitlines(), delimiter=delimiter, skipinitialspace=True)
    names = Counter(name.strip() for name in reader.fieldnames or ())
    if twice := [name for name, count in names.items() if name and count > 1]:
        raise InputError(f"{path}: several columns are called {shown(twice)}: each needs a name of its own")
    for row in reader:
        if None in row.values():
            cells = sum(isinstance(cell, str) for cell in row.values())
            raise InputError(
                f"{path}, line {reader.line_num}: {format_count(cells, 'cell')}, the header has {len(row)}: an empty "
                "score is that of a run that diverged, and has its comma"
            )
        values = {key.strip(): value for key, value in row.items() if isinstance(key, str)}
        yield Row(values, f"line {reader.line_num}")


def _json_rows(path: Path, text: str) -> Iterator[Row]:
    for line, each in enumerate(text.splitlines(), 1):
        if not each.strip():
            continue
        try:
            row = json.loads(each)  # with NaN, which many programs write
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {line}: {error}") from None
        if not isinstance(row, dict):
            raise InputError(f"{path}, line {line}: an object is expected, such as {{'lr': 0.01, 'score': 0.5}}")
        yield Row(row, f"line {line}")


def is_number(text: str) -> bool:
    """Return whether a text is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


# --- exports of Weights & Biases ----------------------------------------------------------------------------------


def _exported_runs(
    path: Path, rows: Sequence[Row], reading: Reading, columns: Sequence[str]
) -> tuple[list[Row], list[str]]:
    """Return the finished runs of an exported table of runs, and notes on the others."""
    kept = [row for row in rows if row.values.get("State") == KEPT_STATE]
    notes = []
    if others := [str(row.values.get("Name")) for row in rows if row.values.get("State") != KEPT_STATE]:
        notes = [f"{path}: {format_count(len(others), 'run')} left out, not {KEPT_STATE}: {shown(others)}"]
    if not kept:
        raise InputError(f"{path}: no run is {KEPT_STATE}")
    named = [str(row.values.get("Name")) for row in kept]
    return _with_names(kept, named, reading, columns, notes), notes


def _chart(path: Path, rows: Sequence[Row], reading: Reading, columns: Sequence[str], sha256: str) -> Rows:
    """Return the runs of an exported chart: a column for each, `NAME - METRIC`, with its lowest and highest beside."""
    header = list(rows[0].values)
    curves: dict[str, dict[str, str]] = {}
    for name in header[1:]:
        run, separator, metric = name.rpartition(" - ")
        if separator and not metric.endswith(("__MIN", "__MAX")) and metric not in STEP_COLUMNS:
            curves.setdefault(metric, {})[run] = name
    score = reading.names.get("score") or next(iter(curves), "")
    if score not in curves or ("score" not in reading.names and len(curves) > 1):
        found = ", ".join(curves)
        raise InputError(f"{path}: a chart of {found}; --column score=NAME says which of these is the score")
    result, empty, averaged = [], list[str](), list[str]()
    for run, column in curves[score].items():
        try:
            history = [
                {
                    "step": step_number(row.values.get(header[0]), row.place)
                    if header[0] in STEP_COLUMNS[:2]
                    else number,
                    score: value,
                }
                for number, row in enumerate(rows)
                if (value := _cell(row.values.get(column))) is not None
            ]
        except (ValueError, MetricsError) as error:
            raise InputError(f"{path}: column {column}: {error}") from None
        ends = [[row.values.get(f"{column}{end}") for end in ("", "__MIN", "__MAX")] for row in rows]
        averaged += [run] if any(len({cell for cell in cells if cell}) > 1 for cells in ends) else []
        if reading.has_score(history, score):
            result.append(Row({score: reading.score_of(history, score)}, run, history))
        else:
            empty.append(run)
    wanted = reading.wanted(score)
    notes = [f"{path}: {format_count(len(empty), 'run')} left out, without {wanted}: {shown(empty)}"] * bool(empty)
    if averaged:
        notes.append(f"{path}: values of {shown(averaged)} are means of several points or runs: MIN and MAX differ")
    if not result:
        raise InputError(f"{path}: no run has a value of {wanted}")
    return Rows(
        str(path), _with_names(result, [row.place for row in result], reading, columns, notes), score, sha256, notes
    )


def _cell(value: object) -> float | None:
    """Return the number in a cell of a chart, which may be nan or infinite; None if it is empty."""
    return None if value is None or not str(value).strip() else float(str(value))


def _with_names(
    rows: Sequence[Row], named: Sequence[str], reading: Reading, columns: Sequence[str], notes: list[str]
) -> list[Row]:
    """Return rows with the values that the names of their runs state, of columns that they do not have."""
    missing = [key for key in columns if key != "score" and not any(reading.name(key) in row.values for row in rows)]
    found = {key: [value_in(name, reading.name(key)) for name in named] for key in missing}
    stated = {key: values for key, values in found.items() if None not in values}
    # Else they are the same seed in other configurations, and tell no repeats apart.
    if "lr" not in columns and len(set(stated.get("seed", ()))) < len(rows):
        stated.pop("seed", None)
    if stated:
        notes.append(f"{', '.join(map(reading.name, stated))}: as the names of the runs have it")
    values = ({reading.name(key): each[k] for key, each in stated.items()} for k in range(len(rows)))
    return [row._replace(values={**row.values, **more}) for row, more in zip(rows, values, strict=True)]
