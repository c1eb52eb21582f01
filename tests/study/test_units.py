"""A verdict does not depend on the unit of scores, nor on whether low or high ones are better."""

from typing import Literal

import numpy as np
import pytest

from ettsweep.report.verdict_view import headline
from ettsweep.study.criterion import Criterion
from ettsweep.study.judgement import evaluate
from ettsweep.study.score_table import Score, TableRecipe, make_study
from ettsweep.study.verdict import Verdict

Margin = Literal["share", "difference"]

LOSSES = {
    (i, j, seed): 2.0 + 0.05 * (i - 0.3) ** 2 + 0.03 * j * j + 0.02 * draw
    for (i, j, seed), draw in zip(
        ((i, j, seed) for i in range(-2, 3) for j in range(-2, 3) for seed in range(3)),
        np.random.default_rng(0).normal(size=75).tolist(),
        strict=True,
    )
}


def judged(mode: Literal["min", "max"], margin_is: Margin, margin: float, scale: float, shift: float = 0.0) -> Verdict:
    """Return the verdict on the losses, each times `scale` after a shift; negative for scores that are to be high."""
    scores = [
        Score({"lr": 2.0**i, "wd": 2.0**j}, seed, scale * (loss + shift)) for (i, j, seed), loss in LOSSES.items()
    ]
    recipe = TableRecipe(source="scores.csv", column="score", mode=mode, margin_is=margin_is)
    study, runs, _ = make_study(scores, recipe, Criterion(margin=margin))
    return evaluate(study, runs).verdict()


def assert_alike(a: Verdict, b: Verdict, scale: float) -> None:
    """Assert that two verdicts are one, whose bounds and differences are `scale` times as large in the second."""
    assert (a.verdict, a.point) == (b.verdict, b.point)
    assert a.bound is not None
    assert b.bound is not None
    assert (a.bound.plateau, a.bound.further_runs) == (b.bound.plateau, b.bound.further_runs)
    for first, second in ((a.bound.value, b.bound.value), (a.bound.noise.sd, b.bound.noise.sd)):
        assert first is not None
        assert second == pytest.approx(scale * first)
    for mine, other in zip(a.bound.differences, b.bound.differences, strict=True):
        assert mine is not None
        assert other is not None
        assert (other.mean, other.error) == pytest.approx((scale * mine.mean, scale * mine.error))


@pytest.mark.parametrize(("margin_is", "factor", "margin"), [("share", 100.0, 0.004), ("difference", 1e-3, 0.04)])
# Losses, accuracies, log likelihoods (negative, high is better), and scores of both signs.
@pytest.mark.parametrize(("mode", "scale", "shift"), [("min", 1, 0), ("max", -1, -4), ("max", -1, 0), ("min", 1, -2.2)])
def test_a_verdict_does_not_depend_on_the_unit_of_scores(
    mode: Literal["min", "max"], scale: float, shift: float, margin_is: Margin, margin: float, factor: float
) -> None:
    own = judged(mode, margin_is, margin, scale, shift)
    rescaled = 1.0 if margin_is == "share" else factor
    assert_alike(own, judged(mode, margin_is, rescaled * margin, factor * scale, shift), rescaled)


@pytest.mark.parametrize(("mode", "scale", "shift"), [("min", 1.0, 0.0), ("max", -1.0, -4.0)])
def test_a_share_is_one_of_the_score_and_a_difference_is_in_its_unit(
    mode: Literal["min", "max"], scale: float, shift: float
) -> None:
    """Held to the means: the surface's differences are near those, whatever is fitted."""
    for margin_is in ("share", "difference"):
        verdict = judged(mode, margin_is, 0.02, scale, shift)
        assert verdict.score is not None
        assert verdict.bound is not None
        unit = abs(verdict.score) if margin_is == "share" else 1.0
        for neighbour, difference in zip(verdict.neighbours, verdict.bound.differences, strict=True):
            assert neighbour.score is not None
            assert difference is not None
            behind = verdict.study.metric.worse_by(neighbour.score, verdict.score) / unit
            assert difference.mean == pytest.approx(behind, abs=0.02 / unit)


def test_scores_around_zero_ask_for_a_difference() -> None:
    around = judged("min", "share", 0.02, 1.0, -2.005)
    assert (around.verdict, around.reason.code, around.bound) == ("unresolved", "around_zero", None)
    assert headline(around) == "unresolved: scores around zero"
    assert judged("min", "difference", 0.04, 1.0, -2.005).verdict == "optimal"
    assert judged("min", "share", 0.04, 1.0, -1.5).reason.code != "around_zero"
