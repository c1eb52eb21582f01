"""Figures of families as Vega-Lite, built from the frames that each needs; None if there is nothing to draw yet."""

from collections.abc import Sequence
from functools import cached_property

import pandas as pd

from ettsweep.files import Json
from ettsweep.report import figures
from ettsweep.report.families import JudgedFamily
from ettsweep.report.figures.optima import prefer_fresh_runs
from ettsweep.report.frames import (
    curves_frame,
    optima_frame,
    points_frame,
    ranges_frame,
    spikes_frame,
)
from ettsweep.report.run_histories import RunHistories
from ettsweep.report.surface_frames import fitted_curve_frame, optimum_frame


class FamilyFrames:
    """The frames of some families, each built on first access."""

    def __init__(self, families: Sequence[JudgedFamily], histories: RunHistories) -> None:
        self.families, self.histories = families, histories

    def for_families(self, families: Sequence[JudgedFamily]) -> "FamilyFrames":
        """Return the frames of other families; histories read so far are shared."""
        return FamilyFrames(families, self.histories)

    @cached_property
    def points(self) -> pd.DataFrame:
        """One row per lattice point, see `points_frame`."""
        return points_frame(self.families)

    @cached_property
    def curves(self) -> pd.DataFrame:
        """One row per recorded step and evaluation, see `curves_frame`."""
        return curves_frame(self.families, self.histories)

    @cached_property
    def optima_curves(self) -> pd.DataFrame:
        """The rows of `curves` of the candidates' runs: far fewer than of all."""
        return curves_frame(self.families, self.histories, set(self.optima["run"]))

    @cached_property
    def spikes(self) -> pd.DataFrame:
        """One row per spike, see `spikes_frame`."""
        return spikes_frame(self.families, self.histories)

    @cached_property
    def optimum(self) -> pd.DataFrame:
        """The optima of the fitted surfaces, see `optimum_frame`."""
        return optimum_frame(self.families)

    @cached_property
    def optima(self) -> pd.DataFrame:
        """One row per finished run of the candidates, see `optima_frame`."""
        return optima_frame(self.families)

    @property
    def has_marked_spikes(self) -> bool:
        """`True` if the page shows spikes: only runs that record every step have all of them."""
        return all(family.study.base.info.records_every_step for family in self.families)

    @property
    def is_empty(self) -> bool:
        """`True` if no axis is searched, or there is no run yet."""
        return not any(family.runs and family.study.has_free_axis for family in self.families)


# --- of families that differ only in strategy -----------------------------------------------------------------------


def strategies(frames: FamilyFrames) -> Json | None:
    """Draw the points of all strategies on one map; None unless two of them have a score at a wd above 0."""
    # The axes are logarithmic: wd 0 has no place on them.
    scored = frames.points[frames.points["score"].notna() & (frames.points["wd"] > 0)]
    return figures.strategies(scored) if scored["strategy"].nunique() > 1 else None


def seeds(frames: FamilyFrames) -> Json | None:
    """Draw the optima of all strategies over seeds; None if none was evaluated, or all diverged."""
    # The same runs as the figure draws: it needs an evaluation among these.
    optima, curves = prefer_fresh_runs(frames.optima), frames.optima_curves
    curves = curves[curves["run"].isin(optima["run"])]
    scored = optima["score"].notna().any()
    if not (scored and _has_evaluations(curves, optima)):
        return None
    return figures.seeds(_by_label(curves, frames), _by_label(optima, frames))


def scores(frames: FamilyFrames) -> Json | None:
    """Draw the scores of the optima; None if there are fewer than two."""
    return figures.scores(_by_label(frames.optima, frames)) if frames.optima["score"].notna().sum() > 1 else None


def _by_label(rows: pd.DataFrame, frames: FamilyFrames) -> pd.DataFrame:
    """Return rows with the label of the family in place of its strategy, if there is only one."""
    if all(family.study.has_strategies for family in frames.families):
        return rows
    labels = {family.study.family: family.study.label for family in frames.families}
    return rows.assign(strategy=rows["family"].map(labels))


# --- of one family --------------------------------------------------------------------------------------------------


def lattice(frames: FamilyFrames) -> Json | None:
    """Draw the map of a family; None if it has no run, or no axis is searched."""
    (family,) = frames.families
    if frames.is_empty:
        return None
    return figures.lattice(frames.points, fitted_curve_frame([family]), frames.optimum, ranges_frame(family))


def curves(frames: FamilyFrames) -> Json | None:
    """Draw a family's curves; None if no run that counts has recorded anything."""
    if frames.is_empty or not frames.curves["counted"].any():
        return None
    spikes = frames.spikes if frames.has_marked_spikes else frames.spikes.iloc[:0]
    return figures.curves(frames.curves, spikes, frames.points)


def _has_evaluations(curves: pd.DataFrame, scored: pd.DataFrame) -> bool:
    """`True` if the curves have an evaluation of the scored quantity."""
    return bool(curves[scored["metric"].iloc[0].column].notna().any())
