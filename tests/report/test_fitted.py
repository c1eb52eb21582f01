"""The fitted surface on maps, of noisy bowls whose optimum is known."""

import re
from dataclasses import replace

import numpy as np
import pytest
from ettsweep.report.maps import hexagon_xy, lattice_figure
from matplotlib.collections import FillBetweenPolyCollection
from matplotlib.contour import ContourSet
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from support.made_sweep import Made

from ettsweep.report.build import cells_of
from ettsweep.report.families import judged
from ettsweep.report.fitted import place_of
from ettsweep.sweep.criterion import Criterion
from ettsweep.sweep.verdict import Verdict
from ettsweep.sweep.verify import look_at

LR, WD = 1 / 3, -0.2


def figure_of(made: Made, verdict: Verdict) -> Figure:
    (family,) = judged(made.runs, [verdict])
    return lattice_figure("title", verdict, cells_of(family).values())


def judged_with(made: Made, strategy: str, **criterion: object) -> Verdict:
    search = replace(made.verdict(strategy).search, criterion=Criterion.model_validate(criterion))
    return look_at(search, [run for run in made.runs if run.family == search.family]).verdict()


def ellipses(figure: Figure) -> list[Ellipse]:
    return [patch for patch in figure.axes[0].patches if isinstance(patch, Ellipse)]


def contours(figure: Figure) -> list[ContourSet]:
    return [drawn for drawn in figure.axes[0].collections if isinstance(drawn, ContourSet)]


def test_the_optimum_is_drawn_where_it_is(noisy: Made) -> None:
    """The lattice's axes are 60 degrees apart, and the bowl is round there: so is the ellipse, but for noise."""
    figure = figure_of(noisy, noisy.verdict("standard"))
    drawn = ellipses(figure)[-1]
    away = np.subtract(drawn.get_center(), hexagon_xy(LR, WD))
    assert np.hypot(*away) < 3 * max(drawn.width, drawn.height) / 2 < 0.5
    assert 0.5 < drawn.width / drawn.height < 2
    assert "ellipse: fitted optimum ± standard error; contours: 2%, 4%, ... worse" in figure.get_suptitle()


@pytest.mark.parametrize("margin", [0.02, 0.1])
def test_contours_are_the_margin_and_its_doubles(noisy: Made, margin: float) -> None:
    drawn = contours(figure_of(noisy, judged_with(noisy, "standard", margin=margin)))
    assert drawn[-1].levels[:2].tolist() == pytest.approx([margin, 2 * margin])
    # A bowl of 0.06 d^2 is worse by the margin on a circle around its optimum.
    circle = np.asarray(drawn[-1].get_paths()[0].vertices)
    distance = np.hypot(*(circle - hexagon_xy(LR, WD)).T)
    assert distance.mean() == pytest.approx(np.sqrt(margin / 0.06), rel=0.15)


@pytest.mark.parametrize(("strategy", "rule"), [("standard", "paper"), ("mup", "bound")])
def test_no_surface_is_drawn_by_the_papers_rule_or_where_the_noise_is_unknown(
    noisy: Made, strategy: str, rule: str
) -> None:
    verdict = judged_with(noisy, strategy, rule=rule)
    figure = figure_of(noisy, verdict)
    assert (ellipses(figure), contours(figure), place_of(verdict)) == ([], [], "")


def test_one_free_axis_has_a_curve_with_a_band(noisy: Made) -> None:
    figure = figure_of(noisy, noisy.verdict("hybrid"))
    panel = figure.axes[0]
    curve = next(line for line in panel.lines if len(line.get_xdata()) > 30)
    x, y = np.array(curve.get_xdata(), dtype=float), np.array(curve.get_ydata(), dtype=float)
    i = np.log2(x) + 6
    true = 0.1 * (1 + 0.06 * ((i - LR) ** 2 + (i - LR) * 0.2 + 0.04))
    np.testing.assert_allclose(y, true, rtol=0.03)
    (band,) = [drawn for drawn in panel.collections if isinstance(drawn, FillBetweenPolyCollection)]
    half = np.ptp(np.asarray(band.get_paths()[0].vertices)[:, 1]) - np.ptp(y)
    assert 0 < half < 0.01
    assert "curve: fitted, with its standard error" in figure.get_suptitle().replace("\n", " ")


def test_the_place_of_the_optimum_is_told_with_its_error(noisy: Made) -> None:
    told = re.fullmatch(r"lr 2\^\((.*) ± (.*)\), wd 2\^\((.*) ± (.*)\)", place_of(noisy.verdict("standard")))
    assert told is not None
    lr, lr_error, wd, wd_error = map(float, told.groups())
    assert abs(lr - (-6 + LR)) < 3 * lr_error < 0.5
    assert abs(wd - (-1 + WD)) < 3 * wd_error < 0.5
