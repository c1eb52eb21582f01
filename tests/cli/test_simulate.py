"""`simulate` as a user types it."""

import json

import pytest
from support.commandline import ettsweep

from ettsweep.cli import completion
from ettsweep.sweep.worlds import SURFACES


def test_it_prints_a_row_for_each_rule() -> None:
    done = ettsweep("simulate", "--surface", "bowl", "--noise", 0.02, "--sweeps", 3, "--format", "json", code=0)
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
        (("--surface", "bowl", "--seeds", "1,1"), "--seeds: different whole numbers"),
        (("--table", "nowhere.json"), "nowhere.json: No such file or directory"),
        (("--table", "nowhere.json", "--noise", 0.1), "--noise and --tails are those of a made surface"),
    ],
)
def test_what_cannot_be_simulated_is_refused(options: tuple[object, ...], told: str) -> None:
    assert told in ettsweep("simulate", *options, code=2).stderr


def test_completion_offers_the_surfaces_that_there_are() -> None:
    assert completion.surfaces() == list(SURFACES)
