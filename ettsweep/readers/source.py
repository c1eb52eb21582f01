"""Poll the metrics of a run while its trainer writes them, in order."""

import codecs
import math
import os
import re
import time
from array import array
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from ettsweep.errors import MetricsError
from ettsweep.files import Json
from ettsweep.patterns import time_limit
from ettsweep.readers.entries import OTHER_STEPS, Conflicts, Entry, Shaper, Sightings, matches
from ettsweep.readers.events import records, scalars
from ettsweep.readers.found_files import found_files, open_found
from ettsweep.readers.parsers import LINE_PARSERS, PatternParser, document_entries
from ettsweep.readers.reader import OUTPUT, Reader
from ettsweep.readers.tail import Lines, Tail, Whole


class MetricSource:
    """Metrics of a run's files and its output, by a reader.

    Args:
        reader: of the metrics.
        out: the run's folder; it need not exist yet.
        output: file with the command's output; None without one.
        only: globs of wanted metrics; all by default.
        strict: globs of metrics for which two values at one step, of training and validation, are an error; by default
            all wanted ones. `conflicts` and `notes` have those of others.
    """

    def __init__(
        self,
        reader: Reader,
        out: Path,
        output: Path | None = None,
        *,
        only: Collection[str] | None = None,
        strict: Collection[str] = ("*",),
    ) -> None:
        self.reader, self.out, self.output = reader, out, output
        self._only, self._strict = only, strict
        self._sightings = Sightings()
        self._conflicts = Conflicts()
        self._streams: dict[str, _Stream] = {}

    @property
    def conflicts(self) -> dict[str, str]:
        """Problems of metrics with two values at a step, or a fraction as their step, by name."""
        fractions = {name: v for name, v in self._sightings.fractions.items() if self._is_wanted(name)}
        return fractions | self._conflicts.found

    @property
    def replaced(self) -> dict[str, str]:
        """Notes on metrics with values that later ones replaced, by name."""
        return dict(self._conflicts.replaced())

    def notes(self) -> list[str]:
        """Return notes on unreadable lines, and on metrics with two values, whose later one counts."""
        problems = [f"{path}: {problem}" for path, problem in self._sightings.problems.items()]
        notes = [*problems, *dict.fromkeys(self.conflicts.values()), *list(self.replaced.values())[:MAX_REPLACED]]
        others = list(self.replaced)[MAX_REPLACED:]
        return notes + ([f"the same holds for {listed(others)}"] if others else [])

    @property
    def names(self) -> list[str]:
        """Sorted names of all numbers, metrics or not."""
        return sorted(self._sightings.names)

    @property
    def files(self) -> list[str]:
        """Read files, relative to the run's folder; `output` is the output."""
        return [stream.label for stream in self._streams.values()]

    def begin(self, step: int | None = None) -> None:
        """Treat present contents of files as those of earlier attempts: `rows` leaves them out.

        Args:
            step: at which the run resumes; 0 from its beginning. Later steps of a rewritten file count as new; None:
                only changed ones do.
        """
        for _ in self._entries(final=True, until_s=math.inf):
            pass
        for stream in self._streams.values():
            stream.known.forget_after(step)
        self._conflicts = Conflicts()

    @property
    def is_behind(self) -> bool:
        """Whether time ran out in the last call of `rows`."""
        return any(stream.is_behind for stream in self._streams.values())

    def rows(self, *, final: bool = False, limit_s: float = math.inf) -> list[Json]:
        """Return new metrics in order: `{"step": 100, "val_loss": 3.21}`.

        After a resume, a step may come twice: the later row counts. Values may be nan or infinite.

        Args:
            final: the command has ended, and a last line without its end is complete.
            limit_s: seconds of reading: a program may print faster.

        Raises:
            MetricsError: a pattern takes too long, steps are fractions, several files match instead of one, or training
                and validation are mixed.
        """
        rows = []
        for entry in self._entries(final=final, until_s=time.monotonic() + limit_s):
            values = {name: v for name, v in entry.values.items() if self._is_wanted(name)}
            if values:
                self._conflicts.add(replace(entry, values=values))
                rows.append({"step": entry.step, **values})
        if wrong := dict.fromkeys(text for name, text in self.conflicts.items() if matches(self._strict, name)):
            raise MetricsError("\n".join(wrong))
        return rows

    def _is_wanted(self, name: str) -> bool:
        return self._only is None or matches(self._only, name)

    def seen(self, name: str = "") -> str:
        """Return why the metric `name`, or any, is missing, and other findings; for messages."""
        if not self._streams:
            return self._no_file()
        problems = "".join(f"; {path}: {problem}" for path, problem in self._sightings.problems.items())
        missing = f"no {name}" if name else "no metric"
        noun = {"tensorboard": "event", "json": "object"}.get(self.reader.kind, "line")
        nouns = f"{self._sightings.records:,} {noun}{'' if self._sightings.records == 1 else 's'}"
        where = "" if self.files == [OUTPUT] else f" of {listed(self.files)}"
        return f"{missing} in {nouns}{where}; seen: {self._other_names(name)}{problems}"

    def _other_names(self, name: str) -> str:
        stepless = self._sightings.without_step
        if name in stepless or (stepless and not name):
            steps = ", ".join(self.reader.step)
            return f"{listed(stepless)} without a step ({steps}); {OTHER_STEPS}"
        if self._sightings.names:
            return listed(self.names)
        recent = [line for stream in self._streams.values() for line in stream.recent]
        return listed(numbers_in(recent)) or "no number"

    def _no_file(self) -> str:
        if self.reader.files == (OUTPUT,):
            return "no output was kept"
        globs = [glob for glob in self.reader.files if glob != OUTPUT]
        there = listed(list(found_files(self.out, ["**/*"])))
        return f"no file matches {' or '.join(globs)} in {self.out}, which has {there or 'no files'}"

    # --- files ---

    def _entries(self, *, final: bool, until_s: float) -> Iterator[Entry]:
        """Yield the new entries of all files, events by time."""
        entries = (
            entry for stream, path in self._polled() for entry in stream.poll(path, final=final, until_s=until_s)
        )
        if self.reader.kind == "tensorboard":
            yield from sorted(entries, key=lambda entry: entry.wall_s)
        else:
            yield from entries

    def _polled(self) -> Iterator[tuple["_Stream", Path]]:
        """Yield the files to read now."""
        with time_limit(lambda: " or ".join(self.reader.files)):
            found = found_files(self.out, [glob for glob in self.reader.files if glob != OUTPUT])
        if self.reader.which == "one" and len(found) > 1:
            first = next(iter(found))
            raise MetricsError(
                f"{len(found)} files match {' or '.join(self.reader.files)}: {listed(found)}; choose one, such as "
                f"reader: {{kind: {self.reader.kind}, files: {first}}}"
            )
        if self.reader.which == "newest" and found:
            found = {"": max(reversed(found.values()), key=_how_far)}  # of equal ones, the last by name
        if OUTPUT in self.reader.files and self.output is not None and self.output.is_file():
            found[OUTPUT] = self.output.resolve()
        for name, path in found.items():
            label = name or path.relative_to(self.out.resolve()).as_posix()
            key = name or " or ".join(self.reader.files)
            stream = self._streams.get(key)
            if stream is None:
                stream = self._streams[key] = _Stream(self.reader, self._sightings)
            stream.label = label
            yield stream, path


