"""Frames of a family made by hand, as `report.frames` has them: every number in them is known."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ettsweep.powers import format_power, log2
from ettsweep.quantities import score_with_error
from ettsweep.report.formats import point_powers
from ettsweep.report.frames import CURVE_COLUMNS, POINT_COLUMNS, SPIKE_COLUMNS
from ettsweep.report.run_histories import EVALUATIONS, TRAINING
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


def named(steps: Steps) -> str:
    """Return what a point is called that is so many steps from the candidate."""
    return point_powers(moved(CENTRE, *steps))


def points_of(scores: Mapping[Steps, float | None], **columns: Any) -> pd.DataFrame:
    """Return a frame of points by steps from the candidate; of a column that is given, a value for all or by steps."""

    def given(name: str, steps: Steps, default: Any) -> Any:
        value = columns.get(name, default)
        return value.get(steps, default) if isinstance(value, Mapping) else value

    rows = []
    for steps, score in scores.items():
        point, metric = moved(CENTRE, *steps), given("metric", steps, LOWEST_LOSS)
        role = "candidate" if steps == (0, 0) else "neighbour" if steps in SIX else "other"
        error = given("error", steps, 0.01) if score is not None else None
        mapping = {
            **{"sweep": "w", "family": "f", "model": "m", "strategy": "ntk", "axes": "lr, wd", "point": named(steps)},
            **dict(zip(("x", "y", "x_place", "y_place"), (*point, *map(log2, point)), strict=True)),
            **{"x_steps": steps[0], "y_steps": steps[1], "role": role, "metric": metric},
            **{"state": "done" if score is not None else "diverged", "score": score, "error": error, "seeds": 3},
            **{
                "told": "" if score is None else score_with_error(score, error, metric),
                "as_good": False,
                "runs": f"run{steps[0]}{steps[1]}",
                "lr_wd": format_power(point["lr"] * point["wd"], 3),
                "time_scale": f"{1 / (point['lr'] * point['wd']):.0f} steps",
            },
        }
        rows.append({name: given(name, steps, mapping.get(name)) for name in POINT_COLUMNS})
    kinds = {"seeds": "Int64", "proposal": "Int64"} | dict.fromkeys(("score", "error", "x_steps", "y_steps"), "float64")
    return pd.DataFrame(rows, columns=list(POINT_COLUMNS)).astype(kinds)


def curves_of(
    points: pd.DataFrame, values: Mapping[Steps, Mapping[int, Sequence[float]]], quantity: str = "val_loss"
) -> pd.DataFrame:
    """Return a frame of curves: of each point, by seed, values of a quantity at epochs 1, 2, 3, ..."""
    set_index_result = points.set_index("point")
    rows = []
    for steps, seeds in values.items():
        name = named(steps)
        to_dict_result = set_index_result.loc[
            name, ["sweep", "family", "model", "strategy", "axes", "role", "state"]
        ].to_dict()
        for seed, along in seeds.items():
            mapping = {
                "point": name,
                "run": run_of(steps, seed),
                "seed": seed,
                "counted": seed < FRESH,
                "unit": "epoch",
            }
            rows += [
                to_dict_result | mapping | {"step": 10 * k, "trained": float(k), quantity: v}
                for k, v in enumerate(along, 1)
            ]
    frame = pd.DataFrame(rows, columns=[*CURVE_COLUMNS, *TRAINING, *EVALUATIONS])
    return frame.astype(dict.fromkeys(("loss", "grad_norm", "val_loss", "val_accuracy"), "float64"))


def spikes_of(points: pd.DataFrame, *spikes: tuple[Steps, int, float, str, float]) -> pd.DataFrame:
    """Return a frame of spikes: each of a point, a seed, an epoch, a quantity and a value."""
    roles = points.set_index("point")["role"]
    rows = [
        {"point": named(steps), "role": roles[named(steps)], "run": run_of(steps, seed), "seed": seed, "step": 10 * at}
        | {"trained": at, "quantity": quantity, "value": value, "told": f"{quantity} went up at {at}"}
        for steps, seed, at, quantity, value in spikes
    ]
    return pd.DataFrame(rows, columns=list(SPIKE_COLUMNS)).astype({"value": "float64", "trained": "float64"})


def run_of(steps: Steps, seed: int) -> str:
    return f"run{steps[0]}{steps[1]}-{seed}"


def no_surface() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return frames of a fitted curve and an optimum where there is no surface."""
    from ettsweep.report.surface_frames import fitted_curve_frame, optimum_frame

    return fitted_curve_frame([]), optimum_frame([])


def searched(low: Steps, high: Steps) -> pd.DataFrame:
    """Return a frame of the ranges that proposers chose from."""
    return pd.DataFrame([low, high], columns=["x_steps", "y_steps"])


def neighbours_of(centre: Point, axis: Axis) -> list[Steps]:
    """Return the neighbours of a point as a verdict has them, in steps from it."""
    moved = (tuple(map(log2, point)) for point in neighbours(centre, dict.fromkeys(centre.values, axis)))
    lr, wd = map(log2, centre)
    return [(round(i - lr), round(j - wd)) for i, j in moved]
