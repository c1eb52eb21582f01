"""Metrics that a command writes for ettsweep: JSON lines in a file, or in its output."""

import math
from pathlib import Path

from ettsweep.files import Json
from ettsweep.readers.reader import OUTPUT, Reader
from ettsweep.readers.source import MetricSource, listed

RECORDED = Reader(name="recorded", kind="jsonl", files=("recorded.jsonl",))
"""Of the file that ETTSWEEP_METRICS names."""

PRINTED = Reader(name="printed", kind="jsonl", files=(OUTPUT,), after=r"\[ettsweep\]")
"""Of lines of output with [ettsweep]."""


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
