"""The table of runs on the page: the best of each family, with links to folders and logs."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ettsweep.powers import power_and_decimal
from ettsweep.quantities import score_text, three_digits
from ettsweep.report.families import runs_by_family
from ettsweep.report.tables import strategy_label
from ettsweep.runs.folder import runs_dir
from ettsweep.runs.index import Run
from ettsweep.study.study import shown_strategy
from ettsweep.study.sweep_store import StudiesByFamily, run_cells, run_sweeps_text

MAX_ROWS = 300
"""Runs in the table."""

SHOWN_IF_DIFFERENT = ("sweep", "model", "task", "optimizer")
"""Columns left out if all runs agree in them."""

TEXT_COLUMNS = ("run", *SHOWN_IF_DIFFERENT, "strategy", "state")
"""Columns that are not numbers."""


def run_table(runs: Sequence[Run], studies_by_family: StudiesByFamily, results: Path, out: Path) -> dict[str, Any]:
    """Return the columns of the table, and its rows: cells, and links relative to `out`."""
    shown, url = _best_runs(runs, MAX_ROWS), relative_url(runs_dir(results), out)
    cells = [_cells(run, studies_by_family) for run in shown]
    names = [name for name in dict.fromkeys(name for row in cells for name in row) if _is_telling(name, cells)]
    return {
        "columns": [{"name": name, "label": name.replace("_", " "), "is_text": name in TEXT_COLUMNS} for name in names],
        "rows": [
            {
                "run": run.id,
                "folder": f"{url}{run.id}/",
                "log": _log_path(run),
                "cells": [row.get(name, "") for name in names],
            }
            for run, row in zip(shown, cells, strict=True)
        ],
    }


def _best_runs(runs: Sequence[Run], limit: int) -> list[Run]:
    """Return the runs, best first in each family: about as many of each, `limit` in all."""
    families, best = runs_by_family(runs), list[Run]()
    # At least one run of each family, as far as `limit` goes.
    share = max(1, limit // max(1, len(families)))
    for members in families.values():
        metric = members[0].spec.info.metric
        best += sorted(members, key=lambda run: metric.sort_key(run.score))[:share]
    return best[:limit]


def _cells(run: Run, studies_by_family: StudiesByFamily) -> dict[str, str]:
    labels, metric = run.labels, run.spec.info.metric
    return {
        "run": run.id,
        "sweep": run_sweeps_text(studies_by_family, run),
        "model": labels.model,
        "task": f"{labels.task} {labels.data}".strip(),
        "strategy": shown_strategy(run.base) and strategy_label(studies_by_family, run),
        "optimizer": labels.optimizer,
        **{
            n: "" if value is None else power_and_decimal(value, n)
            for n, value in run_cells(studies_by_family, run).items()
        },
        "seed": str(run.seed),
        "state": run.state.value,
        metric.name: "" if run.score is None else score_text(run.score, metric),
        "device_s": three_digits(run.device_s) if run.device_s else "",
    }


def _is_telling(name: str, rows: Sequence[dict[str, str]]) -> bool:
    values = {row.get(name, "") for row in rows}
    return values != {""} and (name not in SHOWN_IF_DIFFERENT or len(values) > 1)


def relative_url(path: Path, out: Path) -> str:
    """Return the URL of a folder relative to `out`; absolute on another drive."""
    try:
        address = Path(os.path.relpath(path.resolve(), out.resolve())).as_posix()
    except ValueError:  # another drive
        return path.resolve().as_uri() + "/"
    # Paths may contain bytes that are not UTF-8.
    return quote(os.fsencode(address)) + "/"


def _log_path(run: Run) -> str | None:
    """Return the path of a run's log, relative to its folder: of the attempt that finished it, else of the latest."""
    number = (run.result or {}).get("attempts")
    attempt = run.dir.attempt(number) if isinstance(number, int) else run.dir.latest_attempt()
    if attempt is not None and attempt.output_path.exists():
        return attempt.output_path.relative_to(run.dir.path).as_posix()
    if attempt is None or not attempt.log_path.exists():
        return None
    return attempt.log_path.relative_to(run.dir.path).as_posix()
