"""Metrics that programs record with `ettsweep.run.Run`, read while they are written."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from ettsweep.errors import CorruptError
from ettsweep.files import Json, loads

MOST_BYTES = 2**22
"""Most bytes that are read at once."""


class RecordedMetrics:
    """The lines of a file that `Run` appends to; see `training.Metrics`."""

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
