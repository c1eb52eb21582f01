"""Whether a job has the time to save what it trains."""

import re
from pathlib import Path

import pytest

from ettsweep.doctor.machine import examine_saving
from ettsweep.study.grid_file import find_grid, load_sweep_spec
from ettsweep.study.lattice import PLACEHOLDER_CENTRE


def examine(model: str, results: Path, profile: str, *sets: str) -> list[tuple[str, str, str]]:
    sweep_spec = load_sweep_spec(find_grid(model), start=PLACEHOLDER_CENTRE)
    return [(row.name, row.state, row.detail) for row in examine_saving(results, sweep_spec, profile, sets)]


def test_of_a_large_model_it_says_whether_the_warning_leaves_the_time(tmp_path: Path) -> None:
    """r2c2: 2,688,739,328 parameters, each with two moments in fp32."""
    ((what, state, told),) = examine("r2c2", tmp_path / "results", "slurm", "warn_s=14000")
    assert (what, state) == ("checkpoint r2c2", "ok")
    found = re.match(r"30.0 GiB take about (\d+) s, at (\d+) MB/s of a short write here; jobs get a warning", told)
    assert found, told
    takes_s, mb_per_s = map(int, found.groups())
    assert takes_s == pytest.approx(12 * 2_688_739_328 / mb_per_s / 1e6, rel=0.05)
    ((_, state, told),) = examine("r2c2", tmp_path / "results", "slurm", "warn_s=1")
    assert state == "warning"
    assert re.search(r", but jobs get a warning 1 s before their end; pass --launch-set warn_s=\d+$", told)
    assert list(tmp_path.iterdir()) == [], "nothing stays behind"


def test_nothing_is_measured_where_nothing_is_short(tmp_path: Path) -> None:
    assert examine("vit-digits", tmp_path, "slurm") == examine("r2c2", tmp_path, "local") == []
