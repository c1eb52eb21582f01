"""Tables of runs, points and optima: pandas frames, CSV and Parquet files; of optima Markdown and LaTeX too."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ettsweep.extras import is_installed
from ettsweep.files import write_atomic
from ettsweep.metric import MAX_SCORE
from ettsweep.powers import POWER_COLUMNS, format_power, log2
from ettsweep.report.families import JudgedFamily, runs_by_family, runs_by_point
from ettsweep.report.spike_rates import SPIKE_LABELS, rate_columns, sum_spikes
from ettsweep.report.time_scale import time_scale
from ettsweep.runs.index import Run
from ettsweep.runs.point import Point, axis_cells, axis_names
from ettsweep.study.sweep_store import StudiesByFamily, run_cells, run_strategy, run_sweeps_text

METRIC_COLUMNS = tuple(
    f"{which}_{name}" for name in ("accuracy", "loss", "bits", "bits_per_byte") for which in ("best", "final")
)
RATE_COLUMNS = tuple(column for name in SPIKE_LABELS for column in rate_columns(name))
SPEED_COLUMNS = ("step_s", "samples_per_s", "utilisation", "data_wait", "memory_gib")
TRAINING_COLUMNS = (*SPEED_COLUMNS, "devices", "ensemble", "corrupt_images")
"""How runs were trained, as opposed to their scores."""
RESULT_COLUMNS = (*METRIC_COLUMNS, *SPIKE_LABELS, "steps", "wall_s", "device_s", *TRAINING_COLUMNS)
FAMILY_COLUMNS = ("sweep", "family", "model", "strategy", "optimizer")
RECIPE_COLUMNS = ("family", "model", "task", "strategy", "optimizer", "precision")
RUN_COLUMNS = ("run", "sweep", *RECIPE_COLUMNS)
"""Columns of runs before those of their axes, after which `seed`, `state` and `RESULT_COLUMNS` follow."""
SCORE_COLUMNS = (
    *("metric", "score_unit", "seeds", "score", "std", "fresh_seeds", "fresh_score", "fresh_std"),
    *("score_lead", "lead_share"),
)
BOUND_COLUMNS = ("rule", "confidence", "margin", "bound", "p_best", "noise", "noise_known", "more_runs", "caveat")
TIME_SCALE_COLUMNS = ("lr_wd", "timescale_steps", "timescale_epochs", "timescale_tokens")
"""The decay of a step, and 1 / (lr wd) in each unit (`TimeScale`)."""
PAPER_COLUMNS = (
    *("bound", "confidence"),
    *("metric", "score_unit", "seeds", "score", "std", "fresh_seeds", "fresh_score", "fresh_std"),
)
"""Columns of the LaTeX table of optima that a paper needs, after verdict and point."""

TEXT_COLUMNS = {
    "run",
    "sweep",
    *RECIPE_COLUMNS,
    "state",
    "verdict",
    "metric",
    "score_unit",
    "rule",
    "noise_known",
    "caveat",
}
COUNT_COLUMNS = {"seed", "seeds", "fresh_seeds", "more_runs", "as_good", "runs", *SPIKE_LABELS, "steps"}
COUNT_COLUMNS |= {"devices", "ensemble", "corrupt_images"}

LOG2_DECIMALS = 6
"""Decimals of log2(lr) and log2(wd) by which the table of points is grouped."""


def typed_frame(
    rows: Sequence[tuple[Any, ...]],
    columns: Sequence[str],
    text: Collection[str] = TEXT_COLUMNS,
    counts: Collection[str] = frozenset(COUNT_COLUMNS),
    others: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """Build a frame with one dtype per column; an empty table has the types of a full one.

    Columns are floats, except texts, counts, and those that `others` states.
    """
    # Nullable Int64, since unfinished runs have no counts.
    types = {name: "str" if name in text else "Int64" if name in counts else "float64" for name in columns}
    return pd.DataFrame(rows, columns=list(columns)).astype(types | dict(others or {}))


def strategy_label(studies: StudiesByFamily, run: Run) -> str:
    """Return the name of a run's strategy or variant, with `mlp_factor` unless it is the default."""
    factor = run.base.strategy.mlp_factor
    suffix = "" if factor == "ignore" else f", mlp_factor {factor}"
    return run_strategy(studies, run) + suffix


