"""Every command that trains says what it will cost and, where it stays, what it has cost: beside its output."""

import json
import re
from pathlib import Path

import pytest
from support.commandline import Call, runs_in, write_fake_grid

from ettsweep.launch.cost import format_device_hours
from ettsweep.runs.folder import RunDir

TIMED = r"about [\d.]+ device hours, \d+ s on 1 slot \(measured on 3 runs of the same kind\)"


def cost(runs: list[RunDir]) -> str:
    return format_device_hours(sum(json.loads(run.result_path.read_text())["device_s"] for run in runs))


@pytest.mark.usefixtures("process")
def test_commands_that_train_say_what_it_costs(call: Call, results: Path, tmp_path: Path) -> None:
    write_fake_grid(tmp_path / "grid.yaml", centre={"standard": {"lr": 0.125, "wd": 0.25}})
    values = ("--launch-set", "slots=1", "--results", results)
    cases = ("grid", "grid.yaml", *values)
    assert "3 runs to train\n" in call(*cases, "--dry-run").err, "nothing was timed yet"
    followed = call(*cases, "--follow").err
    grid = runs_in(results)
    assert followed.index("3 runs to train\n") < followed.index(f"3 runs trained: {cost(grid)} in ")
    assert f"3 runs were finished already: {cost(grid)} saved\n" in call(*cases, "--follow").err

    verified = call("verify-optimum", "--follow", "--results", results, "--format", "json")
    assert re.search(rf"about 1 run left, at most 100: {TIMED}\n", verified.err)
    (climbed,) = (run for run in runs_in(results) if run.id not in {run.id for run in grid})
    assert f"1 run trained: {cost([climbed])} in " in verified.err
