"""The map: what lies beside what, and what the colours say."""

import math
from collections import Counter
from dataclasses import dataclass, replace

import pytest
from ettsweep.report.maps import Cell, clipped_range, hexagon_xy, lattice_figure
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from support.made_sweep import judged_at

from ettsweep.sweep.search import Axis, Point, neighbours
from ettsweep.tasks.kinds import Score

SIX = [(1, 0), (0, 1), (1, -1), (-1, 1), (0, -1), (-1, 0)]


def distance(a: tuple[float, float], b: tuple[float, float]) -> float:
    return math.hypot(a[0] - b[0], a[1] - b[1])


@pytest.mark.parametrize("centre", [(0, 0), (3, -2)])
def test_six_neighbours_touch_and_the_diagonals_do_not(centre: tuple[int, int]) -> None:
    here = hexagon_xy(*centre)
    for i, j in SIX:
        assert distance(hexagon_xy(centre[0] + i, centre[1] + j), here) == pytest.approx(1.0)
    for i, j in ((1, 1), (-1, -1)):
        assert distance(hexagon_xy(centre[0] + i, centre[1] + j), here) == pytest.approx(math.sqrt(3))
    others = [(i, j) for i in range(-3, 4) for j in range(-3, 4) if (i, j) not in [*SIX, (0, 0)]]
    assert min(distance(hexagon_xy(*o), (0, 0)) for o in others) > 1.5


def test_hexagons_that_touch_are_the_neighbours_of_a_verdict() -> None:
    axis = Axis(low=-3, high=3)
    points = neighbours(Point(1.0, 1.0), axis, axis)
    assert sorted((round(p.log2()[0]), round(p.log2()[1])) for p in points) == sorted(SIX)


@dataclass(frozen=True)
class Map:
    """What a map is drawn of: 25 points around the candidate, two of them without a score."""

    cells: tuple[Cell, ...]
    measure: Score = Score("best_loss", "min")  # noqa: RUF009 (frozen)
    candidate: Point | None = Point(1.0, 3.0)  # noqa: RUF009
    around: tuple[Point, ...] = tuple(Point(2.0**i, 3 * 2.0**j) for i, j in SIX)
    wd_step: float = 1.0

    def figure(self) -> Figure:
        verdict = judged_at("ntk", self.measure, self.candidate, self.around, self.wd_step)
        return lattice_figure("a $title_ & more", verdict, self.cells)


def lattice(measure: Score = Score("best_loss", "min")) -> Map:  # noqa: B008 (frozen)
    cells = []
    for i in range(-2, 3):
        for j in range(-2, 3):
            score = 0.1 * (1 + i * i + i * j + j * j)
            lower = measure.mode == "min"
            cells.append(Cell(Point(2.0**i, 3 * 2.0**j), score if lower else 0.9 - score / 10, 0.01, 3, "done"))
    cells[0] = replace(cells[0], score=None, state="diverged")
    cells[-1] = replace(cells[-1], score=None, state="failed")
    return Map(tuple(cells), measure)


def texts(figure: object) -> list[str]:
    return [t.get_text() for t in figure.axes[0].texts]  # type: ignore[attr-defined]


def test_map_names_values_and_states() -> None:
    figure = lattice().figure()
    figure.canvas.draw()
    found = texts(figure)
    assert found.count(".200") == 6, "six neighbours of the candidate, all with i^2 + ij + j^2 = 1"
    assert found.count(".100") == 1
    assert {"diverged", "failed", "lr", "wd", "$2^{-2}$", "12", "±.010", "n=3"} <= set(found)


def test_map_of_accuracies_is_in_percent() -> None:
    assert "89.00" in texts(lattice(Score("best_accuracy", "max")).figure())


def test_points_off_the_lattice_are_noted() -> None:
    made = lattice()
    odd = replace(made, cells=(*made.cells, Cell(Point(1.3, 3.0), 0.5, None, 1, "done")))
    title = odd.figure().get_suptitle().replace("\n", " ")
    assert "1 point off this lattice" in title
    assert "off this lattice" not in made.figure().get_suptitle()


def test_steps_may_differ_between_axes() -> None:
    made = lattice()
    half = tuple(replace(c, point=Point(c.point.lr, math.sqrt(3 * c.point.wd))) for c in made.cells)
    figure = replace(made, cells=half, around=(), wd_step=0.5).figure()
    assert texts(figure).count(".200") == 6


def test_one_free_axis_is_a_line() -> None:
    made = lattice()
    cells = tuple(c for c in made.cells if c.point.wd == 3.0)
    figure = replace(made, cells=cells).figure()
    panel = figure.axes[0]
    assert panel.get_xscale() == "log"
    assert "wd 3" in panel.get_xlabel()
    assert panel.get_xlim() == pytest.approx((0.25 / math.sqrt(2), 4 * math.sqrt(2))), "half a step at both ends"
    assert (figure.get_suptitle(), figure.get_supxlabel()) == (
        "ntk\nred: candidate; mean ± standard error",
        "a $title_ & more",
    )
    x, y = panel.lines[0].get_data()
    assert list(x) == [0.25, 0.5, 1.0, 2.0, 4.0]
    assert list(y) == pytest.approx([0.5, 0.2, 0.1, 0.2, 0.5])
    zero = tuple(replace(c, point=Point(c.point.lr, 0.0)) for c in cells)
    assert replace(made, cells=zero, candidate=Point(1.0, 0.0)).figure().axes[0].get_xscale() == "log"


