"""Any s between 0 and 1 is a strategy like those with a name: in options, grid files, tables, figures and file names."""

import itertools
import json
from functools import partial
from pathlib import Path

import pytest
from support.commandline import Call, finish, keep, write_grid

from ettsweep.report.formats import STRATEGY_COLOURS, strategy_colour
from ettsweep.study.grid_file import load_sweep_spec


@pytest.fixture
def call(call: Call) -> Call:
    """Return a function that runs a command, whatever its exit code."""
    return partial(call, code=None)


@pytest.fixture
def finished(tmp_path: Path, results: Path) -> Path:
    """Return a results folder with the finished runs of ntk and two other s; every score is another."""
    sweep_spec = load_sweep_spec(write_grid(tmp_path / "small.yaml", strategies=["s=.75", "ntk", "s=0.25"]))
    keep(results, sweep_spec)
    for score, spec in enumerate(sweep_spec.specs(), start=1):
        finish(results, spec, float(score))
    return results


# --- spelling -------------------------------------------------------------------------------------------------------


def test_one_strategy_has_one_name_however_it_is_spelt(call: Call) -> None:
    for text, name in {"s=.25": "s=0.25", "s=0": "ntk", "s=1.": "mup"}.items():
        result = call("scales", "--model", "vit-digits", f"--strategy={text}", "--format", "json")
        assert json.loads(result.out)["strategy"] == name
    refused = call("scales", "--model", "vit-digits", "--strategy", "s=1/4")
    assert (refused.code, refused.err) == (
        2,
        "ettsweep: strategy 's=1/4': s must be a number from 0 to 1, such as s=0.25\n",
    )
    unknown = call("scales", "--model", "vit-digits", "--strategy", "0.25")
    assert "unknown strategy '0.25'" in unknown.err
    assert "s=<number from 0 to 1>" in unknown.err


# --- options --------------------------------------------------------------------------------------------------------


def test_commands_on_runs_narrow_to_any_s(call: Call, finished: Path) -> None:
    status = ("status", "--results", finished, "--strategy")
    found = call(*status, "s=.250").out
    assert "s=0.25" in found
    assert not {"ntk", "s=0.75"} & {*found.split()}
    none = call(*status, "s=0.6")
    assert (none.code, none.out) == (2, "")
    assert "--strategy s=0.6: no run or study matches; available: ntk, s=0.25, s=0.75" in none.err


def test_the_map_goes_from_and_to_any_s(call: Call) -> None:
    options = ("map", "--lr", 2.0, "--wd", 0.5, "--width", 256, "--format", "json")
    data = json.loads(call(*options, "--from", "s=.25", "--to", "s=0.75").out)
    assert data == pytest.approx({"lr": 2.0 * 256**-0.25, "wd": 0.5 * 256**0.25})
    for ends in (("s=1/4", "ntk"), ("ntk", "s=1/4")):
        result = call(*options, "--from", ends[0], "--to", ends[1])
        assert (result.code, "'s=1/4': s must be a number" in result.err) == (2, True)


# --- grid files, tables, figures ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("undrawn")
def test_a_report_has_several_s_apart_and_in_their_order(call: Call, finished: Path) -> None:
    assert call("report", "--results", "results").code == 0
    report = finished / "report"
    stems = {figure.stem for figure in (report / "figures").iterdir()}
    assert all(any(stem.endswith(f"-{name}-map") for stem in stems) for name in ("s0p25", "s0p75"))
    assert all(c.isalnum() or c == "-" for stem in stems for c in stem), "LaTeX includes them as they are"
    page = (report / "report.html").read_text()
    for name in ("s=0.25", "s=0.75"):
        assert f"background: {strategy_colour(name)}" in page
        assert all(name in (report / "tables" / f"optima.{kind}").read_text() for kind in ("csv", "md", "tex"))
    assert page.index(">s=0.25</a>") < page.index(">s=0.75</a>")


def test_no_two_strategies_share_a_colour_and_the_named_ones_keep_theirs() -> None:
    names = ["standard", *(f"s={i / 100}" for i in range(101))]
    assert len({strategy_colour(name) for name in names}) == len(names)
    assert all(strategy_colour(name) == colour for name, colour in STRATEGY_COLOURS.items())
    tenths = [bytes.fromhex(strategy_colour(f"s={i / 10}")[1:]) for i in range(11)]
    assert min(max(abs(a - b) for a, b in zip(*pair, strict=True)) for pair in itertools.combinations(tenths, 2)) > 16
