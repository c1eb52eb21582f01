"""The criterion of a sweep: by which rule, with which confidence and up to which margin its verdicts are given."""

import math
from collections.abc import Iterable
from typing import Annotated, Literal, TypeVar

from pydantic import BeforeValidator, Field

from ettsweep.schema import NonNegative, StrictModel
from ettsweep.trainer.tasks.registry import Metric

MARGINS = {"best_loss": 0.02, "best_accuracy": 0.002}
"""Margins where none is stated: 2% of a loss, 0.2 points of an accuracy, which is itself a share."""

Rule = Literal["bound", "paper"]


def _share(value: object) -> object:
    """Read `2%` as 0.02; refuse 2, which is 200%."""
    share = value
    if isinstance(value, str):
        try:
            number = float(value.removesuffix("%"))
        except ValueError:
            raise ValueError(f"a share such as 0.02 or 2% is expected, got {value!r}") from None
        share = round(number / 100, 12) if value.endswith("%") else number
    if isinstance(share, int | float) and 1 < share < math.inf:
        raise ValueError(f"{share:g} is {_percent(share)}; for {share:g}% write {share:g}% or {share / 100:g}")
    return share


def _percent(share: float) -> str:
    return f"{100 * share:.10g}%"


Confidence = Annotated[float, Field(gt=0.5, lt=1), BeforeValidator(_share)]
Margin = Annotated[NonNegative, BeforeValidator(_share)]


class Criterion(StrictModel):
    """What makes a verdict `optimal`.

    Attributes:
        rule: `bound`: with the confidence, no neighbour is better than the candidate by more than the margin. `paper`:
            the candidate's mean over the seeds is better than that of each neighbour.
        confidence: of a bound.
        margin: a share of the candidate's loss, or added to its accuracy, a share of all samples; None: see `MARGINS`.
    """

    rule: Rule = "bound"
    confidence: Confidence = 0.95
    margin: Margin | None = None

    def margin_for(self, score: Metric) -> float:
        """Return the margin where this score is compared: a share of a loss, a difference of accuracies."""
        return MARGINS[score.metric] if self.margin is None else self.margin

    def unlike(self, other: "Criterion", score: Metric) -> dict[str, tuple[str, str]]:
        """Return what differs from another criterion where this score is compared: by name, the words for both."""
        words = [
            {"rule": c.rule, "confidence": f"{c.confidence:.10g}", "margin": _percent(c.margin_for(score))}
            for c in (self, other)
        ]
        return {name: (here, words[1][name]) for name, here in words[0].items() if here != words[1][name]}

    def describe(self, score: Metric, beside: "Criterion | None" = None) -> str:
        """Return, in words, in what it is unlike another criterion, or unlike the defaults; nothing where it is not."""
        unlike = self.unlike(beside or Criterion(), score)
        return ", ".join(f"{name} {here}" for name, (here, _) in unlike.items())


Judged = TypeVar("Judged", "Criterion", "CriterionOptions")


class CriterionOptions(StrictModel):
    """As much of a criterion as somebody has stated; None is left as it was. It is false where nothing is stated."""

    rule: Rule | None = None
    confidence: Confidence | None = None
    margin: Margin | None = None

    def __bool__(self) -> bool:
        return self != CriterionOptions()

    def over(self, other: Judged) -> Judged:
        """Return another statement, or a criterion, with what is stated here in place of what is there."""
        return other.model_copy(update=self.model_dump(exclude_none=True))


def resolve(stated: Iterable[CriterionOptions | None]) -> Criterion:
    """Return the criterion that statements make, field by field the last, and else the default."""
    criterion = Criterion()
    for one in stated:
        criterion = one.over(criterion) if one else criterion
    return criterion
