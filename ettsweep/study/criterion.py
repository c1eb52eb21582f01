"""Criterion of a sweep: rule, confidence and margin of its verdicts."""

import math
from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated, Literal, TypeVar

from pydantic import BeforeValidator, Field

from ettsweep.errors import InputError
from ettsweep.metric import Metric
from ettsweep.schema import NonNegative, StrictModel

DEFAULT_SHARE, DEFAULT_POINTS = 0.02, 0.002
"""Default margins: 2% of a score, and 0.2 percentage points of an accuracy, which is a fraction."""

Rule = Literal["bound", "paper"]


def _parse_share(value: object) -> object:
    """Parse `2%` as 0.02."""
    share = value
    if isinstance(value, str):
        try:
            number = float(value.removesuffix("%"))
        except ValueError:
            raise ValueError(f"a share such as 0.02 or 2% is expected, got {value!r}") from None
        share = round(number / 100, 12) if value.endswith("%") else number  # 5.6 / 100 is 0.055999999999999994
    return share


def _meant_percent(share: float) -> str:
    return f"{share:g} is {_format_percent(share)}; for {share:g}% write {share:g}% or {share / 100:g}"


def _parse_confidence(value: object) -> object:
    number = math.nan if isinstance(value, bool) else value
    with suppress(ValueError):
        number = float(value) if isinstance(value, str) else number
    # 95 probably means 95%, but 1.2 cannot mean 1.2%: no confidence is that low.
    if isinstance(number, int | float) and 1 <= number <= 50:
        raise ValueError(f"a confidence between 50% and 100% is expected, such as 0.95 or 95%, got {number:g}")
    if isinstance(share := _parse_share(value), int | float) and 1 < share < math.inf:
        raise ValueError(_meant_percent(share))
    return share


def _format_percent(share: float) -> str:
    return f"{100 * share:.10g}%"


def _format_margin(margin: float, metric: Metric) -> str:
    return f"{margin:.10g}" if metric.margin_factor == 1 else _format_percent(margin)


Confidence = Annotated[float, Field(gt=0.5, lt=1), BeforeValidator(_parse_confidence)]
Margin = Annotated[NonNegative, BeforeValidator(_parse_share)]


def default_margin(metric: Metric) -> float:
    """Return the margin for a metric if none is stated."""
    return DEFAULT_SHARE if metric.margin_is == "share" else DEFAULT_POINTS


class Criterion(StrictModel):
    """Conditions for a verdict of `optimal`.

    Attributes:
        rule: `bound`: with the given confidence, no neighbour is better than the candidate by more than the margin.
            `paper`: the candidate's mean over the seeds is better than that of each neighbour.
        confidence: probability with which a bound holds.
        margin: a share of the candidate's score or a difference, see `Metric.margin_is`; None takes `default_margin`.
    """

    rule: Rule = "bound"
    confidence: Confidence = 0.95
    margin: Margin | None = None

    def margin_for(self, metric: Metric) -> float:
        """Return the margin for this metric, as a share of the score or as a difference."""
        return default_margin(metric) if self.margin is None else self.margin

    def differing_fields(self, other: "Criterion", metric: Metric) -> dict[str, tuple[str, str]]:
        """Return the fields that differ from another criterion, formatted: name -> (own value, other value)."""
        own_texts, other_texts = (
            {
                "rule": c.rule,
                "confidence": f"{c.confidence:.10g}",
                "margin": _format_margin(c.margin_for(metric), metric),
            }
            for c in (self, other)
        )
        return {name: (text, other_texts[name]) for name, text in own_texts.items() if text != other_texts[name]}

    def describe(self, metric: Metric, reference: "Criterion | None" = None) -> str:
        """Return the fields that differ from another criterion, or from the default one, such as `margin 5%`."""
        fields = self.differing_fields(reference or Criterion(), metric)
        return ", ".join(f"{name} {own_text}" for name, (own_text, _) in fields.items())


CriterionLike = TypeVar("CriterionLike", "Criterion", "CriterionOptions")


class CriterionOptions(StrictModel):
    """Stated fields of a criterion; None leaves a field as it is. Falsy if all are None."""

    rule: Rule | None = None
    confidence: Confidence | None = None
    margin: Margin | None = None

    def __bool__(self) -> bool:
        return self != CriterionOptions()

    def for_runs(self, metric: Metric, *, seeded: bool) -> "CriterionOptions":
        """Return the options unchanged for runs with seeds; for one run a point, with the paper's rule.

        Raises:
            InputError: they state a bound, which a single run cannot have, or a share above 1, which is meant as
                percent.
        """
        if metric.margin_factor == 100 and self.margin is not None and self.margin > 1:
            raise InputError(f"margin: {_meant_percent(self.margin)}")
        if seeded:
            return self
        if self.rule == "bound":
            raise InputError(
                "rule: bound needs repeated seeds, but `seeds: none` has one run a point; leave it out to compare "
                "scores by rule: paper"
            )
        return self.model_copy(update={"rule": "paper"})

    def check_default(self, metric: Metric) -> None:
        """Check that there is a margin, stated or by default.

        Raises:
            InputError: there is none: only the user knows the unit of a difference.
        """
        if self.margin is None and metric.margin_factor == 1:
            raise InputError(
                "margin: a difference of scores is expected, such as 0.01 (or --margin 0.01): it has no default"
            )

    def applied_to(self, criterion: CriterionLike) -> CriterionLike:
        """Return a copy of a criterion, or of other options, with the fields stated here replaced."""
        return criterion.model_copy(update=self.model_dump(exclude_none=True))


def resolve_criterion(all_options: Iterable[CriterionOptions | None]) -> Criterion:
    """Return the criterion: each field as stated last, or its default."""
    criterion = Criterion()
    for options in all_options:
        criterion = options.applied_to(criterion) if options else criterion
    return criterion
