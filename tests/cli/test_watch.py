"""`ettsweep watch` in a real terminal, and where there is none."""

import contextlib
from pathlib import Path

import pytest
from support.commandline import ETTSWEEP, Call, wait_for
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
@pytest.mark.parametrize(("key", "code"), [("q", 0), pytest.param("C-c", 130, marks=pytest.mark.slow)])
def test_the_terminal_is_left_as_it_was(key: str, code: int, results: Path) -> None:
    with Terminal(80, 24) as terminal:
        terminal.type(f"echo here before; stty -a > {results}/stty")
        terminal.wait_for("^here before")
        before = terminal.modes()
        terminal.type(WATCH.format(results))
        terminal.wait_for(r"unresolved: within")
        assert terminal.modes() != before
        terminal.press(key)
        for_result = terminal.wait_for(f"^ended with {code}")
        assert "here before" in for_result
        assert f"{'interrupted' if code else 'detached'}; the runs keep running" in for_result
        assert terminal.modes() == before
        terminal.type(f"stty -a | cmp - {results}/stty && echo same as before")
        terminal.wait_for("^same as before")


@pytest.mark.usefixtures("training")
def test_it_ends_with_its_terminal(results: Path) -> None:
    with Terminal(80, 24) as terminal:
        terminal.type(WATCH.format(results))
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


def test_in_a_pipe_it_prints_lines_and_ends(results: Path, call: Call) -> None:
    (study,) = ask(results)
    finish_all(results, study)
    result = call("watch", "--results", results)
    assert result.err == f"{results}: 18/18 runs finished (18 done)\n"
