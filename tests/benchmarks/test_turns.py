"""The benchmarks of training steps: models of one shape take turns, and the table says what was measured."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from bench import encdec, turns, vit
from bench.tables import Row
from ettsweep.trainer.models.registry import model_spec

CPU = torch.device("cpu")


def test_timm_has_our_parameters_and_those_of_norms_and_patches() -> None:
    model = model_spec("vit-digits")
    spec = vit.run_spec(model, "fp32", 1)
    trainers = (build(spec, CPU, False) for build in (vit.our_trainer, vit.timm_trainer))
    ours, theirs = (sum(p.numel() for p in trainer.model.parameters()) for trainer in trainers)
    norms = 2 * model.depth + 1
    assert theirs == ours + norms * 2 * model.width + model.width


@pytest.mark.parametrize(
    ("bench", "per_sample"), [(vit, 1), pytest.param(encdec, 64, marks=pytest.mark.slow)], ids=["vit", "encdec"]
)
def test_the_table_is_printed_and_written(
    bench: ModuleType,
    per_sample: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(turns, "TURN_S", 1e-6)
    monkeypatch.setattr(encdec, "ALONE_STEPS", 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    table = tmp_path / "table.json"
    options = ["--small", "--turns", "1", "--batch-sizes", "2", "4", "--json", str(table)]
    monkeypatch.setattr(sys, "argv", ["bench.py", *options])
    bench.main()
    rows = json.loads(table.read_text())["rows"]
    names = ["vit-digits"] if bench is vit else ["encdec-tiny", "encdec-small"]
    expected = [(p, name, size) for p in ("fp32", "bf16") for name in names for size in (2, 4)]
    assert [(row["precision"], row["model"], row["batch_size"]) for row in rows] == expected
    for row in rows:
        (speed,) = (row[name] for name in ("images_per_s", "tokens_per_s") if name in row)
        assert speed == pytest.approx(row["batch_size"] * per_sample / row["step_s"])
        assert ("ratio" in row) == ("cpu_ratio" in row) == (row["model"] == names[0])
        assert row["utilisation"] is None
    assert len(capsys.readouterr().out.splitlines()) == 3 + len(rows)


def test_a_batch_that_is_larger_than_the_memory_is_told_and_ends_its_column(capsys: pytest.CaptureFixture[str]) -> None:
    tried: list[tuple[str, int]] = []

    def measure(device: torch.device, precision: str, compiled: bool, batch_size: int) -> Row:
        tried.append((precision, batch_size))
        if batch_size > 8:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return {"batch": batch_size}

    assert list(turns.rows({"model": ([8, 16, 32], measure)}, CPU)) == [{"batch": 8}] * 2
    assert tried == [("fp32", 8), ("fp32", 16), ("bf16", 8), ("bf16", 16)]
    assert "model, bf16, eager, batch 16: out of memory" in capsys.readouterr().out


def test_ratios_are_medians_over_pairs_of_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours takes 1, 2 and 3 s, the other 3, 2 and 12: of pairs that is 3, 1 and 4 times as long."""
    seconds = iter([1.0, 3.0, 2.0, 2.0, 3.0, 12.0])

    class Contender:
        def __init__(self, *_: object) -> None:
            self.warm_step_s, self.memory_bytes = 1.0, 0
            self.step_s: list[float] = []
            self.cpu_s = self.step_s

        def turn(self, steps: int) -> None:
            self.step_s.append(next(seconds))

    monkeypatch.setattr(turns, "Contender", Contender)
    spec = vit.run_spec(model_spec("vit-digits"), "fp32", 6)
    builds = {"ours": vit.our_trainer, "timm": vit.timm_trainer}
    row = turns.measure(builds, spec, CPU, False, 3, "images", 1)
    assert (row["ratio"], row["cpu_ratio"], row["step_s"]) == (3, 3, 2)
    assert (row["images_per_s"], row["timm_images_per_s"]) == (3, 2)
