"""Costs of strategies and sweeps, added up by hand."""

from dataclasses import replace

import pytest
from support.made_sweep import Made, strategy_of

from ettsweep.report.cost_table import cost_of, costs
from ettsweep.report.families import StrategyComparison, judged_families
from ettsweep.study.sweep_store import group_by_family


def test_a_strategy_costs_what_its_runs_took(sample: Made) -> None:
    (comparison,) = [StrategyComparison("digits", tuple(judged_families(sample.runs, sample.verdicts)))]
    rows = {row.label: row for row in costs([comparison], sample.runs, sample.studies_by_family)}
    assert list(rows) == ["standard", "ntk", "hybrid", "all"], "mup has cost nothing, and all are in a sweep"
    assert [rows[name].runs for name in rows] == [29, 26, 9, 64]
    assert rows["ntk"].hours == pytest.approx(26 * 1.5 / 3600)
    assert rows["hybrid"].diverged == 3
    assert rows["all"].device_s == 64 * 1.5
    assert rows["all"].reused == 0


def test_what_other_sweeps_ask_for_too_is_a_share(sample: Made) -> None:
    standard = sample.verdict("standard").study
    studies_by_family = group_by_family([replace(standard, sweep="a"), replace(standard, sweep="b", seeds=(0,))])
    cost = cost_of("standard", [run for run in sample.runs if strategy_of(run) == "standard"], studies_by_family)
    assert cost.reused == pytest.approx(9 / 29), "of nine points, one seed of three"


def test_runs_of_no_sweep_have_their_line(sample: Made) -> None:
    values = [verdict for verdict in sample.verdicts if verdict.strategy == "standard"]
    (comparison,) = [StrategyComparison("digits", tuple(judged_families(sample.runs, values)))]
    rows = {row.label: row.runs for row in costs([comparison], sample.runs, sample.studies_by_family)}
    assert rows == {"standard": 29, "in no sweep": 35, "all": 64}
