"""The figure of a check as it is drawn: which lines there are, in which colours, and with which slopes."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import vl_convert
from support.made_check import made_check
from support.perfect import WIDTHS

from ettsweep.files import Json
from ettsweep.report.figure_export import VEGA_LITE_VERSION
from ettsweep.report.theme import CONFIG
from ettsweep.theory.coordinate_check import LINE_STYLES, OUTPUTS, coordinates_figure

HIDDEN = 3


@dataclass(frozen=True)
class Line:
    """A line of a panel, in the units of its axes."""

    colour: str
    wide: float
    dashed: bool
    widths: tuple[float, ...]
    changes: tuple[float, ...]

    @property
    def slope(self) -> float:
        return float(np.polyfit(np.log(self.widths), np.log(self.changes), 1)[0])


def groups(node: Json, role: str) -> Iterator[Json]:
    """Yield what has a role, in the order in which it is drawn."""
    if node.get("role") == role:
        yield node
    elif node.get("marktype") == "group":
        yield from (group for item in node["items"] for child in item["items"] for group in groups(child, role))


@cache
def scene() -> Json:
    check = made_check()
    figure = coordinates_figure(check.about, check.widths, check.curves)
    return vl_convert.vegalite_to_scenegraph(figure.spec, vl_version=VEGA_LITE_VERSION, config=CONFIG)["scenegraph"]


def axis(role: str, along: str) -> list[tuple[float, float]]:
    """Return the pixel and the value of the labels of an axis."""
    header = next(groups(scene(), role))["items"][0]
    labels = next(child for child in header["items"][0]["items"][0]["items"] if child["role"] == "axis-label")
    return [(item[along], float(item["text"])) for item in labels["items"]]


def value(labels: list[tuple[float, float]], pixel: float) -> float:
    """Return what a logarithmic axis has at a pixel."""
    (first, low), (last, high) = labels[0], labels[-1]
    return float(low * (high / low) ** ((pixel - first) / (last - first)))


def panels() -> list[list[Line]]:
    """Return the lines of each panel, row by row, in the order in which they are drawn."""
    (cells,) = (node for node in groups(scene(), "scope") if node.get("name") == "cell")
    x, y = axis("column-footer", "x"), axis("row-header", "y")
    collected = []
    for cell in cells["items"]:
        marks = [m for node in cell["items"] if node["marktype"] == "group" for m in groups(node, "mark")]
        collected.append(
            [
                Line(
                    line["items"][0]["stroke"],
                    line["items"][0]["strokeWidth"],
                    line["items"][0].get("strokeDash", [1, 0]) != [1, 0],
                    tuple(value(x, item["x"]) for item in line["items"]),
                    tuple(value(y, item["y"]) for item in line["items"]),
                )
                for line in marks
                if line["marktype"] == "line"
            ]
        )
    return collected


def test_each_part_has_its_line_and_the_outputs_a_thick_one() -> None:
    """In a panel for each strategy and step."""
    check = made_check()
    assert len(panels()) == 6
    for lines, (curves, step) in zip(panels(), [(c, i) for c in check.curves for i in range(3)], strict=True):
        solid = [line for line in lines if not line.dashed]
        assert len(solid) == HIDDEN + 1
        for line, stage in zip(solid, curves.changes, strict=True):
            assert line.widths == pytest.approx(WIDTHS)
            assert line.changes == pytest.approx(curves.changes[stage][step])
        thick = max(solid, key=lambda line: line.wide)
        assert thick.colour == LINE_STYLES[OUTPUTS][0]
        assert thick.changes == pytest.approx(curves.changes["head"][step])


def test_dashed_lines_have_the_implied_slopes() -> None:
    for lines, powers in zip(panels(), [(1.5, 1.0)] * 3 + [(0.0, -0.5)] * 3, strict=True):
        assert [line.slope for line in lines if line.dashed] == pytest.approx(powers, abs=1e-9)


@pytest.mark.slow
def test_it_is_drawn_where_training_has_blown_up_too(tmp_path: Path) -> None:
    check = made_check()
    broken = {stage: tuple((math.nan,) * len(WIDTHS) for _ in rows) for stage, rows in check.curves[1].changes.items()}
    curves = [check.curves[0], replace(check.curves[1], changes=broken)]
    for path in coordinates_figure(check.about, check.widths, curves).save(tmp_path):
        assert path.stat().st_size > 1000
