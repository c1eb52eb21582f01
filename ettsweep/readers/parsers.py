"""Parsers: from the lines of a file, or a whole document, to entries."""

import csv
import json
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from ettsweep.errors import MetricsError
from ettsweep.readers.entries import Entry, Shaper
from ettsweep.readers.numbers import decimal_points, metric_value, whole_number, words
from ettsweep.readers.reader import COUNTED


class LineParser(Protocol):
    """Makes entries of the lines of a file in turn; remembers earlier lines, such as a header."""

    def entries(self, line: str) -> Iterator[Entry]:
        """Yield the entries of a line without its end."""
        ...


class CsvParser:
    """Rows below a header; after a resume, another header may follow."""

    def __init__(self, shaper: Shaper) -> None:
        self._shaper = shaper
        self._header: list[str] = []
        self._delimiter = ","
        self._quoted = list[str]()

    def entries(self, line: str) -> Iterator[Entry]:
        """Yield the entry of a row."""
        self._quoted.append(line)
        whole = "\n".join(self._quoted)
        is_open = whole.count('"') % 2 == 1
        if is_open and len(self._quoted) < MAX_CELL_LINES:
            return  # a cell of several lines
        rows = self._quoted if is_open else [whole]
        self._quoted = []
        for row in filter(str.strip, rows):
            try:
                yield from self._row(row)
            except (csv.Error, ValueError) as error:
                self._shaper.sightings.problems[self._shaper.path] = f"{error}: {row[:200]}"

    def _row(self, line: str) -> Iterator[Entry]:
        if not self._header:
            if re.fullmatch(r'"?sep=."?', line.strip(" ")):
                return  # a hint of Excel for itself
            self._delimiter = next((mark for mark in "\t;" if mark in line and "," not in line), ",")
            if line.startswith("#") and self._delimiter not in line:
                return  # a remark above the header
        cells = [cell.strip() for cell in next(csv.reader([line], delimiter=self._delimiter))]
        if not self._header or self._is_header(cells):
            self._set_header(cells)
        elif len(cells) > len(self._header):
            self._shaper.sightings.problems[self._shaper.path] = f"rows have more cells than the header: {line[:200]}"
        else:
            cells = decimal_points(cells) if self._delimiter == ";" else cells
            yield from self._shaper.of_record(zip(self._header, cells, strict=False), line)

    def _is_header(self, cells: list[str]) -> bool:
        """Return whether a row has names instead of numbers."""
        return cells == self._header or (
            len(cells) > 1 and all(cell and metric_value(cell) is None for cell in cells) and self._has_step(cells)
        )

    def _has_step(self, cells: list[str]) -> bool:
        reader = self._shaper.reader
        return bool(reader.step_in_path) or reader.step == (COUNTED,) or bool(set(cells) & set(reader.step))

    def _set_header(self, cells: list[str]) -> None:
        cells[0] = cells[0].lstrip("# ")
        if not self._has_step(cells):
            raise MetricsError(
                f"{self._shaper.path}: no column {' or '.join(self._shaper.reader.step)} among {', '.join(cells)}; "
                "set the column with `step: NAME`, or number the rows with `step: counted`"
            )
        self._header = cells


MAX_CELL_LINES = 100
"""Most lines of one cell: an unclosed quotation mark must not swallow the file."""


class JsonLinesParser:
    """A JSON object per line, or after a pattern in other text."""

    def __init__(self, shaper: Shaper) -> None:
        self._shaper = shaper

    def entries(self, line: str) -> Iterator[Entry]:
        """Yield the entry of an object; skip lines without one."""
        after = self._shaper.sightings.pattern = self._shaper.reader.after or ""
        match = re.search(after, line) if after else None
        if after and not match:
            return
        text = line[match.end() :] if match else line
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            if text.lstrip().startswith("{"):
                self._shaper.sightings.problems[self._shaper.path] = f"invalid JSON, {error}: {line[:200]}"
            return
        if isinstance(value, dict):
            yield from self._shaper.of_record(flat(value).items(), line)


