"""Metrics that a command writes for ettsweep: JSON lines in a file, or in its output."""

import json
from collections.abc import Iterator
from pathlib import Path

from ettsweep.errors import InputError
from ettsweep.files import Json

MARK = "[ettsweep]"
"""What a line of output begins with that holds metrics."""


class OwnMetrics:
    """The metrics that a command writes for ettsweep in one attempt.

    Args:
        recorded: the file named in ETTSWEEP_METRICS.
        output: what it prints.
    """

    def __init__(self, recorded: Path, output: Path) -> None:
        self._recorded, self._output = _Tail(recorded), _Tail(output)

    def begin(self) -> None:
        """Leave out what is there now."""
        self._recorded.skip()
        self._output.skip()

    def rows(self) -> list[Json]:
        """Return the metrics that were written since the last call.

        Raises:
            InputError: a line is no JSON object with a step and numbers.
        """
        rows = [_row(line) for line in self._recorded.lines() if line.strip()]
        for line in self._output.lines():
            if MARK in line:
                rows.append(_row(line.partition(MARK)[2]))
        return rows


def _row(text: str) -> Json:
    try:
        data = json.loads(text)
    except ValueError:
        raise InputError(f"metrics: a JSON object is expected, got {text.strip()[:200]!r}") from None
    step = data.get("step") if isinstance(data, dict) else None
    if isinstance(step, float) and step.is_integer():
        step = int(step)
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise InputError(f"metrics: a line with a `step` of 0 or more is expected, got {text.strip()[:200]!r}")
    values = {name: value for name, value in data.items() if name != "step"}
    if wrong := [name for name, value in values.items() if not isinstance(value, int | float)]:
        raise InputError(f"metrics: {wrong[0]} of step {step}: a number is expected, got {values[wrong[0]]!r}")
    return {"step": step, **{name: float(value) for name, value in values.items()}}


class _Tail:
    """The whole lines of a file that are new since the last look."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def skip(self) -> None:
        self._at = self._path.stat().st_size if self._path.exists() else 0

    def lines(self) -> Iterator[str]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data.rpartition(b"\n")[0]
        if whole or data.startswith(b"\n"):
            self._at += len(whole) + 1
            yield from whole.decode(errors="replace").splitlines()
