"""Tables against numbers computed from result.json with the standard library."""

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from support.made_sweep import FRESH, SEEDS, Made, loss_at

from ettsweep.report import tables
from ettsweep.report.families import judged_families
from ettsweep.report.tables import runs_table, to_latex, to_markdown
from ettsweep.report.verdict_view import headline
from ettsweep.runs.index import Run


def points(runs: Sequence[Run]) -> pd.DataFrame:
    return tables.points_table(runs_table(runs), runs)


def test_runs_table_has_the_promised_columns_and_types(sample: Made) -> None:
    table = runs_table(sample.runs)
    promised = """
    run sweep family model task strategy optimizer precision lr wd seed state
    best_accuracy final_accuracy best_loss final_loss best_bits final_bits
    best_bits_per_byte final_bits_per_byte
    loss_spikes grad_spikes accuracy_spikes eval_loss_spikes unrecovered overflow_steps steps wall_s device_s
    step_s samples_per_s utilisation data_wait memory_gib devices ensemble corrupt_images
    """
    assert " ".join(table.columns) == " ".join(promised.split())
    assert len(table) == len(sample.runs) == 27 + 27 + 9 + 2
    for name in ("seed", "loss_spikes", "overflow_steps", "steps"):
        assert table[name].dtype == "Int64"


def test_every_row_is_its_result(sample: Made) -> None:
    rows = runs_table(sample.runs).set_index("run")
    for run in sample.runs:
        row = rows.loc[run.id]
        assert (row["lr"], row["wd"], row["seed"]) == (run.spec.lr, run.spec.wd, run.spec.seed)
        assert (row["model"], row["task"], row["state"]) == ("vit-digits", "digits", run.state.value)
        if run.dir.result_path.exists():
            result = json.loads(run.dir.result_path.read_text())
            result["devices"] = result["execution"]["processes"]
            result["ensemble"] = result["execution"].get("ensemble")
            for name in tables.RESULT_COLUMNS:
                assert row[name] == result.get(name) or (pd.isna(row[name]) and result.get(name) is None), name
        else:
            assert row[list(tables.RESULT_COLUMNS)].isna().all()


def test_points_have_mean_and_sample_deviation_over_seeds(sample: Made) -> None:
    table = points(sample.runs)
    standard = table[table["strategy"] == "standard"]
    assert len(standard) == 9
    for i, j in ((-1, -1), (0, 1), (1, 0)):
        (row,) = (r for _, r in standard.iterrows() if (r["log2_lr"], r["log2_wd"]) == (-6 + i, -1 + j))
        losses = [loss_at(i, j, seed) for seed in SEEDS]
        assert row["best_loss_mean"] == pytest.approx(statistics.fmean(losses), rel=1e-12)
        assert row["best_loss_std"] == pytest.approx(statistics.stdev(losses), rel=1e-9)
        accuracies = [1 - loss / 4 for loss in losses]
        assert row["best_accuracy_mean"] == pytest.approx(statistics.fmean(accuracies), rel=1e-12)
        assert (row["seeds"], row["diverged"]) == (3, 0)
        assert (row["loss_spikes"], row["grad_spikes"]) == (0 + 1 + 2, 3)
    (row,) = (r for _, r in standard.iterrows() if r["diverged"])
    assert (row["log2_lr"], row["log2_wd"], row["seeds"], row["diverged"]) == (-5, 0, 3, 1)
    assert row["best_loss_mean"] == pytest.approx(statistics.fmean(loss_at(1, 1, seed) for seed in (0, 1)))
    (row,) = (r for _, r in table.iterrows() if r["strategy"] == "ntk" and r["seeds"] < 3)
    assert (row["log2_lr"], row["log2_wd"], row["seeds"]) == (-5, -1, 2), "one is not finished"


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
    assert (
        "sweep & model & strategy & optimizer & verdict & lr & wd & bound (share of loss) & confidence & metric & seeds & score (nats)"
        in header
    )
    assert headline(sample.verdict("standard")).replace("%", "\\%") in (tmp_path / "optima.tex").read_text()
    assert not [name for name in ("family", "noise", "p\\_best", "steps", "loss\\_spikes") if name in header]


def test_files_round_trip(sample: Made, tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    paths = write_tables(folder, sample)
    frames = {f"{name}.{suffix}" for name in ("runs", "points", "optima") for suffix in ("csv", "parquet")}
    assert {p.name for p in paths} == frames | {"optima.md", "optima.tex"}
    assert {p.name for p in folder.iterdir()} == {p.name for p in paths}, "no temporary files are left"
    table = runs_table(sample.runs)
    pd.testing.assert_frame_equal(pd.read_parquet(folder / "runs.parquet"), table)
    types = {str(name): table[name].dtype for name in table}
    back = pd.read_csv(folder / "runs.csv", dtype=types)
    pd.testing.assert_frame_equal(back, table, check_exact=True)


def test_markdown_and_latex_escape() -> None:
    powers = pd.DataFrame({"lr": [2.0**-10], "wd": [0.3]})
    assert to_markdown(powers).splitlines()[2].split() == ["|", "2^-10", "|", "0.3", "|"]
    assert "$2^{-10}$ & 0.3" in to_latex(powers)
    frame = pd.DataFrame({"na|me": ["a|b\nc", "50%_&$#{}~^\\"], "x": [0.1, math.nan]})
    text = to_markdown(frame)
    assert "a\\|b c" in text
    assert len(text.splitlines()) == 4
    tex = to_latex(frame)
    assert r"50\%\_\&\$\#\{\}\textasciitilde{}\textasciicircum{}\textbackslash{} &  \\" in tex
    assert tex.startswith("\\begin{tabular}{lr}\n\\toprule")
    assert "\\midrule" in tex
    assert tex.endswith("\\bottomrule\n\\end{tabular}\n")
    assert to_latex(pd.concat([frame] * 30)).startswith("\\begin{longtable}")
