"""Any s between 0 and 1 is a strategy like those with a name: in options, grid files, tables, figures and file names."""

from pathlib import Path
from typing import Any

import pytest
from support.commandline import Call

from ettsweep.report.formats import strategy_colour


def test_one_strategy_has_one_name_however_it_is_spelt(call: Call) -> None:
    for text, name in {"s=.25": "s=0.25", "s=0": "ntk", "s=1.": "mup"}.items():
        result = call("scales", "--model", "vit-digits", f"--strategy={text}", "--format", "json")
        assert result.json["strategy"] == name
    refused = call("scales", "--model", "vit-digits", "--strategy", "s=1/4", code=2).err
    assert refused == "ettsweep: strategy 's=1/4': s must be a number from 0 to 1, such as s=0.25\n"
    unknown = call("scales", "--model", "vit-digits", "--strategy", "0.25", code=2).err
    assert "unknown strategy '0.25'" in unknown
    assert "s=<number from 0 to 1>" in unknown


@pytest.mark.usefixtures("undrawn")
def test_tables_and_a_report_have_several_s_apart_and_in_their_order(
    call: Call, request_sweep: Any, results: Path
) -> None:
    request_sweep(strategies=["s=.75", "ntk", "s=0.25"])
    found = call("status", "--results", results, "--strategy", "s=.250").out
    assert "s=0.25" in found
    assert not {"ntk", "s=0.75"} & {*found.split()}
    call("report", "--results", results)
    report = results / "report"
    stems = {figure.stem for figure in (report / "figures").iterdir()}
    assert all(any(stem.endswith(f"-{name}-map") for stem in stems) for name in ("s0p25", "s0p75"))
    assert all(c.isalnum() or c == "-" for stem in stems for c in stem), "LaTeX includes them as they are"
    page = (report / "report.html").read_text()
    for name in ("s=0.25", "s=0.75"):
        assert f"background: {strategy_colour(name)}" in page
        assert all(name in (report / "tables" / f"optima.{kind}").read_text() for kind in ("csv", "md", "tex"))
    assert page.index(">s=0.25</a>") < page.index(">s=0.75</a>")
