"""What the benchmarks print: tables in Markdown, and what was measured with."""

import importlib.metadata
import os
import platform
from collections.abc import Iterable
from typing import Any

from ettsweep.processes import cores

Row = dict[str, Any]


def facts(*packages: str) -> Row:
    """Return versions of Python and some packages, and which machine they run on, with its load."""
    versions = {name: importlib.metadata.version(name) for name in packages}
    machine = {"machine": platform.machine(), "cores": cores(), "load": os.getloadavg()[0]}
    return {"python": platform.python_version(), **versions, **machine}


def show(rows: Iterable[Row]) -> list[Row]:
    """Print rows as they come, under the names of the first; return all of them."""
    output = list[Row]()
    for row in rows:
        if not output:
            print(f"| {' | '.join(row)} |\n|{'---|' * len(row)}")
        output.append(row)
        print(f"| {' | '.join(cell(row.get(name)) for name in output[0])} |", flush=True)
    return output


def cell(value: object) -> str:
    """Return a number with four digits or more, and anything else as it is."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "" if value is None else str(value)
