"""The fitted surface in frames and on maps, of noisy bowls whose optimum is known."""

import re
from dataclasses import replace

import numpy as np
import pytest
from support.made_sweep import Made
from support.scene import scene

from ettsweep.files import Json
from ettsweep.report.families import JudgedFamily, judged_families
from ettsweep.report.figures.lattice_map import lattice
from ettsweep.report.frames import points_frame
from ettsweep.report.surface_frames import fitted_curve_frame, optimum_frame, optimum_text
from ettsweep.report.theme import INK
from ettsweep.study.criterion import Criterion
from ettsweep.study.judgement import evaluate

LR, WD = 1 / 3, -0.2
"""Where the bowls are lowest, in steps from the candidate."""


def judged_with(sample: Made, strategy: str, **criterion: object) -> JudgedFamily:
    study = sample.verdict(strategy).study
    if criterion:
        study = replace(study, criterion=Criterion.model_validate(criterion))
    verdict = evaluate(study, [run for run in sample.runs if run.family == study.family]).verdict()
    return judged_families(sample.runs, [verdict])[0]


def spec(family: JudgedFamily) -> Json:
    return lattice(points_frame([family]), fitted_curve_frame([family]), optimum_frame([family]))


# --- frames -------------------------------------------------------------------------------------------------------


def test_the_optimum_is_where_it_is_within_its_error(noisy: Made) -> None:
    standard = judged_with(noisy, "standard")
    (best,) = optimum_frame([standard]).itertuples()
    assert best.score == pytest.approx(0.1, rel=0.01)
    told = re.fullmatch(r"lr 2\^\((.*) ± (.*)\), wd 2\^\((.*) ± (.*)\)", optimum_text(standard.verdict))
    assert told
    lr, x_error, wd, y_error = map(float, told.groups())
    assert abs(best.x_steps - LR) < 3 * x_error < 0.5
    assert abs(best.y_steps - WD) < 3 * y_error < 0.5
    assert (lr, wd) == (pytest.approx(-6 + best.x_steps, abs=0.01), pytest.approx(-1 + best.y_steps, abs=0.01))


@pytest.mark.parametrize(("strategy", "rule"), [("standard", "paper"), ("mup", "bound")])
def test_no_surface_by_the_papers_rule_or_where_the_noise_is_unknown(noisy: Made, strategy: str, rule: str) -> None:
    family = judged_with(noisy, strategy, rule=rule)
    assert (len(fitted_curve_frame([family])), len(optimum_frame([family])), optimum_text(family.verdict)) == (0, 0, "")
    drawing = scene(spec(family))
    assert (drawing.of("line"), drawing.of("symbol", size=70)) == ([], [])


# --- on the map -----------------------------------------------------------------------------------------------------


def test_one_free_axis_has_a_curve_with_a_band(noisy: Made) -> None:
    drawing = scene(spec(judged_with(noisy, "hybrid")))
    (curve,) = drawing.of("line")
    x, y = np.array(drawing.at(curve)).T
    i = x + 6 - LR
    true = 0.1 * (1 + 0.06 * (i**2 - i * WD + WD**2))
    assert (x[0], x[-1]) == (pytest.approx(-8, abs=0.01), pytest.approx(-4, abs=0.01)), "it ends where the points do"
    np.testing.assert_allclose(y, true, rtol=0.03)
    (band,) = drawing.of("area")
    low, high = np.array(drawing.at(band))[:, 1], np.array(drawing.at(band, y="y2"))[:, 1]
    assert ((low < y) & (y < high)).all()
    assert (high - low).max() < 0.01
    (rule,) = drawing.of("rule", stroke=INK)
    left, right = drawing.at(rule)[0][0], drawing.at(rule, x="x2")[0][0]
    (cross,) = drawing.of("symbol", stroke=INK, size=70)
    assert left < drawing.at(cross)[0][0] < right < left + 1
    assert abs((left + right) / 2 - (-6 + LR)) < 3 * (right - left) / 2
