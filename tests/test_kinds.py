"""What another package brings is an entry of a table, and all commands know it; each entry's names stand for something."""

import io
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from support.commandline import finish, keep, left_as_before
from support.toy import ONES, TOY, ToySpec, ToyTask

from ettsweep import cli
from ettsweep.errors import InputError
from ettsweep.launch.follow import read_run_index
from ettsweep.launch.local import LocalProfile
from ettsweep.runs.folder import read_spec
from ettsweep.runs.state import State
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.trainer.models.registry import ARCHITECTURES
from ettsweep.trainer.tasks.registry import TASKS
from ettsweep.worker.signals import SIGNALS
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

Call = Callable[..., tuple[int, str]]


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(ARCHITECTURES, "toy", TOY)
    monkeypatch.setitem(TASKS, "ones", ONES)
    monkeypatch.setattr("ettsweep.worker.commands.PYTHON", (sys.executable, "-m", "support.toyed"))
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, on_signal in handlers.items():  # who trains in the foreground listens to them
        signal.signal(number, on_signal)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    """Return a function that runs a command in this process, and gives its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())

    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["ettsweep", *map(str, arguments)])
        with left_as_before(), pytest.raises(SystemExit) as end:
            cli.main()
        return int(end.value.code or 0), capsys.readouterr().out

    return run


@pytest.mark.usefixtures("undrawn")
def test_a_sweep_of_an_architecture_and_a_task_from_outside(tmp_path: Path, results: Path, call: Call) -> None:
    grid = tmp_path / "toy.yaml"
    grid.write_text(yaml.safe_dump(GRID))
    sweep_spec = load_sweep_spec(grid)
    keep(results, sweep_spec)
    specs = sweep_spec.specs()
    assert [spec.lr for spec in specs] == [0.5, 1.0, 2.0]
    assert (specs[0].model, specs[0].task) == (ToySpec(width=4), ToyTask())
    best = specs[1]
    assert train_in_foreground(results, best, LocalProfile(devices="cpu", slots=1, threads=1)) is State.DONE
    for spec in (specs[0], specs[2]):
        finish(results, spec, 9.0)
    run_index = read_run_index(results)
    assert all(read_spec(run.dir.spec_path) == run.spec for run in run_index.runs.values())
    assert {run.spec.run_id for run in run_index.runs.values()} == {spec.run_id for spec in specs}

    code, out = call("verify-optimum", "--results", results, "--format", "json")
    (verdict,) = json.loads(out)
    assert (code, verdict["verdict"], verdict["model"], verdict["lr"]) == (0, "optimal", "toy-4", 1.0)
    assert verdict["metric"] == "best_loss"
    code, out = call("status", "--results", results, "--format", "json")
    assert {(row["model"], row["task"], row["state"]) for row in json.loads(out)} == {("toy-4", "ones", "done")}
    code, out = call("report", "--results", results, "--out", tmp_path / "report")
    table = (tmp_path / "report" / "tables" / "runs.csv").read_text().splitlines()
    assert len(table) == 4
    assert all("toy-4" in line and "ones" in line for line in table[1:])
    code, out = call("scales", "--model", "toy-4", "--strategy", "ntk", "--format", "json")
    scales = json.loads(out)
    assert [(group["group"], group["shape"]) for group in scales["groups"]] == [("head", [2, 4])]
    assert (scales["parameters"], scales["output_rescale"]) == (8, None)


def test_what_does_not_fit_or_is_not_known_is_told(tmp_path: Path) -> None:
    path = tmp_path / "toy.yaml"
    for changes, message in [
        ({"model": "vit-digits"}, "model: task ones is for toys, got vit"),
        (
            {"model": {"kind": "toi", "width": 4}},
            f"model: unknown kind 'toi'; did you mean 'toy'? Known: {', '.join(sorted(ARCHITECTURES))}",
        ),
    ]:
        path.write_text(yaml.safe_dump(GRID | changes))
        with pytest.raises(InputError) as error:
            load_sweep_spec(path)
        assert message in str(error.value)
