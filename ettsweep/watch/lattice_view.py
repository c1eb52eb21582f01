"""A lattice in characters: a row for each value of the second axis, shifted by half a cell so that neighbours touch.

A cell shows its score or a sign for its state, and its colour shows how good it is.
"""

from collections.abc import Mapping, Sequence

from rich.style import Style
from rich.text import Text
from textual.geometry import Size
from textual.reactive import reactive
from textual.widget import Widget

from ettsweep.console import STYLES
from ettsweep.metric import Metric
from ettsweep.powers import axis_text
from ettsweep.runs.point import Point
from ettsweep.runs.state import State
from ettsweep.watch.view import CANDIDATE, Cell, FamilyView

STATE_SIGNS = {
    State.DONE: "●",
    State.RUNNING: "▸",
    State.QUEUED: "○",
    State.MISSING: "·",
    State.INTERRUPTED: "·",
    State.DIVERGED: "×",
    State.FAILED: "!",
    State.CANCELLED: "⊘",
    State.HELD: "!",
    State.UNKNOWN: "?",
}
LEGEND = """\
[ ] candidate  ( ) neighbour
● finished     ▸ training
○ queued       · not yet run
× diverged     ⊘ cancelled
! needs you    ? unknown"""

COLOURS = ("#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725")
"""Viridis, as in the report, the best last. Its lightness grows, which colour-blind users see too."""

DARK_COLOURS = 4
"""Number of dark colours, the first ones, with white text; the others have black text."""

SHADE_REACH = 3.0
"""Largest distance of the worst shade from the best score, in multiples of the median's; see `shades`."""

DETAILS_WIDTH = 31
"""Least characters for the details beside the lattice."""

