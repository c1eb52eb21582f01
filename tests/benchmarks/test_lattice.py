"""`bench.lattice` writes what `bench.recorded` reads."""

import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from bench import lattice
from bench.recorded import read_table
from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec


def test_a_lattice_of_finished_runs_is_written_by_strategy_without_points_that_lack_a_seed(
    results: Path,
    make_spec: Callable[..., RunSpec],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    axes = (1.0, 2.0, 4.0), (0.25, 0.5), (3, 7)
    for s, (lr, wd, seed) in product((0.0, None), product(*axes)):
        if (lr, wd, seed) not in ((4.0, 0.25, 7), (4.0, 0.5, 3)):  # so both points of this lr have one seed alone
            run = RunDir.create(results, make_spec(strategy={"s": s}, lr=lr, wd=wd, seed=seed))
            assert run.claim({}, after=0)
            assert run.finish({"status": "done", "best_loss": lr + wd + seed / 100, "best_accuracy": 0.5}, [])
    monkeypatch.setattr(sys, "argv", ["lattice", str(results), str(tmp_path), "--name", "x"])
    lattice.main()
    assert {path.name for path in tmp_path.glob("*.csv")} == {"x-ntk.csv", "x-standard.csv"}
    assert capsys.readouterr().out.count("left out 2 points without all seeds") == 2
    table = read_table(tmp_path / "x-ntk.csv")
    assert (table.metric, table.log2_lr, table.log2_wd) == ("best_loss", (0.0, 1.0), (-2.0, -1.0))
    assert table.y_LWS.tolist() == [[[lr + wd + 0.03, lr + wd + 0.07] for wd in (0.25, 0.5)] for lr in (1.0, 2.0)]
