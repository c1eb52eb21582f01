"""Frames that figures are drawn from: a row for each lattice point, for each step of a curve, for each spike."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence

import pandas as pd

from ettsweep.powers import log2
from ettsweep.report.families import JudgedFamily
from ettsweep.report.formats import plus_minus, point_text, score_text, standard_error
from ettsweep.report.run_histories import EVALUATIONS, TRAINING, RunHistories
from ettsweep.strategies.optimizers import factors_of
from ettsweep.strategies.strategy import map_point
from ettsweep.study.history import course
from ettsweep.study.lattice import Point, snap
from ettsweep.study.run_index import Run
from ettsweep.study.study import Study
from ettsweep.study.verdict import Verdict

OWNER = ("sweep", "family", "model", "strategy")
POINT_COLUMNS = (
    *(*OWNER, "point", "lr", "wd", "log2_lr", "log2_wd", "lr_steps", "wd_steps", "common_log2_lr", "common_log2_wd"),
    *("role", "state", "metric", "score", "error", "seeds", "told", "proposal", "as_good", "runs"),
)
CURVE_COLUMNS = (
    *(*OWNER, "point", "role", "run", "seed", "counted", "state", "unit", "step", "trained"),
    *(*TRAINING, *EVALUATIONS),
)
SPIKE_COLUMNS = (*OWNER, "point", "role", "run", "seed", "step", "trained", "quantity", "value", "told")


def points_frame(families: Iterable[JudgedFamily]) -> pd.DataFrame:
    """Return a row for each lattice point of each family that was asked for, run, proposed or is a neighbour.

    Columns:
        lr_steps, wd_steps: lattice steps from the candidate, or the first point; missing off its lattice.
        common_log2_lr, common_log2_wd: mapped to the coordinates of the standard strategy by powers of the width.
        role: candidate, neighbour, other.
        state: of its seed that is farthest from done; done and diverged are finished.
        score, error: mean over the seeds that count and its standard error; missing where one diverged or none is
            finished.
        told: the score as people read it.
        proposal: its number, where a search named it.
        as_good: whether it is no worse than the candidate by more than the margin, with the confidence.
        runs: ids, parted by blanks.
    """
    rows = [row for family in families for row in _points(family)]
    frame = pd.DataFrame(rows, columns=list(POINT_COLUMNS))
    kinds = {"seeds": "Int64", "proposal": "Int64", "score": "float64", "error": "float64", "as_good": "bool"}
    return frame.astype(kinds)


def _points(family: JudgedFamily) -> list[tuple[object, ...]]:
    verdict, study = family.verdict, family.verdict.study
    around = {neighbour.point for neighbour in verdict.neighbours}
    plateau = set(verdict.bound.plateau) if verdict.bound else set()
    points = dict.fromkeys([*family.points, *study.asked, *around])
    if not points:  # a search that has proposed nothing yet
        return []
    origin, rows = verdict.point or min(points, key=tuple), list[tuple[object, ...]]()
    for point in sorted(points, key=tuple):
        scored, members = family.study_state.at(point), family.points.get(point, [])
        counted = [run.score for run in family.counted(members) if run.state.finished]
        error = None if scored.score is None else standard_error(counted)
        metric = study.metric.metric
        told = "" if scored.score is None else plus_minus(scored.score, error, metric) or ""
        rows.append(
            (
                *(*_owner(verdict), point_text(point), point.lr, point.wd, *point.log2()),
                *(*_steps(study, origin, point), *_common(study, point)),
                *(_role(verdict, around, point), scored.state.value, metric, scored.score, error, scored.runs, told),
                *(study.numbers.get(point), point in plateau, " ".join(run.id for run in members)),
            )
        )
    return rows


def _role(verdict: Verdict, around: Collection[Point], point: Point) -> str:
    return "candidate" if point == verdict.point else "neighbour" if point in around else "other"


def _owner(verdict: Verdict) -> tuple[str, str, str, str]:
    study, strategy = verdict.study, " ".join(verdict.strategy.split())  # expressions of Vega take no other line ends
    return study.sweep, verdict.family, study.model, strategy


def _steps(study: Study, origin: Point, point: Point) -> tuple[float | None, float | None]:
    """Return a point's place on the lattice, in steps; nothing where it is off it."""
    free = study.wd if study.lr.fixed else study.lr  # whose steps are those along a fixed axis too
    lr_step, wd_step = free.step, (free if study.wd.fixed else study.wd).step
    (lr0, wd0), (lr, wd) = origin.log2(), point.log2()
    if wd0 != wd and math.inf in (-wd0, -wd):
        return None, None
    i, j = round((lr - lr0) / lr_step), round((wd - wd0) / wd_step) if wd0 != wd else 0
    on = snap(origin.moved(i * lr_step, j * wd_step), [point]) == point
    return (i, j) if on else (None, None)


