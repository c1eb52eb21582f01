"""A check in print and on disk."""

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from support.made_check import made_check
from support.perfect import TEXT

from ettsweep.console import Format
from ettsweep.errors import StorageError
from ettsweep.strategies.factors import Group
from ettsweep.theory.check_tables import results_folder, show_check, write_check
from ettsweep.theory.measure import Measurement
from ettsweep.theory.probe import LayerCheck

BLOCKS = ["stem", "blocks.0.attention", "blocks.0.mlp", "head"]
GROUPS = ["patch", "pe", "q", "k", "v", "u", "w", "x", "head", "head_bias"]
LAYERS = [layer.value for layer in LayerCheck]


def still(m: Measurement) -> Measurement:
    """A network whose w never moves."""
    return replace(m, function_changes={**m.function_changes, Group.W: 0.0})


def blown_up(m: Measurement) -> Measurement:
    """A network whose training ends in NaN."""
    changes = [dict.fromkeys(step, math.nan) for step in m.changes]
    return replace(m, changes=changes, function_changes=dict.fromkeys(m.function_changes, math.nan))


def test_people_get_three_tables_and_what_they_mean(capsys: pytest.CaptureFixture[str]) -> None:
    show_check(made_check(), Format.TABLE)
    out, err = capsys.readouterr()
    blocks, groups, layers = out.split("\n\n")
    for table, names in ((blocks, ["block", *BLOCKS]), (groups, ["group", *GROUPS]), (layers, ["layers", *LAYERS])):
        assert [line.split("  ")[0] for line in table.splitlines()] == names
        assert all(line.endswith("ok") for line in table.splitlines()[1:])
    x = next(line for line in groups.splitlines() if line.startswith("x "))
    assert "+0.00 ± 0.03" in x
    assert x.split()[-5:] == ["-0.50", "-1.50", "1", "+0.00", "ok"]  # init, factor, decay, off by, verdict
    assert err.splitlines()[0] == "small under ntk: 4 heads"
    assert err.splitlines()[-1].startswith("ok: within 0.25 of the implied power")


def test_findings_and_the_contact_term_of_text_follow_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    show_check(made_check(spoil=still), Format.MARKDOWN)
    out, err = capsys.readouterr()
    (w,) = (line for line in out.splitlines() if line.startswith("| w |"))
    assert " | none | " in w
    assert w.endswith("| off |")
    assert "w: the change of the outputs in training vanishes or is not finite" in err
    show_check(made_check(TEXT), Format.TABLE)
    assert "mean logit of the token that the decoder reads: 5, predicted 1" in capsys.readouterr().err
    show_check(made_check(spoil=still), Format.CSV)
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["quantity"] for row in rows if row["verdict"] == "off"] == ["function change"]


def test_files_of_training_that_ended_in_nan_have_all_of_the_check_and_null_for_what_is_not_finite(
    tmp_path: Path,
) -> None:
    check = made_check(spoil=blown_up)
    lines = dict.fromkeys(check.curves[1].changes, ((math.nan,) * 4,) * 3)
    check = replace(check, curves=(check.curves[0], replace(check.curves[1], changes=lines)))
    folder = tmp_path / "new" / "folder"
    with results_folder(folder):
        paths = write_check(folder, check)
    assert [path.name for path in paths] == ["check.json", "figure.svg", "figure.png", "figure.pdf"]
    assert all(path.stat().st_size > 1000 for path in paths)
    data = json.loads(paths[0].read_text(), parse_constant=lambda name: pytest.fail(name))
    assert (data["model"], data["verdict"]) == ("small", "off")
    assert data["findings"] == list(check.judgement.findings)
    assert [row["block"] for row in data["blocks"]] == BLOCKS
    assert [row["group"] for row in data["groups"]] == GROUPS
    assert [row["layers"] for row in data["layers"]] == LAYERS
    assert data["layers"][-1]["places"][0]["place"] == "patch"
    kernel = data["blocks"][0]["kernel"]
    assert kernel["measured"] == kernel["predicted"]
    assert data["groups"][0]["function_change"]["power"] is None
    standard, strategy = (curve["rms_change"]["head"][0] for curve in data["curves"])
    assert (standard[-1], strategy) == (0.02, [None] * 4)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file/check"), results_folder(tmp_path / "file" / "check"):
        pass
