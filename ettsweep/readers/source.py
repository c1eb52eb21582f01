"""The metrics of a run while its trainer writes them: polled, read once, in order."""

import re
from array import array
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Protocol

from ettsweep.errors import MetricsError
from ettsweep.files import Json
from ettsweep.readers.entries import Conflicts, Entry, Shaper, Sightings, matches
from ettsweep.readers.events import records, scalars
from ettsweep.readers.found_files import found_files
from ettsweep.readers.numbers import step_number
from ettsweep.readers.parsers import LINE_PARSERS, PatternParser, document_entries
from ettsweep.readers.reader import OUTPUT, Reader
from ettsweep.readers.tail import Lines, Tail, Whole


class MetricSource:
    """Metrics that a reader takes from a run's files and its output.

    Args:
        reader: what is read, and how.
        out: the run's folder; it need not exist yet.
        output: file with what the command printed; None if there is none.
        only: globs of the metrics that are wanted, and may conflict; all by default.
        strict: whether two values of a metric at one step, of training and of validation, are an error; else
            `conflicts` has them.
    """

    def __init__(
        self,
        reader: Reader,
        out: Path,
        output: Path | None = None,
        *,
        only: Collection[str] | None = None,
        strict: bool = True,
    ) -> None:
        self.reader, self.out, self.output = reader, out, output
        self._only, self._strict = only, strict
        self._sightings = Sightings()
        self._conflicts = Conflicts()
        self._streams: dict[str, _Stream] = {}

    @property
    def conflicts(self) -> dict[str, str]:
        """What is wrong with metrics that have two values at a step, by name."""
        return self._conflicts.found

    @property
    def names(self) -> list[str]:
        """Names of all numbers that were seen, sorted, whether they are metrics or not."""
        return sorted(self._sightings.names)

    @property
    def files(self) -> list[str]:
        """Files that were read, relative to the run's folder; `output` is the output."""
        return [stream.label for stream in self._streams.values()]

    def begin(self, step: int | None = None) -> None:
        """Take what is in the files by now as the work of earlier attempts, which `rows` leaves out.

        Args:
            step: at which the run is taken up again; 0 from its beginning. Later steps that a rewritten file has again
                are new then; None: only what differs is new.
        """
        for _ in self._entries(final=True):
            pass
        for stream in self._streams.values():
            stream.known.forget_after(step)
        self._conflicts = Conflicts()

    def rows(self, *, final: bool = False) -> list[Json]:
        """Return what was written since the last call, in order: `{"step": 100, "val_loss": 3.21}`.

        A step may come twice, after a resume: the later row counts. Values may be nan or infinite.

        Args:
            final: the command has ended, so that a last line without its end is whole.

        Raises:
            MetricsError: a step is no whole number, several files match where one is expected, training and validation
                are not told apart, or a file is damaged.
        """
        rows = []
        for entry in self._entries(final=final):
            values = {name: v for name, v in entry.values.items() if self._only is None or matches(self._only, name)}
            if values:
                self._conflicts.add(Entry(entry.step, values, entry.kind, entry.where))
                rows.append({"step": entry.step, **values})
        if self._strict and self.conflicts:
            raise MetricsError("\n".join(self.conflicts.values()))
        return rows

    def seen(self, name: str = "") -> str:
        """Return why there is no metric `name`, or none at all, and what there is instead; for messages."""
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
            hint = "`step: NAME` names another, `step: counted` numbers the rows"
            return f"{listed(stepless)} without a step ({steps}); {hint}"
        if self._sightings.names:
            return listed(self.names)
        recent = [line for stream in self._streams.values() for line in stream.recent]
        return listed(numbers_in(recent)) or "no number"

    def _no_file(self) -> str:
        if self.reader.files == (OUTPUT,):
            return "no output was kept"
        globs = [glob for glob in self.reader.files if glob != OUTPUT]
        there = listed(list(found_files(self.out, ["**/*"])))
        return f"no file matches {' or '.join(globs)} in {self.out}; there {f'are: {there}' if there else 'is none'}"

    # --- files ---

    def _entries(self, *, final: bool) -> Iterator[Entry]:
        """Yield the new entries of all files; events by the time at which they were written."""
        entries = (entry for stream, path in self._polled() for entry in stream.poll(path, final=final))
        if self.reader.kind == "tensorboard":
            yield from sorted(entries, key=lambda entry: entry.wall_s)
        else:
            yield from entries

    def _polled(self) -> Iterator[tuple["_Stream", Path]]:
        """Yield the files to read now."""
        found = found_files(self.out, [glob for glob in self.reader.files if glob != OUTPUT])
        if self.reader.which == "one" and len(found) > 1:
            first = next(iter(found))
            raise MetricsError(
                f"{len(found)} files match {' or '.join(self.reader.files)}: {listed(found)}; name one, such as "
                f"reader: {{kind: {self.reader.kind}, files: {first}}}"
            )
        if self.reader.which == "newest" and found:
            found = {"": max(reversed(found.values()), key=_modified)}  # of equal ones, the last by name
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


