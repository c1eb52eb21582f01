"""A trainable by its contract alone: named by a grid file, with fields and settings of its own, swept by local workers."""

import json
import random
from pathlib import Path

import pytest
import yaml
from support.commandline import ettsweep, status

from ettsweep.errors import InputError
from ettsweep.runs.spec import kind_named


def write_grid(path: Path, **block: object) -> Path:
    content = {
        "run": {"trainable": "fake", **block},
        "centre": {"lr": 2.0**-6, "wd": 2.0**-3},
        "lr": {"range": [-1, 1]},
        "wd": {"range": [-1, 1]},
        "seeds": [0, 1],
        "criterion": {"margin": "5%"},
    }
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.usefixtures("process")
def test_a_trainable_is_swept_to_a_verdict(tmp_path: Path, results: Path) -> None:
    grid = write_grid(tmp_path / "fake.yaml")
    ettsweep("grid", grid, "--results", results, "--launch-set", "slots=2", "--follow")
    assert {row["state"] for row in status(results).values()} == {"done"}
    verdicts = json.loads(ettsweep("verify-optimum", "--results", results, "--follow", "--format", "json").stdout)
    assert [verdict["verdict"] for verdict in verdicts] == ["optimal"]
    best = 1 + random.Random(0).gauss(0, 0.01)
    run = next(row for row in status(results).values() if (row["log2_lr"], row["log2_wd"], row["seed"]) == (-6, -3, 0))
    assert run["best_score"] == pytest.approx(best + (4 - best) * 0.5**20)


def test_what_is_no_trainable_is_refused() -> None:
    with pytest.raises(InputError, match="unknown trainable 'fucntion'; did you mean 'function'"):
        kind_named("fucntion")


def test_fields_of_a_trainable_are_checked(tmp_path: Path, results: Path) -> None:
    grid = write_grid(tmp_path / "a.yaml", evry=3)
    done = ettsweep("grid", grid, "--results", results, code=2)
    assert "run: evry: unknown key; did you mean every?" in done.stderr
