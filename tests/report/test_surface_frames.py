"""The fitted surface in frames and on maps, of noisy bowls whose optimum is known."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from support.made_sweep import Made
from support.scene import Mark, Scene, scene

from ettsweep.files import Json
from ettsweep.report.families import JudgedFamily, judged_families, strategy_comparisons
from ettsweep.report.figure_files import FigureBuilder
from ettsweep.report.figures.lattice_map import contour_levels, lattice
from ettsweep.report.frames import points_frame
from ettsweep.report.hexagons import hexagon_xy, nearest_positions
from ettsweep.report.run_histories import RunHistories
from ettsweep.report.surface_frames import optimum_frame, optimum_text, surface_frame
from ettsweep.report.theme import CANDIDATE
from ettsweep.study.criterion import Criterion
from ettsweep.study.judgement import evaluate

LR, WD = 1 / 3, -0.2
"""Where the bowls are lowest, in steps from the candidate."""


def bowl(i: pd.Series, j: float | pd.Series = 0.0) -> pd.Series:
    """Return the loss without its noise."""
    return 0.1 * (1 + 0.06 * ((i - LR) ** 2 + (i - LR) * (j - WD) + (j - WD) ** 2))


def judged_with(sample: Made, strategy: str, **criterion: object) -> JudgedFamily:
    study = sample.verdict(strategy).study
    if criterion:
        study = replace(study, criterion=Criterion.model_validate(criterion))
    verdict = evaluate(study, [run for run in sample.runs if run.family == study.family]).verdict()
    return judged_families(sample.runs, [verdict])[0]


def spec(family: JudgedFamily) -> Json:
    return lattice(points_frame([family]), surface_frame([family]), optimum_frame([family]))


@pytest.fixture(scope="module")
def standard(noisy: Made) -> JudgedFamily:
    return judged_with(noisy, "standard")


def contours(result: Scene) -> list[np.ndarray]:
    """Return the lines of contours, in hexagons."""
    return [np.array(result.at(line)) for line in result.of("line", stroke="#fff", strokeWidth=1.1)]


def ellipse(result: Scene) -> np.ndarray:
    (line,) = result.of("line", stroke=CANDIDATE)
    return np.array(result.at(line))


def cross(result: Scene) -> Mark:
    (mark,) = result.of("symbol", stroke=CANDIDATE, size=70)
    return mark


# --- frames -------------------------------------------------------------------------------------------------------


def test_the_surface_is_the_bowl_but_for_noise(standard: JudgedFamily) -> None:
    frame = surface_frame([standard])
    inside = frame[frame["lr_steps"].abs().le(2) & frame["wd_steps"].abs().le(2)]
    true = bowl(inside["lr_steps"], inside["wd_steps"])
    np.testing.assert_allclose(inside["score"], true, rtol=0.03)
    np.testing.assert_allclose(inside["worse"], true / 0.1 - 1, atol=0.03)
    assert frame["worse"].min() >= -1e-9, "nowhere better than at the optimum"
    assert set(frame["margin"]) == {0.02}


def test_the_optimum_is_where_it_is_within_its_error(standard: JudgedFamily) -> None:
    (best,) = optimum_frame([standard]).itertuples()
    lr_error, wd_error = np.sqrt([best.lr_variance, best.wd_variance])
    assert abs(best.lr_steps - LR) < 3 * lr_error < 0.5
    assert abs(best.wd_steps - WD) < 3 * wd_error < 0.5
    assert best.score == pytest.approx(0.1, rel=0.01)
    assert best.covariance < 0, "the bowl is longest where lr rises and wd falls"


def test_of_one_axis_the_other_has_no_spread(noisy: Made) -> None:
    hybrid = judged_with(noisy, "hybrid")
    (best,) = optimum_frame([hybrid]).itertuples()
    assert (best.wd_steps, best.wd_variance, best.covariance) == (0, 0, 0)
    assert best.lr_variance > 0
    frame = surface_frame([hybrid])
    assert (frame["low"] < frame["score"]).all()
    assert (frame["score"] < frame["high"]).all()


@pytest.mark.parametrize(("strategy", "rule"), [("standard", "paper"), ("mup", "bound")])
def test_no_surface_by_the_papers_rule_or_where_the_noise_is_unknown(noisy: Made, strategy: str, rule: str) -> None:
    family = judged_with(noisy, strategy, rule=rule)
    assert (len(surface_frame([family])), len(optimum_frame([family])), optimum_text(family.verdict)) == (0, 0, "")
    spec_result = spec(family)
    drawing = scene(spec_result)
    assert contours(drawing) == []
    assert drawing.of("symbol", size=70) == []
    assert not [item for item in spec_result.get("params", []) if item["name"] == "fitted"], (
        "there is nothing to switch"
    )


def test_the_place_of_the_optimum_is_told_with_its_error(standard: JudgedFamily) -> None:
    fullmatch_result = re.fullmatch(r"lr 2\^\((.*) ± (.*)\), wd 2\^\((.*) ± (.*)\)", optimum_text(standard.verdict))
    assert fullmatch_result is not None
    lr, lr_error, wd, wd_error = map(float, fullmatch_result.groups())
    assert abs(lr - (-6 + LR)) < 3 * lr_error < 0.5
    assert abs(wd - (-1 + WD)) < 3 * wd_error < 0.5


# --- on the map -----------------------------------------------------------------------------------------------------


def test_the_optimum_is_drawn_where_it_is(standard: JudgedFamily) -> None:
    """The lattice's axes are 60 degrees apart, and the bowl is round there: so is the ellipse, but for noise."""
    drawing = scene(spec(standard))
    ellipse_result = ellipse(drawing)
    centre = ellipse_result[:-1].mean(0)
    assert drawing.at(cross(drawing))[0] == pytest.approx(centre, abs=0.01)
    radii = np.hypot(*(ellipse_result - centre).T)
    assert np.hypot(*(centre - hexagon_xy(LR, WD))) < 3 * radii.max() < 0.6
    assert radii.max() < 2 * radii.min()
    (best,) = optimum_frame([standard]).itertuples()
    j = (ellipse_result - centre)[:, 1] / (np.sqrt(3) / 2)
    steps = np.stack([(ellipse_result - centre)[:, 0] - j / 2, j])
    covariance = [[best.lr_variance, best.covariance], [best.covariance, best.wd_variance]]
    errors = np.sqrt((steps * np.linalg.solve(covariance, steps)).sum(0))
    np.testing.assert_allclose(errors, 1, rtol=0.02, err_msg="one standard error away")


