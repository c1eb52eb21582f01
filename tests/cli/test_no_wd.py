"""A program that is given no wd: no table, file or page shows one."""

import csv
import io
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.claims import claimed, finished
from support.commandline import ettsweep, keep

from ettsweep.results import load
from ettsweep.runs.folder import RunDir
from ettsweep.study.grid_file import load_sweep_spec


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a sweep over lr alone, with a run of another seed in training; tests only read it."""
    tmp_path = tmp_path_factory.mktemp("no_wd")
    (tmp_path / "train.sh").write_text("")
    run = {"command": "sh train.sh {lr} {seed}", "score": {"name": "loss", "mode": "min"}}
    content = {"run": run, "centre": {"lr": 2.0**-6}, "lr": {"range": [-2, 2]}, "seeds": [0, 1, 2]}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(content))
    sweep_spec = load_sweep_spec(tmp_path / "sweep.yaml").bound()
    keep(tmp_path / "results", sweep_spec)
    for spec in sweep_spec.specs():
        loss = 1 + 0.1 * (math.log2(spec.lr) + 6) ** 2 + 0.001 * spec.seed
        finished(RunDir.create(tmp_path / "results", spec), score=loss, device_s=1.0)
    claimed(RunDir.create(tmp_path / "results", spec.with_point(spec.point, 7)))
    return tmp_path


@pytest.fixture
def folder(scene: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(scene)
    return scene


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of JSON data with their keys."""
    if isinstance(value, dict | list):
        for name, each in value.items() if isinstance(value, dict) else ((key, each) for each in value):
            yield from leaves(each, name)
    else:
        yield key, value


@pytest.mark.parametrize(
    "command",
    [
        "status",
        "grid sweep.yaml --range=lr=-60:60 --dry-run",  # so many that a plan is a summary
        "verify-optimum --dry-run",
    ],
)
@pytest.mark.usefixtures("folder")
def test_commands_show_no_wd(command: str) -> None:
    words = command.split()
    table = ettsweep(*words, code=None)
    told = table.stdout + table.stderr
    assert told.strip()
    assert not re.search(r"\bwd\b|, 0\)", told), told
    rows = csv.DictReader(io.StringIO(ettsweep(*words, "--format", "csv", code=None).stdout))
    assert {row["wd"] for row in rows if "wd" in row} <= {""}
    data = list(leaves(json.loads(ettsweep(*words, "--format", "json", code=None).stdout)))
    assert {value for key, value in data if key in ("wd", "log2_wd")} == {None}


@pytest.mark.usefixtures("undrawn")
def test_pages_and_frames_have_no_wd(folder: Path) -> None:
    ettsweep("report", "--out", folder / "report", code=None)
    page = (folder / "report" / "report.html").read_text()
    text = re.sub(r"(?s)<(script|style).*?</\1>|<[^>]+>", " ", page)
    rule = re.compile(r"A point has six neighbours on the log.*")  # of any lattice
    assert not re.search(r"\bwd\b", rule.sub("", text))
    assert not re.search(r"\(lr, wd\)|lr \* wd|, wd 0|no decay|2\^-\d, 0\)", page)
    results = load(folder / "results")
    assert results.runs["wd"].isna().all()
    assert {*results.points["lr_wd"]} == {""}
    for name in ("optima.md", "optima.tex"):
        assert "wd" not in (folder / "report" / "tables" / name).read_text(), name
