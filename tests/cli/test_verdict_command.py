"""Verdicts on scores in a table: those of the same runs in a results folder, and tables that cannot be read."""

import csv
import json
import math
import random
import re
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import pytest
from support.commandline import Call

from ettsweep import extras
from ettsweep.runs.spec import RunSpec

ROWS = [
    (2.0 ** (i - 10), 0.1 * 2.0**j, seed, 3 + 0.1 * (i - 0.2) ** 2 + 0.05 * j * j + 0.02 * seed)
    for i in range(-2, 3)
    for j in range(-2, 3)
    for seed in range(3)
]


def table(path: Path, rows: Any = None, header: str = "lr,wd,seed,score") -> Path:
    draw = random.Random(0)
    rows = rows or [(lr, wd, seed, score + draw.gauss(0, 0.01)) for lr, wd, seed, score in ROWS]
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def test_it_is_the_verdict_of_the_same_runs_in_a_results_folder(
    call: Call, results: Path, request_sweep: Any, tmp_path: Path
) -> None:
    draw, rows = random.Random(0), []

    def score(spec: RunSpec) -> float:
        i, j = (math.log2(spec.lr / 0.25), math.log2(spec.wd / 0.25))
        rows.append((spec.lr, spec.wd, spec.seed, 1 + 0.02 * i * i + 0.01 * j * j + draw.gauss(0, 0.01)))
        return rows[-1][-1]

    around = {"range": [-2, 2]}
    request_sweep("w8", score, lr=around, wd=around, seeds=[0, 1], criterion={"margin": "1%"})
    kept = call("verify-optimum", "--dry-run", "--format", "json", "--results", results, code=None)
    (expected,) = kept.json
    path = table(tmp_path / "scores.csv", random.Random(1).sample(rows, len(rows)))
    before = sorted(tmp_path.rglob("*"))
    found = call("verdict", path, "--min", "--margin", "1%", "--format", "json", code=kept.code).json
    for key in ("verdict", "lr", "wd", "score", "runs", "statement", "evidence", "neighbours"):
        assert found[key] == expected[key], key
    assert expected["evidence"]["bound"] is not None
    assert sorted(tmp_path.rglob("*")) == before, "nothing is kept"


