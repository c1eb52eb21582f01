"""What the page says first of a strategy, and of the best of several."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from support.made_sweep import FRESH, SEEDS, Made, digits_spec, finish, loss_at, read, search
from support.points import moved

from ettsweep.report.families import judged_families, strategy_comparisons
from ettsweep.report.page_sections import answer_section, best_optimum
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.study.seeds import RACING_SEEDS


def nine(results: Path) -> RunSpec:
    """Finish nine points over the seeds of a search, and return the one in the middle."""
    base = digits_spec(None)
    for i, j, seed in itertools.product((-1, 0, 1), (-1, 0, 1), SEEDS):
        finish(results, base.with_point(moved(base.point, i, j), seed), loss_at(i, j, seed))
    return base


def lines(sample: Made) -> dict[str, tuple[str, str]]:
    (comparison,) = strategy_comparisons(judged_families(sample.runs, sample.verdicts))
    (card,) = answer_section(comparison, {})["cards"]
    return {label: (value, note) for label, value, note in card["lines"]}


def test_a_seed_that_is_still_to_come_leaves_the_error_of_the_others(results: Path) -> None:
    base = nine(results)
    RunDir.create(results, base.with_point(base.point, RACING_SEEDS[0]))
    lines_result = lines(read(results, [search(base)]))["lowest validation loss (nats)"]
    assert lines_result == ("0.1004 ± 0.0002", "3 search seeds")


def test_accuracies_are_of_what_did_not_diverge(results: Path) -> None:
    base = nine(results)
    for seed, diverged in zip(FRESH, (True, False), strict=True):
        finish(results, base.with_point(base.point, seed), 0.1, diverged)
    lines_result = lines(read(results, [search(base)]))
    assert lines_result["over fresh seeds"] == ("1 of 2 diverged", "")
    losses = [*(loss_at(0, 0, seed) for seed in SEEDS), 0.1]
    mean = 1 - sum(losses) / len(losses) / 4
    assert lines_result["best accuracy"] == (f"{100 * mean:.2f}%", "all seeds")


def ahead(sample: Made, scores: list[float], others: list[float]) -> str:
    """Return what is said of standard beside ntk, both optimal with these scores of fresh seeds."""
    verdicts = [
        replace(sample.verdict(strategy), verdict="optimal", fresh_scores=dict(enumerate(fresh, 10)))
        for strategy, fresh in (("standard", scores), ("ntk", others))
    ]
    return best_optimum(verdicts)


@pytest.mark.parametrize(
    ("fresh", "said"),
    [
        ([0.29, 0.31], "ahead of ntk by 171.2 ± 9.0%."),
        ([0.11, 0.12], "ahead of ntk by 4.0 ± 4.5%, which may be luck (a lead of 58% would not be)"),
        ([0.2], "over 2 fresh seeds."),
    ],
)
def test_a_lead_within_the_error_may_be_luck(sample: Made, fresh: list[float], said: str) -> None:
    """Of two seeds, 12.7 errors are beyond doubt (95%); of one, nothing is."""
    lead = ahead(sample, [0.1104, 0.1108], fresh)
    assert lead.startswith("Best of 2 verified optima: standard at")
    assert said in lead


@pytest.mark.parametrize("apart", [0.01, 0.0123, 0.00031])
def test_an_optimum_whose_fresh_seeds_tie_is_compared_too(sample: Made, apart: float) -> None:
    """Welch's degrees of freedom are those of the other one then: one, but for rounding."""
    assert "ahead of ntk" in ahead(sample, [0.1, 0.1 + apart], [0.2, 0.2, 0.2])
