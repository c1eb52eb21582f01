"""The metric that verdicts compare: the score of a run, its better side, and its unit."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ettsweep.files import number

MAX_SCORE = 1e100
"""Largest score; the square of a larger one may overflow. Such a run counts as diverged."""


def valid_score(value: object) -> float | None:
    """Return a score from a file; None for anything else, which ranks last, as a diverged run does."""
    score = number(value)
    return None if score is None or abs(score) > MAX_SCORE else score


@dataclass(frozen=True)
class Metric:
    """The metric that verdicts compare: the score of a run, and whether lower or higher is better.

    Attributes:
        name: column of the score in result.json and in tables, such as best_loss.
        mode: whether the lowest or the highest score is best.
        column: column of metrics.jsonl from which it is taken, such as val_loss.
        take: its best value, its last, or the one at a step.
        unit: of the score, in words for axes; empty for none.
        loss_unit: unit of other recorded losses.
        is_fraction: whether scores from 0 to 1 are shown in percent, as accuracies are.
        margin_is: whether a margin is a share of the candidate's score or a difference from it.
    """

    name: str
    mode: Literal["min", "max"]
    column: str
    take: Literal["best", "last"] | int = "best"
    unit: str = ""
    loss_unit: str = ""
    is_fraction: bool = False
    margin_is: Literal["share", "difference"] = "share"

    def score(self, evaluations: Iterable[Mapping[str, Any]]) -> float | None:
        """Return the score of a run from the lines of its metrics.jsonl; None without one."""
        values = [
            (line.get("step"), value) for line in evaluations if (value := number(line.get(self.column))) is not None
        ]
        if isinstance(self.take, int):
            return next((value for step, value in values if step == self.take), None)
        if not values:
            return None
        return values[-1][1] if self.take == "last" else min((value for _, value in values), key=self.sort_key)

    def best_so_far(self, evaluations: Iterable[Mapping[str, Any]]) -> dict[int, float]:
        """Return the best value so far at the step of each evaluation, given the lines of metrics.jsonl."""
        best_by_step: dict[int, float] = {}
        best = None
        for line in evaluations:
            value = number(line.get(self.column))
            best = value if value is not None and self.is_better(value, best) else best
            if best is not None and isinstance(step := line.get("step"), int):
                best_by_step[step] = best
        return best_by_step

    def is_better(self, a: float | None, b: float | None) -> bool:
        """Return `True` if score `a` is better than `b`; None (diverged) is worse than any score."""
        return self.sort_key(a) < self.sort_key(b)

    def worse_by(self, a: float, b: float) -> float:
        """Return by how much score `a` is worse than `b`; negative if it is better."""
        return a - b if self.mode == "min" else b - a

    def sort_key(self, score: float | None) -> float:
        """Return a key that sorts scores best first, and diverged ones (None) last."""
        return math.inf if score is None else self.worse_by(score, 0.0)

    @property
    def label(self) -> str:
        """Name in words, such as lowest validation loss."""
        if self.name == self.column:  # a stated score, not computed here
            return self.column
        quantity = QUANTITIES.get(self.column, self.column)
        extreme = "lowest" if self.mode == "min" else "highest"
        if isinstance(self.take, int):
            return f"{quantity} at step {self.take}"
        # "Best accuracy" is how people say it.
        return f"{'final' if self.take == 'last' else 'best' if self.is_fraction else extreme} {quantity}"

    @property
    def factor(self) -> int:
        """Factor from scores to shown numbers: 100 for percent."""
        return 100 if self.is_fraction else 1

    @property
    def margin_factor(self) -> int:
        """Factor from margins, bounds and noise to shown numbers: 100 for percent and points."""
        return 1 if self.margin_is == "difference" and not self.is_fraction else 100

    @property
    def margin_unit(self) -> str:
        """Unit of margins, bounds and noise, as it follows their numbers."""
        return "%" if self.margin_is == "share" else " points" if self.is_fraction else ""

    @property
    def unit_suffix(self) -> str:
        """Unit in brackets, after a space; empty for none."""
        unit = "%" if self.is_fraction else self.unit
        return f" ({unit})" if unit else ""


QUANTITIES = {
    "loss": "training loss",
    "grad_norm": "gradient norm",
    "val_loss": "validation loss",
    "val_accuracy": "validation accuracy",
}
"""Labels of columns of metrics.jsonl; others are their own labels."""
