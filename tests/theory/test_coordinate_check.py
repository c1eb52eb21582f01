"""The figure of a check: which lines there are, in which panels, and with which slopes."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.made_check import made_check
from support.perfect import WIDTHS

from ettsweep.theory.coordinate_check import IMPLIED, OUTPUTS, coordinates_figure


def test_each_part_has_its_line_and_outputs_and_implied_slopes_beside() -> None:
    check = made_check()
    figure = coordinates_figure(check.about, check.widths, check.curves)
    points = pd.DataFrame(figure.spec["data"]["values"])
    panels = points.groupby(["row", "column"], sort=False)
    assert [column for _, column in panels.groups] == ["step 1", "step 2", "step 3"] * 2
    cases = [(curves, step) for curves in check.curves for step in range(3)]
    for (_, panel), (curves, step) in zip(panels, cases, strict=True):
        lines = dict([*panel.groupby("line")])
        assert all(line["width"].tolist() == list(WIDTHS) for line in lines.values())
        for stage, changes in curves.changes.items():
            assert lines[stage]["change"].tolist() == pytest.approx(changes[step])
        assert [name for name, line in lines.items() if set(line["kind"]) == {OUTPUTS}] == ["head"]
        implied = [line["change"] for line in lines.values() if set(line["kind"]) == {IMPLIED}]
        slopes = [float(np.polyfit(np.log(WIDTHS), np.log(change), 1)[0]) for change in implied]
        assert sorted(slopes) == pytest.approx(sorted([curves.hidden_power, curves.output_power]), abs=1e-9)


@pytest.mark.slow
def test_it_is_drawn_where_training_has_blown_up_too(tmp_path: Path) -> None:
    check = made_check()
    broken = {stage: tuple((math.nan,) * len(WIDTHS) for _ in rows) for stage, rows in check.curves[1].changes.items()}
    curves = [check.curves[0], replace(check.curves[1], changes=broken)]
    for path in coordinates_figure(check.about, check.widths, curves).save(tmp_path):
        assert path.stat().st_size > 1000
