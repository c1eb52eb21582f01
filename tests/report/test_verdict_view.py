"""What a verdict claims, in words."""

import re
from dataclasses import replace

import pytest
from support.made_sweep import Made, changed, digits_spec, imagenet_spec, loss_at, search

from ettsweep.report.verdict_view import headline, make_views
from ettsweep.runs.point import Point
from ettsweep.runs.state import State
from ettsweep.study.criterion import Criterion
from ettsweep.study.judgement import evaluate
from ettsweep.study.posterior import NoiseEstimate
from ettsweep.study.reason import Reason
from ettsweep.study.verdict import Bound, ScoredPoint, Verdict

HERE = Point.of(lr=2.0**-6, wd=0.5)


def verdict(
    word: str, value: float | None, rule: str = "bound", accuracy: bool = False, score: float | None = 0.3
) -> Verdict:
    study = replace(search(imagenet_spec(None) if accuracy else digits_spec(None)), criterion=Criterion(rule=rule))
    margin, noise = study.criterion.margin_for(study.metric), NoiseEstimate(0.01, 9, "measured")
    bound = Bound(value, 0.95, margin, 0.6, (), noise, None, (), HERE, None, "optimal") if rule == "bound" else None
    candidate = ScoredPoint(HERE, score, State.DIVERGED if score is None else State.DONE)
    return Verdict(study, word, Reason("single_point"), candidate, bound=bound)


@pytest.mark.parametrize(
    ("supplied", "message"),
    [
        (verdict("optimal", 0.018), "optimal within 1.8% (95%)"),
        (verdict("optimal", 0.0), "optimal: no neighbour is better (95%)"),
        (verdict("unresolved", 0.02003), "unresolved: within 2.1% (95%), margin 2%"),
        (verdict("unresolved", 0.031, accuracy=True), "unresolved: within 3.1 points (95%), margin 0.2 points"),
        (verdict("unresolved", None), "unresolved: noise unknown"),
        (verdict("unresolved", None, score=None), "unresolved: all diverged"),
        (verdict("optimal", None, rule="paper"), "optimal by the paper's comparison of means"),
    ],
)
def test_a_headline_says_how_far_a_verdict_holds(supplied: Verdict, message: str) -> None:
    assert headline(supplied) == message, "a bound is rounded up: one beyond the margin is not said to be within it"


@pytest.fixture
def beside_an_edge(sample: Made) -> Verdict:
    """Return the verdict on standard after all its runs of seed 2 a step of lr up have diverged."""
    study = sample.verdict("standard").study
    runs = [run for run in sample.runs if run.family == study.family]
    lost = next(run for run in runs if run.state is State.DIVERGED)
    unstable = {run.id for run in runs if run.spec.seed == 2 and run.point["lr"] > HERE["lr"]}
    diverged = [changed(run, status=lost.status, result=lost.result) if run.id in unstable else run for run in runs]
    return evaluate(study, diverged).verdict()


def test_a_cliff_next_door_is_named_with_the_safer_point_and_its_price(beside_an_edge: Verdict) -> None:
    (view,) = make_views([beside_an_edge])
    # None of three seeds was unstable, which has a chance of 5% if 1 - 0.05^(1/3) = 63.2% of them are.
    caveat = "beside an edge of stability: 3 of 3 seeds were stable at this lr, but up to 64% may not be (95%)"
    assert view.data["evidence"]["caveat"] == view.numbers["caveat"] == caveat
    price = re.search(
        r"3 of 3 seeds trained well at lr 0.0156, up to 64% may blow up \(95%\)\. "
        r"Safer: lr 0.00781, wd 0.5, at a price of ([\d.]+) ± ([\d.]+)%\.$",
        view.answer,
    )
    assert price, view.answer
    by, error = map(float, price.groups())
    assert abs(by - 100 * (loss_at(-1, 0, 0) / loss_at(0, 0, 0) - 1)) < 3 * error


def test_an_edge_that_decides_is_described_once(beside_an_edge: Verdict) -> None:
    gap = {"value": 0.12, "confidence": 0.95, "margin": 0.05, "stable": 3, "of_seeds": 3, "may_be_unstable": 0.6316}
    some = gap | {"runs": 8, "runs_range": [4, 14], "device_s": 0.0}
    none = gap | {"runs": None, "runs_range": None, "device_s": None}
    for facts, more_seeds_help in ((some, True), (none, False)):
        reason = Reason("edge_above", facts)
        (view,) = make_views([replace(beside_an_edge, verdict="unresolved", reason=reason)])
        assert [str(texts).count("edge of stability") for texts in (view.answer, view.notes)] == [1, 0]
        assert view.more_seeds_help is more_seeds_help
