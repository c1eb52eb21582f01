"""The figure of a check: which lines there are, in which colours, and with which slopes."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from support.made_check import made_check
from support.perfect import WIDTHS

from ettsweep.check.figure import OUTPUTS, coordinates_figure, save

HIDDEN = 3


def figure() -> Figure:
    check = made_check()
    return coordinates_figure(check.about, check.widths, check.curves)


def panels(drawn: Figure) -> list[Axes]:
    return [axes for axes in drawn.axes if axes.get_label() != "<colorbar>"]


def slope(line: Line2D) -> float:
    x, y = (np.log(np.asarray(data, dtype=float)) for data in line.get_data())
    return float(np.polyfit(x, y, 1)[0])


def test_there_is_a_panel_for_each_strategy_and_step() -> None:
    drawn = panels(figure())
    assert [axes.get_title() for axes in drawn] == ["step 1", "step 2", "step 3", "", "", ""]
    assert [axes.get_ylabel().split(",")[0] for axes in drawn[::3]] == ["standard", "ntk"]
    assert [axes.get_xlabel() for axes in drawn[3:]] == ["width"] * 3
    assert len({axes.get_ylim() for axes in drawn}) == 1
    assert all(axes.get_xscale() == axes.get_yscale() == "log" for axes in drawn)
    assert list(drawn[3].get_xticks()) == list(WIDTHS)


def test_each_part_has_its_line_and_the_outputs_a_thick_one() -> None:
    check = made_check()
    for axes, (curves, step) in zip(panels(figure()), [(c, i) for c in check.curves for i in range(3)], strict=True):
        solid = [line for line in axes.lines if line.get_linestyle() == "-"]
        assert len(solid) == HIDDEN + 1
        for line, stage in zip(solid, curves.changes, strict=True):
            assert list(line.get_ydata()) == list(curves.changes[stage][step])
        thick = max(solid, key=lambda line: line.get_linewidth())
        assert thick.get_color() == OUTPUTS
        assert list(thick.get_ydata()) == list(curves.changes["head"][step])


def test_colours_go_with_the_depth_and_are_the_same_in_all_panels() -> None:
    shades = [[line.get_color() for line in axes.lines[:HIDDEN]] for axes in panels(figure())]
    assert all(np.array_equal(shade, shades[0]) for shade in shades)
    luminance = [0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b, _ in shades[0]]
    assert luminance == sorted(luminance)


def test_dashed_lines_have_the_implied_slopes() -> None:
    for axes, powers in zip(panels(figure()), [(1.5, 1.0)] * 3 + [(0.0, -0.5)] * 3, strict=True):
        guides = [line for line in axes.lines if line.get_linestyle() != "-"]
        assert [slope(line) for line in guides] == pytest.approx(powers, abs=1e-9)


def test_the_legend_says_what_lines_are() -> None:
    drawn = figure()
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == [
        "outputs that are trained",
        "slope that theory implies",
    ]
    (bar,) = (axes for axes in drawn.axes if axes.get_label() == "<colorbar>")
    assert [label.get_text() for label in bar.get_yticklabels()] == ["stem", "blocks.0.attention", "blocks.0.mlp"]


@pytest.mark.slow
def test_it_is_drawn_where_training_has_blown_up_too(tmp_path: Path) -> None:
    check = made_check()
    broken = {stage: tuple((math.nan,) * len(WIDTHS) for _ in rows) for stage, rows in check.curves[1].changes.items()}
    curves = (check.curves[0], replace(check.curves[1], changes=broken))
    for path in save(coordinates_figure(check.about, check.widths, curves), tmp_path, "figure"):
        assert path.stat().st_size > 1000