def test_columns_have_any_name_and_further_ones_are_left_alone(call: Call, tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", header="lr2,wd,seed,val/loss")
    names = ("--axes", "lr=lr2,wd", "--score", "val/loss")
    text = call("verdict", path, "--min", *names).out
    assert text.startswith("Use lr 0.000977, wd 0.1. Halving or doubling either gains at most 2% (95%).")
    header = next(line for line in text.splitlines() if line.startswith("verdict"))
    assert header.split() == ["verdict", "lr", "wd", "val/loss", "seeds", "nearest", "neighbour"]
    lines = [json.dumps({"run": k, **row}) for k, row in enumerate(csv.DictReader(path.read_text().splitlines()))]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert call("verdict", tmp_path / "a.jsonl", "--min", *names).out == text
    (tmp_path / "a.tsv").write_text(path.read_text().replace(",", "\t"))
    assert call("verdict", tmp_path / "a.tsv", "--min", *names).out == text


@pytest.mark.parametrize(
    ("header", "read", "is_low_best"),
    [
        ("train/lr,config.learning_rate,weight_decay,seed,train/loss,eval/loss", "lr is config.learning_rate", True),
        ("params_lr,params_wd,params_seed,test_acc,val_acc", "score is val_acc", False),
        ("Learning Rate,wd,random_state,best_loss,best_accuracy", "score is best_loss", True),
        ("lr,wd,seed,Val Perplexity", "score is Val Perplexity", True),
    ],
)
def test_columns_and_direction_are_guessed_by_their_names(
    call: Call, tmp_path: Path, header: str, read: str, is_low_best: bool
) -> None:
    """The guess is the column with the good scores; all others are constant."""
    names, draw = header.split(","), random.Random(0)
    score_name = read.removeprefix("score is ") if read.startswith("score") else names[-1]
    rows = []
    for lr, wd, seed, score in ROWS:
        value = score + draw.gauss(0, 0.01)
        by_name = dict.fromkeys(names, 1.0) | {score_name: value if is_low_best else 10 - value}
        for key, said in (("wd", r"wd|decay"), ("seed", r"seed|state"), ("lr", r"(?<!train/)lr|learning")):
            by_name |= {name: {"lr": lr, "wd": wd, "seed": seed}[key] for name in names if re.search(said, name, re.I)}
        rows.append([by_name[name] for name in names])
    result = call("verdict", table(tmp_path / "a.csv", rows, header))
    assert result.out.startswith("Use lr 0.000977, wd 0.1.")
    assert re.search(rf"a\.csv: .*{re.escape(read)}[,;].*--\w+ NAME.* changes it", result.err), result.err


def test_a_metric_whose_direction_no_name_says_asks_for_it(call: Call, tmp_path: Path) -> None:
    refused = call("verdict", table(tmp_path / "a.csv"), code=2).err
    assert "a.csv: is a low or a high score better? Add --min or --max" in refused


def test_a_table_may_be_objects_parquet_or_markdown(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = pd.read_csv(table(tmp_path / "a.csv"))
    expected = call("verdict", tmp_path / "a.csv", "--min").out
    frame.to_json(tmp_path / "a.json", orient="records", double_precision=15)
    frame.to_parquet(tmp_path / "a.parquet")
    head, *rows = [f"| {' | '.join(line.split(','))} |" for line in (tmp_path / "a.csv").read_text().splitlines()]
    (tmp_path / "a.md").write_text("\n".join([head, "|---|:--|--:|---|", *rows]) + "\n")
    for name in ("a.json", "a.parquet", "a.md"):
        assert call("verdict", tmp_path / name, "--min").out == expected, name
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    refused = call("verdict", tmp_path / "a.parquet", "--min", code=1).err
    assert "needs pyarrow, which is not installed: pip install 'ettsweep[figures]'" in refused


def test_runs_that_did_not_finish_are_left_out_of_what_optuna_and_wandb_export(call: Call, tmp_path: Path) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    space = {name: optuna.distributions.FloatDistribution(0, 1000) for name in ("lr", "wd", "seed")}
    rows = [(lr, wd, seed, 1 - score / 10) for lr, wd, seed, score in ROWS]
    for lr, wd, seed, score in [*rows, (1.0, 0.1, 0, 9.0)]:
        params = {"lr": lr, "wd": wd, "seed": float(seed)}
        state = optuna.trial.TrialState.PRUNED if score == 9 else optuna.trial.TrialState.COMPLETE
        study.add_trial(optuna.create_trial(params=params, distributions=space, value=score, state=state))
    study.trials_dataframe().to_csv(tmp_path / "trials.csv", index=False)
    names = ["--axes", "lr=params_lr,wd=params_wd", "--seed", "params_seed"]
    result = call("verdict", tmp_path / "trials.csv", "--max", *names, "--score", "value", "--format", "json")
    expected = call("verdict", table(tmp_path / "a.csv", rows), "--max", "--format", "json")
    for key in ("lr", "wd", "score", "evidence", "neighbours"):
        assert result.json[key] == expected.json[key], key
    assert f"trials.csv: 1 run left out, not finished (1 pruned): line {len(rows) + 2}" in result.err
    exported = [*(("finished", *row) for row in rows), ("crashed", 0.5, 0.1, 0, ""), ("running", 0.5, 0.1, 1, 0.1)]
    path = table(tmp_path / "wandb.csv", exported, "State,lr,wd,seed,val/acc")
    result = call("verdict", path, "--max", "--score", "val/acc")
    places = f"line {len(rows) + 2}, line {len(rows) + 3}"
    assert f"2 runs left out, not finished (1 crashed, 1 running): {places}" in result.err


def test_runs_that_would_tell_most_are_named(call: Call, tmp_path: Path) -> None:
    """The neighbours that are missing; then further seeds, by the numbers that follow on the table's."""
    inside = [row for row in ROWS if row[0] >= 2.0**-10 and row[2] == 0]
    edge = call("verdict", table(tmp_path / "a.csv", inside), "--min", "--format", "json", code=1).json
    assert edge["verdict"] == "edge"
    assert {(row["lr"], row["seed"]) for row in edge["next"]} == {(2.0**-11, 0)}
    draw = random.Random(0)
    noisy = [(lr, wd, seed, score * (1 + 0.12 * draw.gauss(0, 1))) for lr, wd, seed, score in ROWS]
    path = table(tmp_path / "b.csv", noisy)
    found = call("verdict", path, "--min", "--runs", "3", "--format", "json", code=1).json
    assert found["verdict"] == "unresolved"
    assert len(found["next"]) in (3, 4), "two runs of a pair come together"
    assert {row["seed"] for row in found["next"]} == {3}


def test_points_may_have_different_seeds_and_diverged_ones_rank_last(call: Call, tmp_path: Path) -> None:
    rows = [row for k, row in enumerate(ROWS) if not (row[2] == 0 and k % 6 == 0)]
    rows += [(2.0**-7, 0.1, 7, "nan"), (2.0**-7, 0.2, 7, ""), (2.0**-7, 0.05, 7, "diverged")]
    found = call("verdict", table(tmp_path / "a.csv", rows), "--min", "--format", "json", code=None).json
    assert (found["lr"], found["wd"]) == (2.0**-10, 0.1)
    places = ", ".join(f"line {len(rows) - k}" for k in (1, 0, -1))
    assert f"a.csv: 3 runs diverged: {places}" in call("verdict", tmp_path / "a.csv", "--min", code=None).err


def test_a_table_is_read_as_programs_write_it(call: Call, tmp_path: Path) -> None:
    """Excel with decimal commas, UTF-16, numpy's header."""
    path = table(tmp_path / "a.csv")
    expected, text = call("verdict", path, "--min", "--format", "json").out, path.read_text()
    excel = "sep=;\r\n" + text.replace(",", ";").replace(".", ",").replace("\n", "\r\n") + ";;;\r\n"
    for written in (
        excel.encode("utf-8-sig"),
        text.replace(",", "\t").encode("utf-16"),
        ("# of 2026\n# " + text).replace("\n", "\r").encode(),
    ):
        path.write_bytes(written)
        assert call("verdict", path, "--min", "--format", "json").out == expected


def test_a_file_that_is_no_text_in_utf_8_is_told(call: Call, tmp_path: Path) -> None:
    for data in ("lr,größe\n".encode("latin-1"), b"PK\x03\x04\x14\0", "lr,score\n".encode("utf-16-le")):
        (tmp_path / "a.csv").write_bytes(data)
        assert "save it as CSV in UTF-8" in call("verdict", tmp_path / "a.csv", "--min", code=2).err


@pytest.mark.parametrize(
    ("header", "rows", "problem"),
    [
        ("a,wd,seed,b", ROWS, "no column lr and score. It has a, wd, seed, b. Add --axes a,wd --score NAME"),
        ("lr wd seed score", [(0.1,)], "it has one column, lr wd seed score; commas, semicolons or tabs separate"),
        ("epoch,lr 0.1 - loss,lr 0.1 - loss__MIN", [(1, 2, 2)], "it looks like a chart of Weights & Biases"),
        ("lr,score", [], "no rows"),
        ("lr,score", [(0.1, 1), (0.1, 2)], "a single point has no neighbours: several lr are expected"),
        ("lr,seed,score", [(0.1, 0, 1), (0.2, 0, 2), (0.1, 0, 2)], "line 4: lr 0.1, seed 0 is there twice"),
        ('{"lr": 0.1, "score": 1}\n{"lr": 0.2, "scor": 1}', [], "line 2: no score; it has lr, scor"),
        ("lr,score", [(0.1, 1), (0.2,)], "line 3: 1 cell, the header has 2: a diverged run has an empty score"),
        ("lr,score", [(0.1, 1), (0.2, 0, 9)], "line 3: 3 cells, the header has 2: write decimals with a point"),
        ("lr,score", [(0.1, '"1,234"')], "line 2: score: a number is expected, got '1,234'"),
        ("lr,seed,score", [(0.1, 0, 1), (0.2, "", 1)], "line 3: no seed, which other rows have"),
        ("lr;score", [("0,1;2.5",)], "line 2: 0,1 and 2.5: is the comma a decimal one?"),
    ],
)
def test_a_table_that_cannot_be_judged_is_told(
    call: Call, tmp_path: Path, header: str, rows: Any, problem: str
) -> None:
    path = tmp_path / "scores.csv"
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    assert problem in call("verdict", path, "--min", code=2).err


# --- any axes -------------------------------------------------------------------------------------------------------

LATTICES = [
    (width, 2.0**i, 32 * 2**j, 3 - width / 100 + 0.1 * (i + 8.1 - 0.5 * j) ** 2 + 0.05 * (j - 1) ** 2)
    for width in (1, 2)
    for i in range(-10, -5)
    for j in range(4)
]
"""Rows of N, lr, bs, loss."""


def test_each_value_of_further_columns_has_a_verdict_of_its_own(call: Call, tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", LATTICES, "N,lr,bs,loss")
    refused = call("verdict", path, code=2).err
    assert "lr 2^-10 (0.0009765625) is there several times" in refused
    assert "with different bs and N. Add --axes lr,bs --by N, or delete" in refused
    found = call("verdict", path, "--axes", "lr,bs", "--by", "N", "--format", "json", code=None).json
    assert [(each["strategy"], each["lr"], each["bs"]) for each in found] == [
        (f"N={width}", 2.0**-8, 64) for width in (1, 2)
    ]
    by_means = ("--axes", "lr,bs", "--by", "N", "--rule", "paper")
    call("verdict", path, *by_means, code=0)
    one_at_an_edge = [row for row in LATTICES if row[0] == 1 or row[1] >= 2.0**-8]
    call("verdict", table(tmp_path / "b.csv", one_at_an_edge, "N,lr,bs,loss"), *by_means, code=1)


def test_a_verdict_is_the_same_whatever_the_axes_are_called(call: Call, tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv")
    renamed = table(tmp_path / "b.csv", header="rate,decay,seed,score")
    expected = call("verdict", path, "--min", "--format", "json").json
    found = call("verdict", renamed, "--min", "--axes", "rate,decay", "--format", "json").json
    assert (found["rate"], found["decay"]) == (expected["lr"], expected["wd"])
    assert not {"lr", "wd"} & {*found, *found["neighbours"][0]}
    assert found["evidence"]["bound"] == expected["evidence"]["bound"]
    assert found["evidence"]["noise"] == expected["evidence"]["noise"]


def test_repeats_without_seeds_are_independent_whatever_their_order(call: Call, tmp_path: Path) -> None:
    """The noise is the pooled deviation of the repeats; sorted ones would seem to have none, were they paired."""
    draw = random.Random(1)
    rows = [(lr, wd, score + draw.gauss(0, 0.05)) for lr, wd, seed, score in ROWS if not seed for _ in range(3)]
    by_score = sorted(rows, key=lambda row: row[2])
    path = table(tmp_path / "a.csv", by_score, "lr,wd,score")
    options = ("--min", "--margin-is", "difference", "--margin", "0.1", "--format", "json")
    found = call("verdict", path, *options, code=None).json
    groups = pd.DataFrame(rows, columns=["lr", "wd", "score"]).groupby(["lr", "wd"])["score"]
    pooled = math.sqrt((groups.var() * 2).sum() / (2 * len(groups)))
    assert found["evidence"]["noise"]["dof"] == 2 * len(groups)
    assert found["evidence"]["noise"]["sd"] == pytest.approx(pooled, rel=0.2)


def test_zero_is_a_neighbour_of_the_smallest_value(call: Call, tmp_path: Path) -> None:
    draw = random.Random(0)
    rows = [
        (lr, wd, seed, 3 + 0.1 * math.log2(lr) ** 2 + (0.0 if wd == 0.05 else 0.02) + draw.gauss(0, 0.003))
        for lr in (0.5, 1.0, 2.0)
        for wd in (0.0, 0.05, 0.15, 0.2)
        for seed in range(3)
    ]
    found = call("verdict", table(tmp_path / "a.csv", rows), "--min", "--format", "json").json
    assert (found["verdict"], found["lr"], found["wd"]) == ("optimal", 1.0, 0.05)
    at_zero = {n["lr"]: n for n in found["neighbours"] if n["wd"] == 0}
    assert at_zero.keys() == {1.0, 2.0}
    means = {wd: sum(row[3] for row in rows if row[:2] == (1.0, wd)) / 3 for wd in (0.0, 0.05)}
    share = means[0.0] / means[0.05] - 1
    assert at_zero[1.0]["worse_by"] == pytest.approx(share, abs=2 * at_zero[1.0]["error"])


def test_a_published_point_is_judged(call: Call, tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv")
    best = call("verdict", path, "--min", "--at", "2^-10,0.1").out
    assert best.startswith("At lr 0.000977, wd 0.1, score is 3.")
    assert "It is the best point of the fit." in best
    worse = call("verdict", path, "--min", "--at", "lr=2^-11,wd=0.2", code=1).out
    bounds = [float(text) for text in re.findall(r"at most ([\d.]+)%", worse)]
    assert bounds[0] <= bounds[1]
    true_gain = 100 * (1 - 3.0 / 3.194)
    assert bounds[1] == pytest.approx(true_gain, abs=1.0)
    assert "Best of the fit: lr 0.000977, wd 0.1." in worse
    refused = call("verdict", path, "--min", "--at", "lr=3,bs=2", code=2).err
    assert "--at: lr,wd is expected, such as lr=2^-6,wd=0.5, got 'lr=3,bs=2'" in refused


def test_a_published_point_without_a_bound_is_compared_with_the_best(call: Call, tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", [(0.01, 3), (0.02, 2.7), (0.04, 2.9), (0.16, 3.2)], "lr,loss")
    worse = call("verdict", path, "--at", "lr=0.01", code=1).out
    unknown = "There is no bound: the noise is unknown, since each point has one run."
    best_is = "The best mean of the table is at lr 0.02, better by 10.0%."
    assert worse.startswith(f"At lr 0.01, loss is 3.0000. {unknown} {best_is}\n")
    best = call("verdict", path, "--at", "lr=0.02", code=1).out
    assert f"{unknown} Its mean is the best of the table.\n" in best
    alone = call("verdict", path, "--at", "lr=0.16", code=1).out
    assert "No neighbour has a score, so there is no bound. The best mean of the table is at lr 0.02" in alone


def test_a_page_of_a_table_has_its_map(call: Call, tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", header="lr,bs,seed,loss")
    call("verdict", path, "--axes", "lr,bs", "--page", tmp_path / "page" / "a.html")
    page = (tmp_path / "page" / "a.html").read_text()
    assert "Use lr 0.000977, bs 0.1." in page
    assert "(2 lr, bs / 2)" in page


def test_the_options_for_a_table_of_many_settings_are_few_and_work(call: Call, tmp_path: Path) -> None:
    rows = [
        (lr, steps, 32 * k, n, n / 10, lr + k + n)
        for lr in (1, 2)
        for k in (1, 2)
        for n in (10, 20)
        for steps in [n // k]
    ]
    path = table(tmp_path / "a.csv", rows, "lr,steps,bs,N,D,loss")
    told = call("verdict", path, code=2).err
    options = "--axes lr,bs --by D"
    assert f"Add {options}," in told, "the steps and N follow from these"
    judged = call("verdict", path, *options.split(), "--format", "json", code=1)
    assert [each["strategy"] for each in judged.json] == ["D=1", "D=2"]
