"""Frames: every column is what it says, of run folders whose every number is known."""

import math
import statistics
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from support.made_sweep import FRESH, SEEDS, Made, digits_spec, finish_at, loss_at, read, searched

from ettsweep.report import frames
from ettsweep.report.families import JudgedFamily, judged_families
from ettsweep.report.run_histories import RunHistories
from ettsweep.study.criterion import CriterionOptions
from ettsweep.study.judgement import evaluate
from ettsweep.study.seeds import RACING_SEEDS

CENTRE = "(2^-6, 2^-1)"


def family(sample: Made, strategy: str) -> JudgedFamily:
    return next(f for f in judged_families(sample.runs, sample.verdicts) if f.verdict.strategy == strategy)


def points(sample: Made, *strategies: str) -> pd.DataFrame:
    """Return the points of some families, by name."""
    return frames.points_frame([family(sample, strategy) for strategy in strategies]).set_index("point")


def curves(sample: Made, strategy: str, rows: int = 1000) -> pd.DataFrame:
    return frames.curves_frame([family(sample, strategy)], RunHistories(rows))


# --- points -----------------------------------------------------------------------------------------------------------


def test_scores_are_means_over_the_seeds_that_count_with_their_standard_error(sample: Made) -> None:
    centre = points(sample, "standard").loc[CENTRE]
    scores = [loss_at(0, 0, seed) for seed in SEEDS]
    assert centre["score"] == pytest.approx(statistics.fmean(scores)), "fresh seeds are left out"
    assert centre["error"] == pytest.approx(statistics.stdev(scores) / math.sqrt(3))
    assert (centre["seeds"], centre["metric"].name, centre["told"]) == (3, "best_loss", "0.1004 ± 0.0002")
    members = {run.id for run in family(sample, "standard").optimum}
    assert set(centre["runs"].split()) == members
    assert tuple(centre[["x", "y", "x_place", "y_place"]]) == (2.0**-6, 0.5, -6, -1)
    worst = points(sample, "standard").loc["(2^-5, 2^0)"]
    assert (worst["state"], worst["told"], worst["seeds"]) == ("diverged", "", 3)
    assert worst[["score", "error"]].isna().all(), "where a seed diverged"


def test_the_state_is_that_of_the_seed_farthest_from_done(sample: Made) -> None:
    """A bound takes the two scores that are there; the paper's rule waits for the third."""
    by_bound = points(sample, "ntk").loc["(2^-5, 2^-1)"]
    assert (by_bound["state"], by_bound["seeds"]) == ("done", 2)
    assert by_bound["score"] == pytest.approx(statistics.fmean(loss_at(1, 0, seed) for seed in (0, 2)))
    verdict = sample.verdict("ntk")
    paper = replace(verdict, study=verdict.study.with_criterion(CriterionOptions(rule="paper")))
    frame = frames.points_frame(judged_families(sample.runs, [paper])).set_index("point")
    assert frame.loc["(2^-5, 2^-1)", "state"] == "missing"
    assert pd.isna(frame.loc["(2^-5, 2^-1)", "score"])


def test_roles_and_steps_are_counted_from_the_candidate(sample: Made) -> None:
    frame = points(sample, "standard")
    steps = {(i, j): frame.loc[f"(2^{i - 6}, 2^{j - 1})"] for i in (-1, 0, 1) for j in (-1, 0, 1)}
    assert {at: tuple(row[["x_steps", "y_steps"]]) for at, row in steps.items()} == {at: at for at in steps}
    others = {at for at, row in steps.items() if row["role"] == "other"}
    assert others == {(1, 1), (-1, -1)}, "six are its neighbours"
    assert steps[0, 0]["role"] == "candidate"


def test_as_good_are_the_points_that_the_verdict_names(noisy: Made) -> None:
    """With a margin as wide as the bowl is deep all neighbours are; with one far below the noise none is."""
    study = noisy.verdict("standard").study
    runs = [run for run in noisy.runs if run.family == study.family]

    def as_good(margin: float) -> pd.DataFrame:
        wide = study.with_criterion(CriterionOptions(margin=margin))
        frame = frames.points_frame(judged_families(noisy.runs, [evaluate(wide, runs).verdict()]))
        return frame[frame["as_good"]]

    assert as_good(1e-5).empty
    near, distant = as_good(0.06), as_good(0.5)
    assert 0 < len(near) < len(distant)
    assert near["score"].max() < 1.06 * float(points(noisy, "standard").loc[CENTRE, "score"])


# --- curves -----------------------------------------------------------------------------------------------------------


def test_curves_have_each_step_and_each_evaluation_in_epochs(sample: Made) -> None:
    frame = curves(sample, "standard")
    item = frame[(frame["point"] == CENTRE) & (frame["seed"] == 1)]
    steps, evaluated = item.dropna(subset="loss"), item.dropna(subset="val_loss")
    # 797 images in batches of 64 are 12 steps an epoch.
    assert evaluated["trained"].tolist() == pytest.approx([40 * k / 12 for k in range(1, 7)])
    assert evaluated["val_loss"].iloc[-1] == loss_at(0, 0, 1)
    assert evaluated["val_accuracy"].iloc[-1] == 1 - loss_at(0, 0, 1) / 4
    assert (steps["step"].tolist(), set(steps["grad_norm"])) == ([40, 80, 120, 160, 200, 240], {1.0})
    assert steps["val_loss"].isna().all()
    assert evaluated["loss"].isna().all()


def test_fresh_seeds_are_the_ones_that_do_not_count(sample: Made, noisy: Made) -> None:
    counted = curves(sample, "standard").drop_duplicates("run").set_index("seed")["counted"]
    assert (set(counted[counted].index), set(counted[~counted].index)) == (set(SEEDS), set(FRESH))
    raced = curves(noisy, "standard")
    assert set(raced["seed"]) == {*SEEDS, *RACING_SEEDS[:2]}
    assert raced["counted"].all()


def test_ranges_are_the_corners_in_steps_from_the_candidate(sample: Made, tmp_path: Path) -> None:
    assert frames.ranges_frame(family(sample, "standard")) is None, "nothing was proposed"
    searched_result = searched(digits_spec(None), [(0, 0), (1, 0)], reach=3)
    for steps, loss in {(0, 0): 2.0, (1, 0): 1.0}.items():
        finish_at(tmp_path, searched_result, steps, loss)
    frame = frames.ranges_frame(family(read(tmp_path, [searched_result]), "standard"))
    assert frame is not None
    assert frame.to_numpy().tolist() == [[-4, -3], [2, 3]], "the candidate is one step from the centre"
