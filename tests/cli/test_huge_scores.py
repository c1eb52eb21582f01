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
@pytest.mark.usefixtures("undrawn")
def test_no_command_fails_at_huge_scores(call: Call, results_with_huge: Path) -> None:
    for command in ("sweeps", "status", "report", "compare good huge", "compare huge:0.5,0.25 good"):
        result = call(*command.split(), "--results", results_with_huge, code=None)
        assert result.code in (0, 1, 2)
        assert "internal" not in result.err
    (_, kept) = call("verify-optimum", "--dry-run", "--format", "json", "--results", results_with_huge, code=None).json
    assert kept["lr"] == 0.25
    assert {n["lr"]: n["state"] for n in kept["neighbours"]} == {0.5: "diverged", 0.125: "done"}
