"""Scores so large that a sum or a square of them is no float: their points rank last, and no command fails."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.commandline import keep, write_grid
from support.made_sweep import finish

from ettsweep.study.grid_file import load_sweep_spec

Call = Callable[..., Any]
HUGE = 1.2e308


@pytest.fixture
def results_with_huge(results: Path, tmp_path: Path) -> Path:
    """Return results of two sweeps of five lr and two seeds; the second has a point that nearly overflowed."""
    for name, depth in (("good", 1), ("huge", 2)):
        model = {"width": 8, "depth": depth, "heads": 2, "patch_size": 4, "image_size": 8, "channels": 1, "classes": 10}
        grid = {"lr": {"range": [-2, 2]}, "seeds": [0, 1], "criterion": {"margin": "5%"}, "model": model}
        sweep_spec = load_sweep_spec(write_grid(tmp_path / f"{name}.yaml", **grid))
        keep(results, sweep_spec)
        for spec in sweep_spec.specs():
            step = round(math.log2(spec.lr / 0.25))
            finish(results, spec, HUGE if (name, step) == ("huge", 1) else 1 + 0.1 * step**2 + 0.01 * spec.seed)
    return results


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "command",
    ["sweeps", "status", "verify-optimum --dry-run", "report", "compare good huge", "compare huge:0.5,0.25 good"],
)
def test_no_command_fails_at_huge_scores(call: Call, results_with_huge: Path, command: str) -> None:
    result = call(*command.split(), "--results", results_with_huge, code=None)
    assert result.code in (0, 1, 2)
    assert "Traceback" not in result.err
    assert "internal" not in result.err


def test_a_huge_score_ranks_last_at_its_point_and_in_a_table(
    call: Call, results_with_huge: Path, tmp_path: Path
) -> None:
    (_, kept) = call("verify-optimum", "--dry-run", "--format", "json", "--results", results_with_huge, code=None).json
    path = tmp_path / "scores.csv"
    rows = [
        (0.25 * 2.0**k, seed, HUGE if k == 1 else 1 + 0.1 * k * k + 0.01 * seed)
        for k in range(-2, 3)
        for seed in (0, 1)
    ]
    path.write_text("lr,seed,score\n" + "".join(f"{lr},{seed},{score!r}\n" for lr, seed, score in rows))
    table = call("verdict", path, "--min", "--margin", "5%", "--format", "json", code=None).json
    for verdict in (kept, table):
        assert verdict["lr"] == 0.25
        assert {n["lr"]: n["state"] for n in verdict["neighbours"]} == {0.5: "diverged", 0.125: "done"}
