"""Digits of scores: do printed scores resolve a margin?"""

from collections.abc import Iterable
from dataclasses import dataclass

from ettsweep.metric import Metric
from ettsweep.readers.numbers import resolution
from ettsweep.study.criterion import Criterion

MARGIN_SHARE = 0.1
"""Share of the margin that the last digit of a score should not exceed."""

FINE = 1e-9
"""Share of a score below which its last digit needs no warning."""


@dataclass(frozen=True)
class ScoreDigits:
    """The last digit of some scores beside the margin.

    Attributes:
        step: between scores as they are printed, in their unit.
        margin: in the unit of the scores.
        is_fine: whether the step is that of floating-point numbers, or nearly so.
    """

    step: float
    margin: float
    is_fine: bool

    @classmethod
    def of(cls, values: Iterable[float], best: float, metric: Metric, criterion: Criterion) -> "ScoreDigits":
        """Return the digits of some values, given the best of them."""
        margin = criterion.margin_for(metric) * (abs(best) if metric.margin_is == "share" else 1.0)
        step = resolution(values) or 0.0
        return cls(step, margin, step <= FINE * abs(best))

    @property
    def are_too_few(self) -> bool:
        return not self.is_fine and self.step > MARGIN_SHARE * self.margin

    def __str__(self) -> str:
        above = f", which is above a tenth of the margin, {self.margin:.2g}" if self.are_too_few else ""
        return f"in steps of {self.step:g}{above}"
