"""Grids of decoders, Muon and plateaus that cannot be: each is refused on the command line, in words, before a run is made."""

from pathlib import Path

import pytest
from support.commandline import ettsweep, write_grid
from support.toy import ONES, TOY

from ettsweep.trainer.models.registry import ARCHITECTURES
from ettsweep.trainer.tasks.registry import TASKS


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["model.heads=5"], "model: width 64 is not divisible by heads 5; nearest width: 60, 65"),
        (["model.kv_heads=3"], "model: kv_heads 3 does not divide heads 4; these do: 1, 2, 4"),
        (["model.head=tide"], "model.head: input should be 'tied' or 'untied', got 'tide'; did you mean 'tied'?"),
        (
            ["model.positions=rotary", "model.width=36", "model.heads=12"],
            "model: positions rotary needs an even number of channels a head, and width 36 has 3 in each of 12 heads; "
            "nearest width: 24, 48",
        ),
        (
            ["schedule.decay=wsd", "schedule.decay_share=0.95"],
            "schedule: decay_share 0.95 is a decay of 380 steps, and the run has 360 after its warmup; give at most 0.9",
        ),
        (
            ["schedule.floor=0.1", "schedule.lr_min=0.1"],
            "schedule: floor 0.1 and lr_min 0.1 both state where lr ends; give one",
        ),
        (
            ["schedule.decay_share=0.5"],
            "schedule: decay_share is of decay: wsd, which has a plateau; decay linear begins after the warmup",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(tmp_path: Path, settings: list[str], expected: str) -> None:
    options = [word for setting in settings for word in ("--set", setting)]
    refused = ettsweep("grid", "--model", "gpt-tiny", *options, cwd=tmp_path, code=2)
    assert refused.stderr.endswith(f": {expected}\n")
    assert refused.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir()), "nothing is written"


def test_muon_without_a_matrix_to_train_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCHITECTURES, "toy", TOY)
    monkeypatch.setitem(TASKS, "ones", ONES)
    write_grid(tmp_path / "g.yaml", model="toy-4", task="ones", strategies=["standard"])
    with_adamw = ettsweep("grid", "g.yaml", "--dry-run", cwd=tmp_path)
    assert "would be submitted" in with_adamw.stderr
    refused = ettsweep("grid", "g.yaml", "--set", "optimizer=muon", "--dry-run", cwd=tmp_path, code=2)
    assert refused.stderr.endswith(
        "optimizer.kind: muon trains the matrices of residual blocks, and toy-4 has none; give adamw or sgd\n"
    )