CELL_SIZES = (*(Size(max(8, 3 * height // 2 * 2), height) for height in range(12, 0, -1)), Size(6, 1), Size(4, 1))
"""Characters and lines of a cell, largest first. The smallest fits a sign only; 6 characters fit scores.

Widths are even: rows shift by half a cell.
"""


class LatticeView(Widget):
    """The lattice of a family, as large as fits."""

    family: reactive[FamilyView | None] = reactive(None, layout=True)

    def get_content_width(self, container: Size, viewport: Size) -> int:
        """Return the width of the lattice beside the details."""
        return max((line.cell_len for line in self._lines(container - Size(DETAILS_WIDTH, 0))), default=0)

    def render(self) -> Text:
        """Return the lattice."""
        return Text("\n").join(self._lines(self.size))

    @property
    def is_whole(self) -> bool:
        """Whether all points are in view."""
        if not (self.family and self.family.cells):
            return True
        _, columns, rows = _fit(self.family.cells, self.size)
        return all(cell.i in columns and cell.j in rows for cell in self.family.cells)

    def _lines(self, room: Size) -> list[Text]:
        return draw_lattice(self.family.cells, self.family.study.metric, room) if self.family else []


def draw_lattice(cells: Sequence[Cell], metric: Metric, room: Size) -> list[Text]:
    """Return a lattice as lines of text, the highest values of the second axis first, the labels of the first last.

    Its cells are as large as fit. If the smallest do not fit, draw those around the candidate.
    """
    if not cells:
        return []
    size, columns, rows = _fit(cells, room)
    at = {(cell.i, cell.j): cell for cell in cells}
    along, row_labels, shade_by_point = next(iter(cells[0].point.values)), _row_labels(cells), shades(cells, metric)
    column_labels = {cell.i: axis_text(along, cell.point[along], 3) for cell in cells}
    labels_width = max(map(len, (along, *row_labels.values())))
    lines = []
    for j in reversed(rows):
        shift = " " * (size.width // 2 * (j - rows.start))
        for k in range(size.height):
            below = k - (size.height - 1) // 2
            label = "" if below else row_labels.get(j, "")
            line = Text.assemble((f"{label:>{labels_width}} ", "dim"), shift, no_wrap=True)
            for i in columns:
                cell = at.get((i, j))
                text = _cell_text(cell, below, size.width, metric) if cell else ""
                line.append(text, _cell_style(cell, shade_by_point) if cell else "")
                line.append(" " * (size.width - len(text)))
            lines.append(line)
    axis = _column_axis([column_labels.get(i, "") for i in columns], size.width)
    return [*lines, Text(f"{along:>{labels_width}} {axis}"[: room.width], style="dim", no_wrap=True)]


def _fit(cells: Sequence[Cell], room: Size) -> tuple[Size, range, range]:
    """Return the size of cells, and the steps along both axes that are drawn."""
    columns, rows = (range(min(steps), max(steps) + 1) for steps in zip(*((c.i, c.j) for c in cells), strict=True))
    names = (next(iter(cells[0].point.values)), *_row_labels(cells).values())
    room -= Size(1 + max(map(len, names)), 1)  # for the labels
    for size in CELL_SIZES:
        width, height = len(columns) * size.width + (len(rows) - 1) * size.width // 2, len(rows) * size.height
        if width <= room.width and height <= room.height:
            return size, columns, rows
    # Around the candidate, or else the centre. i² + ij + j² is the squared distance on a hexagonal lattice.
    focus = min(cells, key=lambda cell: (cell.mark != CANDIDATE, cell.i**2 + cell.i * cell.j + cell.j**2))
    # Rows first: each row shifts the others by half a cell, so fewer rows leave room for more columns.
    rows = _part(rows, focus.j, room.height)
    return size, _part(columns, focus.i, (room.width - (len(rows) - 1) * size.width // 2) // size.width), rows


def _part(steps: range, centre: int, number: int) -> range:
    """Return at most `number` of some steps, around a centre."""
    number = max(1, number)
    # Shift rather than cut at an end.
    first = max(steps.start, min(centre - number // 2, steps.stop - number))
    return range(first, min(steps.stop, first + number))


def _row_labels(cells: Sequence[Cell]) -> dict[int, str]:
    _, *second = cells[0].point.values
    return {cell.j: axis_text(name, cell.point[name], 3) for name in second for cell in cells}


def _column_axis(labels: Sequence[str], width: int) -> str:
    """Return the labels below cells of a width; if they are wider than cells, only every second or third one."""
    stride = -(-(max(map(len, labels)) + 1) // width)
    # A label centred over several cells would be ambiguous.
    align = "^" if stride == 1 else "<"
    return "".join(f"{label:{align}{stride * width}}" for label in labels[::stride])


def _cell_text(cell: Cell, below: int, width: int, metric: Metric) -> str:
    """Return a line of a cell, by its distance below the middle: score or sign, then the number of finished runs."""
    if below:
        finished = f"{sum(state.finished for state in cell.states)}/{len(cell.states)}"
        return f"{finished if below == 1 and cell.states else '':^{width - 1}}"
    left, right = cell.mark[0], cell.mark[1]
    sign, score = STATE_SIGNS[cell.state], format_score(cell.score, metric)
    if width < 8:
        return f"{left}{score or sign:^4}{right}" if width == 6 else f"{left}{sign}{right}"
    sign = "" if score and cell.state is State.DONE else sign  # a score means "finished"
    return f"{left}{sign + score:^{width - 3}}{right}"


def format_score(score: float | None, metric: Metric) -> str:
    """Format a score in at most four characters, fractions in percent; "" for None."""
    if score is None:
        return ""
    value = 100 * score if metric.is_fraction else score
    if 0.01 <= abs(value) < 9999.5 or value == 0:  # the longest text that fits; 0.123 loses its leading zero
        texts = (f"{value:.{decimals}f}".removeprefix("0") for decimals in (3, 2, 1, 0))
        return next(text for text in texts if len(text) <= 4)
    # Scientific notation for the rest: 1e-4.
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def shades(cells: Sequence[Cell], metric: Metric) -> dict[Point, float]:
    """Return a shade for each scored point, linear in the score, from 1 for the best to 0.

    Scores far worse than the median all get 0: else a few would leave almost one shade for all others.
    """
    # Sort keys are lower for better scores, for losses and accuracies.
    keys = {cell.point: metric.sort_key(cell.score) for cell in cells if cell.score is not None}
    if not keys:
        return {}
    ranked = sorted(keys.values())
    best, median, worst = ranked[0], ranked[len(ranked) // 2], ranked[-1]
    width = min(worst - best, SHADE_REACH * (median - best))
    return {point: 1.0 - min(1.0, (key - best) / width) if width > 0 else 1.0 for point, key in keys.items()}


def _cell_style(cell: Cell, shade_by_point: Mapping[Point, float]) -> Style:
    """Return the style of a cell: the colour of its score or, without one, of its state."""
    is_candidate = Style(bold=cell.mark == CANDIDATE)
    if cell.point not in shade_by_point:
        return Style.parse(STYLES.get(cell.state, "dim")) + is_candidate
    k = round((len(COLOURS) - 1) * shade_by_point[cell.point])
    return Style(color="#ffffff" if k < DARK_COLOURS else "#000000", bgcolor=COLOURS[k]) + is_candidate
