"""Trajectories: what is drawn, named and in which colour."""

import math

import pytest
from support.made_frames import SIX, Steps, curves_of, named, points_of
from support.scene import Scene, scene

from ettsweep.metric import Metric
from ettsweep.report.figures.chart_data import NEIGHBOUR_COLOURS
from ettsweep.report.figures.trajectories import mean_curves, trajectories
from ettsweep.report.formats import GREY, strategy_colour
from ettsweep.trainer.tasks.registry import BEST_ACCURACY, LOWEST_LOSS


def falling(level: float, epochs: int = 6) -> list[float]:
    return [level + math.exp(-epoch) for epoch in range(1, epochs + 1)]


def drawn(scores: dict[Steps, float | None], metric: Metric = LOWEST_LOSS) -> Scene:
    points = points_of(scores, metric=metric)
    values = {steps: {0: falling(2.0 if score is None else score)} for steps, score in scores.items()}
    if metric == BEST_ACCURACY:
        values = {s: {0: [1 - v / 4 for v in falling(4 - 4 * (scores[s] or 0))]} for s in scores}
    return scene(trajectories(curves_of(points, values, metric.column), points))


def test_the_mean_is_that_of_all_seeds_as_far_as_the_shortest_goes() -> None:
    points = points_of({(0, 0): 0.1})
    curves = curves_of(points, {(0, 0): {0: falling(0.1), 1: falling(0.3, epochs=4)}})
    mean = mean_curves(curves, "val_loss", ["point"])
    assert mean["trained"].tolist() == [1, 2, 3, 4]
    assert mean["value"].tolist() == pytest.approx([0.2 + math.exp(-epoch) for epoch in (1, 2, 3, 4)])


def test_the_best_accuracy_comes_first_and_in_percent() -> None:
    result = drawn({(0, 0): 0.8, (1, 0): 0.7, (0, 1): 0.75}, BEST_ACCURACY)
    assert result.legend == [
        f"{named(s)} [{best} ± 1.00%]" for s, best in (((0, 0), "80.00"), ((0, 1), "75.00"), ((1, 0), "70.00"))
    ]
    assert result.names == {"x": "epoch", "y": "validation accuracy (%)"}
    ends = sorted(result.at(line)[-1][1] for line in result.of("line"))
    assert ends == pytest.approx([70, 75, 80], abs=0.1)


def test_twenty_curves_are_a_candidate_six_neighbours_and_grey() -> None:
    scores: dict[Steps, float | None] = {
        (i, j): 0.1 + 0.01 * (i * i + j * j) for i in range(-2, 3) for j in range(-2, 2)
    }
    result = drawn(scores)
    lines = {line.told["point"]: line for line in result.of("line")}
    assert set(lines) == {named(steps) for steps in scores}
    assert lines[named((0, 0))].stroke == strategy_colour("ntk")
    neighbours = {lines[named(steps)].stroke for steps in SIX}
    assert len(neighbours) == 6
    assert neighbours <= set(NEIGHBOUR_COLOURS)
    others = scores.keys() - {(0, 0), *SIX}
    assert {lines[named(steps)].stroke for steps in others} == {GREY}
    assert (len(result.legend), result.legend[-1]) == (8, "other points")
