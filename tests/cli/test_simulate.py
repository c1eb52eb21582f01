"""`simulate` as a user types it."""

import json
import os
import pty
import re
import signal
import subprocess

import pytest
from support.commandline import ETTSWEEP, ettsweep

from ettsweep.cli import completion
from ettsweep.sweep.worlds import SURFACES


def test_it_prints_a_row_for_each_rule() -> None:
    done = ettsweep("simulate", "--surface", "bowl", "--noise", "2%", "--sweeps", 3, "--format", "json", code=0)
    bound, paper = json.loads(done.stdout)
    assert (bound["rule"], paper["rule"]) == ("bound", "paper")
    assert bound["declared"] == bound["bound holds"] == 1
    assert paper["bound holds"] is None
    assert 14 <= bound["median"] <= 40


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "one of --table FILE and --surface NAME"),
        (("--surface", "bowel"), "unknown surface 'bowel'; did you mean 'bowl'?"),
        (("--surface", "bowl", "--noise", "6"), "--noise: 6 is 600%; for 6% write 6% or 0.06"),
        (("--surface", "bowl", "--seeds", "1,1"), "--seeds: different whole numbers"),
        (("--table", "nowhere.json"), "nowhere.json: No such file or directory"),
        (("--table", "nowhere.json", "--noise", 0.1), "--noise and --tails are those of a made surface"),
    ],
)
def test_what_cannot_be_simulated_is_refused(options: tuple[object, ...], told: str) -> None:
    assert told in ettsweep("simulate", *options, code=2).stderr


def test_an_interrupted_simulation_shows_what_it_has_found() -> None:
    terminal, stderr = pty.openpty()  # where progress is shown
    command = [ETTSWEEP, "simulate", "--surface", "bowl", "--rule", "paper", "--sweeps", "100000", "--format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as running:
        os.close(stderr)
        shown = b""
        while not re.search(rb"[1-9]\d*/100000", shown):
            shown += os.read(terminal, 10_000)
        running.send_signal(signal.SIGINT)
        assert running.stdout
        (row,) = json.load(running.stdout)
    os.close(terminal)
    assert re.fullmatch(r"paper, \d+ sweeps alone", row["rule"])
    assert row["declared"] == 1
    assert running.returncode == 130


def test_completion_offers_the_surfaces_that_there_are() -> None:
    assert completion.surfaces() == list(SURFACES)