DOCUMENT_LIMIT_S = 60.0
"""Most seconds for a JSON document, which may be large."""

MAX_REPLACED = 3
"""Most metrics with notes on replaced values; others are listed."""


def _how_far(path: Path) -> tuple[int, int]:
    """Return the `global_step` at the beginning of a state, else -1, and its time, which a copy loses."""
    try:
        with os.fdopen(open_found(path), "rb") as file:
            step = re.search(rb'"global_step": *(\d{1,18})\b', file.read(HEAD_BYTES))
            return int(step[1]) if step else -1, os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return -1, 0


HEAD_BYTES = 4096


def listed(names: Collection[str], most: int = 20) -> str:
    """Return names with commas, the first ones of many."""
    shown = list(names)[:most]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")


_NAMED_NUMBER = re.compile(
    r"(?<![\w./@-])([A-Za-z_][\w./@-]*)[\"']?\s*[:= ]\s*[\"']?[-+]?(?:\d+\.?\d*|\.\d+|nan\b|inf\b)"
)


def numbers_in(lines: Collection[str]) -> list[str]:
    """Return the words before numbers in lines of text, sorted."""
    return sorted({match[1] for line in lines for match in _NAMED_NUMBER.finditer(line)})


# --- one file ---------------------------------------------------------------------------------------------------------


class _Known:
    """The read entries of a file, to read those of a rewritten one only once."""

    def __init__(self) -> None:
        self._hashes, self._steps = array("q"), array("q")
        self._at: int | None = None  # position in a rewritten file; None while entries are only added

    def restart(self) -> None:
        self._at = 0

    def forget_after(self, step: int | None) -> None:
        """Forget entries from the first one after a step."""
        if step is not None and (first := next((n for n, s in enumerate(self._steps) if s > step), None)) is not None:
            del self._hashes[first:], self._steps[first:]

    def is_new(self, entry: Entry) -> bool:
        """Return whether the next entry is new, and remember it."""
        # As text, in which nan is equal to itself.
        value = hash((entry.step, repr(sorted(entry.values.items()))))
        if self._at is not None:
            if self._at < len(self._hashes) and self._hashes[self._at] == value:
                self._at += 1
                return False
            del self._hashes[self._at :], self._steps[self._at :]
            self._at = None
        self._hashes.append(value)
        self._steps.append(entry.step)
        return True


