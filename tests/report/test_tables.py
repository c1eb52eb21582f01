"""Tables against numbers computed from result.json with the standard library."""

import json
import math
import statistics
from pathlib import Path

import pandas as pd
import pytest
from support.made_sweep import FRESH, SEEDS, Made, loss_at

from ettsweep.report import tables
from ettsweep.report.families import judged_families
from ettsweep.report.tables import runs_table, to_latex, to_markdown
from ettsweep.report.verdict_view import headline


def test_every_row_of_the_table_of_runs_is_its_result(sample: Made) -> None:
    rows = runs_table(sample.runs).set_index("run")
    assert {run.id for run in sample.runs} == {*rows.index}
    assert {rows[name].dtype.name for name in ("seed", "loss_spikes", "overflow_steps", "steps")} == {"Int64"}
    for run in sample.runs:
        row = rows.loc[run.id]
        assert (row["lr"], row["wd"], row["seed"]) == (run.spec.lr, run.spec.wd, run.spec.seed)
        assert (row["model"], row["task"], row["state"]) == ("vit-digits", "digits", run.state.value)
        result = json.loads(run.dir.result_path.read_text()) if run.dir.result_path.exists() else {}
        execution = result.get("execution", {})
        result |= {"devices": execution.get("processes"), "ensemble": execution.get("ensemble")}
        for name in tables.RESULT_COLUMNS:
            assert row[name] == result.get(name) or (pd.isna(row[name]) and result.get(name) is None), name


def test_points_have_mean_and_sample_deviation_over_seeds(sample: Made) -> None:
    table = tables.points_table(runs_table(sample.runs), sample.runs).set_index(["strategy", "log2_lr", "log2_wd"])
    for i, j in ((-1, -1), (0, 1), (1, 0)):
        row, losses = table.loc[("standard", -6 + i, -1 + j)], [loss_at(i, j, seed) for seed in SEEDS]
        assert row["best_loss_mean"] == pytest.approx(statistics.fmean(losses), rel=1e-12)
        assert row["best_loss_std"] == pytest.approx(statistics.stdev(losses), rel=1e-9)
        assert row["best_accuracy_mean"] == pytest.approx(1 - statistics.fmean(losses) / 4, rel=1e-12)
        assert (row["seeds"], row["diverged"]) == (3, 0)
        assert (row["loss_spikes"], row["grad_spikes"]) == (0 + 1 + 2, 3)
        lr_wd = 2.0 ** (-7 + i + j)
        steps = 1 / lr_wd
        assert (row["lr_wd"], row["timescale_steps"], row["timescale_epochs"]) == (lr_wd, steps, steps / 12)
    row = table.loc[("standard", -5, 0)]
    assert (row["seeds"], row["diverged"]) == (3, 1)
    assert row["best_loss_mean"] == pytest.approx(statistics.fmean(loss_at(1, 1, seed) for seed in (0, 1)))
    assert table.loc[("ntk", -5, -1), "seeds"] == 2, "one is not finished"


def test_optima_state_search_and_fresh_seeds_apart(sample: Made) -> None:
    table = tables.optima_table(judged_families(sample.runs, sample.verdicts)).set_index("strategy")
    row = table.loc["standard"]
    search = [loss_at(0, 0, seed) for seed in SEEDS]
    fresh = [loss_at(0, 0, seed) + 0.01 for seed in FRESH]
    assert (row["verdict"], row["lr"], row["wd"]) == ("optimal", 2.0**-6, 0.5)
    assert (row["seeds"], row["fresh_seeds"]) == (3, 2)
    assert row["score"] == pytest.approx(statistics.fmean(search))
    assert row["std"] == pytest.approx(statistics.stdev(search))
    assert row["fresh_score"] == pytest.approx(statistics.fmean(fresh))
    assert row["fresh_std"] == pytest.approx(statistics.stdev(fresh))
    # The best of the six neighbours is (lr / 2, wd), loss 0.1 * (1 + 0.2 - 0.03), and the centre 0.1.
    assert (row["score_lead"], row["score_unit"]) == (pytest.approx(0.017), "nats")
    assert row["lead_share"] == pytest.approx(0.017 / statistics.fmean(search))
    assert row["loss_spikes"] == 0 + 1 + 2 + 1 + 2
    assert row["grad_spikes"] == 5
    assert (row["loss_spikes_per_run"], row["loss_spikes_per_1000_steps"]) == (6 / 5, 6 / 1.2)
    assert pd.isna(table.loc["mup"][["lr", "score", "score_lead", "lead_share", "loss_spikes"]]).all()
    assert table.loc["ntk"]["verdict"] == "incomplete"
    assert pd.isna(table.loc["ntk"]["fresh_score"])


