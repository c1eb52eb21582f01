"""Ctrl-C while a command is still being imported: it ends, and prints no traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.commandline import ETTSWEEP, PATIENCE_S, write_grid

HOOK = Path(__file__).parents[1] / "support" / "ctrl_c"
MODULE = f"{sys.executable} -m ettsweep"
TRAIN = "train --grid grid.yaml"


@pytest.mark.parametrize(
    ("program", "command", "at"),
    [
        (ETTSWEEP, "status", "ettsweep.cli:0"),
        (MODULE, "status", "ettsweep.cli:0"),
        (MODULE, "status", "ettsweep.cli:30"),
        (ETTSWEEP, "status", "ettsweep.cli:1000"),
        (ETTSWEEP, "status", "pydantic:0"),
        (ETTSWEEP, "watch", "yaml:30"),
        (ETTSWEEP, "grid --grid grid.yaml --follow", "pydantic:100"),
        pytest.param(ETTSWEEP, TRAIN, "torch:0", marks=pytest.mark.slow),
        pytest.param(ETTSWEEP, TRAIN, "numpy:100", marks=pytest.mark.slow),  # numpy loses it, and torch goes on
    ],
)
def test_ctrl_c_at_any_import_ends_the_command_without_a_traceback(
    tmp_path: Path, program: str, command: str, at: str
) -> None:
    write_grid(tmp_path / "grid.yaml")
    done = subprocess.run(
        [*program.split(), *command.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(HOOK), "CTRL_C_AT": at},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr in ("", "ettsweep: interrupted\n")


def test_the_module_is_the_command() -> None:
    done = subprocess.run([*MODULE.split(), "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == subprocess.run([ETTSWEEP, "--version"], capture_output=True, text=True, check=True).stdout