class _Content(Protocol):
    """Makes entries of the bytes of a file."""

    def entries(self, data: bytes, *, final: bool) -> Iterator[Entry]: ...

    @property
    def recent(self) -> Collection[str]:
        """The last lines without metrics."""
        ...


class _LineContent:
    most = 2**18  # bytes at once, which take milliseconds

    def __init__(self, shaper: Shaper) -> None:
        self._lines, self._path = Lines(), shaper.path
        self._parser = LINE_PARSERS[shaper.reader.kind](shaper)

    def entries(self, data: bytes, *, final: bool) -> Iterator[Entry]:
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and b"\0" in data:
            raise MetricsError(f"{self._path}: is in UTF-16: write it in UTF-8")
        for line in self._lines.of(data, final=final):
            yield from self._parser.entries(line)

    @property
    def recent(self) -> Collection[str]:
        return self._parser.recent if isinstance(self._parser, PatternParser) else ()


class _EventContent:
    most = 2**21
    recent: Collection[str] = ()

    def __init__(self, shaper: Shaper) -> None:
        self._shaper, self._rest, self._is_damaged = shaper, b"", False

    def entries(self, data: bytes, *, final: bool) -> Iterator[Entry]:
        start, data = 0, self._rest + data
        try:
            for end, event in records(data, self._shaper.path) if not self._is_damaged else ():
                start = end
                yield from self._of_event(event)
        except MetricsError as error:
            self._is_damaged = True
            self._shaper.sightings.problems[self._shaper.path] = f"{error}; left out the rest of the file"
        self._rest = b"" if self._is_damaged else data[start:]

    def _of_event(self, event: bytes | None) -> Iterator[Entry]:
        shaper = self._shaper
        if event is None:
            shaper.sightings.problems[shaper.path] = "left out a damaged event: its checksum is wrong"
            return
        for wall_s, step, tag, value in scalars(event):
            shaper.sightings.records += 1
            where, chosen = f"{shaper.path}: {tag}", shaper.chosen([(tag, value)], shaper.prefix(""))
            if chosen and (whole := shaper.step_of(step, chosen, where)) is not None:
                yield Entry(whole, chosen[0], shaper.path.rpartition("/")[0], "", where, wall_s=wall_s)


class _Stream:
    """A polled file."""

    def __init__(self, reader: Reader, sightings: Sightings) -> None:
        self.label, self.is_behind = "", False
        self.known = _Known()
        self._reader, self._sightings = reader, sightings
        self._tail, self._whole = Tail(), Whole()
        self._content: _Content | None = None

    @property
    def recent(self) -> Collection[str]:
        return self._content.recent if self._content else ()

    def poll(self, path: Path, *, final: bool, until_s: float) -> Iterator[Entry]:
        """Yield new entries until time runs out."""
        self.is_behind = False
        try:
            new = (
                self._document(path) if self._reader.kind == "json" else self._added(path, final=final, until_s=until_s)
            )
            yield from filter(self.known.is_new, new)
        except FileNotFoundError:
            pass  # it is being rewritten, or was removed
        except OSError as error:
            self._sightings.problems[self.label] = error.strerror or str(error)

    def _added(self, path: Path, *, final: bool, until_s: float) -> Iterator[Entry]:
        kind = _EventContent if self._reader.kind == "tensorboard" else _LineContent
        while True:
            restarted, data = self._tail.read(path, kind.most)
            if restarted:
                self.known.restart()
            with time_limit(lambda: self._sightings.pattern):
                if restarted or self._content is None:
                    self._content = kind(Shaper(self._reader, self.label, self._sightings))
                found = list(self._content.entries(data, final=final and not data))
            yield from found
            if not data:
                return
            if time.monotonic() > until_s:
                self.is_behind = True
                return

    def _document(self, path: Path) -> Iterator[Entry]:
        """Yield the entries of a JSON document, if it has changed; retry while it is being written."""
        if (data := self._whole.read(path)) is None:
            return
        self.known.restart()
        try:
            with time_limit(lambda: self._sightings.pattern, DOCUMENT_LIMIT_S):
                shaper = Shaper(self._reader, self.label, self._sightings)
                entries = list(document_entries(data.decode("utf-8-sig", "replace"), shaper))
        except ValueError as error:
            self._sightings.problems[self.label] = f"invalid JSON: {error}"
            return
        self._sightings.problems.pop(self.label, None)
        yield from entries
