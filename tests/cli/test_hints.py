"""Commands that messages tell to type: they mean what the command before meant, and run as they are pasted."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

from support.commandline import Call, finish, write_grid

from ettsweep.runs.folder import RunDir
from ettsweep.runs.spec import RunSpec
from ettsweep.runs.state import State
from ettsweep.study.grid_file import load_sweep_spec

Ask = Callable[..., list[RunSpec]]


def told(text: str, command: str) -> list[str]:
    """Return the words of the only one of the commands in a text that is of a name."""
    splits = [shlex.split(message) for message in re.findall(r"`ettsweep ([^`]*)`", text)]
    (message,) = [message for message in splits if message[0] == command]
    return message


def test_a_verdict_that_is_open_tells_to_go_on_with_it_alone(call: Call, results: Path, request_sweep: Ask) -> None:
    values = ["standard", "ntk"]
    request_sweep("b", score=None, strategies=values)
    request_sweep("a", strategies=values, criterion={})
    options = ["--sweep", "a", "--strategy", "standard", "--at", "2^-2,2^-2"]
    result = call("verify-optimum", *options, "--dry-run", "--results", results, code=1)
    message = told(result.err, "verify-optimum")
    assert message == ["verify-optimum", *options, "--follow", "--results", str(results)]
    output = call(*[token for token in message if token != "--follow"], "--dry-run", "--format", "json", code=1)
    assert [(v["sweep"], v["strategy"]) for v in output.json] == [("a", "standard")]


def test_a_long_plan_is_a_row_for_each_kind_of_run(call: Call, results: Path, tmp_path: Path) -> None:
    grid = write_grid(
        tmp_path / "big.yaml", lr={"range": [-8, 8], "step": 0.125}, seeds=4, strategies=["standard", "ntk"]
    )
    finish(results, load_sweep_spec(grid).specs()[0], 1.0)
    plan = "grid", "big.yaml", "--results", results, "--dry-run"
    head, *rows = call(*plan).out.splitlines()
    assert head.split() == ["runs", "action", "model", "strategy", "lr", "wd", "seed", "state"]
    assert [row.split()[0] for row in rows] == ["515", "516", "1"]
    assert "2^-10 (0.000977) to 2^6 (64)" in rows[0]
    assert "0 to 3" in rows[0]
    assert len(call(*plan, "--format", "json").json) == 1032
    assert len(call(*plan, "--range", "lr=-1:0").out.splitlines()) == 1 + 2 * 9 * 4


def test_runs_that_wait_are_taken_on_of_what_was_meant(call: Call, results: Path, request_sweep: Ask) -> None:
    RunDir.create(results, request_sweep("a", score=None)[0])
    other = RunDir.create(results, request_sweep("b", score=None, seeds=[1])[0])
    result = call("status", "--sweep", "a", "--results", results)
    assert told(result.err, "retry") == ["retry", "--sweep", "a", "--state", "missing", "--results", str(results)]
    assert "1 run waits for a worker" in result.err
    assert "for a worker" not in call("status", "--state", "done", "--results", results).err
    result = call("status", other.id, "--results", results)
    assert told(result.err, "retry") == ["retry", other.id, "--state", "missing", "--results", str(results)]


def test_runs_that_stand_still_are_listed_of_what_was_meant(call: Call, results: Path, request_sweep: Ask) -> None:
    for name, seed in (("b", 1), ("a", 0)):
        for spec in request_sweep(name, score=None, lr={"range": [-3, 3]}, seeds=[seed]):
            RunDir.create(results, spec).cancel()
    result = call("grid", "a.yaml", "--seeds", "0", "--results", results)
    message = told(result.err, "status")
    assert message == ["status", "--sweep", "a", "--state", State.CANCELLED.value, "--results", str(results)]
    assert len(call(*message, "--format", "json").json) == 7


def test_runs_of_the_sweep_that_a_command_leaves_out_are_counted(call: Call, results: Path, request_sweep: Ask) -> None:
    request_sweep("a", lambda spec: None if spec.strategy.s == 0 else 1.0, strategies=["standard", "ntk"])
    result = call("grid", "a.yaml", "--strategy", "standard", "--results", results)
    assert "3 other runs of sweep a are missing: `ettsweep verify-optimum --sweep a" in result.err


def test_a_range_in_values_is_answered_with_the_command_in_steps(call: Call, tmp_path: Path) -> None:
    write_grid(tmp_path / "w8.yaml")
    words = ["grid", "--range", "lr=1e-4:1e-2", "w8.yaml", "--seeds", "0", "--dry-run", "--range=wd=0.1:0.4"]
    pasted = shlex.split(call(*words, code=2).err.splitlines()[-1])
    kept = [word for word in words if "range" not in word and ":" not in word]
    assert pasted[0] == "ettsweep"
    assert [word for word in pasted[1:] if "range" not in word and ":" not in word] == kept
    assert call(*pasted[1:], code=None).code == 0, "it is valid"
