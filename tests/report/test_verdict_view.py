"""What a verdict claims, in words."""

from dataclasses import replace

import pytest
from support.made_sweep import digits_spec, imagenet_spec, search

from ettsweep.report.verdict_view import headline
from ettsweep.runs.point import Point
from ettsweep.runs.state import State
from ettsweep.study.criterion import Criterion
from ettsweep.study.posterior import NoiseEstimate
from ettsweep.study.reason import Reason
from ettsweep.study.verdict import Bound, ScoredPoint, Verdict

HERE = Point(2.0**-6, 0.5)


def verdict(message: str, value: float | None, rule: str = "bound", accuracy: bool = False) -> Verdict:
    search_result = search(imagenet_spec(None) if accuracy else digits_spec(None))
    search_result = replace(search_result, criterion=Criterion(rule=rule))
    margin = search_result.criterion.margin_for(search_result.metric)
    bound = Bound(value, 0.95, margin, 0.6, (), NoiseEstimate(0.01, 9, "measured"), "", (), HERE, "optimal")
    return Verdict(
        search_result,
        message,
        Reason("single_point"),
        ScoredPoint(HERE, 0.3, State.DONE),
        bound=None if rule == "paper" else bound,
    )


@pytest.mark.parametrize(
    ("supplied", "message"),
    [
        (verdict("optimal", 0.018), "optimal within 1.8% (95%)"),
        (verdict("optimal", 0.0015, accuracy=True), "optimal within 0.15 points (95%)"),
        (verdict("optimal", 0.0), "optimal: no neighbour is better (95%)"),
        (verdict("unresolved", 0.02003), "unresolved: within 2.1% (95%), margin 2%"),
        (verdict("unresolved", 0.031, accuracy=True), "unresolved: within 3.1 points (95%), margin 0.2 points"),
        (verdict("unresolved", 1.0), "unresolved: within 100% (95%), margin 2%"),
        (verdict("unresolved", None), "unresolved: noise unknown"),
        (
            replace(verdict("unresolved", None), candidate=ScoredPoint(HERE, None, State.DIVERGED)),
            "unresolved: all diverged",
        ),
        (verdict("refuted", None), "refuted"),
        (verdict("optimal", None, rule="paper"), "optimal by the paper's comparison of means"),
        (verdict("edge", None, rule="paper"), "edge"),
    ],
)
def test_a_headline_says_how_far_a_verdict_holds(supplied: Verdict, message: str) -> None:
    assert headline(supplied) == message, "a bound is rounded up: one beyond the margin is not said to be within it"
