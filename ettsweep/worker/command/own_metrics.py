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
        self._names = dict[str, None]()

    def begin(self, step: int | None = None) -> None:
        """Leave out what is there now."""
        self._recorded.skip()
        self._output.skip()

    def rows(self, *, final: bool = False) -> list[Json]:
        """Return the metrics that were written since the last call; with `final`, the last line may lack its end.

        Raises:
            InputError: a line is no JSON object with a step and numbers.
        """
        rows = [_row(line) for line in self._recorded.lines(final=final) if line.strip()]
        for line in self._output.lines(final=final):
            if MARK in line:
                rows.append(_row(line.partition(MARK)[2]))
        self._names |= dict.fromkeys(name for row in rows for name in row if name != "step")
        return rows

    def seen(self, name: str = "") -> str:
        """Return why there is no metric of a name, for a message."""
        if not self._names:
            return f"no {name}: it recorded no metrics; say where they are with `reader`, or see docs/own-code.md"
        return f"no {name} was recorded; seen: {', '.join(self._names)}"


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

    def lines(self, *, final: bool) -> Iterator[str]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return
        if not final:
            data = data[: data.rfind(b"\n") + 1]
        self._at += len(data)
        yield from data.decode(errors="replace").splitlines()
