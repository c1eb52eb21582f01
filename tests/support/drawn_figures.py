"""The figures of a report, by verdict and kind, as its page takes them."""

from collections.abc import Iterable

from ettsweep.report.families import Comparison
from ettsweep.report.figure_files import Drawing, Figure
from ettsweep.report.run_histories import Histories
from ettsweep.report.verdict_text import Key

ROWS = 60
"""Of each run's steps: enough for made ones."""


def figures_of(comparisons: Iterable[Comparison]) -> dict[tuple[Key, str], Figure]:
    drawing = Drawing(Histories(), ROWS)
    return {(key, figure.kind): figure for comparison in comparisons for key, figure in drawing.of(comparison)}
