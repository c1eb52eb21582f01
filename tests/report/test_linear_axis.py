"""A linear axis: its answer, its fitted optimum and its map, of a noisy parabola whose optimum is known."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from support.made_frames import searched
from support.scene import scene

from ettsweep.report.answer import answer, paper_sentence
from ettsweep.report.families import JudgedFamily, judged_families
from ettsweep.report.figures.lattice_map import lattice
from ettsweep.report.frames import points_frame
from ettsweep.report.optuna_journal import write_journal
from ettsweep.report.surface_frames import fitted_curve_frame, optimum_frame, optimum_text
from ettsweep.report.verdict_view import make_views
from ettsweep.runs.index import RunIndex
from ettsweep.study.criterion import Criterion
from ettsweep.study.judgement import evaluate
from ettsweep.study.score_table import Score, TableRecipe, make_study

BEST, VALUES = 0.12, (0.0, 0.1, 0.2, 0.3)


def loss(dropout: float, best: float = BEST, curvature: float = 3) -> float:
    return 2 + curvature * (dropout - best) ** 2


def judged(values: Sequence[float], *shape: float) -> JudgedFamily:
    noise = np.random.default_rng(0).normal(0, 0.002, (len(values), 3))
    return judged_scores(
        Score({"dropout": value}, seed, loss(value, *shape) + noise[i, seed])
        for i, value in enumerate(values)
        for seed in range(3)
    )


def judged_scores(scores: Iterable[Score]) -> JudgedFamily:
    recipe = TableRecipe(source="t.csv", column="loss", mode="min")
    study, runs, notes = make_study([*scores], recipe, Criterion())
    assert not notes, "its steps are even"
    return judged_families(runs, [evaluate(study, runs).verdict()])[0]


@pytest.fixture
def family() -> JudgedFamily:
    return judged(VALUES)


def test_zero_is_as_far_from_the_middle_of_good_values_as_others() -> None:
    """All are as good; the one in the middle is named."""
    flat = judged([0.0, 0.1, 0.2, 0.3, 0.4], 0.2, 0.1)
    assert answer(flat.verdict).startswith("Use dropout 0.2.")


def test_an_exported_study_has_zero(family: JudgedFamily, tmp_path: Path) -> None:
    runs = [run for members in family.points.values() for run in members]
    write_journal(tmp_path / "j", [family.study], RunIndex({run.id: run for run in runs}, {}))
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "j")))
    study = optuna.load_study(study_name=family.study.title, storage=storage)
    assert sorted(trial.params["dropout"] for trial in study.trials) == [*VALUES]


def test_the_answer_names_the_values_beside_the_optimum(family: JudgedFamily) -> None:
    assert answer(family.verdict).startswith("Use dropout 0.1. A step up or down in dropout (0 or 0.2) gains at most")
    assert "(steps of 0.1; 12 runs)" in paper_sentence(family.verdict)
    assert [row["move"] for row in make_views([family.verdict])[0].neighbours] == ["dropout + 0.1", "dropout - 0.1"]


def test_the_fitted_optimum_is_a_value_with_its_error(family: JudgedFamily) -> None:
    told = re.fullmatch(r"dropout (\S+) ± (\S+)", optimum_text(family.verdict))
    assert told
    best, error = map(float, told.groups())
    assert abs(best - BEST) < 3 * error < 0.05


def test_the_map_has_all_values_and_the_curve_goes_through_them(family: JudgedFamily) -> None:
    drawing = scene(lattice(points_frame([family]), fitted_curve_frame([family]), optimum_frame([family])))
    assert drawing.names["x"] == "dropout"
    dots = sorted(drawing.at(mark)[0][0] for mark in drawing.of("symbol", size=45))
    assert dots == pytest.approx(VALUES, abs=1e-6)
    (curve,) = drawing.of("line")
    x, y = np.array(drawing.at(curve)).T
    np.testing.assert_allclose(y, [loss(at) for at in x], rtol=0.01)


def test_rows_of_a_map_beyond_the_values_have_their_labels() -> None:
    family = judged_scores(
        Score({"lr": lr, "dropout": value}, 0, lr + loss(value)) for lr in (1, 2, 4) for value in VALUES
    )
    drawing = scene(
        lattice(points_frame([family]), fitted_curve_frame([]), optimum_frame([]), searched((0, -1), (2, 4)))
    )
    labels = {str(mark.text) for mark in drawing.of("text")}
    assert {"0", "0.1", "0.2", "0.3", "0.4", "0.5"} <= labels
