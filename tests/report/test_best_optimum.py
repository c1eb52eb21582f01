"""The best of several optima: no more than seeds can tell."""

from dataclasses import replace

import pytest
from support.made_sweep import Made

from ettsweep.report.page_sections import best_optimum
from ettsweep.study.verdict import Verdict


def optimal(sample: Made, strategy: str, fresh: list[float]) -> Verdict:
    verdict_result = sample.verdict(strategy)
    return replace(verdict_result, verdict="optimal", fresh_scores=dict(enumerate(fresh, 10)))


@pytest.mark.parametrize("fresh", [[0.2, 0.2], [0.2, 0.2, 0.2]])
def test_an_optimum_whose_fresh_seeds_tie_is_compared_too(sample: Made, fresh: list[float]) -> None:
    """Welch's degrees of freedom are those of the other one then: one, but for rounding."""
    for apart in (0.01, 0.0123, 0.037, 0.0007, 0.00031):
        others = [0.1, 0.1 + apart]
        best = best_optimum([optimal(sample, "standard", others), optimal(sample, "ntk", fresh)])
        assert best.strategy == "standard"
        assert "ntk" in best.lead


def test_optima_whose_fresh_seeds_have_no_loss_left_are_not_compared_in_percent(sample: Made) -> None:
    best = best_optimum([optimal(sample, "standard", [0.0, 0.0]), optimal(sample, "ntk", [0.1, 0.2])])
    assert best.strategy == "standard"
    assert best.lead == ""
