"""Results in a notebook: `load("results")` returns pandas frames of runs, points, curves and verdicts, and figures."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from ettsweep.console import format_count
from ettsweep.errors import InputError, unknown_name
from ettsweep.files import Json, expand_home
from ettsweep.launch.follow import read_run_index
from ettsweep.report import family_charts
from ettsweep.report.families import JudgedFamily, judged_families, strategy_comparisons, with_verdict_runs
from ettsweep.report.family_charts import FamilyFrames
from ettsweep.report.figures.chart_data import FILE_WIDTH
from ettsweep.report.run_histories import RunHistories, rows_per_run
from ettsweep.report.tables import optima_table, runs_table
from ettsweep.report.theme import CONFIG
from ettsweep.runs.folder import runs_dir, sweeps_dir
from ettsweep.runs.index import Run, count_states
from ettsweep.strategies.strategy import usual_name
from ettsweep.study.judgement import judge
from ettsweep.study.sweep_store import StudiesByFamily, load_sweep_store, runs_of_sweeps

if TYPE_CHECKING:
    import altair as alt


def load(folder: str | Path, *sweeps: str) -> "Results":
    """Read a results folder once, without writing there; later changes on disk do not show.

    Args:
        folder: the folder that commands call --results.
        sweeps: names of sweeps; by default all, and runs without a sweep.

    Raises:
        InputError: the folder does not exist, is not a results folder, or has no such sweep.
        CorruptError: a sweep given by name cannot be read.
    """
    folder = Path(expand_home(str(folder)))
    _check_folder(folder)
    store, run_index = load_sweep_store(folder), read_run_index(folder)
    chosen = store.select(sweeps)
    verdicts = judge([study for sweep in chosen for study in sweep.studies], run_index)
    runs = with_verdict_runs(runs_of_sweeps(run_index.runs.values(), store, sweeps), verdicts)
    # With names, only these sweeps matter, and damaged ones have raised.
    unreadable = {**({} if sweeps else store.broken), **run_index.broken}
    for problem in unreadable.values():
        _warn(problem)
    frames = FamilyFrames(judged_families(runs, verdicts), RunHistories(rows_per_run(len(runs)), _warn))
    return Results(folder, runs, frames, store.studies_by_family, unreadable)


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; `load` takes the results folder of ettsweep's commands")
    # An empty folder is fine: no command has written to it yet.
    if not any(subfolder.is_dir() for subfolder in (runs_dir(folder), sweeps_dir(folder))) and any(folder.iterdir()):
        raise InputError(f"{folder} is not a results folder: it has no runs/ and no sweeps/")


def _warn(problem: str) -> None:
    warnings.warn(f"left out: {problem}", stacklevel=2)


@dataclass(frozen=True, repr=False)
class Results:
    """The state of a results folder when it was loaded, as pandas frames; each frame is built on first access.

    lr and wd are numbers; losses are in nats, accuracies and utilisation are fractions, `*_s` are seconds. A family is
    all runs that differ only in lr, wd and seed; the columns `sweep`, `family`, `strategy` and `run` join the frames.
    """

    folder: Path
    _runs: list[Run]
    _frames: FamilyFrames
    _studies_by_family: StudiesByFamily
    _unreadable: dict[str, str]

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row per run, whatever its state.

        Columns:
            run: its id, which is the name of its folder.
            sweep: names of its sweeps, or -.
            family, model, task, strategy, optimizer, precision, lr, wd, seed: the configuration.
            state: done, diverged, running, ..., as in `ettsweep status`.
            best_accuracy, best_loss, ...: scores; missing if a run is unfinished or its task has no such score.
            loss_spikes, grad_spikes, ..., overflow_steps: counts.
            steps, wall_s, device_s, step_s, ...: cost of training.
        """
        return runs_table(self._runs, self._studies_by_family)

    @cached_property
    def verdicts(self) -> pd.DataFrame:
        """One row per strategy and sweep: the best point and its verdict.

        Columns:
            verdict: a word, such as optimal.
            answer: which lr and wd to use, and how much better a neighbour may be.
            statement: the verdict with its bound, such as "optimal within 1.8% (95%)".
            reason: further details, or the answer.
            lr, wd: the candidate.
            metric, seeds, score, std: mean and sample standard deviation over the seeds that chose the candidate.
            fresh_seeds, fresh_score, fresh_std: the same over fresh seeds.
            score_unit: of these scores, nats or fraction.
            bound, confidence, margin: with that confidence, no neighbour is better by more than the bound, a share of
                the score or a difference.
            ...: the other columns of the report's `optima` table, such as spikes of the candidate.
        """
        table = optima_table(self._frames.families)
        position = [*table].index("verdict") + 1
        views = [family.view for family in self._frames.families]
        table.insert(position, "reason", pd.Series([view.reason for view in views], dtype="str"))
        table.insert(position, "statement", pd.Series([view.headline for view in views], dtype="str"))
        table.insert(position, "answer", pd.Series([view.answer for view in views], dtype="str"))
        return table

    @cached_property
    def points(self) -> pd.DataFrame:
        """One row per lattice point of each family, trained or not.

        Columns:
            point: (lr, wd) in powers of two, as text.
            colour: of the strategy or variant in figures.
            axes: names of the axes, x and then y.
            x, y, x_place, y_place: the point as numbers; their log2, or themselves on a linear axis.
            x_steps, y_steps: lattice steps from the candidate; missing off its lattice.
            common_log2_lr, common_log2_wd: mapped to the coordinates of the standard strategy.
            role: candidate, neighbour or other.
            state: the foremost of its seeds', as in `State`.
            metric, score, error, seeds: its name, mean over the seeds that count, and its standard error.
            told: score and error as text.
            proposal: 1, 2, ... in the order in which a search suggested points; missing for others.
            as_good: `True` if the point is no worse than the candidate by more than the margin, with the confidence.
            runs: ids, separated by spaces.
        """
        points = self._frames.points
        return points.assign(metric=pd.Series([metric.name for metric in points["metric"]], dtype="str"))

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Steps and evaluations of each run, thinned to as many rows as the report's page shows.

        Metrics files are read on first access. For all steps of one run:
        `pd.read_json(r.folder / "runs" / run / "metrics.jsonl", lines=True)`.

        Columns:
            point, role, run, seed, state: the run, and the role of its point.
            counted: `True` if its seed counts for the verdict; fresh seeds do not.
            step: optimizer steps.
            trained, unit: the step in epochs, or in steps if the length of an epoch is unknown before training.
            loss, grad_norm: means since the row before; missing in rows of evaluations.
            val_loss, val_accuracy: missing in rows of steps.
        """
        return self._frames.curves

    @cached_property
    def spikes(self) -> pd.DataFrame:
        """One row per spike of a finished run, and one per divergence; read with the curves.

        Columns:
            point, role, run, seed, step, trained: the run, and the time.
            quantity, value: the column of `curves` that spiked, and its value there.
            told: a description, as text.
        """
        return self._frames.spikes

    @property
    def figures(self) -> "Figures":
        """The figures of the report's page, as Altair charts."""
        return Figures(self.folder, self._frames)

    @property
    def broken(self) -> dict[str, str]:
        """Reasons for unreadable runs, by id, and sweeps, by name.

        Damaged metrics appear once you read `curves`.
        """
        return self._unreadable | self._frames.histories.corrupt

    def __str__(self) -> str:
        answers = [f"{family.view.title}: {family.view.answer}" for family in self._frames.families]
        return "\n".join([*answers, repr(self)])

    def __repr__(self) -> str:
        # Sweeps come from families, not from disk: an unreadable sweep counts as broken only.
        states = ", ".join(f"{n} {state}" for state, n in count_states(run.state for run in self._runs).items())
        sweeps = _sweep_names(self._frames.families)
        text = f"{self.folder}: {format_count(len(sweeps), 'sweep')}, {format_count(len(self._runs), 'run')}"
        return text + (f" ({states})" if states else "") + (f", {len(self.broken)} broken" if self.broken else "")


