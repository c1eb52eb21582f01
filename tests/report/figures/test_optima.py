"""The optima of all strategies: a line a seed, scores with means and deviations, in the strategies' colours."""

import math

import numpy as np
import pandas as pd
import pytest
from support.made_sweep import FRESH, SEEDS, Made, loss_at
from support.scene import scene

from ettsweep.report.families import judged_families
from ettsweep.report.figures import scores, seeds
from ettsweep.report.formats import strategy_colour
from ettsweep.report.frames import curves_frame, optima_frame
from ettsweep.report.run_histories import RunHistories


@pytest.fixture(scope="module")
def optima(sample: Made) -> pd.DataFrame:
    return optima_frame(judged_families(sample.runs, sample.verdicts))


@pytest.fixture(scope="module")
def curves(sample: Made) -> pd.DataFrame:
    return curves_frame(judged_families(sample.runs, sample.verdicts), RunHistories(100))


def test_a_line_for_each_fresh_seed_and_for_each_of_the_searchs_where_there_are_none(
    curves: pd.DataFrame, optima: pd.DataFrame
) -> None:
    drawing = scene(seeds(curves, optima))
    values = [(line.told["strategy"], int(line.told["seed"])) for line in drawing.of("line")]
    assert sorted(values) == sorted(
        [("standard", s) for s in FRESH] + [(n, s) for n in ("ntk", "hybrid") for s in SEEDS]
    )
    assert all(line.stroke == strategy_colour(line.told["strategy"]) for line in drawing.of("line"))
    best = next(line for line in drawing.of("line") if line.told["seed"] == "11")
    expected = [loss_at(0, 0, 11) + 0.01 + extra for extra in (1, 0.5, 0.25, 0.125, 0.0625, 0)]
    np.testing.assert_allclose([y for _, y in drawing.at(best)], expected, rtol=1e-3)
    assert [x for x, _ in drawing.at(best)] == pytest.approx([40 * k / 12 for k in range(1, 7)], abs=1e-3)


def test_the_legend_has_the_mean_of_the_scores_with_their_error_in_the_usual_order(
    curves: pd.DataFrame, optima: pd.DataFrame
) -> None:
    fresh = [loss_at(0, 0, seed) + 0.01 for seed in FRESH]
    mean, error = np.mean(fresh), np.std(fresh, ddof=1) / math.sqrt(2)
    assert scene(seeds(curves, optima)).legend == [
        f"standard (2^-6, 2^-1) [{mean:.4f} ± {error:.4f}, 2 fresh]",
        "ntk (2^-6, 2^-1) [0.1004 ± 0.0002, 3 search]",
        "hybrid (2^-6, 2^-1) [0.1004 ± 0.0002, 3 search]",
    ]


def test_scores_are_open_circles_for_the_searchs_seeds_and_filled_ones_for_fresh(optima: pd.DataFrame) -> None:
    drawing = scene(scores(optima))
    assert drawing.names["x"] == "lowest validation loss (nats)"
    dots = [
        (mark.told["strategy"], mark.fill != "transparent", drawing.at(mark)[0][0]) for mark in drawing.of("symbol")
    ]
    search = [(name, False, loss_at(0, 0, seed)) for name in ("standard", "ntk", "hybrid") for seed in SEEDS]
    fresh = [("standard", True, loss_at(0, 0, seed) + 0.01) for seed in FRESH]
    assert sorted(dots) == [(name, kind, pytest.approx(at, rel=1e-3)) for name, kind, at in sorted(search + fresh)]
