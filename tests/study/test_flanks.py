"""Bounds on one-seed worlds whose loss is steep on one flank: rows far down the slope say nothing of the noise."""

import math
from collections.abc import Mapping

import numpy as np
import pytest

from ettsweep.report.verdict_view import default_margin_text
from ettsweep.runs.point import Point
from ettsweep.study.criterion import Criterion
from ettsweep.study.judgement import evaluate
from ettsweep.study.lattice import neighbours
from ettsweep.study.score_table import Score, TableRecipe, make_study
from ettsweep.study.verdict import Verdict

Cell = tuple[int, int]
CELLS: list[Cell] = [(i, j) for i in range(-4, 5) for j in range(-4, 5)]


def truth(rng: np.random.Generator) -> dict[Cell, float]:
    """Return a loss that rises faster and faster from an lr near the best one on, as public lattices do."""
    a, b = rng.uniform(-0.5, 0.5, 2)
    log = {(i, j): 0.002 * ((i - a) ** 2 + 0.5 * (j - b) ** 2 + 0.4 * (i - a) * (j - b)) for i, j in CELLS}
    steep = {(i, j): 0.0006 * (math.expm1(2.5 * x) - 2.5 * x) if (x := i - a - 1) > 0 else 0.0 for i, j in CELLS}
    return {cell: 2.5 * math.exp(log[cell] + steep[cell]) for cell in CELLS}


def judged(scores: Mapping[Cell, float], margin: float | None) -> Verdict:
    rows = [Score({"lr": 2.0**i, "wd": 2.0**j}, 0, score) for (i, j), score in scores.items()]
    recipe = TableRecipe(source="scores.csv", column="loss", mode="min")
    study, runs, _ = make_study(rows, recipe, Criterion(margin=margin))
    return evaluate(study, runs).verdict()


def cell_of(point: Point) -> Cell:
    lr, wd = map(math.log2, point)
    return round(lr), round(wd)


def bound_of(verdict: Verdict) -> float:
    assert verdict.bound is not None
    assert verdict.bound.value is not None
    return verdict.bound.value


@pytest.mark.usefixtures("statistics")
def test_rows_far_down_a_slope_do_not_widen_a_bound_which_holds() -> None:
    wider, held = [], []
    for world in range(20):
        rng = np.random.default_rng(world)
        loss = truth(rng)
        scores = {cell: value * math.exp(0.001 * rng.normal()) for cell, value in loss.items()}
        best = sorted(scores.values())[len(scores) * 2 // 3]
        whole = judged(scores, 1e-4)
        near = judged({cell: score for cell, score in scores.items() if score <= best}, 1e-4)
        if near.bound and near.bound.value is not None:  # the noise is known without the flank
            wider.append(bound_of(whole) / near.bound.value)
        assert whole.point is not None
        beside = [cell_of(p) for p in neighbours(whole.point, whole.study.axes)]
        at = cell_of(whole.point)
        held.append(max(1 - loss[cell] / loss[at] for cell in beside) <= bound_of(whole))
    assert len(wider) >= 15
    assert np.median(wider) < 1.1, "with all rows it was 5 to 7 times as wide"
    assert np.quantile(wider, 0.9) < 1.5
    assert sum(held) >= 17, "99.7% of binomial(20, 0.95)"


def test_without_a_stated_margin_it_is_said_what_the_runs_can_tell() -> None:
    """And a margin as fine as that is met by the same scores."""
    rng = np.random.default_rng(3)
    scores = {cell: value * math.exp(0.001 * rng.normal()) for cell, value in truth(rng).items()}
    verdict = judged(scores, None)
    assert verdict.bound is not None
    assert verdict.bound.finest is not None
    assert verdict.bound.finest < 0.01
    assert "you set no margin, so ettsweep uses 2%; with this noise, 7 runs can rule out gains above" in (
        default_margin_text(verdict)
    )
    assert bound_of(judged(scores, verdict.bound.finest)) == verdict.bound.finest, "within this margin"
    assert bound_of(judged(scores, verdict.bound.finest / 2)) == pytest.approx(verdict.bound.finest, rel=0.02), "beyond"
    stated = judged(scores, 0.02)
    assert stated.bound is not None
    assert (stated.bound.finest, default_margin_text(stated)) == (None, "")