def _modified(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def listed(names: Collection[str], most: int = 20) -> str:
    """Return names with commas between; of many, the first."""
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
    """Which entries of a file were read, so that those of a rewritten one are not read twice."""

    def __init__(self) -> None:
        self._hashes, self._steps = array("q"), array("q")
        self._at: int | None = None  # where a rewritten file is compared; None while entries are only added

    def restart(self) -> None:
        self._at = 0

    def forget_after(self, step: int | None) -> None:
        """Forget entries from the first one after a step."""
        if step is not None and (first := next((n for n, s in enumerate(self._steps) if s > step), None)) is not None:
            del self._hashes[first:], self._steps[first:]

    def is_new(self, entry: Entry) -> bool:
        """Return whether the next entry was not read before, and remember it."""
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
        """The last lines that said nothing."""
        ...


class _LineContent:
    def __init__(self, shaper: Shaper) -> None:
        self._lines = Lines()
        self._parser = LINE_PARSERS[shaper.reader.kind](shaper)

    def entries(self, data: bytes, *, final: bool) -> Iterator[Entry]:
        for line in self._lines.of(data, final=final):
            yield from self._parser.entries(line)

    @property
    def recent(self) -> Collection[str]:
        return self._parser.recent if isinstance(self._parser, PatternParser) else ()


class _EventContent:
    recent: Collection[str] = ()

    def __init__(self, shaper: Shaper) -> None:
        self._shaper, self._rest = shaper, b""

    def entries(self, data: bytes, *, final: bool) -> Iterator[Entry]:
        shaper, start = self._shaper, 0
        data = self._rest + data
        prefix = shaper.prefix("")
        for end, event in records(data, shaper.path):
            start = end
            for wall_s, step, tag, value in scalars(event):
                shaper.sightings.records += 1
                if values := shaper.chosen({tag: value}, prefix):
                    folder = re.sub(r"\d+", "#", shaper.path.rpartition("/")[0])
                    where = f"{shaper.path}: {tag}"
                    yield Entry(step_number(step, where), values, folder, where, wall_s)
        self._rest = data[start:]


class _Stream:
    """A file that is polled."""

    def __init__(self, reader: Reader, sightings: Sightings) -> None:
        self.label = ""
        self.known = _Known()
        self._reader, self._sightings = reader, sightings
        self._tail, self._whole = Tail(), Whole()
        self._content: _Content | None = None

    @property
    def recent(self) -> Collection[str]:
        return self._content.recent if self._content else ()

    def poll(self, path: Path, *, final: bool) -> Iterator[Entry]:
        """Yield the entries that are new."""
        try:
            new = self._document(path) if self._reader.kind == "json" else self._added(path, final=final)
            yield from filter(self.known.is_new, new)
        except FileNotFoundError:
            pass  # it is written anew, or was listed before it was removed
        except OSError as error:
            self._sightings.problems[self.label] = error.strerror or str(error)

    def _added(self, path: Path, *, final: bool) -> Iterator[Entry]:
        while True:
            restarted, data = self._tail.read(path)
            if restarted:
                self.known.restart()
            if restarted or self._content is None:
                shaper = Shaper(self._reader, self.label, self._sightings)
                self._content = _EventContent(shaper) if self._reader.kind == "tensorboard" else _LineContent(shaper)
            yield from self._content.entries(data, final=final and not data)
            if not data:
                return

    def _document(self, path: Path) -> Iterator[Entry]:
        """Yield the entries of a JSON document, if it has changed; while it is being written, it is tried again."""
        if (data := self._whole.read(path)) is None:
            return
        self.known.restart()
        shaper = Shaper(self._reader, self.label, self._sightings)
        try:
            entries = list(document_entries(data.decode("utf-8-sig", "replace"), shaper))
        except ValueError as error:
            self._sightings.problems[self.label] = f"no valid JSON: {error}"
            return
        self._sightings.problems.pop(self.label, None)
        yield from entries
