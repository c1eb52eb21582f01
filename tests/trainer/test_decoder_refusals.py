"""Grids of decoders, Muon and plateaus that cannot be: each is refused on the command line, in words, before a run is made."""

from pathlib import Path

import pytest
from support.commandline import ettsweep


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["model.kv_heads=3"], "model: kv_heads 3 does not divide heads 4; these do: 1, 2, 4"),
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