class Figures:
    """The figures of the report's page, each an Altair chart that carries its data.

    `.save("figure.pdf")` writes one, also as svg, png or html; `.properties(title=..., width=...)` changes it. Names of
    strategy and sweep are optional if there is only one.
    """

    def __init__(self, folder: Path, frames: FamilyFrames) -> None:
        self._folder, self._frames = folder, frames
        self._families = [
            family for comparison in strategy_comparisons(frames.families) for family in comparison.families
        ]

    # --- all strategies of a sweep ---

    def strategies(self, sweep: str | None = None) -> "alt.LayerChart":
        """Return the points and optima of all strategies on one map of (lr, wd).

        Raises:
            InputError: fewer than two strategies have a score, or there are several sweeps and none is given.
        """
        return _themed_chart(
            family_charts.strategies(self._comparison_frames(sweep)), "fewer than two strategies have a score"
        )

    def seeds(self, sweep: str | None = None) -> "alt.LayerChart":
        """Return the curves of all optima, one line per seed.

        Raises:
            InputError: no optimum has been evaluated yet, or there are several sweeps and none is given.
        """
        return _themed_chart(family_charts.seeds(self._comparison_frames(sweep)), "no optimum has been evaluated yet")

    def scores(self, sweep: str | None = None) -> "alt.LayerChart":
        """Return the scores of all optima, over the search's seeds and fresh ones.

        Raises:
            InputError: no optimum has a score yet, or there are several sweeps and none is given.
        """
        return _themed_chart(family_charts.scores(self._comparison_frames(sweep)), "no optimum has a score yet")

    # --- one strategy ---

    def lattice(self, strategy: str | None = None, sweep: str | None = None) -> "alt.LayerChart":
        """Return the map of a strategy: hexagons if both axes are searched, scores along a line if one is.

        Raises:
            InputError: it has no run yet, no such strategy, or several families match.
        """
        return _themed_chart(
            family_charts.lattice(self._family_frames(strategy, sweep)), "no axis is searched, or there is no run yet"
        )

    def curves(self, strategy: str | None = None, sweep: str | None = None) -> "alt.LayerChart":
        """Return the losses and gradient norms of a strategy, means over seeds, with spikes.

        Raises:
            InputError: nothing has been recorded yet, no such strategy, or several families match.
        """
        return _themed_chart(
            family_charts.curves(self._family_frames(strategy, sweep)), "nothing has been recorded yet"
        )

    # --- selection ---

    def _comparison_frames(self, sweep: str | None) -> FamilyFrames:
        families = self._families_in(sweep)
        if len(names := _sweep_names(families)) > 1:
            raise InputError(f"there are several sweeps; choose one: {', '.join(map(repr, names))}")
        return self._frames.for_families(families)

    def _family_frames(self, strategy: str | None, sweep: str | None) -> FamilyFrames:
        families = self._families_in(sweep)
        if strategy is not None:
            name, available = usual_name(strategy), {family.study.strategy for family in families}
            if name not in available:
                raise unknown_name("strategy", name, available)
            families = [family for family in families if family.study.strategy == name]
        if len(families) > 1:
            choices = ", ".join(f"({f.study.strategy!r}, {f.study.sweep!r})" for f in families)
            raise InputError(f"several strategies match; choose one by strategy and sweep: {choices}")
        return self._frames.for_families(families)

    def _families_in(self, sweep: str | None) -> list[JudgedFamily]:
        if not self._families:
            raise InputError(f"{self._folder}: no sweeps yet, so there is nothing to draw")
        if sweep is not None and sweep not in (sweeps := _sweep_names(self._families)):
            raise unknown_name("sweep", sweep, sweeps)
        return [family for family in self._families if sweep in (None, family.study.sweep)]


def _sweep_names(families: Sequence[JudgedFamily]) -> list[str]:
    return list(dict.fromkeys(family.study.sweep for family in families))


def _themed_chart(spec: Json | None, reason: str) -> "alt.LayerChart":
    """Return a figure as a chart with the page's look and the width of the report's files."""
    if spec is None:
        raise InputError(f"nothing to draw: {reason}")
    import altair as alt  # imported here: no command needs it

    width = FILE_WIDTH if spec["width"] == "container" else spec["width"]
    # altair finds the layer of each selection in its own objects. A layer alone may be invalid without the data of the
    # whole, which altair validates.
    parts = {
        "layer": [alt.Chart.from_dict(layer, validate=False) for layer in spec["layer"]],
        "params": [alt.TopLevelParameter.from_dict(param) for param in spec.get("params", [])],
    }
    return alt.LayerChart(**{**spec, **parts, "width": width, "config": CONFIG})
