"""The benchmark compares models of one shape, and can be run."""

import argparse
import json
import sys
from pathlib import Path

import pytest
import torch

from bench import turns
from bench import vit as bench
from bench.tables import Row
from bench.vit import measure, our_trainer, run_spec, timm_trainer
from ettsweep.trainer.models.registry import model_spec

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", [pytest.param("vit-b16", marks=pytest.mark.slow), "vit-digits"])
def test_timm_has_our_parameters_and_those_of_norms_and_patches(name: str) -> None:
    model = model_spec(name)
    spec = run_spec(model, "fp32", 1)
    with torch.device("meta"):
        theirs = timm_trainer(spec, torch.device("meta"), compiled=False).model
    ours = our_trainer(run_spec(model, "fp32", 1), CPU, compiled=False).model
    ours_count, theirs_count = (sum(p.numel() for p in m.parameters()) for m in (ours, theirs))
    norms = 2 * model.depth + 1
    assert theirs_count == ours_count + norms * 2 * model.width + model.width


def test_both_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", 1e-6)
    row = measure("vit-digits", CPU, "bf16", compiled=False, batch_size=4)
    assert row["step_s"] > 0
    assert row["images_per_s"] == pytest.approx(4 / row["step_s"])
    assert row["ratio"] > 0
    assert row["utilisation"] is None


@pytest.mark.slow
def test_the_table_is_printed_and_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(turns, "TURN_S", 1e-6)
    table = str(tmp_path / "table.json")
    monkeypatch.setattr(sys, "argv", ["bench.py", "--model", "vit-digits", "--batch-sizes", "2", "4", "--json", table])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    bench.main()
    rows = json.loads(Path(table).read_text())["rows"]
    assert [(row["precision"], row["batch_size"]) for row in rows] == [
        ("fp32", 2),
        ("fp32", 4),
        ("bf16", 2),
        ("bf16", 4),
    ]
    assert len(capsys.readouterr().out.splitlines()) == 3 + len(rows)


@pytest.mark.slow
def test_what_is_larger_than_the_memory_is_said_and_ends_its_column(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    collected: list[tuple[str, int]] = []

    def full(model: object, device: object, precision: str, compiled: bool, batch_size: int) -> Row:
        collected.append((precision, batch_size))
        if batch_size > 8:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return {"batch": batch_size}

    monkeypatch.setattr(bench, "measure", full)
    requested = argparse.Namespace(model="vit-digits", batch_sizes=[8, 16, 32])
    assert list(bench.rows(requested, CPU)) == [{"batch": 8}] * 2
    assert collected == [("fp32", 8), ("fp32", 16), ("bf16", 8), ("bf16", 16)]
    assert capsys.readouterr().out.count("batch 16: out of memory") == 2