def runs_table(runs: Sequence[Run], studies_by_family: StudiesByFamily | None = None) -> pd.DataFrame:
    """Return one row per run, with the names of the sweeps that it belongs to.

    Results are missing if a run is unfinished or diverged. Scores with names of their own have columns at the end.
    """
    more = sorted({run.base.info.metric.name for run in runs} - set(METRIC_COLUMNS))
    studies, rows = studies_by_family or StudiesByFamily(()), []
    axes = list(dict.fromkeys([*axis_cells(None), *(name for run in runs for name in run_cells(studies, run))]))
    for run in runs:
        labels = run.labels
        rows.append(
            (
                *(
                    run.id,
                    run_sweeps_text(studies, run),
                    run.family,
                    labels.model,
                    f"{labels.task} {labels.data}".strip(),
                    strategy_label(studies, run),
                    labels.optimizer,
                    labels.precision,
                ),
                *(*(run_cells(studies, run).get(name) for name in axes), run.seed, run.state.value),
                *_result_values(run, (*RESULT_COLUMNS, *more)),
            )
        )
    order = ["model", "task", "strategy", "family", *axes, "seed"]
    # Independent of the order in which runs were read from disk.
    return typed_frame(rows, [*RUN_COLUMNS, *axes, "seed", "state", *RESULT_COLUMNS, *more]).sort_values(
        order, ignore_index=True
    )


def results_frame(runs: Iterable[Run], columns: Sequence[str]) -> pd.DataFrame:
    """Return only some of `RESULT_COLUMNS`, a row for each run in the given order."""
    return typed_frame([_result_values(run, columns) for run in runs], columns)


def _result_values(run: Run, columns: Sequence[str]) -> tuple[Any, ...]:
    result = run.result or {}
    settings = result.get("execution", {})
    result = result | {
        "devices": settings.get("processes"),
        "ensemble": settings.get("ensemble"),
    }
    return tuple(result.get(name) for name in columns)


def points_table(table: pd.DataFrame, runs: Sequence[Run], families: Sequence[JudgedFamily] = ()) -> pd.DataFrame:
    """Return one row per lattice point of a sweep: finished and diverged seeds, mean and deviation of the metrics.

    Fresh seeds are left out: only seeds that count for the verdict enter. Runs outside of any sweep are grouped by
    family, under the sweep "-". Standard deviations are the sample's (n - 1), and missing for one seed. Means leave
    out diverged runs: read them beside `diverged`. Spikes are totals over all finished runs, per run, and per 1,000 of
    their steps.

    Args:
        table: `runs_table` of the same runs.
        runs: the runs to group.
        families: the verdicts that decide which seeds count.
    """
    names = axis_names([*(run.point for run in runs), *(point for family in families for point in family.points)])
    point_rows = [
        (run.id, family.study.sweep, *_rounded_log2(point, names))
        for family in families
        for point, members in family.points.items()
        for run in family.counted_runs(members)
    ]
    sweep_run_ids = {run.id for family in families for run in family.runs}
    point_rows += [
        (run.id, "-", *_rounded_log2(point, names))
        for members in runs_by_family(run for run in runs if run.id not in sweep_run_ids).values()
        for point, point_runs in runs_by_point(members).items()
        for run in point_runs
    ]
    axes = [f"log2_{name}" for name in names]
    coordinates = pd.DataFrame(point_rows, columns=["run", "sweep", *axes]).astype(
        {"run": "str", "sweep": "str", **dict.fromkeys(axes, "float64")}
    )
    # One row per sweep of a run.
    work = table.drop(columns="sweep").merge(coordinates, on="run")
    metrics = [
        *METRIC_COLUMNS,
        *(str(name) for name in table if name not in (*RUN_COLUMNS, *names, "seed", "state", *RESULT_COLUMNS)),
    ]
    diverged = work["state"] == "diverged"
    # 1 or 0 per run: sums over a group count its seeds.
    work["diverged"] = diverged.astype("Int64")
    work["seeds"] = work["state"].isin(["done", "diverged"]).astype("Int64")
    work.loc[diverged, metrics] = math.nan  # a diverged run may have a best score from before it diverged
    work[metrics] = work[metrics].where(work[metrics].abs() <= MAX_SCORE)
    aggregations = {"seeds": ("seeds", "sum"), "diverged": ("diverged", "sum")}
    aggregations |= {
        f"{metric}_{statistic}": (metric, statistic) for metric in metrics for statistic in ("mean", "std")
    }
    aggregations |= {name: (name, "sum") for name in ("steps", *SPIKE_LABELS)}
    # dropna=False keeps points with wd 0, whose log2 is missing.
    groups = work.groupby(["sweep", "model", "strategy", "optimizer", "family", *axes], dropna=False, sort=True)
    points = groups.agg(**{name: (name, "first") for name in names}, **aggregations).reset_index()
    for name in SPIKE_LABELS:
        _, per_run, per_1000_steps = rate_columns(name)
        points[per_run] = _ratio(points[name], points["seeds"])
        points[per_1000_steps] = _ratio(1000 * points[name], points["steps"])
    bases = {run.family: run.base for run in runs}
    scales = [
        time_scale(Point({name: row[name] for name in names if not pd.isna(row[name])}), base.info)
        for row in points.to_dict(orient="records")
        for base in [bases[row["family"]]]
    ]
    points[list(TIME_SCALE_COLUMNS)] = pd.DataFrame(
        scales, index=points.index, columns=list(TIME_SCALE_COLUMNS)
    ).astype("float64")
    columns = [name for name in aggregations if name not in SPIKE_LABELS]
    return points[[*FAMILY_COLUMNS, *names, *axes, *columns, *RATE_COLUMNS, *TIME_SCALE_COLUMNS]]


