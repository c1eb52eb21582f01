"""Frames that the figures draw: one row per lattice point, per step of a curve, per spike."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice

import pandas as pd

from ettsweep.powers import log2
from ettsweep.quantities import score_with_error
from ettsweep.report.families import JudgedFamily
from ettsweep.report.formats import point_powers, standard_error, strategy_colour
from ettsweep.report.run_histories import EVALUATIONS, TRAINING, RunHistories, evaluation_columns
from ettsweep.report.tables import typed_frame
from ettsweep.report.time_scale import time_scale
from ettsweep.runs.index import Run
from ettsweep.runs.point import Point
from ettsweep.runs.spec import USUAL_AXES
from ettsweep.strategies.strategy import map_point
from ettsweep.study.study import Study

OWNER_COLUMNS = ("sweep", "family", "model", "strategy", "colour", "axes")
POINT_COLUMNS = (
    *(
        *OWNER_COLUMNS,
        "point",
        "x",
        "y",
        "x_place",
        "y_place",
        "x_steps",
        "y_steps",
        "common_log2_lr",
        "common_log2_wd",
    ),
    *("role", "state", "metric", "score", "error", "seeds", "told", "proposal", "as_good", "runs"),
    *("lr_wd", "time_scale"),
)
CURVE_COLUMNS = (*(*OWNER_COLUMNS, "point", "role", "run", "seed", "counted", "state", "unit", "step", "trained"),)
TEXT = {*OWNER_COLUMNS, "point", "role", "run", "runs", "state", "unit", "told", "quantity", "lr_wd", "time_scale"}
COUNTS = {"x_steps", "y_steps", "seed", "seeds", "step", "proposal"}
SPIKE_COLUMNS = (*OWNER_COLUMNS, "point", "role", "run", "seed", "step", "trained", "quantity", "value", "told")


def points_frame(families: Iterable[JudgedFamily]) -> pd.DataFrame:
    """Return one row per lattice point of each family that was requested, trained, suggested, or is a neighbour.

    Columns:
        colour: of the strategy or variant in figures.
        axes: names of the axes, x and then y, with a comma between.
        x, y: values along both; missing without a second axis.
        x_place, y_place: log2 of these, or on a linear axis themselves, see `Axis.place`; missing for a fixed 0.
        x_steps, y_steps: cell from the candidate, or from the first point, see `Study.cell`; missing off its lattice.
        common_log2_lr, common_log2_wd: mapped to the coordinates of the standard strategy by powers of the width.
        role: candidate, neighbour or other.
        state: the foremost of its seeds', as in `State`; done and diverged are finished.
        score, error: mean over the seeds that count, and its standard error; missing if a seed diverged or none has
            finished.
        told: score and error as text.
        proposal: 1, 2, ... in the order in which a search suggested points; missing for others.
        as_good: `True` if the point is no worse than the candidate by more than the margin, with the confidence.
        runs: ids, separated by spaces.
        lr_wd, time_scale: decay of a step and 1 / (lr wd) as text, see `TimeScale`.
    """
    rows = [row for family in families for row in _point_rows(family)]
    return typed_frame(rows, POINT_COLUMNS, TEXT, COUNTS, {"as_good": "bool", "metric": "object"})


def _point_rows(family: JudgedFamily) -> list[tuple[object, ...]]:
    study = family.study
    # Requested points and neighbours without a run are on the map too, as missing.
    points = dict.fromkeys([*family.points, *study.seeds_by_point, *family.neighbours])
    if not points:  # a search that has suggested nothing yet
        return []
    origin, rows = family.candidate or min(points, key=tuple), list[tuple[object, ...]]()
    for point in sorted(points, key=tuple):
        scored, members = family.study_state.score_point(point), family.points.get(point, [])
        scores = [run.score for run in family.counted_runs(members) if run.state.finished]
        # A point with a diverged seed has no mean.
        error = None if scored.score is None else standard_error(scores)
        metric = study.metric
        score_cell = "" if scored.score is None else score_with_error(scored.score, error, metric)
        at = [point[name] for name in study.map_axes]
        axes = [study.axes[name] for name in study.map_axes]
        places = [axis.place(value) if value or axis.has_zero else None for axis, value in zip(axes, at, strict=True)]
        rows.append(
            (
                *(*_owner_columns(study), point_powers(point), *_two(at, None), *_two(places, None)),
                *(*(study.cell(point, origin) or (None, None)), *_common_log2(study, point)),
                *(
                    family.role(point),
                    scored.state.value,
                    metric,
                    scored.score,
                    error,
                    scored.runs,
                    score_cell,
                ),
                *(study.suggestion_numbers.get(point), point in family.as_good, " ".join(run.id for run in members)),
                *((scale := time_scale(point, study.base.info)).lr_wd_text, scale.text),
            )
        )
    return rows


def _two(values: Iterable[object], default: object) -> tuple[object, object]:
    """Return what is of one or two axes as the values of two columns."""
    first, second = islice(chain(values, [default]), 2)
    return first, second


def _owner_columns(study: Study) -> tuple[str, ...]:
    strategy = " ".join(study.strategy.split())  # Vega expressions break at unusual line separators
    colour = strategy_colour(strategy, study.variant_number)
    return study.sweep, study.family, study.model, strategy, colour, ", ".join(study.map_axes)


def _common_log2(study: Study, point: Point) -> tuple[float | None, float | None]:
    """Return log2 of (lr, wd) in the coordinates of the standard strategy."""
    info, s = study.base.info, study.base.strategy.s
    lr, wd = (point.values.get(name, 0.0) for name in USUAL_AXES)
    if info.width is not None:
        lr, wd = map_point(lr, wd, s, None, info.width, info.factor_rule)
    return log2(lr), log2(wd)


# --- curves ---------------------------------------------------------------------------------------------------------


def curves_frame(
    families: Sequence[JudgedFamily], histories: RunHistories, runs: Collection[str] | None = None
) -> pd.DataFrame:
    """Return steps and evaluations of runs, thinned.

    They are all runs of the families whose curves are drawn, or those with the ids `runs`.

    Columns:
        role: that of the run's point, as in `points_frame`.
        counted: `True` if its seed counts for the verdict; the candidate's fresh seeds do not.
        trained: the step in `unit`: epochs, or steps where the length of an epoch is unknown before training.
        loss, grad_norm: means since the row before (nats; norm of all gradients before clipping).
        val_loss, val_accuracy: of evaluations (nats; a fraction); and the column of the score, if that is another.
    """
    scored = {column: None for family in families for column in evaluation_columns(family.study.metric)}
    quantities = [*TRAINING, *dict.fromkeys((*EVALUATIONS, *scored))]
    table_rows = [row for family in families for row in _curve_rows(family, histories, quantities, runs)]
    return typed_frame(table_rows, [*CURVE_COLUMNS, *quantities], TEXT, COUNTS, {"counted": "bool"})


def _curve_rows(
    family: JudgedFamily,
    histories: RunHistories,
    quantities: Sequence[str],
    runs: Collection[str] | None,
) -> Iterable[tuple[object, ...]]:
    for run, run_columns in _runs_with_columns(family, histories.seeds if runs is None else None):
        if (runs is None or run.id in runs) and (history := histories.get(run)):
            columns = *run_columns, run.state.value, history.unit
            # Steps and evaluations are rows of their own: they are thinned differently.
            for step, loss, norm in history.training:
                values = dict(zip(TRAINING, (loss, norm), strict=True))
                yield (*columns, step, step / history.unit_steps, *map(values.get, quantities))
            for step, *evaluated in history.evaluations:
                values = dict(zip(history.columns, evaluated, strict=True))
                yield (*columns, step, step / history.unit_steps, *map(values.get, quantities))


def spikes_frame(families: Sequence[JudgedFamily], histories: RunHistories) -> pd.DataFrame:
    """Return one row per spike of a finished run, and one per divergence, of runs with curves.

    Columns:
        quantity: the column of `curves_frame` that spiked.
        value: of that column there; for a divergence, the last finite loss.
        told: a description, as text.
    """
    table_rows = [
        # All but `counted`, which `SPIKE_COLUMNS` lack.
        (*columns[:-1], spike.step, spike.step / history.unit_steps, spike.quantity, spike.value, spike.text)
        for family in families
        for run, columns in _runs_with_columns(family, histories.seeds)
        if (history := histories.get(run))
        for spike in history.spikes
    ]
    return typed_frame(table_rows, SPIKE_COLUMNS, TEXT, COUNTS)


def _runs_with_columns(family: JudgedFamily, seeds: int | None = None) -> Iterator[tuple[Run, tuple[object, ...]]]:
    """Yield the runs of a family, or the first of each point, with their values of the columns `sweep` to `counted`."""
    owner, counts = _owner_columns(family.study), family.study_state.is_verdict_seed
    for point, members in family.points.items():
        columns = *owner, point_powers(point), family.role(point)
        for run in members[:seeds]:
            yield run, (*columns, run.id, run.seed, counts(run.seed))


def optima_frame(families: Iterable[JudgedFamily]) -> pd.DataFrame:
    """Return one row per finished run of each candidate, fresh seeds too.

    `counted` is `False` for fresh seeds, which do not count for the verdict.
    """
    rows = [
        (*about, family.study.metric, run.score)
        for family in families
        for run, about in _runs_with_columns(family)
        if run.state.finished and about[len(OWNER_COLUMNS) + 1] == "candidate"  # the role
    ]
    columns = [*OWNER_COLUMNS, "point", "role", "run", "seed", "counted", "metric", "score"]
    return typed_frame(rows, columns, TEXT, COUNTS, {"counted": "bool", "metric": "object"})


def ranges_frame(family: JudgedFamily) -> pd.DataFrame | None:
    """Return the two corners of the ranges that samplers searched, in lattice steps from the candidate.

    None if no sampler suggested points.
    """
    study = family.study
    if not study.suggested_points:
        return None
    origin = family.candidate or min(family.points, key=tuple)
    corners = [cell for corner in study.box if (cell := study.cell(corner, origin))]
    frame = pd.DataFrame(corners, columns=["x_steps", "y_steps"])
    return None if frame.empty else frame
