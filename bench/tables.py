"""What the benchmarks print and write: tables in Markdown, JSON, and what was measured with."""

import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ettsweep.processes import cores

Row = dict[str, Any]


def facts(*packages: str) -> Row:
    """Return versions of Python and some packages, and which machine they run on, with its load."""
    versions = {name: importlib.metadata.version(name) for name in packages}
    machine = {"machine": platform.machine(), "cores": cores(), "load": os.getloadavg()[0]}
    return {"python": platform.python_version(), **versions, **machine}


def chosen(names: Iterable[str], parts: Sequence[str]) -> list[str]:
    """Return the names that hold one of some parts; all names if there are none."""
    return [name for name in names if not parts or any(part in name for part in parts)]


def show(rows: Iterable[Row]) -> list[Row]:
    """Print rows as they come, under the names of the first; return all of them."""
    output = list[Row]()
    for row in rows:
        if not output:
            print_header(row)
        output.append(row)
        print_line(cell(row.get(name)) for name in output[0])
    return output


def print_header(names: Iterable[str]) -> None:
    names = list(names)
    print_line(names)
    print(f"|{'---|' * len(names)}", flush=True)


def print_line(cells: Iterable[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def cell(value: object) -> str:
    """Return a number with four digits or more, and anything else as it is."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "" if value is None else str(value)


def formatted(value: float | str | None, form: str) -> str:
    """Return a number in a format, of which `.3g%` is a share in percent; anything else as it is."""
    if value is None or isinstance(value, str):
        return value or ""
    return f"{100 * value:{form[:-1]}}%" if form.endswith("%") else f"{value:{form}}"


def rows_with_kept(path: Path | None, rows: Iterable[Row], keys: Sequence[str]) -> list[Row]:
    """Return rows with those of a file that were not measured again, so that it may be made in parts."""
    kept = json.loads(path.read_text())["rows"] if path and path.exists() else []
    return [*{tuple(row[key] for key in keys): row for row in [*kept, *rows]}.values()]


def write_json(path: Path | None, data: object) -> None:
    """Write what was measured, where a path is given."""
    if path:
        path.write_text(json.dumps(data, indent=1) + "\n")