@pytest.mark.parametrize(("margin", "closed"), [(0.02, 4), (0.1, 1)])
def test_contours_are_the_margin_and_its_doubles(noisy: Made, margin: float, closed: int) -> None:
    """A bowl of 0.06 d^2 is worse by some share on a circle around its optimum; wide ones leave the lattice."""
    contours_result = contours(scene(spec(judged_with(noisy, "standard", margin=margin))))
    circles = sorted((line for line in contours_result if np.allclose(line[0], line[-1])), key=np.ptp)
    assert len(circles) == closed
    for doubled, circle in enumerate(circles):
        distance = np.hypot(*(circle - hexagon_xy(LR, WD)).T)
        assert distance.mean() == pytest.approx(np.sqrt(2**doubled * margin / 0.06), rel=0.15)
    assert contour_levels(margin, 4.5 * margin) == pytest.approx([margin, 2 * margin, 4 * margin])
    assert contour_levels(0.0, 0.32)[:2] == pytest.approx([0.01, 0.02]), (
        "without a margin they begin at a 32nd of what there is"
    )


def test_contours_stay_on_the_hexagons_of_points_that_are_fitted(standard: JudgedFamily) -> None:
    assert standard.verdict.bound is not None
    assert standard.verdict.bound.posterior is not None
    fitted = standard.verdict.bound.posterior.positions
    assert (2, 2) not in fitted, "far behind, it has no part in the fit"
    drawing = scene(spec(standard))
    centres = np.array([hexagon_xy(*position) for position in fitted])
    for line in contours(drawing):
        smallest = np.hypot(*(line[:, None] - centres).transpose(2, 0, 1)).min(1)
        assert smallest.max() < 1 / np.sqrt(3) + 1e-3