def _ratio(count: pd.Series, of: pd.Series) -> pd.Series:
    # Avoid a division by 0 if nothing was trained.
    return count.astype("float64") / of.where(of > 0).astype("float64")


def _rounded_log2(point: Point, names: Iterable[str]) -> list[float | None]:
    logs = (log2(point.values.get(name, 0.0)) for name in names)
    return [None if log is None else round(log, LOG2_DECIMALS) for log in logs]


def optima_table(families: Iterable[JudgedFamily]) -> pd.DataFrame:
    """Return one row per family: verdict, optimum, its bound, and its score over fresh seeds.

    Columns:
        score: the mean over the seeds that count, optimistic since they chose the point.
        fresh_score: the mean over reruns with fresh seeds; missing if one of them diverged.
        score_unit: of score, std, fresh_score, fresh_std and score_lead: nats of a loss, fraction of an accuracy.
        score_lead: how much worse the best neighbour is, by their means; `bound` compares them as fitted.
        lead_share: the same in the unit of bound, margin and noise: a share of the score or a difference.
        bound, margin, confidence: with the confidence, no neighbour is better by more than `bound`; the verdict is
            optimal if that is within `margin`, and the deciding neighbour shares three seeds with the candidate.
        noise: standard deviation of one run.
        p_best: the probability that the candidate beats all its neighbours.
        more_runs: how many more runs are likely to decide.
        caveat: beside an edge of stability, how many seeds were stable and may not be.
        as_good: how many other points are no worse by more than the margin.
        recommended_lr, recommended_wd: the middle one of those; beside an edge of stability, one step of lr below the
            candidate.
        loss_spikes, ...: totals over all finished runs of the optimum, per run, and per 1,000 steps.
        lr_wd, timescale_steps, ...: the decay of a step, and 1 / (lr wd) in steps, epochs and tokens (`TimeScale`).
    """
    rows, judged = list[tuple[Any, ...]](), list(families)
    axes = axis_names(family.candidate for family in judged)
    columns = (
        *(*FAMILY_COLUMNS, "verdict", *axes, *SCORE_COLUMNS, *BOUND_COLUMNS),
        *("as_good", *(f"recommended_{name}" for name in axes), "runs", "steps", *RATE_COLUMNS, *TIME_SCALE_COLUMNS),
    )
    for family in judged:
        study, spikes = family.study, sum_spikes(family.optimum)
        rates = [rate for name in SPIKE_LABELS for rate in spikes.rates(name)]
        scale = time_scale(family.candidate, study.base.info) if family.candidate else ()
        row = {
            "sweep": study.sweep,
            "family": study.family,
            "model": study.model,
            "strategy": study.strategy,
            "optimizer": study.base.info.labels.optimizer if family.runs else None,
            **family.view.numbers,
            "runs": spikes.runs or None,
            "steps": spikes.steps if spikes.runs else None,
            **dict(zip(RATE_COLUMNS, rates, strict=True)),
            **dict(zip(TIME_SCALE_COLUMNS, scale, strict=False)),
        }
        rows.append(tuple(row.get(name) for name in columns))
    return typed_frame(rows, columns)


