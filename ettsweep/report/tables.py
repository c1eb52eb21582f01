"""Tables of runs, points and optima: pandas frames, CSV and Parquet files of them, and of optima Markdown and LaTeX."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ettsweep.files import write_atomic
from ettsweep.powers import POWER_COLUMNS, power
from ettsweep.report.families import JudgedFamily, judged, of_families, points_of
from ettsweep.report.formats import mean_std
from ettsweep.report.spike_rates import SPIKES, rate_columns, spikes_of
from ettsweep.runs.spec import StrategySpec
from ettsweep.strategies.strategy import strategy_name
from ettsweep.study.lattice import Point
from ettsweep.study.run_index import Run
from ettsweep.study.sweep_store import Searches, held_by
from ettsweep.study.verdict import Verdict
from ettsweep.trainer.models.registry import model_name
from ettsweep.trainer.tasks.registry import task_label

METRICS = ("best_accuracy", "final_accuracy", "best_loss", "final_loss", "best_bits", "final_bits")
RATES = tuple(column for name in SPIKES for column in rate_columns(name))
SPEED = ("step_s", "samples_per_s", "utilisation", "data_wait", "memory_gib")
TRAINING = (*SPEED, "devices", "pack", "pack_mode", "corrupt_images")
"""How runs were trained, not what came out."""
RESULT_COLUMNS = (*METRICS, *SPIKES, "steps", "wall_s", "device_s", *TRAINING)
FAMILY = ("sweep", "family", "model", "strategy", "optimizer")
RECIPE = ("family", "model", "task", "strategy", "optimizer", "precision")
RUN_COLUMNS = ("run", "sweep", *RECIPE, "lr", "wd", "seed", "state", *RESULT_COLUMNS)
SCORES = ("metric", "seeds", "score", "std", "fresh_seeds", "fresh_score", "fresh_std", "lead")
BOUND = ("rule", "confidence", "margin", "bound", "p_best", "noise", "noise_known", "more_runs", "caveat")
RECOMMENDED = ("as_good", "recommended_lr", "recommended_wd")
OPTIMUM_COLUMNS = (*FAMILY, "verdict", "lr", "wd", *SCORES, *BOUND, *RECOMMENDED, "runs", "steps", *RATES)
IN_PAPER = (
    *("sweep", "model", "strategy", "optimizer", "verdict", "lr", "wd", "bound", "confidence"),
    *("metric", "seeds", "score", "std", "fresh_seeds", "fresh_score", "fresh_std"),
)
"""Columns of optima that belong into a paper; those alone are in LaTeX."""

TEXTS = {"run", "sweep", *RECIPE, "state", "verdict", "metric", "rule", "noise_known", "caveat", "pack_mode"}
COUNTS = {"seed", "seeds", "fresh_seeds", "more_runs", "as_good", "runs", *SPIKES, "steps"}
COUNTS |= {"devices", "pack", "corrupt_images"}

LOG2_DECIMALS = 6
"""Of log2(lr) and log2(wd) in the table of points."""


def _frame(rows: Sequence[tuple[Any, ...]], columns: Sequence[str]) -> pd.DataFrame:
    """Return rows as a frame whose columns have their types, also where there are no rows; all others are numbers."""
    types = {name: "str" if name in TEXTS else "Int64" if name in COUNTS else "float64" for name in columns}
    return pd.DataFrame(rows, columns=list(columns)).astype(types)


def strategy_label(strategy: StrategySpec) -> str:
    """Return the strategy's name, with what else sets it apart from others of that name."""
    suffix = "" if strategy.mlp_factor == "ignore" else f", mlp_factor {strategy.mlp_factor}"
    return strategy_name(strategy.s) + suffix


def runs_table(runs: Sequence[Run], searches: Searches | None = None) -> pd.DataFrame:
    """Return one row a run, with the sweeps that it belongs to; what an unfinished or diverged run lacks is missing."""
    names: dict[str, tuple[str, str, str]] = {}
    rows = []
    for run in runs:
        spec, family = run.spec, run.family
        if family not in names:
            names[family] = model_name(spec.model), task_label(spec.task), strategy_label(spec.strategy)
        result = run.result or {}
        how = result.get("execution", {})
        result = result | {"devices": how.get("processes"), "pack": how.get("pack"), "pack_mode": how.get("pack_mode")}
        rows.append(
            (
                *(
                    run.id,
                    held_by(searches or {}, family, spec),
                    family,
                    *names[family],
                    spec.optimizer.kind,
                    spec.precision,
                ),
                *(spec.lr, spec.wd, spec.seed, run.state.value),
                *(result.get(name) for name in RESULT_COLUMNS),
            )
        )
    order = ["model", "task", "strategy", "family", "lr", "wd", "seed"]
    return _frame(rows, RUN_COLUMNS).sort_values(order, ignore_index=True)


