"""Results in a notebook: `load("results")` gives pandas frames of runs, points, curves and verdicts; and figures."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import altair as alt
import pandas as pd

from ettsweep.console import count
from ettsweep.errors import InputError, unknown_name
from ettsweep.launch.follow import read_ledger
from ettsweep.report import family_charts
from ettsweep.report.families import JudgedFamily, compare, judged, with_evidence
from ettsweep.report.family_charts import FamilyFrames
from ettsweep.report.figures.chart_data import FILE_WIDTH
from ettsweep.report.run_histories import RunHistories, rows_for
from ettsweep.report.tables import optima_table, runs_table
from ettsweep.report.theme import CONFIG
from ettsweep.runs.folder import runs_dir, sweeps_dir
from ettsweep.strategies.strategy import parse_strategy, strategy_name
from ettsweep.study.run_index import Run, count_states
from ettsweep.study.sweep_store import Searches, belonging, load_sweep_store
from ettsweep.study.verification import judge


def load(folder: str | Path, *sweeps: str) -> "Results":
    """Read a results folder; nothing is written, and nothing that comes later is seen.

    Args:
        folder: what commands call --results.
        sweeps: names of sweeps; without any, all that are not archived, and runs that belong to none.

    Raises:
        InputError: there is no such folder, it is no results folder, or has no such sweep.
        CorruptError: a sweep that is named cannot be read.
    """
    folder = Path(folder)
    _check(folder)
    found, run_index = load_sweep_store(folder), read_ledger(folder)
    chosen = found.chosen(sweeps)
    if found.named and not chosen:
        raise InputError(f"{folder}: all sweeps are archived; name one: {', '.join(map(repr, found.named))}")
    verdicts = judge([study for sweep in chosen for study in sweep.studies], run_index)
    runs = with_evidence(belonging(run_index.runs.values(), found, sweeps), verdicts)
    unreadable = {**({} if sweeps else found.broken), **run_index.broken}
    for problem in unreadable.values():
        _warn(problem)
    histories = RunHistories(_warn)
    frames = FamilyFrames(judged(runs, verdicts), histories, rows_for(len(runs)))
    return Results(folder, runs, frames, found.searches, unreadable, histories)


def _check(folder: Path) -> None:
    """Check that a folder is there, and holds runs, sweeps or nothing yet."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; `load` takes the results folder of ettsweep's commands")
    if not any(part.is_dir() for part in (runs_dir(folder), sweeps_dir(folder))) and any(folder.iterdir()):
        raise InputError(f"{folder} is no results folder: it has neither runs/ nor sweeps/")


def _warn(problem: str) -> None:
    warnings.warn(f"left out: {problem}", stacklevel=2)


