"""The map of one free axis: scores, signs, numbers and ends of ranges along a line."""

from typing import Any

import pandas as pd
import pytest
from support.made_frames import Steps, no_surface, points_of, searched
from support.scene import Scene, scene

from ettsweep.metric import Metric
from ettsweep.report.figures.chart_data import STATE_SIGNS
from ettsweep.report.figures.lattice_map import lattice
from ettsweep.report.theme import INK
from ettsweep.trainer.tasks.registry import BEST_ACCURACY, LOWEST_LOSS

SCORES: dict[Steps, float | None] = {(-2, 0): 0.5, (-1, 0): 0.2, (0, 0): 0.1, (1, 0): 0.2, (2, 0): 0.5}


def drawn(points: pd.DataFrame, ranges: pd.DataFrame | None = None) -> Scene:
    return scene(lattice(points, *no_surface(), ranges))


def dots(result: Scene, **look: Any) -> list[tuple[float, float]]:
    return [result.at(mark)[0] for mark in result.of("symbol", **look)]


def test_one_free_axis_is_a_line_through_scores_with_their_errors() -> None:
    result = drawn(points_of(SCORES, error={(1, 0): None}))
    assert result.names == {"x": "log2 lr, wd 3", "y": "lowest validation loss (nats)"}
    expected = [(pytest.approx(i), pytest.approx(score)) for (i, _), score in SCORES.items()]
    (line,) = result.of("line")
    assert result.at(line) == expected
    assert dots(result, size=45) == expected
    assert dots(result, stroke=INK) == [expected[2]]
    rules = {round(result.at(rule)[0][0]): (result.at(rule), result.at(rule, y="y2")) for rule in result.of("rule")}
    ((_, low),), ((_, high),) = rules[-1]
    assert (low, high) == (pytest.approx(0.19), pytest.approx(0.21))


@pytest.mark.parametrize(("metric", "edge"), [(LOWEST_LOSS, max), (BEST_ACCURACY, min)])
def test_what_has_no_score_is_a_sign_at_the_worse_edge(metric: Metric, edge: Any) -> None:
    scores = SCORES | {(2, 0): None, (-2, 0): None}
    result = drawn(points_of(scores, metric=metric, state={(-2, 0): "running"}))
    assert result.legend == ["diverged", "running"]
    (_, low), (_, high), _ = result.scales["y"]
    signs = [(result.at(mark)[0], mark.shape) for mark in result.of("symbol", size=90)]
    assert signs == [
        ((pytest.approx(-2), pytest.approx(edge(low, high))), STATE_SIGNS["running"]),
        ((pytest.approx(2), pytest.approx(edge(low, high))), STATE_SIGNS["diverged"]),
    ]


def test_numbers_stand_at_the_better_edge_and_rules_end_the_range() -> None:
    frame = points_of(SCORES, error=None, proposal={(0, 0): 1, (2, 0): 2, (-1, 0): 3})
    result = drawn(frame, searched((-3, 0), (3, 0)))
    numbers = {str(mark.text): result.at(mark)[0] for mark in result.of("text", fill="#1c1c1e")}
    (_, low), (_, high), _ = result.scales["y"]
    at = pytest.approx(min(low, high))
    assert numbers == {"1": (pytest.approx(0), at), "2": (pytest.approx(2), at), "3": (pytest.approx(-1), at)}
    ends = sorted(result.at(mark)[0][0] for mark in result.of("rule", stroke=INK, strokeWidth=2))
    assert ends == pytest.approx([-3.5, 3.5])
