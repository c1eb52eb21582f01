"""Tables on standard output, for people and for programs; notes and progress bars on standard error."""

import io
import os
import re
import shlex
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from ettsweep.powers import POWER_COLUMNS, format_power
from ettsweep.quantities import COLUMN_METRICS, header, hours_text, three_digits
from ettsweep.table_layout import Column, Line, fits, lay_out, plain

if TYPE_CHECKING:
    from rich.text import Text


class Format(StrEnum):
    """Output format of the commands that print tables."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"


# --- streams ----------------------------------------------------------------------------------------------------------


class _LossyFile(io.FileIO):
    """A stream that drops text it cannot write, for example on a full disk."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def prepare_streams(lossy: Collection[str] = ("stderr",)) -> None:
    """Make the standard streams of this process safe to use.

    A closed stream (`status >&-`) becomes the null device, or the next opened file would take its place. Characters
    that the encoding lacks are escaped. COLUMNS and LINES count if they are numbers.

    Args:
        lossy: streams that drop text they cannot write, since work must not end for a line of a log.
    """
    for name in ("COLUMNS", "LINES"):
        if not re.fullmatch("[1-9][0-9]{0,4}", os.environ.get(name, "1")):
            del os.environ[name]
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest number that is free: this one
        mode = "w" if descriptor else "r"
        missing = partial(open, descriptor, mode, encoding="utf-8", closefd=False)
        stream = cast(io.TextIOWrapper, getattr(sys, name) or missing())
        if name in lossy:
            file = io.BufferedWriter(_LossyFile(descriptor, "w", closefd=False))
            stream = io.TextIOWrapper(file, stream.encoding, line_buffering=True)
        if descriptor:
            stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, stream)


# --- tables and notes -------------------------------------------------------------------------------------------------

Row = Mapping[str, Any]

DEFAULT_RESULTS = Path("results")


def print_table(
    rows: Sequence[Row],
    form: Format,
    columns: Sequence[str] | None = None,
    data: object = None,
    optional: Collection[str] = (),
) -> None:
    """Print rows as a table, in a terminal without empty columns; CSV and JSON have exact numbers.

    Args:
        rows: by column name.
        form: of the output.
        columns: to print, in this order; all by default.
        data: printed as JSON in place of the rows.
        optional: columns that a table too wide for the terminal leaves out.
    """
    import csv
    import json

    names = list(columns or (rows[0] if rows else ()))
    if form is Format.TABLE:
        names = filled(rows, names)
    elif form is Format.MARKDOWN:
        names = filled(rows, names, of=["wd"])
    match form:
        case Format.JSON:
            if data is not None:
                print(json.dumps(data, indent=1, allow_nan=False))
            else:  # a row a line: json indents ten times as slowly
                encode = json.JSONEncoder(allow_nan=False).encode  # `json.dumps` would make an encoder for each row
                print("[" + ",".join(f"\n {encode(row)}" for row in rows) + "\n]")
        case Format.CSV:
            writer = csv.DictWriter(sys.stdout, names, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(
                {n: escape_control(v) if isinstance(v := row.get(n), str) else v for n in names} for row in rows
            )
        case Format.MARKDOWN:
            print(_markdown(rows, names))
        case Format.TABLE:
            print_lines(table_lines(rows, names, shutil.get_terminal_size().columns, optional))


def print_note(text: str) -> None:
    """Print a note to standard error, with `--results` added to its commands."""
    if text:
        try:
            sys.stdout.flush()  # keeps the order of lines if both streams go to one file
        finally:
            print(escape_control(with_results(text, sys.argv)), file=sys.stderr)


def escape_control(text: str) -> str:
    """Return a text with control characters escaped: a file name must not move the cursor or set colours.

    Lone surrogates, which stand for undecodable bytes of a path, are escaped as well: they cannot be printed.
    """
    return _CONTROL.sub(lambda m: repr(m[0])[1:-1], text)


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def as_on_screen(text: str) -> str:
    """Return a program's output as a terminal shows it: without colours, and with the last state of a bar."""
    lines = COLOURS.sub("", text).split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)


COLOURS = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[()][A-Z0-9]|[=>78cDEM])")
"""Escape sequences that set colours and move the cursor."""


def with_results(text: str, argv: Sequence[str]) -> str:
    """Add the `--results` of a command line to the `ettsweep` commands in a text."""
    folders = [b for a, b in pairwise(argv) if a == "--results"]
    folders += [a.partition("=")[2] for a in argv if a.startswith("--results=")]
    return with_results_option(text, folders[-1]) if folders else text


def with_results_option(text: str, results: str) -> str:
    """Add `--results` to the `ettsweep` commands in a text."""
    before, *commands = text.split("`ettsweep ")  # a stray backtick elsewhere has no pair
    for command in commands:
        arguments, closing, after = command.partition("`")
        option = f" --results {shlex.quote(results)}" if closing and not arguments.startswith("data ") else ""
        before += f"`ettsweep {arguments}{option}{closing}{after}"
    return before