@dataclass(frozen=True, repr=False)
class Results:
    """What a results folder had when it was loaded, as pandas frames, each made when it is first asked for.

    lr and wd are numbers; losses are in nats, accuracies and utilisation fractions, `*_s` seconds. A family is all runs
    that differ only in lr, wd and seed; `sweep`, `family`, `strategy` and `run` join the frames.
    """

    folder: Path
    _runs: list[Run]
    _frames: FamilyFrames
    _searches: Searches
    _unreadable: dict[str, str]
    _histories: RunHistories

    @cached_property
    def runs(self) -> pd.DataFrame:
        """A row for each run, whatever its state.

        Columns:
            run: its id, the name of its folder.
            sweep: names of those that it belongs to, or -.
            family, model, task, strategy, optimizer, precision, lr, wd, seed: what it trains.
            state: done, diverged, running, ..., as `ettsweep status` says.
            best_accuracy, best_loss, ...: scores, missing where a run is unfinished, or has none of the kind.
            loss_spikes, grad_spikes, ..., overflow_steps: counts.
            steps, wall_s, device_s, step_s, ...: what it took.
        """
        return runs_table(self._runs, self._searches)

    @cached_property
    def verdicts(self) -> pd.DataFrame:
        """A row for each strategy of each sweep: its best point, and what is known of it.

        Columns:
            verdict, statement, reason: optimal, say; optimal within 1.8% (95%); what stands in the way.
            lr, wd: the candidate.
            metric, seeds, score, std: mean and sample deviation over the seeds that chose it.
            fresh_seeds, fresh_score, fresh_std: the same over fresh ones.
            bound, confidence, margin: with that confidence no neighbour is better by more than the bound: a share of
                the loss, or a difference of accuracies.
            ...: those of `optima` in the report, spikes of the candidate too.
        """
        table = optima_table(self._frames.families)
        place = [*table].index("verdict") + 1
        for name in ("reason", "statement"):
            told = [getattr(family.verdict, name) for family in self._frames.families]
            table.insert(place, name, pd.Series(told, dtype="str"))
        return table

    @cached_property
    def points(self) -> pd.DataFrame:
        """A row for each lattice point of each family, run or not.

        Columns:
            point: (lr, wd) as people read it; lr, wd, log2_lr, log2_wd.
            lr_steps, wd_steps: lattice steps from the candidate; missing off its lattice.
            common_log2_lr, common_log2_wd: mapped to the coordinates of the standard strategy.
            role: candidate, neighbour, other.
            state: of its seed that is farthest from done.
            metric, score, error, seeds, told: mean over the seeds that count, its standard error, and in words.
            proposal: its number, where a search named it.
            as_good: whether it is no worse than the candidate by more than the margin, with the confidence.
            runs: ids, parted by blanks.
        """
        return self._frames.points

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Rows of steps and of evaluations, of each run as many as the page shows; they are read when first asked for.

        All steps of one run: `pd.read_json(r.folder / "runs" / run / "metrics.jsonl", lines=True)`.

        Columns:
            point, role, run, seed, state: of which run; the role is that of its point.
            counted: whether its seed counts for the verdict; fresh ones do not.
            step; trained, in units of `unit`: epochs, or steps where the data alone say how long an epoch is.
            loss, grad_norm: means since the row before; missing in rows of evaluations.
            val_loss, val_accuracy: missing in rows of steps.
        """
        return self._frames.curves

    @cached_property
    def spikes(self) -> pd.DataFrame:
        """A row for each spike that finished runs counted, and for where one diverged; read with the curves.

        Columns:
            point, role, run, seed, step, trained: where.
            quantity, value: which column of `curves` it is in, and its value there.
            told: what it is, in words.
        """
        return self._frames.spikes

    @cached_property
    def surface(self) -> pd.DataFrame:
        """The fitted surface that a verdict rests on, on a mesh; no rows where there is none.

        Columns:
            lr_steps, wd_steps: lattice steps from the candidate.
            score, low, high: fitted, and a standard error to both sides where one axis is searched.
            worse: than at the optimum, in the unit of `margin`: a share of the loss, or a difference of accuracies.
        """
        return self._frames.surface

    @property
    def figures(self) -> "Figures":
        """Figures of the report's page, as Altair charts."""
        return Figures(self.folder, self._frames)

    @property
    def broken(self) -> dict[str, str]:
        """What cannot be read and is left out, with why: runs by id, sweeps by name; metrics, once curves were read."""
        return self._unreadable | self._histories.corrupt

    def __repr__(self) -> str:
        states = ", ".join(f"{n} {state}" for state, n in count_states(run.state for run in self._runs).items())
        sweeps = _sweeps_of(self._frames.families)
        told = f"{self.folder}: {count(len(sweeps), 'sweep')}, {count(len(self._runs), 'run')}"
        return told + (f" ({states})" if states else "") + (f", {len(self.broken)} broken" if self.broken else "")


