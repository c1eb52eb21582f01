"""Read the metrics of a run while its program writes them, and choose the lines to keep."""

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
"""Name, for messages, of the file ETTSWEEP_METRICS."""

PRINTED = Reader(name="printed", kind="jsonl", files=(OUTPUT,), after=r"\[ettsweep\]")
"""Name of output lines with [ettsweep]."""

MAX_LINES = 10_000
"""Most lines of metrics.jsonl beside those with the score; beyond, keep every second one, and so on."""


class Metrics(Protocol):
    """A source of metrics: a reader, or the program's own lines."""

    def begin(self, step: int | None = None) -> None:
        """Treat present lines as those of earlier attempts; this one resumes at `step`, if known."""
        ...

    def rows(self, *, final: bool = False, limit_s: float = math.inf) -> Sequence[Json]:
        """Return new rows in order, each with its `step`; with `final`, the last line may lack its end.

        Stop reading after `limit_s` seconds.
        """
        ...

    @property
    def is_behind(self) -> bool:
        """Whether time ran out before all was read."""
        ...

    def notes(self) -> Sequence[str]:
        """Return notes on unreadable lines, and on metrics with two values, whose later one counts."""
        ...

    @property
    def replaced(self) -> Mapping[str, str]:
        """Notes on metrics with values that later ones replaced, by name."""
        ...

    def seen(self, name: str = "") -> str:
        """Return why there is no metric of a name, for a message."""
        ...


class RecordedMetrics:
    """The lines of functions and Transformers, in a file that `Run` appends to."""

    replaced: Mapping[str, str] = {}

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._rest = path, 0, b""
        self.is_behind = False

    def begin(self, step: int | None = None) -> None:
        """Keep all: each attempt has its own file."""

    def rows(self, *, final: bool = False, limit_s: float = math.inf) -> list[Json]:
        """Return the new complete lines."""
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
            raise CorruptError(f"{self._path}: {error}; write there only through `Run`") from None

    def notes(self) -> Sequence[str]:
        """Return none: all lines are read."""
        return ()

    def seen(self, name: str = "") -> str:
        """Return why there is no metric of a name, for a message."""
        return f"no score: the run recorded no {name}"


class OwnMetrics:
    """The metrics that a command writes for ettsweep in an attempt.

    Args:
        folder: of the attempt, which has the file `recorded.jsonl`.
        output: its output.
        only: patterns of wanted names.
    """

    def __init__(self, folder: Path, output: Path, only: tuple[str, ...]) -> None:
        self._sources = [
            MetricSource(RECORDED, folder, only=only, strict=()),
            MetricSource(PRINTED, folder, output, only=only, strict=()),
        ]

    def begin(self, step: int | None = None) -> None:
        """Skip present lines."""
        for source in self._sources:
            source.begin(step)

    def rows(self, *, final: bool = False, limit_s: float = math.inf) -> list[Json]:
        """Return new metrics; with `final`, the last line may lack its end."""
        return [row for source in self._sources for row in source.rows(final=final, limit_s=limit_s)]

    @property
    def is_behind(self) -> bool:
        """Whether time ran out in the last call of `rows`."""
        return any(source.is_behind for source in self._sources)

    def notes(self) -> list[str]:
        """Return notes on unreadable lines, and on metrics with two values, whose later one counts."""
        return [note for source in self._sources for note in source.notes()]

    @property
    def replaced(self) -> dict[str, str]:
        """Notes on metrics with values that later ones replaced, by name."""
        return {name: text for source in self._sources for name, text in source.replaced.items()}

    def seen(self, name: str = "") -> str:
        """Return why there is no metric of a name, for a message."""
        names = dict.fromkeys(name for source in self._sources for name in source.names)
        if not names:
            return f"no {name}: the run recorded no metrics; set `reader` under `run:`, or see docs/own-code.md"
        return f"the run recorded no {name}, but {listed(names)}"


def put_in_order(history: Sequence[Json], score: str) -> list[Json]:
    """Return one line a step, in order, with the later of two values. Keep all lines with the score.

    Sort names too: the order of reads of two files varies.
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
