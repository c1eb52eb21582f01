"""`ettsweep watch` in a real terminal, and where there is none."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.commandline import ETTSWEEP, Call, at_a_terminal, wait_for
from support.watched import Terminal, ask, at, claim, finish_all

from ettsweep.study.study import Study

WATCH = f"{ETTSWEEP} watch --results {{}}; echo ended with $?"


@pytest.fixture
def training(results: Path) -> Study:
    """A sweep of which a run trains, as far as this process lives."""
    (study,) = ask(results)
    finish_all(results, study)
    claim(results, at(study, 2, 0))
    return study


@pytest.mark.usefixtures("training")
@pytest.mark.parametrize(
    ("method", "code"),
    [
        ("q", 0),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in [("C-c", 130), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
        ),
        (signal.SIGTERM, 143),
    ],
)
def test_the_terminal_is_left_as_it_was(method: str | signal.Signals, code: int, results: Path) -> None:
    with Terminal(80, 24) as terminal:
        terminal.type(f"echo here before; stty -a > {results}/stty")
        terminal.wait_for("^here before")
        before = terminal.modes()
        terminal.type(WATCH.format(results))
        terminal.wait_for(r"unresolved: within")
        assert terminal.modes() != before
        if isinstance(method, signal.Signals):
            os.kill(terminal.pid(), method)
        else:
            terminal.press(method)
        for_result = terminal.wait_for(f"^ended with {code}")
        assert "here before" in for_result
        assert ("detached; the runs go on" in for_result) == (code == 0)
        assert ("interrupted; the runs go on" in for_result) == (code == 130)
        assert terminal.modes() == before
        terminal.type(f"stty -a | cmp - {results}/stty && echo same as before")
        terminal.wait_for("^same as before")


@pytest.mark.usefixtures("training")
@pytest.mark.parametrize("start", ["", "setsid --wait "])
def test_it_ends_with_its_terminal(start: str, results: Path) -> None:
    """By the signal that tells of it, or where none does, as in a session of its own."""
    with Terminal(80, 24) as terminal:
        terminal.type(start + WATCH.format(results))
        terminal.wait_for(r"unresolved: within")
        pids = watching(results)
        assert pids
    wait_for(lambda: not watching(results), f"the end of the processes {pids}")


def watching(results: Path) -> list[int]:
    """Return the processes that watch a folder."""
    encode_result = f"watch\0--results\0{results}\0".encode()
    collected = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            collected += [int(path.parent.name)] * path.read_bytes().endswith(encode_result)
    return collected


def test_it_reads_well_without_colours(results: Path, training: Study) -> None:
    with Terminal(80, 24, NO_COLOR="1") as terminal:
        terminal.type(WATCH.format(results))
        terminal.wait_for(r"unresolved: within")
        wait_for(lambda: "[" in (observed := terminal.seen()) and observed.count(".1") > 6, "the lattice")
        colours = terminal.seen(colours=True)
        assert not [
            section for section in colours.split("\x1b[")[1:] if section.startswith(("38;", "48;", "32m", "36m"))
        ]


@pytest.mark.usefixtures("training")
def test_it_follows_a_new_size(results: Path) -> None:
    with Terminal(80, 24) as terminal:
        terminal.type(WATCH.format(results))
        terminal.wait_for(r"unresolved: within")
        for width, height in ((200, 60), (80, 24)):
            terminal.resize(width, height)
            terminal.wait_for(rf"\A(.*\n){{{height - 1}}}.* q quit")


def test_once_all_runs_have_ended_leaving_says_so(results: Path) -> None:
    (study,) = ask(results)
    finish_all(results, study)
    with Terminal(80, 24) as terminal:
        terminal.type(WATCH.format(results))
        terminal.wait_for("all runs have ended")
        terminal.press("q")
        for_result = terminal.wait_for(r"^ended with \d")
        assert "18/18 runs finished (18 done)\n" in for_result
        assert "ended with 0" in for_result


@pytest.mark.usefixtures("training")
def test_a_wrong_name_is_said_as_elsewhere(results: Path) -> None:
    with Terminal(200, 24) as terminal:
        for k, message in enumerate(("--sweep smal", "--model none", "--results nowhere")):
            terminal.type(f"clear; {ETTSWEEP} watch --results {results} {message}; echo ended {k} with $?")
            for_result = terminal.wait_for(f"^ended {k} with 2")
            assert "ettsweep: " in for_result
            assert "Traceback" not in for_result


@pytest.mark.parametrize("terminal", ["dumb", "unknown"])
def test_a_terminal_that_has_no_screen_gets_no_screen(terminal: str, results: Path) -> None:
    (study,) = ask(results)
    finish_all(results, study)
    code, observed = at_a_terminal("watch", "--results", results, term=terminal)
    assert code == 0
    assert "\x1b[?1049h" not in observed
    assert "18/18 runs finished (18 done)" in observed


def test_in_a_pipe_it_prints_lines_and_ends(results: Path, call: Call) -> None:
    (study,) = ask(results)
    finish_all(results, study)
    result = call("watch", "--results", results)
    assert result.err == f"{results}: 18/18 runs finished (18 done)\n"


def test_the_library_of_the_screen_is_loaded_for_the_screen_alone() -> None:
    code = "import sys; from ettsweep.cli import run_commands; from ettsweep.launch import progress; print('textual' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