def points_table(table: pd.DataFrame, runs: Sequence[Run], families: Sequence[JudgedFamily] = ()) -> pd.DataFrame:
    """Return one row a lattice point of a sweep: how many seeds finished and diverged, mean and deviation of the rest.

    `table` is of the same runs. Of a sweep, only the seeds that its verdict goes by count: fresh ones, which only the
    optimum has, are left out. Standard deviations are the sample's (n - 1), and missing for one seed. A mean leaves
    diverged runs out: read it beside `diverged`. Spikes are of all finished runs: in all, per
    run and per 1,000 of the steps that these trained.
    """
    places = [
        (run.id, family.verdict.study.sweep, *_log2(point))
        for family in families
        for point, members in family.points.items()
        for run in family.counted(members)
    ]
    held = {run.id for family in families for run in family.runs}
    places += [
        (run.id, "-", *_log2(point))
        for members in of_families(run for run in runs if run.id not in held).values()
        for point, alike in points_of(members).items()
        for run in alike
    ]
    axes = ["log2_lr", "log2_wd"]
    at = pd.DataFrame(places, columns=["run", "sweep", *axes]).astype(
        {"run": "str", "sweep": "str", **dict.fromkeys(axes, "float64")}
    )
    work = table.drop(columns="sweep").merge(at, on="run")
    diverged = work["state"] == "diverged"
    work["diverged"] = diverged.astype("Int64")
    work["seeds"] = work["state"].isin(["done", "diverged"]).astype("Int64")
    work.loc[diverged, list(METRICS)] = math.nan
    told = {"seeds": ("seeds", "sum"), "diverged": ("diverged", "sum")}
    told |= {f"{metric}_{what}": (metric, what) for metric in METRICS for what in ("mean", "std")}
    told |= {name: (name, "sum") for name in ("steps", *SPIKES)}
    groups = work.groupby(["sweep", "model", "strategy", "optimizer", "family", *axes], dropna=False, sort=True)
    points = groups.agg(lr=("lr", "first"), wd=("wd", "first"), **told).reset_index()
    for name in SPIKES:
        _, per_run, per_1000_steps = rate_columns(name)
        points[per_run] = _ratio(points[name], points["seeds"])
        points[per_1000_steps] = _ratio(1000 * points[name], points["steps"])
    kept = [name for name in told if name not in SPIKES]
    return points[[*FAMILY, "lr", "wd", *axes, *kept, *RATES]]


def _ratio(count: pd.Series, of: pd.Series) -> pd.Series:
    return count.astype("float64") / of.where(of > 0).astype("float64")


def _log2(point: Point) -> list[float | None]:
    return [None if log2 is None else round(log2, LOG2_DECIMALS) for log2 in point.key]


def optima_table(families: Iterable[JudgedFamily]) -> pd.DataFrame:
    """Return one row a family: its verdict, the optimum, what is known of it, and what fresh seeds say of it.

    `score` is the mean over the seeds that count, which chose the point and so flatter it; `fresh_score` the mean over
    reruns with other seeds, missing if one of them diverged. `lead` is how much worse the best neighbour is, in the
    metric's own unit. With the `confidence`, no neighbour is better by more than `bound`, which is within the `margin`
    where the verdict is optimal; these, and the `noise` of a run, are shares of the loss, or of all samples where
    accuracies are compared. `p_best` is the probability that the candidate beats all its neighbours, `as_good` the
    number of other points that are no worse by more than the margin, and the recommended one is in their middle.
    Spikes are of all finished runs of the optimum: in all, per run, and per 1,000 of the steps that these trained.
    """
    rows = []
    for family in families:
        verdict, study = family.verdict, family.verdict.study
        spikes = spikes_of(family.optimum)
        counted = family.counted(family.optimum)
        _, std = mean_std([run.score for run in counted])
        fresh_mean, fresh_std = mean_std([*verdict.fresh.values()])
        rows.append(
            (
                *(
                    study.sweep,
                    verdict.family,
                    study.model,
                    study.strategy,
                    study.base.optimizer.kind if family.runs else None,
                ),
                *(verdict.verdict, verdict.lr, verdict.wd),
                *(study.metric.metric, verdict.candidate.runs if verdict.candidate else 0, verdict.score, std),
                *(len(verdict.fresh), fresh_mean, fresh_std, verdict.lead),
                *_bound(verdict),
                *((spikes.runs, spikes.steps) if spikes.runs else (None, None)),
                *(rate for name in SPIKES for rate in spikes.rates(name)),
            )
        )
    return _frame(rows, OPTIMUM_COLUMNS)