class Figures:
    """The figures of the report's page, each an Altair chart that carries its data.

    `.save("figure.pdf")` writes one, also as svg, png or html; `.properties(title=..., width=...)` changes it. Names of
    strategy and sweep may be left out where there is one. They are functions of frames, in `ettsweep.report.figures`.
    """

    def __init__(self, folder: Path, frames: FamilyFrames) -> None:
        self._folder, self._frames = folder, frames
        self._families = [family for comparison in compare(frames.families) for family in comparison.families]

    # --- of all strategies ---

    def strategies(self, sweep: str | None = None) -> alt.LayerChart:
        """Return the points and optima of all strategies on one map of (lr, wd).

        Raises:
            InputError: there are no two strategies with a score, or the sweep is not named.
        """
        return _shown(family_charts.strategies(self._of_all(sweep)), "fewer than two strategies have a score")

    def seeds(self, sweep: str | None = None) -> alt.LayerChart:
        """Return the trajectories of all optima, a line for each seed.

        Raises:
            InputError: no optimum has been evaluated yet, or the sweep is not named.
        """
        return _shown(family_charts.seeds(self._of_all(sweep)), "no optimum has been evaluated yet")

    def scores(self, sweep: str | None = None) -> alt.LayerChart:
        """Return the scores of all optima, over the search's seeds and fresh ones.

        Raises:
            InputError: no optimum has a score yet, or the sweep is not named.
        """
        return _shown(family_charts.scores(self._of_all(sweep)), "no optimum has a score yet")

    # --- of one ---

    def lattice(self, strategy: str | None = None, sweep: str | None = None) -> alt.LayerChart:
        """Return the map of a strategy: hexagons where both axes are searched, scores along a line where one is.

        Raises:
            InputError: there is no run of it yet, no such strategy, or which one is not said.
        """
        return _shown(family_charts.lattice(self._of(strategy, sweep)), "no axis is searched, or no run is there yet")

    def trajectories(self, strategy: str | None = None, sweep: str | None = None) -> alt.LayerChart:
        """Return the evaluations of all points of a strategy, means over seeds.

        Raises:
            InputError: nothing has been evaluated yet, no such strategy, or which one is not said.
        """
        return _shown(family_charts.trajectories(self._of(strategy, sweep)), "nothing has been evaluated yet")

    def curves(self, strategy: str | None = None, sweep: str | None = None) -> alt.LayerChart:
        """Return the explorer of a strategy's losses and gradient norms, with spikes.

        Raises:
            InputError: nothing has been recorded yet, no such strategy, or which one is not said.
        """
        return _shown(family_charts.curves(self._of(strategy, sweep)), "nothing has been recorded yet")

    def course(self, strategy: str | None = None, sweep: str | None = None) -> alt.LayerChart:
        """Return what `ettsweep search` had found after so many runs.

        Raises:
            InputError: nothing was proposed, no such strategy, or which one is not said.
        """
        return _shown(
            family_charts.course(self._of(strategy, sweep)), "no points were proposed; `ettsweep search` does that"
        )

    # --- which ---

    def _of_all(self, sweep: str | None) -> FamilyFrames:
        families = self._in(sweep)
        if len(names := _sweeps_of(families)) > 1:
            raise InputError(f"there are several sweeps; name one: {', '.join(map(repr, names))}")
        return self._frames.of(families)

    def _of(self, strategy: str | None, sweep: str | None) -> FamilyFrames:
        families = self._in(sweep)
        if strategy is not None:
            name, known = strategy_name(parse_strategy(strategy)), {family.verdict.strategy for family in families}
            if name not in known:
                raise unknown_name("strategy", name, known)
            families = [family for family in families if family.verdict.strategy == name]
        if len(families) > 1:
            told = ", ".join(f"({f.verdict.strategy!r}, {f.verdict.study.sweep!r})" for f in families)
            raise InputError(f"there are several; name one by strategy and sweep: {told}")
        return self._frames.of(families)

    def _in(self, sweep: str | None) -> list[JudgedFamily]:
        """Return the families of a sweep, or of all, in the order of the page."""
        if not self._families:
            raise InputError(f"{self._folder}: no grid has been asked for yet, so there is nothing to draw")
        if sweep is not None and sweep not in (known := _sweeps_of(self._families)):
            raise unknown_name("sweep", sweep, known)
        return [family for family in self._families if sweep in (None, family.verdict.study.sweep)]


def _sweeps_of(families: Sequence[JudgedFamily]) -> list[str]:
    return list(dict.fromkeys(family.verdict.study.sweep for family in families))


def _shown(chart: alt.LayerChart | None, otherwise: str) -> alt.LayerChart:
    """Return a chart that looks as on the page wherever it is shown, and as wide as in the report's files."""
    if chart is None:
        raise InputError(f"nothing to draw: {otherwise}")
    shown: alt.LayerChart = chart.properties(config=CONFIG)
    return shown.properties(width=FILE_WIDTH) if shown.width == "container" else shown