def write_tables(
    folder: Path, table: pd.DataFrame, runs: Sequence[Run], families: Sequence[JudgedFamily]
) -> list[Path]:
    """Write the tables `runs`, `points` and `optima` as CSV, and `optima` as Markdown and LaTeX too.

    With pyarrow, the three are written as Parquet as well.

    Args:
        folder: where the files go; it exists.
        table: `runs_table` of the runs.
        runs: all runs of the report.
        families: its verdicts, with their runs.

    Returns:
        The paths of the files.

    Raises:
        StorageError: a file cannot be written.
    """
    points, optima = points_table(table, runs, families), optima_table(families)
    known_optima = drop_empty_columns(optima)
    axes = axis_names(family.candidate for family in families)
    first = ("sweep", "model", "strategy", "optimizer", "verdict", *axes)
    in_paper = [name for name in (*first, *PAPER_COLUMNS) if name in known_optima]
    files: dict[str, str | bytes] = {
        "optima.md": to_markdown(with_units(known_optima, families)),
        # A paper has the verdict in words.
        "optima.tex": to_latex(
            with_units(known_optima[in_paper].assign(verdict=[family.view.headline for family in families]), families)
        ),
    }
    for name, frame in {"runs": table, "points": points, "optima": optima}.items():
        files[f"{name}.csv"] = frame.to_csv(index=False)
        if is_installed("pyarrow"):
            files[f"{name}.parquet"] = frame.to_parquet(index=False)
    for name, content in files.items():
        write_atomic(folder / name, content)
    return [folder / name for name in files]


def drop_empty_columns(frame: pd.DataFrame) -> pd.DataFrame:
    """Drop columns that are missing in all rows, and columns of counts that are 0 in all rows."""
    if frame.empty:
        return frame
    counts = [name for name in frame.columns if name.startswith((*SPIKE_LABELS, "corrupt_images"))]
    all_zero = [name for name in counts if not frame[name].fillna(0).any()]
    return frame.drop(columns=all_zero).dropna(axis="columns", how="all")


SCORE_UNIT_COLUMNS = ("score", "std", "fresh_score", "fresh_std", "score_lead")
SHARE_COLUMNS = ("lead_share", "bound", "margin", "noise")


def with_units(optima: pd.DataFrame, families: Sequence[JudgedFamily]) -> pd.DataFrame:
    """Return the table of optima with units in its headers, unless the rows have several."""
    units = list(optima["score_unit"].unique()) if "score_unit" in optima else list[str]()
    margins = {family.study.metric.margin_is for family in families}
    if len(units) != 1 or len(margins) != 1:
        return optima
    of = {"fraction": "accuracies", "nats": "loss"}.get(units[0], "score")
    share = f"{margins.pop()} of {of}"
    headers = {name: f"{name} ({units[0]})" for name in SCORE_UNIT_COLUMNS}
    return optima.drop(columns="score_unit").rename(
        columns=headers | {name: f"{name} ({share})" for name in SHARE_COLUMNS}
    )


def to_markdown(frame: pd.DataFrame) -> str:
    """Return the frame as a Markdown table; missing values are empty cells.

    Numbers have six digits; lr and wd are powers of two, as in the terminal.
    """
    columns = []
    for (name, cells), dtype in zip(_text_cells(frame).items(), frame.dtypes, strict=True):
        # A pipe or a line break would end the cell.
        texts = [text.replace("|", "\\|").replace("\n", " ") for text in (str(name), *cells)]
        # A Markdown rule under a heading has at least three characters.
        width, left = max(3, *map(len, texts)), dtype == "str"
        head, *body = (text.ljust(width) if left else text.rjust(width) for text in texts)
        columns.append([head, "-" * width if left else "-" * (width - 1) + ":", *body])
    return "".join(f"| {' | '.join(line)} |\n" for line in zip(*columns, strict=True))


# A single pass does not escape its own backslashes.
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\n": " ",
        **{character: "\\" + character for character in "&%$#_{}"},
    }
)


def to_latex(frame: pd.DataFrame) -> str:
    """Return the frame as a LaTeX table; it needs the packages booktabs and, above 40 rows, longtable.

    Numbers have six digits; lr and wd are powers of two.
    """
    columns = "".join("l" if dtype == "str" else "r" for dtype in frame.dtypes)
    cells = _text_cells(frame).map(_latex_cell).rename(columns=_latex_cell)
    # The cells are escaped already: pandas would escape the $ of powers too.
    return cells.to_latex(index=False, escape=False, column_format=columns, longtable=len(frame) > 40)


def _latex_cell(cell: str) -> str:
    exponent = cell.removeprefix("2^")
    return f"$2^{{{exponent}}}$" if exponent != cell else cell.translate(_LATEX)


def _power_text(value: float) -> str:
    return format_power(value, 6)


def _text_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame as texts: lr and wd as powers of two, other floats with six digits, missing values empty."""

    def text(value: Any) -> str:
        return "" if pd.isna(value) else f"{value:.6g}" if isinstance(value, float) else str(value)

    axes = [name for name in frame.columns if name.removeprefix("recommended_") in POWER_COLUMNS]
    powers = frame.assign(**{name: frame[name].map(_power_text, na_action="ignore") for name in axes})
    return powers.astype(object).map(text)
