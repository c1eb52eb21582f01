"""Fresh seeds beside a verdict: by how much they differ from what the search's seeds say, and whether that is chance."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from study.scored_runs import scored_run
from support.made_sweep import digits_spec
from support.points import moved

from ettsweep.report.verdict_view import make_views
from ettsweep.runs.index import Run
from ettsweep.runs.point import Point
from ettsweep.shipped_files import shipped
from ettsweep.study.criterion import CriterionOptions
from ettsweep.study.fresh import compare_fresh
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.judgement import evaluate
from ettsweep.study.lattice import Axis
from ettsweep.study.study import Study
from ettsweep.study.verdict import Verdict

BASE = digits_spec(None)
CENTRE = BASE.point
GRID = tuple(moved(CENTRE, i, j) for i, j in product(range(-2, 3), repeat=2))
FRESH = (10, 11, 12)


def run_of(point: Point, seed: int, score: float | None) -> Run:
    return scored_run(BASE.with_point(point, seed), score)


def judged(rng: np.random.Generator, fresh: Callable[[float], float], seeds: Sequence[int] = (0, 1, 2)) -> Verdict:
    """Return the verdict on a bowl of loss 0.1 whose seeds have effects of their own; `fresh` changes fresh scores."""
    axis = Axis(low=-2, high=2)
    study = Study(BASE, {"lr": axis, "wd": axis}, tuple(seeds), GRID, sweep="w")
    study = study.with_criterion(CriterionOptions(margin=0.05))
    effect = {seed: rng.normal(0, 0.05) for seed in (*seeds, *FRESH)}

    def score(point: Point, seed: int) -> float:
        i, j = (math.log2(a / b) for a, b in zip(point, CENTRE, strict=True))
        return 0.1 * math.exp(0.1 * (i * i + j * j + i * j / 2) + effect[seed] + rng.normal(0, 0.02))

    runs = [run_of(point, seed, score(point, seed)) for point in GRID for seed in seeds]
    runs += [run_of(CENTRE, seed, fresh(score(CENTRE, seed))) for seed in FRESH]
    return evaluate(study, runs).verdict(CENTRE)


@pytest.mark.usefixtures("statistics")
def test_fresh_seeds_like_the_others_are_beyond_chance_in_one_of_twenty_cases() -> None:
    """Of a single point its scores are all there is: the difference of two means, whose error is known exactly."""
    rng, fixed = np.random.default_rng(0), Axis(fixed=True)
    study = Study(BASE, {"lr": fixed, "wd": fixed}, (0, 1, 2), (CENTRE,), sweep="w").with_criterion(
        CriterionOptions(rule="paper")
    )
    beyond = 0
    for _ in range(1000):
        runs = [run_of(CENTRE, seed, 1 + 0.02 * rng.normal()) for seed in (0, 1, 2, *FRESH)]
        comparison = compare_fresh(evaluate(study, runs).verdict(CENTRE))
        assert comparison is not None
        beyond += comparison.is_beyond_chance
    assert 25 <= beyond <= 77, "99.99% of binomial(1000, 0.05)"


@pytest.mark.usefixtures("statistics")
def test_honest_fresh_seeds_are_beyond_chance_in_a_twentieth_at_most() -> None:
    """The errors are on the safe side, as each part of them is estimated."""
    rng = np.random.default_rng(0)
    comparisons = [compare_fresh(judged(rng, lambda score: score)) for _ in range(60)]
    errors = [c.worse_by / c.error for c in comparisons if c]
    assert len(errors) == 60
    assert sum(c.is_beyond_chance for c in comparisons if c) <= 8, "99.5% of binomial(60, 0.05)"
    assert 0.5 < float(np.std(errors)) < 1.5, "in units of its error, a difference varies by about 1"


def test_fresh_seeds_that_are_much_worse_are_beyond_chance() -> None:
    comparison = compare_fresh(judged(np.random.default_rng(1), lambda score: 1.5 * score))
    assert comparison is not None
    assert comparison.is_beyond_chance
    assert comparison.is_notable
    assert comparison.worse_by == pytest.approx(0.5, abs=4 * comparison.error)
    (view,) = make_views([comparison.verdict])
    assert view.fresh.endswith("% worse than fitted")
    assert "more than chance explains (95%)" in view.notes[0]


def test_what_diverged_or_was_never_repeated_is_not_compared() -> None:
    rng = np.random.default_rng(5)
    verdict = judged(rng, lambda score: score)
    assert compare_fresh(replace(verdict, fresh_scores={})) is None
    assert compare_fresh(replace(verdict, fresh_scores={10: 0.1, 11: None})) is None
    single = judged(rng, lambda score: score, seeds=(0,))
    assert compare_fresh(replace(single, fresh_scores={10: 0.1})) is None, "one run of each kind"


@pytest.mark.parametrize(("worse_by", "is_beyond_chance"), [(0.1, True), (0.01, False)])
def test_a_lower_accuracy_is_worse(worse_by: float, is_beyond_chance: bool) -> None:
    """The standard error is 0.0082, and by Student's t with 4 degrees of freedom chance explains 2.8 of them."""
    grid = shipped("grids") / "vit-b16.yaml"
    (study,) = load_sweep_spec(grid, ["ntk"], ranges={"lr": "fixed", "wd": "fixed"}, seeds=3).studies()
    study = study.with_criterion(CriterionOptions(rule="paper"))
    scores = [0.80, 0.81, 0.82]
    scores += [score - worse_by for score in scores]
    runs = [scored_run(study.spec_at(seed=seed), score) for seed, score in enumerate(scores)]
    comparison = compare_fresh(evaluate(study, runs).verdict())
    assert comparison is not None
    assert comparison.worse_by == pytest.approx(worse_by)
    assert comparison.is_beyond_chance == is_beyond_chance
