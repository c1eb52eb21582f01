"""Metrics of a run as its program leaves them, read while they are written, and what is kept of them."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ettsweep.errors import CorruptError
from ettsweep.files import Json, loads
from ettsweep.readers.reader import OUTPUT, Reader
from ettsweep.readers.source import MetricSource, listed
from ettsweep.run import finite

MOST_BYTES = 2**22
"""Most bytes that are read at once."""

RECORDED = Reader(name="recorded", kind="jsonl", files=("recorded.jsonl",))
"""Of the file that ETTSWEEP_METRICS names."""

PRINTED = Reader(name="printed", kind="jsonl", files=(OUTPUT,), after=r"\[ettsweep\]")
"""Of lines of output with [ettsweep]."""

MAX_LINES = 10_000
"""Most lines of metrics.jsonl beside those with the score; beyond, every second one is left out, and so on."""


class Metrics(Protocol):
    """Where metrics of a command are read from: by a reader, or what it writes itself."""

    def begin(self, step: int | None = None) -> None:
        """Take what is there now as of earlier attempts, from whose `step` this one goes on, if it is known."""
        ...

    def rows(self, *, final: bool = False, limit_s: float = math.inf) -> Sequence[Json]:
        """Return what was written since, in order, each row with its `step`; with `final`, a last line has no end.

        No more is read after `limit_s`.
        """
        ...

    @property
    def is_behind(self) -> bool:
        """Whether there was no time for all that there was."""
        ...

    def notes(self) -> Sequence[str]:
        """Return what could not be read, and of which metrics the later one of two values counts."""
        ...

    @property
    def replaced(self) -> Mapping[str, str]:
        """What to know of metrics of which a later value has replaced another one, by name."""
        ...

    def seen(self, name: str = "") -> str:
        """Return why there is no metric of a name, for a message."""
        ...


class RecordedMetrics:
    """The lines of a file that `Run` appends to; which functions and Transformers record."""

    replaced: Mapping[str, str] = {}

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._rest = path, 0, b""
        self.is_behind = False

    def begin(self, step: int | None = None) -> None:
        """Leave out nothing: each attempt has a file of its own."""

    def rows(self, *, final: bool = False, limit_s: float = math.inf) -> list[Json]:
        """Return the lines that are new, and whole."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(MOST_BYTES)
        except FileNotFoundError:
            return []
        self._offset += len(data)
        self.is_behind = len(data) == MOST_BYTES
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            return [loads(line) for line in lines]
        except ValueError as error:
            raise CorruptError(f"{self._path}: {error}; only the program's `Run` writes there") from None

    def notes(self) -> Sequence[str]:
        """Return nothing: what is recorded is as it is to be."""
        return ()

    def seen(self, name: str = "") -> str:
        """Return why there is no metric of a name, for a message."""
        return f"no score: {name} was not recorded"


class OwnMetrics:
    """The metrics that a command writes for ettsweep in one attempt.

    Args:
        folder: of the attempt, which has the file `recorded.jsonl`.
        output: what it prints.
        only: patterns of the names that are wanted.
    """

    def __init__(self, folder: Path, output: Path, only: tuple[str, ...]) -> None:
        self._sources = [
            MetricSource(RECORDED, folder, only=only, strict=()),
            MetricSource(PRINTED, folder, output, only=only, strict=()),
        ]

    def begin(self, step: int | None = None) -> None:
        """Leave out what is there now."""
        for source in self._sources:
            source.begin(step)

    def rows(self, *, final: bool = False, limit_s: float = math.inf) -> list[Json]:
        """Return the metrics that were written since the last call; with `final`, a last line may lack its end."""
        return [row for source in self._sources for row in source.rows(final=final, limit_s=limit_s)]

    @property
    def is_behind(self) -> bool:
        """Whether the last call of `rows` had no time for all that there was."""
        return any(source.is_behind for source in self._sources)

    def notes(self) -> list[str]:
        """Return what could not be read, and of which metrics the later one of two values counts."""
        return [note for source in self._sources for note in source.notes()]

    @property
    def replaced(self) -> dict[str, str]:
        """What to know of metrics of which a later value has replaced another one, by name."""
        return {name: text for source in self._sources for name, text in source.replaced.items()}

    def seen(self, name: str = "") -> str:
        """Return why there is no metric of a name, for a message."""
        names = dict.fromkeys(name for source in self._sources for name in source.names)
        if not names:
            return f"no {name}: it recorded no metrics; say where they are with `reader`, or see docs/own-code.md"
        return f"no {name} was recorded; seen: {listed(names)}"


def put_in_order(history: Sequence[Json], score: str) -> list[Json]:
    """Return one line a step, in order; of values that were recorded twice, the later. All with the score stay.

    Names are in order too: which of two files is read first depends on when somebody looks.
    """
    by_step: dict[int, Json] = {}
    for line in history:
        by_step.setdefault(line["step"], {"step": line["step"]}).update(line)
    lines = [finite({"step": step} | dict(sorted(by_step[step].items()))) for step in sorted(by_step)]
    others = [line for line in lines if score not in line]
    while len(others) > MAX_LINES:
        others = others[1::2]
    kept = {line["step"] for line in others}
    return [line for line in lines if score in line or line["step"] in kept]
