"""The figures of a report, by verdict and kind, as its page takes them."""

from collections.abc import Iterable

from ettsweep.report.families import StrategyComparison
from ettsweep.report.figure_files import Figure, FigureBuilder
from ettsweep.report.run_histories import RunHistories
from ettsweep.study.study import StudyKey

ROWS = 60
"""Of each run's steps: enough for made ones."""


def figures_of(comparisons: Iterable[StrategyComparison]) -> dict[tuple[StudyKey, str], Figure]:
    drawing = FigureBuilder(RunHistories(ROWS))
    return {(key, figure.kind): figure for comparison in comparisons for key, figure in drawing.build(comparison)}
