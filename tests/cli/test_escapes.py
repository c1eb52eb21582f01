"""Texts that come from files, jobs and errors: a terminal does not obey them, and rich reads no markup in them."""

from pathlib import Path

import pytest
from support.commandline import ETTSWEEP, at_a_terminal, ettsweep, write_grid
from support.watched import Terminal

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


@pytest.mark.parametrize(
    "command",
    [
        *("status", "status --format csv", "status --format markdown", "show RUN", "show RUN --format csv"),
        *("logs RUN", "retry RUN --launch-set {nasty}=1"),
    ],
)
def test_what_a_run_says_is_spelled_out(run: str, command: str) -> None:
    replaces = [token.replace("RUN", run).replace("{nasty}", NASTY) for token in command.split(" ")]
    result = ettsweep(*replaces, code=None)
    assert_harmless(result.stdout + result.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["status", "show RUN", "logs RUN"])
def test_nor_does_a_terminal_obey_it(run: str, command: str) -> None:
    code, observed = at_a_terminal(*command.replace("RUN", run).split())
    assert code in (0, 1)
    assert "Traceback" not in observed
    assert_harmless(observed)


def test_nor_does_the_screen_of_watch(run: str) -> None:
    with Terminal(400, 24) as terminal:
        terminal.type(f"{ETTSWEEP} watch")
        assert SPELLED in terminal.wait_for("failed +.*gone")
        terminal.press("Tab", "l")
        assert SPELLED in terminal.wait_for("ended: ")


def test_a_folder_of_any_name_can_be_watched(run: str, tmp_path: Path) -> None:
    Path("results").rename(folder := tmp_path / f"r{NASTY.replace('/', '')}")
    result = ettsweep("watch", "--results", folder, code=1)
    assert f"/r{SPELLED.replace('/', '')}: 0/1 run finished" in result.stderr
    assert run in ettsweep("show", run, "--results", folder).stdout