def _markdown(rows: Iterable[Row], names: Sequence[str]) -> str:
    cells = [[format_cell(row[n], n).replace("|", "\\|") for n in names] for row in rows]
    lines = [map(header, names), ["---"] * len(names), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def filled(rows: Sequence[Row], names: Sequence[str], of: Collection[str] | None = None) -> list[str]:
    """Return the columns, dropping those (`of` some, or all) that are empty in each row."""
    empty = {name for name in (names if of is None else of) if all(row.get(name) in (None, "") for row in rows)}
    return [name for name in names if name not in empty or not rows]


def table_lines(rows: Sequence[Row], names: Sequence[str], width: int, optional: Collection[str] = ()) -> list[Line]:
    """Return a table that fits a width, if need be without powers of lr and wd, or optional columns."""
    columns = {name: _column(rows, name, is_first=name == names[0]) for name in names}
    if not fits([*columns.values()], width):
        powers = [name for name in names if name.rpartition(".")[2] in POWER_COLUMNS]
        columns |= {name: _column(rows, name, has_power=False) for name in powers}
    if not fits([*columns.values()], width):
        columns = {name: column for name, column in columns.items() if name not in optional}
    return list(lay_out([*columns.values()], width)) if columns else []


def _column(rows: Sequence[Row], name: str, is_first: bool = False, has_power: bool = True) -> Column:
    values = [row.get(name) for row in rows]
    texts = [format_cell(v, name if has_power else "").strip() for v in values]
    is_number = any(isinstance(value, int | float) for value in values)
    stays = name in ("state", "verdict") or (is_first and len({*texts}) == len(texts))  # those name the rows
    return Column(header(name).replace("_", " "), texts, is_number, stays)


def styled(lines: Iterable[Line]) -> "Text":
    """Return the lines of a table with their colours."""
    from rich.text import Text

    return Text("\n").join(
        Text.assemble(*((text, "bold" if kind == "heading" else _style(text) if kind else "") for text, kind in line))
        for line in lines
    )


def print_lines(lines: Sequence[Line]) -> None:
    """Print the lines of a table, in colour in a terminal unless there are too many."""
    if not sys.stdout.isatty() or len(lines) > COLOURED_LINES:
        print("\n".join(map(plain, lines)))
        return
    from rich.console import Console

    Console(highlight=False).print(styled(lines), soft_wrap=True)


def _style(value: object) -> str:
    # by the first word: "running: epoch 3" has the colour of running
    return STYLES.get(value.partition(" ")[0].rstrip(":"), "") if isinstance(value, str) else ""


COLOURED_LINES = 1000

STYLES = {
    "done": "green",
    "optimal": "bold green",
    "running": "cyan",
    "failed": "red",
    "diverged": "yellow",
    "cancelled": "yellow",
    "refuted": "red",
    "edge": "yellow",
    "incomplete": "yellow",
    "tie": "yellow",
    "unresolved": "yellow",
    "held": "magenta",
    "unknown": "magenta",
    "ok": "green",
    "off": "red",
    "unclear": "yellow",
}


def format_count(number: int, noun: str) -> str:
    """Return `1 node` or `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_minutes(minutes: float) -> str:
    """Return minutes as `90 min`, `4 h` or `2 days`."""
    for unit, size in (("days", 1440), ("h", 60)):
        if minutes >= 2 * size or (minutes >= size and minutes % size == 0):
            return f"{minutes / size:.4g} {unit}"
    return f"{minutes:.4g} min"


def format_cell(value: object, name: str = "") -> str:
    """Return a value for people; the name of the column decides about lr, wd, scores and device hours."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return _format_number(value, name)
    if isinstance(value, list | tuple):
        return " x ".join(format_cell(v) for v in value)
    return escape_control(str(value).replace("\n", " "))


def _format_number(value: float, name: str) -> str:
    if name.rpartition(".")[2] in POWER_COLUMNS:
        return power_text(value)
    if name in COLUMN_METRICS and COLUMN_METRICS[name].is_fraction:
        return three_digits(100 * value)
    return hours_text(value) if name == "device h" else three_digits(value)


# Cached: a table of 10,000 runs has a few dozen values of lr and wd.
@lru_cache(maxsize=4096)
def power_text(value: float) -> str:
    """Return an lr or wd with three digits, and as a power of two if it is one: `2^-6 (0.0156)`."""
    power, decimal = format_power(value, 3), three_digits(value)
    return f"{power} ({decimal})" if power.startswith("2^") else decimal


# --- progress ---------------------------------------------------------------------------------------------------------


class AdvanceProgress(Protocol):
    """Advances a progress bar by an amount, and renames it if `description` is given."""

    def __call__(self, amount: float, description: str | None = None) -> None: ...


@contextmanager
def progress(
    description: str, total: float | None, measure: Literal["count", "bytes", "share"] = "count"
) -> Iterator[AdvanceProgress]:
    """Yield a function that advances a progress bar; it does nothing if standard error is not a terminal.

    Args:
        description: of the work.
        total: amount of work, or None if unknown.
        measure: shown beside the bar: a count, bytes with their speed, or only the share, if the time left is hard to
            predict.
    """
    if not sys.stderr.isatty():
        yield lambda amount, description=None: None
        return
    from rich import progress as bars
    from rich.console import Console

    columns: dict[str, list[bars.ProgressColumn]] = {
        "count": [bars.MofNCompleteColumn(), bars.TimeRemainingColumn()],
        "bytes": [bars.DownloadColumn(), bars.TransferSpeedColumn(), bars.TimeRemainingColumn()],
        "share": [bars.TimeElapsedColumn()],
    }
    first = bars.Progress.get_default_columns()[:-1]
    with bars.Progress(*first, *columns[measure], console=Console(stderr=True), transient=True) as display:
        bar = display.add_task(description, total=total)
        yield lambda amount, description=None: display.update(bar, advance=amount, description=description)


def format_device_hours(seconds: float) -> str:
    """Return 1440 s as `0.4 device hours`, with two digits."""
    hours = seconds / 3600
    number = hours_text(hours)
    return f"{number} device hour{'s' * (number != '1')}"
