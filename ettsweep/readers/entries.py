"""Entries: what a row, a line or an event says, after a reader has chosen and renamed its metrics."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from ettsweep.readers.numbers import metric_value, step_number, words
from ettsweep.readers.reader import COUNTED, Reader


@dataclass(frozen=True)
class Entry:
    """Metrics of a step, as one row, line or event has them.

    Attributes:
        step: of all of them.
        values: by name; they may be nan or infinite.
        kind: what lines of the same origin have in common, so that training and validation are told apart.
        where: for messages: the file and the line without its end.
        wall_s: when it was written, in seconds; 0 if unknown.
    """

    step: int
    values: Mapping[str, float]
    kind: str
    where: str
    wall_s: float = 0.0


@dataclass
class Sightings:
    """What was seen while reading, for the message that a metric was not.

    Attributes:
        records: number of lines, rows or events.
        names: of all numbers, chosen or not, in the order in which they came.
        without_step: names of numbers that had no step.
        problems: what could not be read, by file.
    """

    records: int = 0
    names: dict[str, None] = field(default_factory=dict)
    without_step: dict[str, None] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


MAX_NAMES = 1000
"""Names that are remembered for messages: a trainer may put a number into them."""


class Shaper:
    """Makes entries of records in the way that a reader says; one for each file.

    Args:
        reader: says what the step is, and what the metrics are.
        path: of the file, relative to the run's folder.
        sightings: collects what is seen.
    """

    def __init__(self, reader: Reader, path: str, sightings: Sightings) -> None:
        self.reader, self.path, self.sightings = reader, path, sightings
        self._count = 0
        match = re.search(reader.step_in_path, path) if reader.step_in_path else None
        self._path_step = step_number(match[1], path) if match else None

    def of_record(self, record: Mapping[str, Any], line: str, *, alone: bool = False) -> Iterator[Entry]:
        """Yield the entry of a row or object, unless it has no step or no metric.

        Args:
            record: its values by column or key.
            line: as it stands in the file, for messages and patterns.
            alone: it is the one record of its file, and needs no step.
        """
        self.sightings.records += 1
        where = f"{self.path}: {line[:200]}"
        column, step = self._step(record, where, alone=alone)
        numbers = {
            name: number for name, v in record.items() if name != column and (number := metric_value(v)) is not None
        }
        texts = {name: v for name, v in record.items() if isinstance(v, str) and name not in numbers}
        prefix = self.prefix(line, texts)
        values = self.chosen(numbers, prefix)
        if step is None:
            self.sightings.without_step.update(dict.fromkeys(values))
        elif values:
            kind = (*sorted(numbers), *(words(text[:40]) for text in texts.values()))
            yield Entry(step, values, f"{prefix}{words(self.path)}{kind}", where)

    def _step(self, record: Mapping[str, Any], where: str, *, alone: bool) -> tuple[str, int | None]:
        """Return the column of the step and the step; None if the record has none."""
        if self._path_step is not None:
            return "", self._path_step
        if self.reader.step == (COUNTED,):
            self._count += 1
            return "", self._count
        for name in self.reader.step:
            if record.get(name) not in (None, ""):
                return name, step_number(record[name], f"{where}: {name}")
        return "", 1 if alone else None

    def prefix(self, line: str, texts: Mapping[str, str] | None = None) -> str:
        """Return what `split` puts before the names of a line or record."""
        split = self.reader.split
        if isinstance(split, str):
            text = (texts or {}).get(split, "").strip()
            return f"{text}_" if text else ""
        for prefix, pattern in (split or {}).items():
            if re.search(pattern, self.path) or re.search(pattern, line):
                return f"{prefix}_"
        return ""

    def chosen(self, numbers: Mapping[str, float], prefix: str) -> dict[str, float]:
        """Return the metrics among some numbers, by their new names."""
        values = {}
        for name, value in numbers.items():
            full = self.reader.rename.get(name, name)
            full = full if full.startswith(prefix) else prefix + full
            if len(self.sightings.names) < MAX_NAMES:
                self.sightings.names[full] = None
            if full != "step" and _is_chosen(self.reader.metrics, self.reader.skip, name, full):
                values[full] = value
        return values


@cache
def _is_chosen(metrics: tuple[str, ...], skip: tuple[str, ...], name: str, full: str) -> bool:
    """Return whether a number is a metric, by its old or its new name."""
    return matches(metrics, name, full) and not matches(skip, name, full)


def matches(globs: Iterable[str], *names: str) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs for name in names)


class Conflicts:
    """Finds metrics with two values at one step: of training and of validation, not of a run that was resumed.

    Lines of one kind may repeat a step, and the later one counts. Lines of two kinds may not: without a `split`, the
    later one would win by chance.
    """

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        """What is wrong, by name."""
        self._kinds: dict[str, dict[str, _Kind]] = {}

    def add(self, entry: Entry) -> None:
        """Look at the next entry."""
        for name, value in entry.values.items():
            kinds = self._kinds.setdefault(name, {})
            for kind, other in kinds.items():
                if kind != entry.kind and name not in self.found and other.differs(entry.step, value):
                    self.found[name] = (
                        f"{name} has two values at step {entry.step}, {other.values[entry.step]:g} and {value:g}, in "
                        f"lines such as {other.where!r} and {entry.where!r}: "
                        "tell training and validation apart with `split`, or with a pattern that matches one of them"
                    )
            own = kinds.pop(entry.kind, None) or _Kind()
            own.add(entry.step, value, entry.where)
            kinds[entry.kind] = own
            if len(kinds) > MAX_KINDS:
                del kinds[next(iter(kinds))]


@dataclass
class _Kind:
    """The latest values of a metric by step, in lines of one kind, with such a line."""

    values: dict[int, float] = field(default_factory=dict)
    where: str = ""

    def differs(self, step: int, value: float) -> bool:
        other = self.values.get(step, value)
        return value != other and not (math.isnan(value) and math.isnan(other))

    def add(self, step: int, value: float, where: str) -> None:
        self.values.pop(step, None)
        self.values[step], self.where = value, where
        if len(self.values) > MAX_STEPS:
            del self.values[next(iter(self.values))]


MAX_KINDS, MAX_STEPS = 20, 10_000
"""Kinds of lines of a metric that are compared, since more are lines of free text, and latest steps of each."""
