"""Ctrl-C while a command is still being imported: it ends, and prints no traceback."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.commandline import ETTSWEEP, LONG, PATIENCE_S, ctrl_c_at, ended, runs_in, start, wait_for, write_grid

from ettsweep.runs.state import State

MODULE = f"{sys.executable} -m ettsweep"
TRAIN = "train --grid grid.yaml"


@pytest.mark.parametrize(
    ("program", "command", "at", "code"),
    [
        (ETTSWEEP, "status", "ettsweep.cli:0", -signal.SIGINT),
        (MODULE, "status", "ettsweep.cli:0", -signal.SIGINT),
        (MODULE, "status", "ettsweep.cli:30", -signal.SIGINT),
        (ETTSWEEP, "status", "pydantic:0", 130),
        (ETTSWEEP, "status", "pydantic:1000", 130),
        (ETTSWEEP, "watch", "yaml:30", 130),
        (ETTSWEEP, "grid --grid grid.yaml --follow", "pydantic:100", 130),
        pytest.param(ETTSWEEP, TRAIN, "torch:0", 130, marks=pytest.mark.slow),
        pytest.param(ETTSWEEP, TRAIN, "numpy:100", 130, marks=pytest.mark.slow),  # torch would lose it, and go on
        pytest.param(ETTSWEEP, "check-scaling --model vit-digits", "numpy:100", 130, marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_at_any_import_ends_the_command_without_a_traceback(
    tmp_path: Path, program: str, command: str, at: str, code: int
) -> None:
    write_grid(tmp_path / "grid.yaml")
    (tmp_path / "results").mkdir()
    completed = subprocess.run(
        [*program.split(), *command.split()],
        cwd=tmp_path,
        env=ctrl_c_at(at),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (completed.returncode, completed.stdout) == (code, "")
    assert completed.stderr.removeprefix("1 run to train\n") == ("ettsweep: interrupted\n" if code == 130 else "")


def test_ctrl_c_ends_an_import_that_hangs(tmp_path: Path) -> None:
    (tmp_path / "yaml.py").write_text('import time\nprint("importing", flush=True)\ntime.sleep(3600)\n')
    process = start("status", "--results", tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    assert ended(process, 130).stderr == "ettsweep: interrupted\n"


@pytest.mark.parametrize("at", ["ettsweep.cli:30", "pydantic:0"])
def test_who_has_it_ignored_is_not_interrupted(at: str, tmp_path: Path) -> None:
    """As whoever starts a command with nohup, or in the background of a script."""
    (tmp_path / "results").mkdir()
    ignoring = f"trap '' INT; exec {ETTSWEEP} sweeps"
    completed = subprocess.run(
        ["sh", "-c", ignoring], cwd=tmp_path, env=ctrl_c_at(at), capture_output=True, check=False
    )
    assert completed.returncode == 0
    assert b"no sweeps yet" in completed.stderr


def test_a_run_that_is_trained_here_is_stopped_and_gone_on_with_by_the_same_command(tmp_path: Path) -> None:
    write_grid(tmp_path / "grid.yaml", recipe=LONG)
    command = [ETTSWEEP, *TRAIN.split()]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    results = tmp_path / "results"
    wait_for(lambda: list(results.glob("runs/*/attempts/0001/claim.json")), "the claim of the run")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "interrupted" in out
    assert err.endswith("stopped: the same command resumes from the last checkpoint\n")
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (run,) = runs_in(results)
    assert run.status().state is State.DONE
    assert run.attempt(1).failure()["kind"] == "interrupted"


def test_the_module_is_the_command() -> None:
    completed = subprocess.run([*MODULE.split(), "--version"], capture_output=True, text=True, check=True)
    assert (
        completed.stdout == subprocess.run([ETTSWEEP, "--version"], capture_output=True, text=True, check=True).stdout
    )
