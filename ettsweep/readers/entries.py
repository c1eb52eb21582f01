"""Entries: the chosen and renamed metrics of a row, a line or an event."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, NamedTuple

from ettsweep.readers.numbers import MAX_STEP, has_any_comma, metric_value, step_number, words
from ettsweep.readers.reader import COUNTED, Reader

OTHER_STEPS = "set another with `step: NAME`, or number the rows with `step: counted`"


@dataclass(frozen=True)
class Entry:
    """Metrics of a step, in one row, line or event.

    Attributes:
        step: of all of them.
        values: by name; they may be nan or infinite.
        path: of the file.
        kind: the common text of lines of one origin, to separate training and validation.
        where: for messages: the file and the line.
        epoch: of the line, beside a step; None without one.
        is_epoch: whether the step counts epochs; None if it is the number of the line.
        wall_s: when it was written, in seconds; 0 if unknown.
    """

    step: int
    values: Mapping[str, float]
    path: str
    kind: str
    where: str
    epoch: int | None = None
    is_epoch: bool | None = False
    wall_s: float = 0.0


@dataclass
class Sightings:
    """Observations of a read, for messages.

    Attributes:
        records: number of lines, rows or events.
        names: of all numbers, chosen or not, in the order in which they came.
        without_step: names of numbers without a step.
        fractions: metrics whose step is a fraction, with the problem.
        problems: of reading, by file.
        pattern: number of the reader's last pattern.
    """

    records: int = 0
    names: dict[str, None] = field(default_factory=dict)
    without_step: dict[str, None] = field(default_factory=dict)
    fractions: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    pattern: str = ""


MAX_NAMES = 1000
"""Most names for messages: a trainer may put a number into them."""

_EPOCH = re.compile(r"(?:.*[/._ ])?epoch", re.IGNORECASE)
_RANKS = ("rank", "local_rank", "global_rank")


class Shaper:
    """Makes entries of the records of a file, by a reader.

    Args:
        reader: defines step and metrics.
        path: of the file, relative to the run's folder.
        sightings: collects observations.
    """

    def __init__(self, reader: Reader, path: str, sightings: Sightings) -> None:
        self.reader, self.path, self.sightings = reader, path, sightings
        self._count = 0
        sightings.pattern = reader.step_in_path or ""
        match = re.search(reader.step_in_path, path) if reader.step_in_path else None
        self._path_step = match[1] if match else None

    def of_record(self, record: Iterable[tuple[str, Any]], line: str, *, alone: bool = False) -> Iterator[Entry]:
        """Yield the entry of a row or object, unless it has no step or no metric.

        Args:
            record: its columns or keys, with their values.
            line: of the file, for messages and patterns.
            alone: whether it is the only record of its file, and needs no step.
        """
        self.sightings.records += 1
        pairs = list(record)
        column, given = self._step(dict(pairs), alone=alone)
        numbers = [(name, number) for name, v in pairs if name != column and (number := self.number(v)) is not None]
        names = {name for name, _ in numbers}
        texts = {name: v for name, v in pairs if isinstance(v, str) and v and name not in names}
        prefix = self.prefix(line, texts)
        chosen = self.chosen(numbers, prefix)
        if given is None:
            self.sightings.without_step.update((name, None) for values in chosen for name in values)
            return
        where = f"{self.path}: {line[:200]}"
        step = self.step_of(given, chosen, where) if chosen else None
        if step is None:
            return
        epoch = next((int(v) for name, v in numbers if _EPOCH.fullmatch(name) and math.isfinite(v)), None)
        ranks = (f"{name} {value:g}" for name, value in numbers if name.lower() in _RANKS)
        kind = (prefix, *sorted(names), *ranks, *(words(text[:40]) for text in texts.values()))
        for number, values in enumerate(chosen):
            is_epoch = bool(_EPOCH.fullmatch(column)) if column else None
            yield Entry(step, values, self.path, f"{number}{kind}", where, epoch, is_epoch)

    def _step(self, record: Mapping[str, Any], *, alone: bool) -> tuple[str, object]:
        """Return the column of the step and its value; None without one."""
        if self._path_step is not None:
            return "", self._path_step
        if self.reader.step == (COUNTED,):
            self._count += 1
            return "", self._count
        for name in self.reader.step:
            if record.get(name) not in (None, ""):
                return name, record[name]
        return "", 1 if alone else None

    def number(self, value: object) -> float | None:
        """Return a number; None for anything else; note an ambiguous one in `sightings`."""
        number = metric_value(value)
        if number is None and isinstance(value, str) and has_any_comma(value):
            problem = f"left out {value}: its comma may be a decimal one, or separate thousands"
            self.sightings.problems[self.path] = problem
        return number

    def step_of(self, given: object, chosen: Iterable[Mapping[str, float]], where: str) -> int | None:
        """Return a step; None if it is not a whole number, with a note in `sightings`.

        A fraction is an error of its metrics: else their other values, with whole steps, would count alone.
        """
        number = step_number(given)
        if number is not None and number.is_integer() and 0 <= number <= MAX_STEP:
            return int(number)
        problem = f"{where}: the step {given!r} is not a whole number"
        if number is not None and 0 < number < MAX_STEP:
            for name in (name for values in chosen for name in values):
                self.sightings.fractions.setdefault(name, f"{problem}; {OTHER_STEPS}")
        else:
            self.sightings.problems[self.path] = f"{problem}; left out"
        return None

    def prefix(self, line: str, texts: Mapping[str, str] | None = None) -> str:
        """Return the prefix by `split` for the names of a line or record."""
        split = self.reader.split
        if isinstance(split, str):
            text = (texts or {}).get(split, "").strip()
            return f"{text}_" if text else ""
        for prefix, pattern in (split or {}).items():
            self.sightings.pattern = pattern
            if re.search(pattern, self.path) or re.search(pattern, line):
                return f"{prefix}_"
        return ""

    def chosen(self, numbers: Iterable[tuple[str, float]], prefix: str) -> list[dict[str, float]]:
        """Return the metrics among some numbers, by their new names; a second value of a name is in the next dict."""
        chosen: list[dict[str, float]] = []
        for name, value in numbers:
            full = self.reader.rename.get(name, name)
            full = full if full.startswith(prefix) else prefix + full
            if len(self.sightings.names) < MAX_NAMES:
                self.sightings.names[full] = None
            if full != "step" and _is_chosen(self.reader.metrics, self.reader.skip, name, full):
                before = [values[full] for values in chosen if full in values]
                if not any(_is_same(value, other) for other in before):
                    if len(before) == len(chosen):
                        chosen.append({})
                    chosen[len(before)][full] = value
        return chosen


@cache
def _is_chosen(metrics: tuple[str, ...], skip: tuple[str, ...], name: str, full: str) -> bool:
    """Return whether a number is a metric, by its old or its new name."""
    return matches(metrics, name, full) and not matches(skip, name, full)


def matches(globs: Iterable[str], *names: str) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs for name in names)


_family = cache(words)
"""Makes paths of the same kind equal, such as version_0 and version_1."""


def _is_same(value: float, other: float) -> bool:
    return value == other or (math.isnan(value) and math.isnan(other))


class Conflicts:
    """Finds metrics with two values at one step.

    Two kinds of lines are training and validation: without a `split`, the later value would win by chance. Within one
    kind, of a resumed run, a progress bar or several processes, the later value counts. So it does for files whose
    names differ by a number, such as version_0 and version_1.
    """

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        """Problems by name."""
        self._kinds: dict[str, dict[tuple[str, str], _Kind]] = {}
        self._replaced: dict[str, tuple[int, str]] = {}
        self._firsts: dict[str, Entry] = {}

    def add(self, entry: Entry) -> None:
        """Check the next entry."""
        family = _family(entry.path)
        for name, value in entry.values.items():
            self._compare_steps(name, entry)
            kinds = self._kinds.setdefault(name, {})
            for (other_family, other_kind), kind in kinds.items():
                other = kind.values.get(entry.step)
                if other is None or _is_same(value, other.value):
                    continue
                is_later_file = other_family == family and other.path != entry.path
                values = f"{other.value:g} and {value:g}"
                if (other_family, other_kind) != (family, entry.kind) and not is_later_file:
                    lines = f"lines such as {kind.where!r} and {entry.where!r}"
                    if kind.where == entry.where:
                        lines = f"a line such as {entry.where!r}"
                    self.found.setdefault(
                        name,
                        f"{name} has two values at step {entry.step}, {values}, in {lines}: separate training, "
                        "validation and ranks with `split`, or with a pattern for one of them",
                    )
                elif (entry.epoch or 0) > (other.epoch or 0) and other.epoch is not None and not is_later_file:
                    self.found.setdefault(
                        name,
                        f"{name} has two values at step {entry.step}, {values}, of epochs {other.epoch} and "
                        f"{entry.epoch}, in lines such as {entry.where!r}: steps restart in each epoch; number the "
                        "rows with `step: counted`, or use the epoch as the step",
                    )
                else:
                    count, first = self._replaced.get(name, (0, f"{values} at step {entry.step}"))
                    self._replaced[name] = count + 1, first
            own = kinds.pop((family, entry.kind), None) or _Kind()
            own.add(entry, value)
            kinds[family, entry.kind] = own
            if len(kinds) > MAX_KINDS:
                del kinds[next(iter(kinds))]

    def _compare_steps(self, name: str, entry: Entry) -> None:
        """Find a metric whose steps are epochs in some lines only."""
        first = self._firsts.setdefault(name, entry) if entry.is_epoch is not None else entry
        if first.is_epoch is not entry.is_epoch:
            self.found.setdefault(
                name,
                f"{name} has epochs as steps in some lines, and other steps in others, such as {first.where!r} and "
                f"{entry.where!r}: separate them with `split`, or with a pattern for one of them",
            )

    def replaced(self) -> Iterator[tuple[str, str]]:
        """Yield notes on metrics with values that later ones replaced, and how often."""
        for name, (count, first) in self._replaced.items():
            more = f" and {count - 1:,} more" if count > 1 else ""
            yield name, f"{name} has two values at one step, {first}{more}: the later one counts"


@dataclass
class _Kind:
    """The latest entries of a metric by step, in lines of one kind, with such a line."""

    values: dict[int, "_Value"] = field(default_factory=dict)
    where: str = ""

    def add(self, entry: Entry, value: float) -> None:
        self.values.pop(entry.step, None)
        self.values[entry.step], self.where = _Value(value, entry.path, entry.epoch), entry.where
        if len(self.values) > MAX_STEPS:
            del self.values[next(iter(self.values))]


class _Value(NamedTuple):
    value: float
    path: str
    epoch: int | None


MAX_KINDS, MAX_STEPS = 20, 10_000
"""Most kinds of lines of a metric to compare, since more are free text, and latest steps of each."""
