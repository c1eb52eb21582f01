"""What another package brings is an entry of a table, and all commands know it; each entry's names stand for something."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commandline import ettsweep, finish, keep, left_as_before
from support.toy import ONES, TOY, ToySpec, ToyTask

from ettsweep.launch.local import LocalProfile
from ettsweep.runs.state import State
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.trainer.models.registry import ARCHITECTURES
from ettsweep.trainer.tasks.registry import TASKS
from ettsweep.worker.worker import train_in_foreground

GRID = {
    "model": "toy-4",
    "task": "ones",
    "recipe": {
        "optimizer": "sgd",
        "batch_size": 8,
        "schedule": {"total_steps": 4, "warmup_steps": 0, "decay": "linear", "lr_min": 0.5, "eval_every": 2},
    },
    "centre": {"standard": {"lr": 1.0, "wd": 0.0}},
    "lr": {"range": [-1, 1]},
    "wd": "fixed",
    "strategies": ["standard"],
    "criterion": {"rule": "paper"},
}


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(ARCHITECTURES, "toy", TOY)
    monkeypatch.setitem(TASKS, "ones", ONES)
    monkeypatch.setattr("ettsweep.worker.commands.PYTHON", (sys.executable, "-m", "support.toyed"))
    with left_as_before():  # who trains in the foreground listens to signals
        yield


@pytest.mark.usefixtures("undrawn")
def test_a_sweep_of_an_architecture_and_a_task_from_outside(tmp_path: Path, results: Path) -> None:
    def data(*arguments: object) -> Any:
        return json.loads(ettsweep(*arguments, "--format", "json").stdout)

    grid = tmp_path / "toy.yaml"
    grid.write_text(yaml.safe_dump(GRID))
    sweep_spec = load_sweep_spec(grid)
    keep(results, sweep_spec)
    worse, best, other = sweep_spec.specs()
    assert (best.model, best.task, best.lr) == (ToySpec(width=4), ToyTask(), 1.0)
    assert train_in_foreground(results, best, LocalProfile(devices="cpu", slots=1, threads=1)) is State.DONE
    for spec in (worse, other):
        finish(results, spec, 9.0)

    (verdict,) = data("verify-optimum", "--results", results)
    assert (verdict["verdict"], verdict["model"], verdict["lr"]) == ("optimal", "toy-4", 1.0)
    assert {(row["model"], row["task"], row["state"]) for row in data("status", "--results", results)} == {
        ("toy-4", "ones", "done")
    }
    assert len(data("report", "--results", results, "--out", tmp_path / "report")) == 1
    scales = data("scales", "--model", "toy-4", "--strategy", "ntk")
    assert [(group["group"], group["shape"]) for group in scales["groups"]] == [("head", [2, 4])]
    assert (scales["parameters"], scales["output_rescale"]) == (8, None)
