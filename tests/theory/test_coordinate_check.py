"""The figure of a check: which lines there are, in which panels, and with which slopes."""

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
