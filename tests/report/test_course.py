"""The figure of a search: steps, dots and lines are where the numbers are."""

from pathlib import Path

import numpy as np
import pytest
from ettsweep.report.course import course_figure
from ettsweep.report.maps import CANDIDATE
from matplotlib.axes import Axes
from support.made_sweep import digits_spec, finish_at, imagenet_spec, read, searched

from ettsweep.spec import RunSpec
from ettsweep.sweep.course import course
from ettsweep.sweep.verify import look_at

LOSSES = {(0, 0): 2.0, (1, 0): 1.0, (0, 1): 1.2, (-1, 0): 1.5}
"""The second proposal is the best; the last run is no proposal, but a neighbour."""


def panel(results: Path, base: RunSpec, error: float | None = None, diverged: tuple[int, int] | None = None) -> Axes:
    search = searched(base, [*LOSSES][:3])
    for ended_s, (steps, loss) in enumerate(LOSSES.items()):
        finish_at(results, search, steps, loss, ended_s=ended_s, diverged=steps == diverged)
    made = read(results, [search])
    figure = course_figure("a $title", made.verdicts[0], error, course(look_at(search, made.runs)))
    figure.canvas.draw()
    return figure.axes[0]


def best(axes: Axes) -> list[float]:
    (steps,) = (line for line in axes.lines if line.get_drawstyle() == "steps-post")
    assert list(steps.get_xdata()) == [1, 2, 3, 4, 5], "the last step has a width too"
    return [float(y) for y in np.asarray(steps.get_ydata())]


def dots(axes: Axes, marker: str) -> list[tuple[float, float]]:
    return [
        (float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in axes.lines if line.get_marker() == marker
    ]


def test_steps_are_the_best_loss_so_far_and_dots_the_runs(results: Path) -> None:
    axes = panel(results, digits_spec(None))
    assert best(axes) == [2.0, 1.0, 1.0, 1.0, 1.0]
    assert dots(axes, "o") == list(enumerate(LOSSES.values(), 1))
    filled = [line.get_markerfacecolor() != "white" for line in axes.lines if line.get_marker() == "o"]
    assert filled == [True, True, True, False]
    assert axes.get_xlabel() == "runs finished"


def test_accuracies_rise_and_are_in_percent(results: Path) -> None:
    axes = panel(results, imagenet_spec(None))
    assert best(axes) == [50, 75, 75, 75, 75]
    assert "%" in axes.get_ylabel()


@pytest.mark.parametrize(("base", "worse_edge"), [(digits_spec(None), 1), (imagenet_spec(None), 0)])
def test_what_diverged_is_a_cross_at_the_worse_edge(results: Path, base: RunSpec, worse_edge: int) -> None:
    axes = panel(results, base, diverged=(0, 0))
    assert np.isnan(best(axes)[0])
    assert dots(axes, "x") == [(1, axes.get_ylim()[worse_edge])]
    assert len(dots(axes, "o")) == 3


def test_a_line_parts_proposals_from_what_came_for_the_verdict(results: Path) -> None:
    axes = panel(results, digits_spec(None))
    assert [
        line.get_xdata()[0] for line in axes.lines if len(set(line.get_xdata())) == 1 and len(line.get_xdata()) == 2
    ] == [3.5]
    assert [text.get_text() for text in axes.texts] == ["proposals", "for the verdict"]


def test_the_mean_of_the_candidate_is_a_line_with_its_error(results: Path) -> None:
    axes = panel(results, digits_spec(None), error=0.1)
    (line,) = (line for line in axes.lines if line.get_color() == CANDIDATE)
    assert list(line.get_ydata()) == [1.0, 1.0]
    (band,) = axes.patches
    assert band.get_extents().transformed(axes.transData.inverted()).intervaly == pytest.approx([0.9, 1.1])