def test_a_place_belongs_to_the_hexagon_with_the_nearest_centre() -> None:
    steps = np.random.default_rng(0).uniform(-2, 2, (500, 2))
    centres = [(i, j) for i in range(-4, 5) for j in range(-4, 5)]
    nearest = [min(centres, key=lambda c: np.hypot(*np.subtract(hexagon_xy(*c), hexagon_xy(*at)))) for at in steps]
    np.testing.assert_array_equal(nearest_positions(steps), nearest)


def test_the_surface_can_be_switched_off(standard: JudgedFamily) -> None:
    drawing = scene(spec(standard), fitted=False)
    assert (contours(drawing), drawing.of("line"), drawing.of("symbol", size=70)) == ([], [], [])
    assert drawing.texts().count("n=5") == 7, "the scores stay"


def test_one_free_axis_has_a_curve_with_a_band(noisy: Made) -> None:
    drawing = scene(spec(judged_with(noisy, "hybrid")))
    (curve,) = drawing.of("line")
    x, y = np.array(drawing.at(curve)).T
    true = bowl(pd.Series(x + 6)).to_numpy()
    assert (x[0], x[-1]) == (pytest.approx(-8, abs=0.01), pytest.approx(-4, abs=0.01)), "it ends where the points do"
    np.testing.assert_allclose(y, true, rtol=0.03)
    (band,) = drawing.of("area")
    low, high = np.array(drawing.at(band))[:, 1], np.array(drawing.at(band, y="y2"))[:, 1]
    assert (low < y).all()
    assert (y < high).all()
    assert (high - low).max() < 0.01
    (rule,) = drawing.of("rule", stroke=CANDIDATE)
    left, right = drawing.at(rule)[0][0], drawing.at(rule, x="x2")[0][0]
    assert left < drawing.at(cross(drawing))[0][0] < right < left + 1
    assert abs((left + right) / 2 - (-6 + LR)) < 3 * (right - left) / 2
    switched = scene(spec(judged_with(noisy, "hybrid")), fitted=False)
    assert (switched.of("line"), switched.of("area")) == ([], [])


def test_captions_say_what_is_fitted(noisy: Made) -> None:
    collected = {}
    for comparison in strategy_comparisons(judged_families(noisy.runs, noisy.verdicts)):
        for (_, _), figure in FigureBuilder(RunHistories(12)).build(comparison):
            collected[figure.name] = figure.caption
    assert (
        "Contours: where the fitted surface is worse than at its optimum by the margin"
        in collected["vit-digits-standard-map"]
    )
    assert "Curve: fitted, with its standard error" in collected["vit-digits-hybrid-map"]
    assert "fitted" not in collected["vit-digits-mup-map"]


def test_contours_end_beside_the_numbers(standard: JudgedFamily) -> None:
    """Each number has a halo in the colour of its hexagon, above all lines and below the number itself."""
    marks = scene(spec(standard)).marks
    order = {id(mark): k for k, mark in enumerate(marks)}
    lines = [order[id(mark)] for mark in marks if mark.kind == "line"]
    texts = [mark for mark in marks if mark.kind == "text" and mark.text]
    halos = {(mark.text, mark.xy, mark.dy): mark for mark in texts if mark.strokeWidth}
    numbers = {(mark.text, mark.xy, mark.dy): mark for mark in texts if mark.fill in ("#000", "#fff")}
    hexagons = {mark.xy: mark.fill for mark in marks if mark.kind == "symbol" and str(mark.fill).startswith("rgb")}
    assert len(lines) > 4
    assert numbers.keys() == halos.keys()
    assert len(numbers) >= 3 * 7
    for key, halo in halos.items():
        assert max(lines) < order[id(halo)] < order[id(numbers[key])]
        assert halo.stroke == hexagons[halo.xy]
