"""Curves of a family: what their controls make of steps, evaluations and spikes."""

import math

import pandas as pd
import pytest
from support.made_frames import SIX, Steps, curves_of, named, points_of, run_of, spikes_of
from support.scene import Mark, Scene, scene

from ettsweep.files import Json
from ettsweep.report.figures.curves import MAX_OTHER_POINTS, TRIANGLE, curves
from ettsweep.report.formats import GREY, strategy_colour

SCORES: dict[Steps, float | None] = {
    **{(0, 0): 0.1, (1, 0): 0.3, (-1, 0): 0.2, (0, 1): None},
    **{(k, 0): 0.1 * k for k in range(2, 2 + MAX_OTHER_POINTS + 2)},
}
"""The candidate, three of its neighbours, and two points more than are drawn in grey."""

NO_SPIKES = spikes_of(points_of({}))
LOSSES = {
    steps: {0: [score or 5, 0.5, score or 5], 1: [score or 5, 0.7, score or 5]} for steps, score in SCORES.items()
}


@pytest.fixture(scope="module")
def points() -> pd.DataFrame:
    return points_of(SCORES)


@pytest.fixture(scope="module")
def spec(points: pd.DataFrame) -> Json:
    """Training and validation losses of all points over two seeds and a fresh one; gradient norms of the candidate."""
    fresh = {(0, 0): LOSSES[0, 0] | {10: [9.0, 9.0, 9.0]}}
    frames = [
        curves_of(points, LOSSES | fresh),
        curves_of(points, LOSSES, "loss"),
        curves_of(points, {(0, 0): {0: [1.0, 4.0, 2.0]}}, "grad_norm"),
    ]
    spikes = spikes_of(
        points,
        *[((0, 0), 1, 2, "loss", 0.7), ((0, 0), 0, 2, "grad_norm", 4.0), ((1, 0), 0, 1, "loss", 0.3)],
        *[((5, 0), 0, 2, "loss", 0.5), ((0, 1), 0, 3, "loss", math.nan), ((0, 0), 10, 1, "val_loss", 9.0)],
    )
    return curves(pd.concat(frames, ignore_index=True), spikes, points)


def lines(result: Scene) -> dict[str, Mark]:
    """Return the means by the name of their point."""
    return {line.told["point"]: line for line in result.of("line") if "point" in line.told}


def triangles(result: Scene) -> list[tuple[float, float]]:
    """Return where spikes are marked; each triangle stands seven pixels above, and points at its place."""
    marks = result.of("symbol", shape=TRIANGLE)
    return [(round(result.value("x", mark.x), 3), round(result.value("y", mark.y + 7), 3)) for mark in marks]


def test_the_legend_names_the_candidate_first_and_its_neighbours_by_score(spec: Json) -> None:
    expected = {(0, 0): "0.1000 ± 0.0100", (-1, 0): "0.2000 ± 0.0100", (1, 0): "0.3000 ± 0.0100", (0, 1): "diverged"}
    assert scene(spec).legend == [
        *(f"{named(steps)} [{messages}]" for steps, messages in expected.items()),
        "other points",
    ]


def test_a_mean_for_each_of_candidate_neighbours_and_the_best_others_in_grey(spec: Json) -> None:
    drawn = lines(scene(spec))
    others = [steps for steps in SCORES if steps != (0, 0) and steps not in SIX]
    assert set(drawn) == {named(s) for s in SCORES} - {named(s) for s in others[MAX_OTHER_POINTS:]}
    grey = {name for name, line in drawn.items() if line.stroke == GREY}
    assert grey == {named(s) for s in others[:MAX_OTHER_POINTS]}
    best = drawn.pop(named((0, 0)))
    assert best.stroke == strategy_colour("ntk")
    assert best.strokeWidth == 2 * drawn[named((1, 0))].strokeWidth
    assert len({best.stroke, *(line.stroke for line in drawn.values())}) == 5, "no neighbour looks like the optimum"


def test_means_are_over_the_seeds_that_count_as_far_as_all_of_them_go(points: pd.DataFrame, spec: Json) -> None:
    def mean(drawing: Scene) -> list[tuple[float, float]]:
        return [(round(x, 3), round(y, 3)) for x, y in drawing.at(lines(drawing)[named((0, 0))])]

    assert mean(scene(spec)) == [(1, 0.1), (2, 0.6), (3, 0.1)]
    shorter = curves_of(points, {(0, 0): {0: [1.0, 2.0, 3.0], 1: [3.0, 4.0]}})
    assert mean(scene(curves(shorter, NO_SPIKES, points))) == [(1, 2), (2, 3)]


def test_quantities_are_offered_where_there_are_values_and_what_scores_are_of_comes_first(spec: Json) -> None:
    params = {item["name"]: item for item in spec["params"]}
    assert params["quantity"]["value"] == "val_loss"
    assert params["quantity"]["bind"]["options"] == ["loss", "grad_norm", "val_loss"]
    assert params["quantity"]["bind"]["labels"] == ["training loss", "gradient norm", "validation loss"]
    drawing = scene(spec, quantity="grad_norm")
    assert (drawing.title, drawing.names["x"]) == ("gradient norm", "epoch")
    (line,) = lines(drawing).values()
    assert [y for _, y in drawing.at(line)] == pytest.approx([1, 4, 2])


def test_spikes_are_marked_where_they_are_and_only_of_what_is_shown(spec: Json) -> None:
    assert triangles(scene(spec, quantity="loss")) == [(2, 0.7), (1, 0.3)], "of candidate and neighbours"
    assert triangles(scene(spec)) == [], "the run of a fresh seed is in no mean"
    told = scene(spec, quantity="loss").of("symbol", shape=TRIANGLE)[0].told
    assert (told["spike"], told["run"]) == ("loss went up at 2", run_of((0, 0), 1))
