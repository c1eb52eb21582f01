"""Ctrl-C while a command is imported, asks, follows or trains: it ends, and prints no traceback."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commandline import (
    ETTSWEEP,
    LONG_FAKE,
    ctrl_c_at,
    ended,
    keep,
    runs_in,
    start,
    typed,
    wait_for,
    write_fake_grid,
    write_grid,
)
from support.slots import owner, stopped_at_checkpoint

from ettsweep.runs.folder import RunDir
from ettsweep.runs.state import State
from ettsweep.study.grid_file import load_sweep_spec

TRAIN = "train grid.yaml"


@pytest.mark.parametrize(
    ("command", "at"),
    [
        ("status", "ettsweep.cli:0"),
        ("grid grid.yaml --follow", "pydantic:100"),
        pytest.param(TRAIN, "ettsweep.worker.training:0", marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_at_any_import_ends_the_command_without_a_traceback(tmp_path: Path, command: str, at: str) -> None:
    write_grid(tmp_path / "grid.yaml")
    (tmp_path / "results").mkdir()
    completed = typed(*command.split(), code=130, cwd=tmp_path, env=ctrl_c_at(at))
    assert completed.stdout == ""
    announced = "grid file: grid.yaml\n1 run to train\n"
    # A prefix of what is announced may have been printed by then.
    assert completed.stderr.removesuffix("ettsweep: interrupted\n") in (announced, announced[:21], "")


def test_ctrl_c_at_a_question_is_no_answer(tmp_path: Path) -> None:
    grid, results = load_sweep_spec(write_fake_grid(tmp_path / "grid.yaml")), tmp_path / "results"
    keep(results, grid)
    for spec in grid.specs():
        RunDir.create(results, spec)
    before = sorted(results.rglob("*"))
    process = start("cancel", "--all", "--results", results, stdin=subprocess.PIPE)
    assert process.stderr is not None
    seen = ""
    while not seen.endswith("[y/N]"):
        seen += process.stderr.read(1)
    process.send_signal(signal.SIGINT)
    assert ended(process, 130).stderr.endswith("\nettsweep: interrupted\n")
    assert sorted(results.rglob("*")) == before


@pytest.mark.usefixtures("process")
def test_ctrl_c_leaves_the_runs_that_a_command_follows(
    results: Path, tmp_path: Path, hold_runs: Callable[[int], None]
) -> None:
    hold_runs(1)
    write_fake_grid(tmp_path / "grid.yaml", lr="fixed")
    process = start("grid", "grid.yaml", "--follow", "--results", results, cwd=tmp_path)
    worker = owner(stopped_at_checkpoint(results))
    process.send_signal(signal.SIGINT)
    assert "interrupted; the runs keep running: `ettsweep watch" in ended(process, 130).stderr
    os.kill(worker, signal.SIGCONT)
    wait_for(lambda: runs_in(results)[0].status().state is State.DONE, "the end of the run")


@pytest.mark.slow
def test_who_has_it_ignored_is_not_interrupted(tmp_path: Path) -> None:
    """As whoever starts a command with nohup, or in the background of a script."""
    (tmp_path / "results").mkdir()
    ignoring = f"trap '' INT; exec {ETTSWEEP} sweeps"
    command, env = ["sh", "-c", ignoring], ctrl_c_at("ettsweep.cli:30")
    completed = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, check=False)
    assert completed.returncode == 0
    assert b"no sweeps yet" in completed.stderr


@pytest.mark.slow
def test_a_run_that_is_trained_here_is_stopped_and_gone_on_with_by_the_same_command(tmp_path: Path) -> None:
    write_fake_grid(tmp_path / "grid.yaml", run=LONG_FAKE)
    process, results = start(*TRAIN.split(), cwd=tmp_path), tmp_path / "results"
    wait_for(lambda: list(results.glob("runs/*/attempts/0001/claim.json")), "the claim of the run")
    process.send_signal(signal.SIGINT)
    message = "ettsweep: interrupted; run the same command to resume from the last checkpoint\n"
    assert ended(process, 130).stderr.endswith(message)
    typed(*TRAIN.split(), cwd=tmp_path)
    (run,) = runs_in(results)
    assert run.status().state is State.DONE
    assert run.attempt(1).failure()["kind"] == "interrupted"
