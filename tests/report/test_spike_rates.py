"""Spikes in all, per run and per 1,000 steps: by hand, on the made sweep, and where runs are unequal."""

import pandas as pd
import pytest
from support.made_sweep import Made, changed, strategy_of

from ettsweep.report import tables
from ettsweep.report.families import judged_families
from ettsweep.report.spike_rates import SPIKE_LABELS, nonzero_counts, rate_columns, sum_spikes


def test_rates_are_of_the_runs_and_steps_that_were_really_trained(sample: Made) -> None:
    """Diverged runs were scheduled for 240 steps, and trained 80."""
    hybrid = [run for run in sample.runs if strategy_of(run) == "hybrid"]
    spikes = sum_spikes(hybrid)
    assert (spikes.runs, spikes.diverged, spikes.steps) == (9, 3, 6 * 240 + 3 * 80)
    assert spikes.rates("loss_spikes") == (9, 1.0, pytest.approx(1000 * 9 / 1680))
    assert nonzero_counts([spikes]) == ["loss_spikes", "grad_spikes"]


def test_runs_that_are_not_finished_have_no_rate(sample: Made) -> None:
    waiting = [run for run in sample.runs if run.result is None]
    assert sum_spikes(waiting).rates("loss_spikes") == (None, None, None)
    damaged = changed(sample.runs[0], result={"loss_spikes": "x", "steps": None})
    assert sum_spikes([damaged]).rates("loss_spikes") == (0, 0.0, None)


@pytest.mark.parametrize("name", SPIKE_LABELS)
def test_tables_have_rates_beside_each_sum(sample: Made, name: str) -> None:
    families = judged_families(sample.runs, sample.verdicts)
    optima = tables.optima_table(families)
    points = tables.points_table(tables.runs_table(sample.runs), sample.runs, families)
    for table, runs in ((optima, "runs"), (points, "seeds")):
        total, per_run, per_1000_steps = (table[column] for column in rate_columns(name))
        trained = table[table[runs].fillna(0) > 0].index
        assert len(trained)
        assert (per_run * table[runs])[trained].tolist() == pytest.approx(total[trained].tolist())
        assert (per_1000_steps * table["steps"])[trained].tolist() == pytest.approx((1000 * total[trained]).tolist())
    standard = optima.set_index("strategy").loc["standard"]
    assert (standard["runs"], standard["steps"]) == (5, 1200)
    assert standard["loss_spikes_per_run"] == 6 / 5
    assert standard["loss_spikes_per_1000_steps"] == 5.0
    assert pd.isna(optima.set_index("strategy").loc["mup"][list(rate_columns(name))]).all()
