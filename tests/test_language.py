"""The paper's language experiment in small: the grid that ships, its whole recipe, text from files, one CPU."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from support.commandline import ettsweep

from ettsweep.files import read_lines
from ettsweep.runs.spec import RunSpec
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.trainer.tasks.text.pydoc import documents

GRIDS = Path(__file__).parent.parent / "grids"

BPE = 392
SMALL = {
    **{"model.vocabulary": BPE + 8, "model.tokens": 48, "model.width": 32, "model.depth": 1, "model.heads": 2},
    **{"batch_size": 8, "schedule.total_steps": 18, "schedule.warmup_steps": 2, "schedule.eval_every": 6},
}
"""What is smaller than in the paper; precision, dropout, clipping and all else are its own."""


def write_text(folder: Path, topics: slice = slice(24)) -> None:
    folder.mkdir()
    for number, text in enumerate(documents()[topics]):
        (folder / f"{number:02}.txt").write_text(text)


def tokenise(folder: Path, text: str = "text", out: str = "tokens") -> None:
    values = ("data", "text", "--input", text, "--out", out, "--bpe-tokens", BPE)
    ettsweep(*values, "--documents", "file", "--val-fraction", 0.2, cwd=folder)


def sets(**more: object) -> list[str]:
    return [f"--set={key}={value}" for key, value in (SMALL | more).items()]


# --- the path ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("process", "warm", "undrawn")
def test_from_text_files_to_a_report(tmp_path: Path, results: Path) -> None:
    lr = 1e-3 * 32**1.5
    write_text(tmp_path / "text")
    tokenise(tmp_path)

    def command(*arguments: object, code: int = 0) -> Any:
        output = ettsweep(*arguments, "--results", results, "--format", "json", code=code, cwd=tmp_path)
        return json.loads(output.stdout) if output.stdout else output.stderr

    values = ("grid", "--model", "bart-large", "--strategy", "ntk", "--range=lr=0:8:4", "--rule", "paper", *sets())
    assert "3 of 3 runs finished" in command(*values, "--data", "tokens", "--follow")
    assert [row["lr"] for row in command("status")] == pytest.approx([lr, 16 * lr, 256 * lr])

    # The text is remembered, and judged by the lowest loss, at two neighbours.
    (actual,) = command("verify-optimum", "--follow")
    rows = command("status")
    scores = {row["lr"]: row["best_score"] for row in rows}
    assert actual["verdict"] == "optimal"
    assert {n["lr"] for n in actual["neighbours"]} == {actual["lr"] / 16, actual["lr"] * 16} <= scores.keys()
    assert actual["score"] == scores[actual["lr"]] == min(scores.values()) < math.log(BPE)

    for row in rows:
        folder = results / "runs" / row["run"]
        result = json.loads((folder / "result.json").read_text())
        assert (result["steps"], result["best_accuracy"]) == (18, None)
        assert result["best_bits"] == pytest.approx(result["best_loss"] / math.log(2))
        metrics = list(read_lines(folder / "metrics.jsonl"))
        assert all("loss_scale" in line for line in metrics if "loss" in line), "fp16, as in the paper"
        assert 0 < result["best_bits_per_byte"] < result["best_bits"], "a token has several bytes"
        assert [line["step"] for line in metrics if "val_bits" in line] == [6, 12, 18]
    command("report")
    page = (results / "report" / "report.html").read_text()
    assert all(text in page for text in ("bits per token", "bits per byte"))


# --- the recipes ------------------------------------------------------------------------------------------------------


def test_bart_large_and_the_zero_shot_pair_of_r2c2_are_the_papers() -> None:
    standard, ntk = load_sweep_spec(GRIDS / "bart-large.yaml").studies()
    assert [p["lr"] for p in standard.grid_points] == [5e-4, 1e-3, 2e-3]
    assert {p["wd"] for p in standard.grid_points} == {0.01}
    assert [p["lr"] for p in ntk.grid_points] == pytest.approx([16.384, 32.768, 65.536])
    assert [p["wd"] for p in ntk.grid_points] == pytest.approx([3.05e-7] * 3, rel=1e-2)
    paper_recipe(standard.spec_at(), None)
    standard, ntk = load_sweep_spec(GRIDS / "r2c2.yaml").studies()
    assert [(p["lr"], p["wd"]) for p in standard.grid_points] == [(7e-4, 0.01)]
    ((lr, wd),) = ntk.grid_points
    assert (lr, wd) == (pytest.approx(64.88, rel=1e-4), pytest.approx(1.08e-7, rel=1e-2))
    paper_recipe(standard.spec_at(), 15_000)


def paper_recipe(spec: RunSpec, stop_step: int | None) -> None:
    """Compare with the paper's section on optimizer and training hyperparameters."""
    o, s = spec.optimizer, spec.schedule
    assert (o.kind, o.beta1, o.beta2, o.eps, o.clip_norm) == ("adamw", 0.9, 0.998, 1e-6, 0.1)
    assert (s.total_steps, s.warmup_steps, s.decay, s.lr_min, s.stop_step) == (200_000, 5_000, "linear", 0, stop_step)
    assert (spec.batch_size, spec.precision) == (512, "fp16")
    assert (spec.model.dropout, spec.model.attention_dropout, spec.model.tokens) == (0.1, 0.1, 514)
    assert (spec.task.mask_ratio, spec.task.span_mean, spec.task.permute_sentences) == (0.3, 3.0, True)


# --- the text is part of the run --------------------------------------------------------------------------------------


def test_text_that_no_run_could_train_on_is_refused_before_anything_is_submitted(tmp_path: Path, results: Path) -> None:
    write_text(tmp_path / "text")
    tokenise(tmp_path)

    def refusal(*more: object) -> str:
        result = ettsweep("grid", "--model", "bart-large", *more, "--results", results, code=1, cwd=tmp_path)
        assert not results.exists()
        return result.stderr

    assert "pass --data DIR or set ETTSWEEP_TEXT=DIR" in refusal(*sets())
    assert "is not tokenised text: it has no manifest.json" in refusal(*sets(), "--data", "text")
    vocabulary = f"a vocabulary of {BPE + 8}, the model has 50265: --set model.vocabulary={BPE + 8}"
    assert f"{tmp_path}/tokens was tokenised with {vocabulary}" in refusal("--data", "tokens")
    other = refusal(*sets(**{"task.corpus": "'0123456789ab'"}), "--data", "tokens")
    assert f"the run needs the text 0123456789ab, but {tmp_path}/tokens is" in other
