"""Import of scores that exist: as runs of a family whose program is known, or as a sweep of numbers alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ettsweep.errors import CorruptError, InputError
from ettsweep.runs.folder import RunDir
from ettsweep.runs.index import Run, RunIndex
from ettsweep.runs.point import Point
from ettsweep.runs.result import imported_result
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State
from ettsweep.runs.trainables import IMPORTED
from ettsweep.study.grid_file import MAX_RUNS
from ettsweep.study.judgement import evaluate
from ettsweep.study.lattice import PRINTED_TOLERANCE, Axis, Centre
from ettsweep.study.score_rows import Reading
from ettsweep.study.stated_scores import ImportedRecipe, StatedScore, axis_of
from ettsweep.study.study import Study
from ettsweep.study.sweep import ImportedPoint, Sweep
from ettsweep.study.sweep_spec import SweepSpec

MAX_PROBLEMS = 10
"""Rows of a source that a message names."""


@dataclass(frozen=True)
class ImportPlan:
    """What an import does with each score: nothing that was trained here is replaced.

    Attributes:
        study: that the runs belong to.
        new: runs without a score so far.
        unchanged: imported before, with this score.
        changed: imported before, with another score.
        trained: trained here, or about to be.
    """

    study: Study
    new: list[tuple[RunSpec, StatedScore]] = field(default_factory=list)
    unchanged: list[tuple[RunSpec, StatedScore]] = field(default_factory=list)
    changed: list[tuple[RunSpec, StatedScore]] = field(default_factory=list)
    trained: list[tuple[RunSpec, StatedScore]] = field(default_factory=list)

    @property
    def points(self) -> list[ImportedPoint]:
        """All points with a score, each with its seeds."""
        seeds: dict[Point, list[int]] = {}
        for spec, _ in (*self.new, *self.unchanged, *self.changed, *self.trained):
            seeds.setdefault(spec.point, []).append(spec.seed)
        return [ImportedPoint(lr=lr, wd=wd, seeds=tuple(sorted(each))) for (lr, wd), each in seeds.items()]


def is_numbers_alone(sweep: Sweep) -> bool:
    """Return whether a sweep has imported scores without a program."""
    return sweep.sweep_specs[0].recipe.trainable in IMPORTED


def plan_import(study: Study, scores: Sequence[StatedScore], run_index: RunIndex) -> ImportPlan:
    """Return what an import does; write nothing.

    Values of lr and wd that were printed with four digits count as the lattice values that they stand for; any others
    are refused.

    Args:
        study: whose lattice they have to lie on.
        scores: each lr, wd and seed once.
        run_index: all runs.

    Raises:
        InputError: all scores off the lattice, with the nearest value; or two are of one run.
        CorruptError: the folder of a run cannot be read.
    """
    plan, problems = ImportPlan(study), list[str]()
    state = evaluate(study, run_index.family_runs(study.family))
    origins: dict[str, str] = {}
    for score in scores:
        try:
            point = state.resolve_point(Point(score.lr, score.wd), str(score.origin))
        except InputError as error:
            problems.append(str(error))
            continue
        (spec,) = state.specs([point], [score.seed])
        run_id = spec.run_id
        if other := origins.get(run_id):
            problems.append(f"{score.origin}: lr {score.lr:g}, wd {score.wd:g} is the point of {other}, of one seed")
            continue
        origins[run_id] = str(score.origin)
        if run_id in run_index.broken:
            raise CorruptError(run_index.broken[run_id])
        _group(plan, run_index.runs.get(run_id), score).append((spec, score))
    if problems:
        more = f"... and {len(problems) - MAX_PROBLEMS} more" if len(problems) > MAX_PROBLEMS else ""
        raise InputError.of([*problems[:MAX_PROBLEMS], *filter(None, [more])])
    return plan


def _group(plan: ImportPlan, run: Run | None, score: StatedScore) -> list[tuple[RunSpec, StatedScore]]:
    if run is None or run.state is State.MISSING:
        return plan.new
    if run.origin is None:
        return plan.trained
    return plan.unchanged if run.score == score.score else plan.changed


def check_changed(plan: ImportPlan, run_index: RunIndex, *, replaces: bool) -> None:
    """Check that scores which differ from those imported before are to replace them.

    Raises:
        InputError: they are not.
    """
    if not plan.changed or replaces:
        return
    lines = [
        f"{score.origin}: run {spec.run_id} has the score {_told(run_index.runs[spec.run_id].score)}, imported from "
        f"{run_index.runs[spec.run_id].origin}, here it is {_told(score.score)}"
        for spec, score in plan.changed
    ]
    more = [f"... and {len(lines) - MAX_PROBLEMS} more"] if len(lines) > MAX_PROBLEMS else []
    raise InputError.of([*lines[:MAX_PROBLEMS], *more, "--replace takes the new scores; nothing was imported"])


def _told(score: float | None) -> str:
    return "diverged" if score is None else f"{score:.6g}"


def carry_out(results: Path, plan: ImportPlan) -> int:
    """Write the runs, and return how many of them were written; those that somebody trains by now are left alone.

    Raises:
        StorageError: the results folder cannot be written.
    """
    written = 0
    for spec, score in (*plan.new, *plan.changed):
        run = RunDir.create(results, spec)
        result = imported_result(spec, score.score, score.history, score.origin)
        written += run.import_result(result, score.history)
    return written


# --- numbers alone ----------------------------------------------------------------------------------------------------


def numbers_alone(
    scores: Sequence[StatedScore],
    name: str,
    column: str,
    mode: Literal["min", "max"],
    reading: Reading,
    sweep: Sweep | None,
) -> SweepSpec:
    """Return the request of a sweep of scores without a program, on the lattice of the sweep if there is one already.

    Args:
        scores: that it is to have.
        name: of the sweep.
        column: of the score.
        mode: whether lower or higher is better.
        reading: how curves were scored.
        sweep: of this name, of numbers alone; None if there is none yet.

    Raises:
        InputError: lr and wd are no lattice, not that of the sweep, or a single point.
    """
    seeds = tuple(sorted({score.seed for score in scores}))
    take = reading.take if any(score.history for score in scores) else "last"
    recipe = ImportedRecipe(source=name, column=column, mode=mode, take=take)
    if sweep is not None:
        first = sweep.sweep_specs[0]
        (study,) = sweep.studies
        recipe = recipe.model_copy(update={"source": first.recipe.labels.model})
        plan = plan_import(study, scores, RunIndex({}, {}))
        lr = _within(study.lr, study.base.lr, [point.lr for point in plan.points])
        wd = _within(study.wd, study.base.wd, [point.wd for point in plan.points])
        return first.model_copy(update={"recipe": recipe, "lr": lr, "wd": wd, "seeds": seeds})
    (lr, lr_start), (wd, wd_start) = (
        _axis(key, scores, {getattr(score, key) for score in scores}) for key in ("lr", "wd")
    )
    if lr.fixed and wd.fixed:
        raise InputError(f"{scores[0].origin.file}: a single point has no neighbours: several lr or wd are expected")
    if (count := len(lr.offsets()) * len(wd.offsets()) * len(seeds)) > MAX_RUNS:
        raise InputError(f"{scores[0].origin.file}: its lattice has {count:,} runs, the limit is {MAX_RUNS:,}")
    return SweepSpec(
        grid=name,
        recipe=recipe,
        mlp_factor="ignore",
        centres={"standard": Centre(lr=lr_start, wd=wd_start)},
        lr=lr,
        wd=wd,
        seeds=seeds,
    )


def _axis(name: str, scores: Sequence[StatedScore], values: set[float]) -> tuple[Axis, float]:
    """Return the axis of some values, and the lowest of them.

    Raises:
        InputError: one is no lattice value, up to the digits of a printed one.
    """
    axis, lattice_values, _ = axis_of(name, values)
    tolerance = min(PRINTED_TOLERANCE, axis.step / 2)
    off = [v for v in sorted(values) if v and abs(math.log2(v / lattice_values[v])) > tolerance]
    if off:
        pairs = ", ".join(f"{value:g} (nearest: {lattice_values[value]:.6g})" for value in off[:MAX_PROBLEMS])
        raise InputError(
            f"{scores[0].origin.file}: {name}: {pairs}: what is kept lies in even steps in log2, here {axis.step:.6g}; "
            "leave out these rows; `ettsweep verdict`, which keeps nothing, takes values that are up to a tenth of a "
            "step off"
        )
    return axis, min(lattice_values.values())


def _within(axis: Axis, origin: float, values: Sequence[float]) -> Axis:
    """Return an axis with the range of some values."""
    if axis.fixed:
        return axis
    offsets = [round(math.log2(value / origin) / axis.step) * axis.step for value in values]
    return axis.model_copy(update={"low": min(offsets), "high": max(offsets)})