def flat(value: Mapping[str, Any], prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Return an object with the keys of nested ones joined by points, without lists."""
    pairs: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, dict) and depth < 5:
            pairs |= flat(inner, f"{prefix}{key}.", depth + 1)
        elif not isinstance(inner, list | dict):
            pairs[prefix + key] = inner
    return pairs


class PatternParser:
    """Lines to search for patterns."""

    def __init__(self, shaper: Shaper) -> None:
        self._shaper = shaper
        self._patterns = [re.compile(pattern) for pattern in shaper.reader.patterns]
        self._step: str | None = None
        self._is_epoch = False
        self._epoch: int | None = None
        self._counts = Counter[tuple[object, ...]]()
        self.recent = deque[str](maxlen=RECENT_LINES)
        """The last lines without a match, for messages."""

    def entries(self, line: str) -> Iterator[Entry]:
        """Yield an entry for each pattern that finds metrics."""
        self._shaper.sightings.records += 1
        line = line[:MAX_PATTERN_LINE]
        if epoch := _EPOCH.search(line):
            self._epoch = int(epoch[1])
        is_matched = False
        for index, pattern in enumerate(self._patterns):
            self._shaper.sightings.pattern = pattern.pattern
            matches = (
                [*pattern.finditer(line)] if "value" in pattern.groupindex else [*filter(None, [pattern.search(line)])]
            )
            if matches:
                is_matched = True
                yield from self._of_matches(index, matches, line)
        if not is_matched and line.strip():
            self.recent.append(line)

    def _of_matches(self, index: int, matches: list[re.Match[str]], line: str) -> Iterator[Entry]:
        shaper, where = self._shaper, f"{self._shaper.path}: {line[:200]}"
        for match in matches:
            if match.groupdict().get("step"):
                self._step = whole_number(match, "step")
                self._is_epoch = bool(_ENDS_IN_EPOCH.search(line[: match.start("step")]))
        numbers, start = list[tuple[str, float]](), len(line)
        for match in matches:
            for name, group in _metric_groups(match):
                if (number := shaper.number(whole_number(match, group))) is not None:
                    numbers.append((name, number))
                    start = min(start, match.start(group))
        prefix = shaper.prefix(line)
        if not (chosen := shaper.chosen(numbers, prefix)):
            return
        is_counted = self._step is None or shaper.reader.step == (COUNTED,)
        lines = (index, *chosen[0])
        self._counts[lines] += is_counted
        step = self._counts[lines] if is_counted else shaper.step_of(self._step, chosen, where)
        if step is None:
            return
        epoch = None if self._is_epoch else self._epoch
        for number, values in enumerate(chosen):
            kind = f"{number}{prefix}{index}{words(line[:start])}"
            yield Entry(step, values, shaper.path, kind, where, epoch, None if is_counted else self._is_epoch)


_EPOCH = re.compile(r"\bepoch\W{0,3}(\d{1,9})", re.IGNORECASE)
_ENDS_IN_EPOCH = re.compile(r"epoch\W{0,3}$", re.IGNORECASE)


def _metric_groups(match: re.Match[str]) -> Iterator[tuple[str, str]]:
    """Yield the name of each metric of a match with the group that has its value."""
    groups = match.re.groupindex
    if "value" in groups:
        yield re.sub(r"\s+", "_", match["name"].strip()), "value"
    else:
        yield from ((name, name) for name in groups if name != "step")


MAX_PATTERN_LINE = 2_000
"""Characters of a line to search: a dump of a tensor must not take minutes."""

RECENT_LINES = 200
LINE_PARSERS: dict[str, Callable[[Shaper], LineParser]] = {
    "csv": CsvParser,
    "jsonl": JsonLinesParser,
    "regex": PatternParser,
}


def document_entries(text: str, shaper: Shaper) -> Iterator[Entry]:
    """Yield the entries of a JSON document.

    Raises:
        ValueError: it is not JSON, as during a write.
        MetricsError: the reader's list is missing.
    """
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    rows = document
    for key in filter(None, shaper.reader.rows.split(".")):
        rows = rows.get(key) if isinstance(rows, dict) else None
        if rows is None:
            keys = ", ".join(document) if isinstance(document, dict) else "none"
            raise MetricsError(f"{shaper.path}: no key {shaper.reader.rows} among {keys}")
    records = rows if isinstance(rows, list) else [rows]
    for record in records:
        if isinstance(record, dict):
            yield from shaper.of_record(
                flat(record).items(), json.dumps(record)[:200], alone=rows is document and records is not rows
            )