def _common(study: Study, point: Point) -> tuple[float | None, float | None]:
    """Return log2 of (lr, wd) in the coordinates of the standard strategy."""
    base = study.base
    lr, wd = map_point(point.lr, point.wd, base.strategy.s, None, base.model.width, factors_of(base.optimizer))
    return log2(lr), log2(wd)


# --- curves ---------------------------------------------------------------------------------------------------------


def curves_frame(families: Sequence[JudgedFamily], histories: RunHistories, rows: int) -> pd.DataFrame:
    """Return a row for each step and each evaluation that is kept of each run, so many at most, by run and step.

    Columns:
        role: of the run's point, as in the frame of points.
        counted: whether its seed counts for the verdict; fresh seeds, of the candidate, do not.
        trained: steps as epochs, or steps where the data alone say how long an epoch is: `unit`.
        loss, grad_norm: means since the row before (nats; the norm of all gradients before clipping).
        val_loss, val_accuracy: of evaluations (nats; a fraction).
    """
    found = [row for family in families for row in _curves(family, histories, rows)]
    frame = pd.DataFrame(found, columns=list(CURVE_COLUMNS))
    return frame.astype({"counted": "bool"} | dict.fromkeys((*TRAINING, *EVALUATIONS), "float64"))


def _curves(family: JudgedFamily, histories: RunHistories, rows: int) -> Iterable[tuple[object, ...]]:
    for run, about in _members(family):
        if history := histories.of(run, rows):
            whose = *about, run.state.value, history.unit
            for step, loss, norm in history.training:
                yield (*whose, step, step / history.unit_steps, loss, norm, None, None)
            for step, loss, accuracy in history.evaluations:
                yield (*whose, step, step / history.unit_steps, None, None, loss, accuracy)


def spikes_frame(families: Sequence[JudgedFamily], histories: RunHistories, rows: int) -> pd.DataFrame:
    """Return a row for each spike that finished runs counted, and for where one diverged.

    Columns:
        quantity: the column of curves that it is one of.
        value: of that column there; of a divergence, the last finite loss.
        told: what it is, in words.
    """
    found = [
        (*about[:-1], spike.step, spike.step / history.unit_steps, spike.quantity, spike.value, spike.told)
        for family in families
        for run, about in _members(family)
        if (history := histories.of(run, rows))
        for spike in history.spikes
    ]
    return pd.DataFrame(found, columns=list(SPIKE_COLUMNS)).astype({"value": "float64"})


def _members(family: JudgedFamily) -> Iterator[tuple[Run, tuple[object, ...]]]:
    """Yield the runs of a family with the columns that say whose they are."""
    verdict = family.verdict
    around = {neighbour.point for neighbour in verdict.neighbours}
    for point, members in family.points.items():
        for run in members:
            about = (*_owner(verdict), point_text(point), _role(verdict, around, point), run.id, run.spec.seed)
            yield run, (*about, family.study_state.counts(run.spec.seed))


def optima_frame(families: Iterable[JudgedFamily]) -> pd.DataFrame:
    """Return a row for each finished run of each candidate, fresh ones too: those that do not count for the verdict."""
    rows = [
        (*about, family.verdict.study.metric.metric, run.score)
        for family in families
        for run, about in _members(family)
        if run.state.finished and about[5] == "candidate"
    ]
    columns = [*OWNER, "point", "role", "run", "seed", "counted", "metric", "score"]
    return pd.DataFrame(rows, columns=columns).astype({"score": "float64", "counted": "bool"})


def course_frame(family: JudgedFamily) -> pd.DataFrame:
    """Return a row for each finished run of a search, in order: see `sweep.course`; none where nothing was proposed."""
    metric = family.verdict.study.metric.metric
    rows = [
        (n, point_text(one.point), one.run.id, one.run.spec.seed, one.proposal, one.run.score, one.best)
        for n, one in enumerate(course(family.study_state), 1)
    ]
    columns = ["number", "point", "run", "seed", "proposal", "score", "best"]
    frame = pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(("proposal", "score", "best"), "float64"))
    told = ["diverged" if score != score else score_text(score, metric) for score in frame["score"]]
    return frame.assign(told=told)


def ranges_frame(family: JudgedFamily) -> pd.DataFrame | None:
    """Return the corners between which proposers chose, in steps from the candidate; None where none did."""
    study = family.verdict.study
    if not study.proposed:
        return None
    origin = family.verdict.point or min(family.points, key=tuple)
    corners = [_steps(study, origin, corner) for corner in study.box]
    frame = pd.DataFrame(corners, columns=["lr_steps", "wd_steps"]).dropna()
    return None if frame.empty else frame