def test_optima_have_what_is_known_of_them(noisy: Made) -> None:
    """By the bound over the sweep's seeds and racing's; where one seed leaves the noise unknown, next to nothing."""
    table = tables.optima_table(judged_families(noisy.runs, noisy.verdicts)).set_index("strategy")
    row, bound = table.loc["standard"], noisy.verdict("standard").bound
    assert bound is not None
    assert (row["seeds"], row["rule"], row["confidence"], row["margin"]) == (5, "bound", 0.95, 0.02)
    assert (row["bound"], row["p_best"], row["as_good"]) == (bound.value, bound.best_probability, len(bound.plateau))
    assert row["bound"] <= 0.02
    assert (row["noise"], row["noise_known"]) == (pytest.approx(0.01, rel=0.3), "measured")
    assert (row["recommended_lr"], row["recommended_wd"]) == tuple(bound.recommended)
    row = table.loc["mup"]
    assert (row["seeds"], row["noise_known"]) == (1, "unknown")
    assert pd.isna(row[["bound", "p_best", "noise", "as_good", "recommended_lr"]]).all()


def write_tables(folder: Path, sample: Made) -> list[Path]:
    return tables.write_tables(
        folder, runs_table(sample.runs), sample.runs, judged_families(sample.runs, sample.verdicts)
    )


def test_latex_of_optima_has_what_belongs_into_a_paper(sample: Made, tmp_path: Path) -> None:
    write_tables(tmp_path, sample)
    header = (tmp_path / "optima.tex").read_text().split("\\midrule")[0]
    assert "verdict & lr & wd & bound (share of loss) & confidence & metric & seeds & score (nats)" in header
    assert "noise" not in header
    assert headline(sample.verdict("standard")).replace("%", "\\%") in (tmp_path / "optima.tex").read_text()


def test_files_round_trip(sample: Made, tmp_path: Path) -> None:
    paths = write_tables(tmp_path, sample)
    frames = {f"{name}.{suffix}" for name in ("runs", "points", "optima") for suffix in ("csv", "parquet")}
    assert {p.name for p in paths} == {p.name for p in tmp_path.iterdir()} == frames | {"optima.md", "optima.tex"}
    table = runs_table(sample.runs)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "runs.parquet"), table)
    back = pd.read_csv(tmp_path / "runs.csv", dtype={str(name): table[name].dtype for name in table})
    pd.testing.assert_frame_equal(back, table, check_exact=True)


def test_markdown_and_latex_escape() -> None:
    powers = pd.DataFrame({"lr": [2.0**-10], "wd": [0.3]})
    assert to_markdown(powers).splitlines()[2].split() == ["|", "2^-10", "|", "0.3", "|"]
    assert "$2^{-10}$ & 0.3" in to_latex(powers)
    frame = pd.DataFrame({"na|me": ["a|b\nc", "50%_&$#{}~^\\"], "x": [0.1, math.nan]})
    text = to_markdown(frame)
    assert "a\\|b c" in text
    tex = to_latex(frame)
    assert r"50\%\_\&\$\#\{\}\textasciitilde{}\textasciicircum{}\textbackslash{} &  \\" in tex
    assert tex.startswith("\\begin{tabular}{lr}\n\\toprule")
    assert to_latex(pd.concat([frame] * 30)).startswith("\\begin{longtable}")
