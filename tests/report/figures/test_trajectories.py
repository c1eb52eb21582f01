"""Trajectories: what is drawn, named and in which colour."""

import math

import numpy as np
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


def test_the_legend_has_the_candidate_then_its_neighbours_the_best_first_and_what_diverged_last() -> None:
    result = drawn({(1, 0): 0.3, (0, -1): None, (0, 0): 0.1, (-1, 0): 0.2})
    expected = {(0, 0): "0.1000 ± 0.0100", (-1, 0): "0.2000 ± 0.0100", (1, 0): "0.3000 ± 0.0100", (0, -1): "diverged"}
    assert result.legend == [f"{named(steps)} [{best}]" for steps, best in expected.items()]
    assert len({mark.stroke for mark in result.entries.values()}) == 4


def test_the_best_accuracy_comes_first_and_in_percent() -> None:
    result = drawn({(0, 0): 0.8, (1, 0): 0.7, (0, 1): 0.75}, BEST_ACCURACY)
    assert result.legend == [
        f"{named(s)} [{best} ± 1.00%]" for s, best in (((0, 0), "80.00"), ((0, 1), "75.00"), ((1, 0), "70.00"))
    ]
    assert result.names == {"x": "epoch", "y": "validation accuracy (%)"}
    ends = sorted(result.at(line)[-1][1] for line in result.of("line"))
    assert ends == pytest.approx([70, 75, 80], abs=0.1)


def test_one_line_a_point_through_its_means_and_the_candidate_is_thick() -> None:
    scores: dict[Steps, float | None] = {(k, 0): 0.1 + 0.1 * k for k in range(4)}
    points = points_of(scores)
    values = {
        steps: {0: falling(score - 0.02), 1: falling(score + 0.02), 10: falling(9.0)}
        for steps, score in scores.items()
        if score
    }
    drawing = scene(trajectories(curves_of(points, values), points))
    assert drawing.names == {"x": "epoch", "y": "validation loss (nats)"}
    lines = {line.told["point"]: line for line in drawing.of("line")}
    assert set(lines) == {named(steps) for steps in scores}
    for (k, _), score in scores.items():
        line = lines[named((k, 0))]
        assert (
            line.stroke
            == drawing.entries[f"{named((k, 0))} [{score:.4f} ± 0.0100]" if k < 2 else "other points"].stroke
        )
        expected = [(epoch, score + math.exp(-epoch)) for epoch in range(1, 7)]
        np.testing.assert_allclose(drawing.at(line), expected, rtol=2e-3, err_msg="fresh seeds are left out")
    widths = {name: line.strokeWidth for name, line in lines.items()}
    assert widths.pop(named((0, 0))) > 2 * max(widths.values())


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


def test_accuracies_are_shown_where_they_differ() -> None:
    """The first evaluations, at chance, would press the last ones together."""
    points = points_of({(0, 0): 0.9}, metric=BEST_ACCURACY)
    accuracies = [0.1, 0.5, 0.8, 0.85, 0.88, 0.89, 0.9, 0.9]
    drawing = scene(trajectories(curves_of(points, {(0, 0): {0: accuracies}}, "val_accuracy"), points))
    (line,) = drawing.of("line")
    assert [round(y) for _, y in drawing.at(line)] == [80, 85, 88, 89, 90, 90]


def test_points_without_an_evaluation_have_no_entry() -> None:
    points = points_of({(0, 0): 0.1, (1, 0): None})
    drawing = scene(trajectories(curves_of(points, {(0, 0): {0: falling(0.1)}}), points))
    assert drawing.legend == [f"{named((0, 0))} [0.1000 ± 0.0100]"]
