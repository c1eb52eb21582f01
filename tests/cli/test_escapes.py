"""Texts that come from files, jobs and errors: a terminal does not obey them, and rich reads no markup in them."""

from pathlib import Path

import pytest
from support.commandline import ettsweep, write_grid

from ettsweep.runs.folder import RunDir
from ettsweep.study.grid_file import load_sweep_spec
from ettsweep.study.sweep_store import extend_sweep

NASTY = "\x1b]0;mine\x07\x1b[2J\rgone\u202e [red]not red[/red] [/nope] [link=x :boom:"
SPELLED = r"\x1b]0;mine\x07\x1b[2J\rgone\u202e [red]not red[/red] [/nope] [link=x :boom:"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the id of a failed run whose reason, log, owner and sweep say what a terminal would obey."""
    monkeypatch.chdir(tmp_path)
    sweep_spec = load_sweep_spec(write_grid(tmp_path / "grid.yaml"))
    extend_sweep(Path("results"), "grid", sweep_spec)
    (spec, *_) = sweep_spec.specs()
    attempt = RunDir.create(Path("results"), spec).claim({"job": NASTY, "device_name": NASTY}, after=0)
    assert attempt
    attempt.log_path.write_text(f"{NASTY}\n")
    attempt.record_failure("error", NASTY)
    return spec.run_id


def assert_harmless(observed: str) -> None:
    assert SPELLED in observed
    for obeyed in ("\x1b]0", "\x07", "\x1b[2Jgone", "\x1b[2J\r", "\u202e"):
        assert obeyed not in observed


def test_what_a_run_says_is_spelled_out(run: str) -> None:
    for words in (
        ["status"],
        ["status", "--format", "csv"],
        ["status", "--format", "markdown"],
        ["show", run, "--all"],
        ["logs", run],
        ["retry", run, "--launch-set", f"{NASTY}=1"],
    ):
        result = ettsweep(*words, code=None)
        assert_harmless(result.stdout + result.stderr)
