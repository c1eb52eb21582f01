"""The figure of a search: steps, dots and lines are where the numbers are."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.made_sweep import digits_spec, finish_at, imagenet_spec, read, searched
from support.scene import Mark, Scene, scene

from ettsweep.report.families import judged_families
from ettsweep.report.figures import course
from ettsweep.report.figures.shapes import STATE_SIGNS
from ettsweep.report.frames import points_frame, search_history_frame
from ettsweep.report.theme import CANDIDATE
from ettsweep.runs.spec import RunSpec

LOSSES = {(0, 0): 2.0, (1, 0): 1.0, (0, 1): 1.2, (-1, 0): 1.5}
"""The second proposal is the best; the last run is no proposal, but a neighbour."""


def frames(results: Path, base: RunSpec, diverged: tuple[int, int] | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the frames of a search's course and of its points."""
    study = searched(base, [*LOSSES][:3])
    for ended_s, (steps, loss) in enumerate(LOSSES.items()):
        finish_at(results, study, steps, loss, ended_s=ended_s, diverged=steps == diverged)
    text = read(results, [study])
    (family,) = judged_families(text.runs, text.verdicts)
    return search_history_frame(family), points_frame([family])


def panel(results: Path, base: RunSpec, diverged: tuple[int, int] | None = None) -> Scene:
    return scene(course(*frames(results, base, diverged)))


def best(result: Scene) -> list[tuple[int, float]]:
    (steps,) = result.of("line")
    assert steps.interpolate == "step-after"
    return [(round(x), round(y, 6)) for x, y in result.at(steps)]


def dots(result: Scene, shape: str = "circle") -> list[tuple[int, float]]:
    return sorted((round(x), round(y, 6)) for mark in result.of("symbol", shape=shape) for x, y in result.at(mark))


def told(result: Scene) -> dict[str, Mark]:
    return {mark.told["number"]: mark for mark in result.of("symbol")}


def test_steps_are_the_best_loss_so_far_and_dots_the_runs(results: Path) -> None:
    panel_result = panel(results, digits_spec(None))
    assert best(panel_result) == [(1, 2.0), (2, 1.0), (3, 1.0), (4, 1.0)]
    assert dots(panel_result) == list(enumerate(LOSSES.values(), 1))
    assert panel_result.names == {"x": "runs finished", "y": "lowest validation loss (nats)"}
    filled = {number: mark.fill != "transparent" for number, mark in told(panel_result).items()}
    assert filled == {"1": True, "2": True, "3": True, "4": False}
    assert told(panel_result)["2"].told["score"] == "1.0000"
    assert [told(panel_result)[number].told["kind"] for number in "34"] == ["suggestion", "other run"]


def test_accuracies_rise_and_are_in_percent(results: Path) -> None:
    panel_result = panel(results, imagenet_spec(None))
    assert best(panel_result) == [(1, 50), (2, 75), (3, 75), (4, 75)]
    assert "%" in panel_result.names["y"]


@pytest.mark.parametrize(("base", "edge"), [(digits_spec(None), max), (imagenet_spec(None), min)])
def test_what_diverged_is_a_cross_at_the_worse_edge(results: Path, base: RunSpec, edge: Any) -> None:
    panel_result = panel(results, base, diverged=(0, 0))
    (_, low), (_, high), _ = panel_result.scales["y"]
    assert dots(panel_result, STATE_SIGNS["diverged"]) == [(1, pytest.approx(edge(low, high)))]
    assert len(dots(panel_result)) == 3
    assert told(panel_result)["1"].told["score"] == "diverged"
    line = panel_result.of("line")[0]
    assert [item["defined"] for item in line.items if "defined" in item].count(True) == 3, "nothing is best at first"


def test_a_run_far_worse_stands_at_the_edge_and_leaves_the_rest_room(results: Path) -> None:
    spent, points = frames(results, digits_spec(None))
    drawing = scene(
        course(spent.assign(score=spent["score"].replace(2.0, 1e6), best=spent["best"].replace(2.0, 1e6)), points)
    )
    (_, _), (_, high), _ = drawing.scales["y"]
    assert high < 10
    assert dots(drawing, STATE_SIGNS["diverged"]) == [(1, pytest.approx(high))]


def test_a_line_parts_proposals_from_what_came_for_the_verdict(results: Path) -> None:
    panel_result = panel(results, digits_spec(None))
    (at,) = {round(panel_result.at(rule)[0][0], 6) for rule in panel_result.of("rule") if rule.strokeDash == [4, 3]}
    assert at == 3.5
    sides = {str(mark.text): (mark.align, round(panel_result.at(mark)[0][0], 6)) for mark in panel_result.of("text")}
    assert sides == {"suggestions": ("right", 3.5), "for the verdict": ("left", 3.5)}


def test_no_line_where_all_runs_are_proposals(results: Path) -> None:
    spent, points = frames(results, digits_spec(None))
    drawing = scene(course(spent.iloc[:3], points))
    assert (drawing.texts(), [rule for rule in drawing.of("rule") if rule.strokeDash == [4, 3]]) == ([], [])


def test_the_mean_of_the_candidate_is_a_line_with_its_error(results: Path) -> None:
    spent, points = frames(results, digits_spec(None))
    drawing = scene(course(spent, points.assign(error=0.1)))
    (line,) = drawing.of("rule", stroke=CANDIDATE)
    assert drawing.at(line)[0][1] == pytest.approx(1.0)
    (band,) = drawing.of("rect", fill=CANDIDATE)
    ends = drawing.value("y", band.y), drawing.value("y", band.y + band.height)
    assert sorted(ends) == [pytest.approx(0.9), pytest.approx(1.1)]


def test_where_all_runs_diverged_there_is_still_a_figure(results: Path) -> None:
    spent, points = frames(results, digits_spec(None))
    drawing = scene(course(spent.assign(score=float("nan"), best=float("nan")), points.assign(score=float("nan"))))
    assert len(dots(drawing, STATE_SIGNS["diverged"])) == 4
