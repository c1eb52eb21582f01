"""The table of all runs, column by column: the page sorts and filters it, and shows or hides columns."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from ettsweep.files import Json
from ettsweep.powers import POWER_COLUMNS
from ettsweep.report import tables
from ettsweep.report.families import runs_by_family
from ettsweep.report.page_data import encode_column
from ettsweep.report.summary import run_cell
from ettsweep.runs.folder import runs_dir
from ettsweep.runs.index import Run

CHOICE_COLUMNS = ("sweep", "family", "model", "task", "strategy", "optimizer", "precision", "state", "pack_mode")
"""Columns with few different texts: their filter is a drop-down list."""

PERCENT_COLUMNS = ("best_accuracy", "final_accuracy", "utilisation", "data_wait")
"""Columns shown in percent."""

ALWAYS_VISIBLE = {"run", "strategy", "lr", "wd", "seed", "state", "device_s", "log"}
"""Columns that are visible at first, along with the scores and `VISIBLE_IF_DIFFERENT`."""

VISIBLE_IF_DIFFERENT = ("sweep", "model", "task", "optimizer")
"""Columns that are visible at first if runs differ in them."""


def page_table(table: pd.DataFrame, runs: Sequence[Run], results: Path, out: Path) -> Json:
    """Return the table for the page's script, from `runs_table` of the runs: row count, folder, and columns.

    Each column has a name, label, kind, whether it is shown at first, and values. The folder is relative to `out`, so
    that both can be copied together.
    """
    frame = _telling_columns(table, runs)
    by_id = {run.id: run for run in runs}
    # In the order of the frame, which is sorted: columns are joined by position.
    ordered_runs = [by_id[run] for run in frame["run"]] if len(frame) else []
    scores = {run.spec.metric.name for run in runs}
    shown_columns = (
        ALWAYS_VISIBLE | scores | {name for name in VISIBLE_IF_DIFFERENT if name in frame and frame[name].nunique() > 1}
    )
    columns = [_page_column(str(name), _json_values(frame[name]), str(name) in shown_columns) for name in frame]
    reasons = [run.status.reason for run in ordered_runs]
    if any(reasons):
        columns.append(_page_column("reason", reasons, False))
    columns.append(_page_column("log", [_log_path(run) for run in ordered_runs], True))
    return {"rows": len(ordered_runs), "folder": relative_url(runs_dir(results), out), "columns": columns}


def relative_url(path: Path, out: Path) -> str:
    """Return the URL of a folder relative to `out`; absolute where both are on different drives."""
    try:
        address = Path(os.path.relpath(path.resolve(), out.resolve())).as_posix()
    except ValueError:  # another drive
        return path.resolve().as_uri() + "/"
    # Paths may contain bytes that are not UTF-8.
    return quote(os.fsencode(address)) + "/"


def _page_column(name: str, values: Sequence[Any], is_shown: bool) -> Json:
    return {
        "name": name,
        "label": name.replace("_", " "),
        "kind": _column_kind(name),
        "shown": is_shown,
        # The script compares texts as they are: missing ones are empty, not null.
        "values": encode_column(
            [value or "" for value in values] if _column_kind(name) in ("text", "choice") else values
        ),
    }


def _column_kind(name: str) -> str:
    if name in ("run", "log"):
        return name
    if name in CHOICE_COLUMNS:
        return "choice"
    if name in tables.TEXT_COLUMNS or name == "reason":
        return "text"
    if name in POWER_COLUMNS:
        return "power"
    return "share" if name in PERCENT_COLUMNS else "number"


def _json_values(cells: "pd.Series[Any]") -> list[Any]:
    """Return the values of a column for JSON: floats with six digits, except scores, lr and wd, which stay exact."""
    exact = cells.name in (*tables.METRIC_COLUMNS, *POWER_COLUMNS)
    return [_json_value(value, exact) for value in cells]


def _json_value(value: Any, exact: bool) -> Any:
    if pd.isna(value):
        return None
    if isinstance(value, float):
        return value if exact else float(f"{value:.6g}")
    return value if isinstance(value, str) else int(value)


def _log_path(run: Run) -> str | None:
    """Return the path of a run's log, relative to its folder: of the attempt that finished it, else of the latest."""
    number = (run.result or {}).get("attempts")
    attempt = run.dir.attempt(number) if isinstance(number, int) else run.dir.latest_attempt()
    if attempt is not None and attempt.output_path.exists():
        return attempt.output_path.relative_to(run.dir.path).as_posix()
    if attempt is None or not attempt.log_path.exists():
        return None
    return attempt.log_path.relative_to(run.dir.path).as_posix()


def best_rows(table: pd.DataFrame, runs: Sequence[Run], limit: int) -> list[Mapping[str, str]]:
    """Return the best runs as texts, about as many of each family, `limit` in all; `table` is `runs_table` of them."""
    families = runs_by_family(runs)
    best: list[Run] = []
    # At least one run of each family, as far as `limit` goes.
    share = max(1, limit // max(1, len(families)))
    for members in families.values():
        metric = members[0].spec.metric
        best += sorted(members, key=lambda run: metric.sort_key(run.score))[:share]
    rows = table[table["run"].isin([run.id for run in best[:limit]])]
    records = _telling_columns(rows, runs).to_dict("records")
    return [{str(name): run_cell(str(name), value) for name, value in record.items()} for record in records]


def _telling_columns(table: pd.DataFrame, runs: Sequence[Run]) -> pd.DataFrame:
    """Return a table of runs without columns that say nothing of them."""
    frame = tables.drop_empty_columns(table)
    return frame if any(run.base.has_strategies for run in runs) else frame.drop(columns="strategy", errors="ignore")
