"""Frames of a family made by hand, as `report.frames` has them: every number in them is known."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ettsweep.powers import format_power, log2
from ettsweep.quantities import score_with_error
from ettsweep.report.formats import point_powers, strategy_colour
from ettsweep.report.frames import CURVE_COLUMNS, POINT_COLUMNS, SPIKE_COLUMNS
from ettsweep.report.run_histories import EVALUATIONS, TRAINING
from ettsweep.report.surface_frames import fitted_curve_frame, optimum_frame
from ettsweep.runs.point import Point
from ettsweep.study.lattice import Axis, neighbours
from ettsweep.trainer.tasks.registry import LOWEST_LOSS
from support.points import moved

Steps = tuple[int, int]

CENTRE = Point.of(lr=1.0, wd=3.0)
"""The candidate: wd is no power of two."""

SIX = [(1, 0), (0, 1), (1, -1), (-1, 1), (0, -1), (-1, 0)]

FRESH = 10
"""Seeds from here on do not count."""

FAMILY: dict[str, Any] = {"sweep": "w", "family": "f", "model": "m", "strategy": "ntk", "axes": "lr, wd"}

NUMBERS = {"seeds": "Int64", "proposal": "Int64", "step": "int64"} | dict.fromkeys(
    ("score", "error", "x_steps", "y_steps", "loss", "grad_norm", "val_loss", "val_accuracy", "value", "trained"),
    "float64",
)
"""Types of columns that may be without a value."""


def _frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=list(columns))
    return frame.astype({name: kind for name, kind in NUMBERS.items() if name in columns})


def named(steps: Steps) -> str:
    """Return what a point is called that is so many steps from the candidate."""
    return point_powers(moved(CENTRE, *steps))


def run_of(steps: Steps, seed: int) -> str:
    return f"run{steps[0]}{steps[1]}-{seed}"


def points_of(scores: Mapping[Steps, float | None], **columns: Any) -> pd.DataFrame:
    """Return a frame of points by steps from the candidate; of a column that is given, a value for all or by steps."""
    rows = []
    for steps, score in scores.items():
        point, role = moved(CENTRE, *steps), "neighbour" if steps in SIX else "other"
        decay = point["lr"] * point["wd"]
        row = FAMILY | {"point": named(steps), "x": point["lr"], "y": point["wd"], "x_place": log2(point["lr"])}
        row |= {"y_place": log2(point["wd"]), "x_steps": steps[0], "y_steps": steps[1], "as_good": False, "seeds": 3}
        row |= {"role": "candidate" if steps == (0, 0) else role, "runs": f"run{steps[0]}{steps[1]}"}
        row |= {"state": "diverged" if score is None else "done", "score": score, "error": 0.01, "metric": LOWEST_LOSS}
        row |= {"lr_wd": format_power(decay, 3), "time_scale": f"{1 / decay:.0f} steps"}
        row["colour"] = strategy_colour(columns.get("strategy", FAMILY["strategy"]))
        for name, value in columns.items():
            row[name] = value.get(steps, row.get(name)) if isinstance(value, Mapping) else value
        row["error"] = None if score is None else row["error"]
        row["told"] = "" if score is None else score_with_error(score, row["error"], row["metric"])
        rows.append(row)
    return _frame(rows, POINT_COLUMNS)


def curves_of(
    points: pd.DataFrame, values: Mapping[Steps, Mapping[int, Sequence[float]]], quantity: str = "val_loss"
) -> pd.DataFrame:
    """Return a frame of curves: of each point, by seed, values of a quantity at epochs 1, 2, 3, ..."""
    by_point = points.set_index("point")
    rows = []
    for steps, seeds in values.items():
        shared = by_point.loc[named(steps), [*FAMILY, "role", "state"]].to_dict() | {"point": named(steps)}
        for seed, along in seeds.items():
            run = {"run": run_of(steps, seed), "seed": seed, "counted": seed < FRESH, "unit": "epoch"}
            rows += [shared | run | {"step": 10 * k, "trained": k, quantity: v} for k, v in enumerate(along, 1)]
    return _frame(rows, [*CURVE_COLUMNS, *TRAINING, *EVALUATIONS])


def spikes_of(points: pd.DataFrame, *spikes: tuple[Steps, int, float, str, float]) -> pd.DataFrame:
    """Return a frame of spikes: each of a point, a seed, an epoch, a quantity and a value."""
    roles = points.set_index("point")["role"]
    rows = [
        {"point": named(steps), "role": roles[named(steps)], "run": run_of(steps, seed), "seed": seed, "step": 10 * at}
        | {"trained": at, "quantity": quantity, "value": value, "told": f"{quantity} went up at {at}"}
        for steps, seed, at, quantity, value in spikes
    ]
    return _frame(rows, SPIKE_COLUMNS)


def no_surface() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return frames of a fitted curve and an optimum where there is no surface."""
    return fitted_curve_frame([]), optimum_frame([])


def searched(low: Steps, high: Steps) -> pd.DataFrame:
    """Return a frame of the ranges that proposers chose from."""
    return pd.DataFrame([low, high], columns=["x_steps", "y_steps"])


def neighbours_of(centre: Point, axis: Axis) -> list[Steps]:
    """Return the neighbours of a point as a verdict has them, in steps from it."""
    lr, wd = map(log2, centre)
    around = neighbours(centre, dict.fromkeys(centre.values, axis))
    return [(round(log2(point["lr"]) - lr), round(log2(point["wd"]) - wd)) for point in around]