Steps = tuple[tuple[int, int], ...]
PROPOSED: Steps = ((0, 0), (2, -1), (-1, 1))


def of_search(made: Map, reach: int, wd_reach: int | None = None, proposed: Steps = PROPOSED) -> Figure:
    """Return the map where proposers named some points of ranges that go so many steps from the candidate."""
    verdict, here = judged_at("ntk", made.measure, made.candidate, made.around, made.wd_step), made.candidate
    assert here
    up = reach if wd_reach is None else wd_reach
    box, points = (here.moved(-reach, -up), here.moved(reach, up)), tuple(here.moved(*steps) for steps in proposed)
    searched = replace(verdict.search, box=box, proposed=points)
    return lattice_figure("t", replace(verdict, search=searched), made.cells)


def numbered(figure: Figure) -> dict[str, tuple[float, float]]:
    """Return where the numbers of proposals stand."""
    figure.canvas.draw()
    return {
        text.get_text(): text.get_position()
        for text in figure.axes[0].texts
        if text.get_bbox_patch() and text.get_text().isdigit()
    }


def test_proposals_are_numbered_in_order_on_top_of_their_cells() -> None:
    figure = of_search(lattice(), 2)
    assert "order of proposals" in figure.get_suptitle()
    found = numbered(figure)
    assert set(found) == {"1", "2", "3"}
    for number, steps in enumerate(PROPOSED, 1):
        x, y = hexagon_xy(*steps)
        assert found[str(number)][0] == pytest.approx(x)
        assert 0.3 < found[str(number)][1] - y < 1 / math.sqrt(3), "above the score, and within the hexagon"


def test_numbers_of_proposals_cover_no_other_text() -> None:
    figure = of_search(lattice(), 2)
    figure.canvas.draw()
    texts = figure.axes[0].texts
    discs = [
        text.get_bbox_patch().get_window_extent()
        for text in texts
        if text.get_bbox_patch() and text.get_text().isdigit()
    ]
    others = [text.get_window_extent() for text in texts if not text.get_bbox_patch()]
    assert len(discs) == 3
    assert not [disc for disc in discs for other in others if disc.overlaps(other)]


@pytest.mark.parametrize("reach", [1, 2])
def test_the_ranges_are_outlined_along_hexagons(reach: int) -> None:
    (outline,) = (c for c in of_search(lattice(), reach).axes[0].collections if isinstance(c, LineCollection))
    sides = outline.get_segments()
    across = 2 * reach + 1
    assert len(sides) == 4 * (across + across) - 2, "of a rhombus of hexagons"
    assert all(distance(*side) == pytest.approx(1 / math.sqrt(3)) for side in sides)
    ends = Counter(tuple(end.round(6)) for side in sides for end in side)
    assert set(ends.values()) == {2}, "it is closed"


def test_ranges_beyond_the_points_are_shown_as_far_as_numbers_can_be_read() -> None:
    def columns(figure: Figure) -> float:
        left, right = figure.axes[0].get_xlim()
        return right - left

    made = lattice()
    assert columns(of_search(made, 4)) == pytest.approx(columns(made.figure()) + 4 + 2)
    wide = of_search(made, 64)
    assert columns(wide) == pytest.approx(columns(made.figure()))
    (outline,) = (c for c in wide.axes[0].collections if isinstance(c, LineCollection))
    assert len(outline.get_segments()) == 0, "none of it is within what is shown"


def test_on_a_line_numbers_stand_below_their_points_and_lines_end_the_range() -> None:
    made = lattice()
    made = replace(made, cells=tuple(c for c in made.cells if c.point.wd == 3.0))
    figure = of_search(made, 3, wd_reach=0, proposed=((0, 0), (2, 0), (-1, 0)))
    assert {number: x for number, (x, _) in numbered(figure).items()} == {"1": 1.0, "2": 4.0, "3": 0.5}
    (ends,) = (
        c
        for c in figure.axes[0].collections
        if isinstance(c, LineCollection) and len(c.get_segments()) == 2 and c.get_linewidth()[0] == 1.6
    )
    assert [side[0][0] for side in ends.get_segments()] == pytest.approx([2**-3.5, 2**3.5])
    assert "order of proposals" in figure.get_suptitle()


@pytest.mark.parametrize("ranges", [False, True])
def test_where_nothing_was_proposed_there_are_no_numbers_and_no_outline(ranges: bool) -> None:
    figure = of_search(lattice(), 2, proposed=()) if ranges else lattice().figure()
    assert numbered(figure) == {}
    assert not [c for c in figure.axes[0].collections if isinstance(c, LineCollection)]
    assert "proposals" not in figure.get_suptitle()


def test_nothing_finished_is_still_a_map() -> None:
    made = lattice()
    cells = tuple(replace(c, score=None, error=None, state="queued") for c in made.cells)
    figure = replace(made, cells=cells, candidate=None, around=()).figure()
    figure.canvas.draw()
    assert texts(figure).count("queued") == 25


def test_awful_points_do_not_wash_out_the_rest() -> None:
    assert clipped_range([0.1, 0.2, 0.3, 0.4, 50.0], "min") == (0.1, pytest.approx(0.7))
    assert clipped_range([0.9, 0.8, 0.7, 0.6, 0.0], "max") == (pytest.approx(0.3), 0.9)
    assert clipped_range([0.1, 0.2, 0.3], "min") == (0.1, 0.3)
    low, high = clipped_range([0.1, 0.1], "min")
    assert low < 0.1 < high