def _bound(verdict: Verdict) -> tuple[Any, ...]:
    """Return what is known of a candidate: the columns `BOUND` and `RECOMMENDED`."""
    criterion, bound = verdict.study.criterion, verdict.bound
    if criterion.rule == "paper":
        return criterion.rule, *[None] * (len(BOUND) + len(RECOMMENDED) - 1)
    asked = criterion.rule, criterion.confidence, criterion.margin_for(verdict.study.metric)
    if bound is None:
        return *asked, *[None] * (len(BOUND) + len(RECOMMENDED) - 3)
    known = bound.noise.known != "unknown"
    return (
        *(*asked, bound.value, bound.best if known else None, bound.noise.sd if known else None, bound.noise.known),
        *(bound.more, bound.caveat or None),
        *((len(bound.plateau), *bound.recommended) if known else (None, None, None)),
    )


def write_tables(folder: Path, runs: Sequence[Run], verdicts: Sequence[Verdict], searches: Searches) -> list[Path]:
    """Write the tables `runs`, `points` and `optima` as CSV and Parquet, and `optima` as Markdown and LaTeX too.

    `searches` are those of all sweeps, also of others than the verdicts are of.

    Raises:
        StorageError: a file cannot be written.
    """
    families = judged(runs, verdicts)
    table = runs_table(runs, searches)
    points, optima = points_table(table, runs, families), optima_table(families)
    known_optima = known(optima)
    in_paper = [name for name in IN_PAPER if name in known_optima]
    files: dict[str, str | bytes] = {"optima.md": markdown(known_optima), "optima.tex": latex(known_optima[in_paper])}
    for name, frame in {"runs": table, "points": points, "optima": optima}.items():
        files |= {f"{name}.csv": frame.to_csv(index=False), f"{name}.parquet": frame.to_parquet(index=False)}
    for name, content in files.items():
        write_atomic(folder / name, content)
    return [folder / name for name in files]


def known(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame without what no row has, such as an accuracy of text, and without counts that are all 0."""
    if frame.empty:
        return frame
    counts = [name for name in frame.columns if name.startswith((*SPIKES, "corrupt_images"))]
    never = [name for name in counts if not frame[name].fillna(0).any()]
    return frame.drop(columns=never).dropna(axis="columns", how="all")


def markdown(frame: pd.DataFrame) -> str:
    """Return the frame as a Markdown table, empty where a value is missing.

    Numbers have six digits; an lr or wd is a power of two, as the terminal has it.
    """
    columns = []
    for (name, cells), dtype in zip(_cells(frame).items(), frame.dtypes, strict=True):
        texts = [text.replace("|", "\\|").replace("\n", " ") for text in (str(name), *cells)]
        width, left = max(3, *map(len, texts)), dtype == "str"
        head, *rest = (text.ljust(width) if left else text.rjust(width) for text in texts)
        columns.append([head, "-" * width if left else "-" * (width - 1) + ":", *rest])
    return "".join(f"| {' | '.join(line)} |\n" for line in zip(*columns, strict=True))


_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\n": " ",
        **{character: "\\" + character for character in "&%$#_{}"},
    }
)


def latex(frame: pd.DataFrame) -> str:
    """Return the frame as a LaTeX table for the packages booktabs and, where it is long, longtable.

    Numbers have six digits; an lr or wd is a power of two.
    """
    columns = "".join("l" if dtype == "str" else "r" for dtype in frame.dtypes)
    cells = _cells(frame).map(_in_latex).rename(columns=_in_latex)
    return cells.to_latex(index=False, escape=False, column_format=columns, longtable=len(frame) > 40)


def _in_latex(cell: str) -> str:
    exponent = cell.removeprefix("2^")
    return f"$2^{{{exponent}}}$" if exponent != cell else cell.translate(_LATEX)


def _power(value: float) -> str:
    return power(value, 6)


def _cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return cells as people read them, an lr or wd as a power of two, as the terminal has it."""

    def text(value: Any) -> str:
        return "" if pd.isna(value) else f"{value:.6g}" if isinstance(value, float) else str(value)

    axes = [name for name in frame.columns if name.removeprefix("recommended_") in POWER_COLUMNS]
    powers = frame.assign(**{name: frame[name].map(_power, na_action="ignore") for name in axes})
    return powers.astype(object).map(text)
