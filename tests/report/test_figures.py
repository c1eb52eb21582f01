"""Figures of curves: what is drawn, named and in which colour."""

import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from support.made_sweep import judged_at

from ettsweep.report.figures import (
    Curve,
    PointCurves,
    StrategyCurves,
    curves_figure,
    mean_curve,
    seeds_figure,
)
from ettsweep.report.style import GREY, save, strategy_colour
from ettsweep.sweep.search import Point
from ettsweep.tasks.kinds import Score

NAN = math.nan
LOSS = Score("best_loss", "min")


def curve(level: float, epochs: int = 10, accuracy: bool = True) -> Curve:
    steps = tuple(float(e) for e in range(1, epochs + 1))
    loss = tuple(level + math.exp(-e) for e in steps)
    return Curve(steps, tuple(1 - x / 4 if accuracy else NAN for x in loss), loss)


def point(k: int, score: float | None, *curves: Curve) -> PointCurves:
    return PointCurves(Point(2.0**k, 0.5), score, curves or (curve(score or 1.0),))


def legend(figure: object) -> list[str]:
    return [t.get_text() for t in figure.legends[0].get_texts()]  # type: ignore[attr-defined]


def test_mean_curve_is_the_mean_as_far_as_the_shortest() -> None:
    mean = mean_curve([curve(0.1), curve(0.3, epochs=4)])
    assert mean.trained == (1.0, 2.0, 3.0, 4.0)
    assert mean.loss == pytest.approx([0.2 + math.exp(-e) for e in (1, 2, 3, 4)])
    assert mean.accuracy == pytest.approx([1 - (0.2 + math.exp(-e)) / 4 for e in (1, 2, 3, 4)])


def test_legend_names_the_optimum_first_and_neighbours_by_score() -> None:
    points = [point(0, 0.1), point(1, 0.3), point(-1, 0.2), point(2, None, curve(2.0, 3)), point(5, 0.9)]
    named = [Point(2.0, 0.5), Point(0.5, 0.5), Point(4.0, 0.5)]
    figure = curves_figure("t", judged_at("ntk", LOSS, Point(1.0, 0.5), named), points)
    assert legend(figure) == [
        "(2^0, 2^-1) [0.1]",
        "(2^-1, 2^-1) [0.2]",
        "(2^1, 2^-1) [0.3]",
        "(2^2, 2^-1) [diverged]",
        "1 other point",
    ]


def test_best_accuracy_comes_first_and_in_percent() -> None:
    points = [point(0, 0.8), point(1, 0.7), point(2, 0.75)]
    named = [Point(2.0, 0.5), Point(4.0, 0.5)]
    figure = curves_figure("t", judged_at("mup", Score("best_accuracy", "max"), Point(1.0, 0.5), named), points)
    assert legend(figure) == ["(2^0, 2^-1) [80.00%]", "(2^2, 2^-1) [75.00%]", "(2^1, 2^-1) [70.00%]"]


def test_one_line_a_point_and_the_optimum_on_top_in_its_colour() -> None:
    points = [point(k, 0.1 + k, curve(0.1 + k), curve(0.2 + k)) for k in range(4)]
    figure = curves_figure("t", judged_at("ntk", LOSS, Point(1.0, 0.5), [Point(2.0, 0.5)]), points)
    for panel in figure.axes:
        assert len(panel.lines) == 4
        top = max(panel.lines, key=lambda line: line.get_zorder())
        assert top.get_color() == strategy_colour("ntk")
        assert sum(line.get_color() == GREY for line in panel.lines) == 2
        assert len({line.get_color() for line in panel.lines}) == 3, "no neighbour looks like the optimum"
    accuracy, loss = figure.axes
    assert "%" in accuracy.get_ylabel()
    assert np.array(accuracy.lines[0].get_ydata()).max() <= 100
    best = max(loss.lines, key=lambda line: line.get_zorder())
    assert list(best.get_ydata()) == pytest.approx([0.15 + math.exp(-e) for e in range(1, 11)])


def test_language_has_no_accuracy_panel() -> None:
    points = [point(0, 0.1, curve(0.1, accuracy=False))]
    assert len(curves_figure("t", judged_at("ntk", LOSS, Point(1.0, 0.5)), points).axes) == 1


def test_seeds_figure_has_a_line_a_seed_and_a_strip_of_scores() -> None:
    optima = [
        StrategyCurves("standard", Point(0.1, 0.5), (curve(0.1), curve(0.2)), (0.1, 0.11), (0.12, 0.14)),
        StrategyCurves("ntk", Point(3.0, 0.01), (curve(0.1),), (0.1,), ()),
    ]
    figure = seeds_figure("t", "best_loss", optima)
    accuracy, loss, strip = figure.axes
    assert len(accuracy.lines) == len(loss.lines) == 3
    assert [line.get_color() for line in loss.lines] == ["#000000"] * 2 + ["#0072b2"]
    assert loss.lines[0].get_alpha() != loss.lines[1].get_alpha()
    assert [t.get_text() for t in strip.get_xticklabels()] == ["standard", "ntk"]
    dots = [c for c in strip.collections if isinstance(c, PathCollection)]
    drawn = sorted(float(y) for c in dots for y in np.asarray(c.get_offsets())[:, 1])
    assert drawn == [0.1, 0.1, 0.11, 0.12, 0.14]
    assert legend(figure) == [
        "standard (0.1, 2^-1) [0.130 ± 0.014, 2 fresh seeds]",
        "ntk (3, 0.01) [0.1, 1 search seed]",
    ]


def test_names_are_drawn_as_they_are_and_files_are_whole(tmp_path: Path) -> None:
    name = "$\\frac{ <script>$"
    points = [point(0, 0.1)]
    folder = tmp_path / "figures"
    folder.mkdir()
    png, pdf = save(curves_figure(name, judged_at(name, LOSS, Point(1.0, 0.5)), points), folder, "f")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert pdf.read_bytes().startswith(b"%PDF")
    assert len(list(folder.iterdir())) == 2
    save(seeds_figure(name, "best_loss", [StrategyCurves(name, Point(1, 1), (curve(0.1),), (0.1,), ())]), folder, "g")
