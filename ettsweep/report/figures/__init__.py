"""Figures: functions from frames to Vega-Lite specifications, which page, notebook and paper share."""

from ettsweep.report.figures.curves import curves
from ettsweep.report.figures.lattice_map import lattice
from ettsweep.report.figures.optima import scores, seeds
from ettsweep.report.figures.strategy_map import strategies

__all__ = ["curves", "lattice", "scores", "seeds", "strategies"]
