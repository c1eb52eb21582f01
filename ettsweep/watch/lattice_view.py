"""A lattice drawn with characters: a row for each wd, shifted by half a cell per step, so that neighbours touch.

A cell shows its score or a sign for its state, and by colour how good it is: it can be read without colours.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rich.style import Style
from rich.text import Text
from textual.geometry import Size
from textual.reactive import reactive
from textual.widget import Widget

from ettsweep.metric import Metric
from ettsweep.powers import format_power
from ettsweep.runs.point import Point
from ettsweep.runs.state import State
from ettsweep.watch.lattice_cells import Cell, LatticeCells, Mark, shades

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
STATE_LEGEND = "● finished  ▸ training  ○ queued  · to come  × diverged  ⊘ cancelled  ! needs you  ? unknown"
MARK_LEGEND = "[ ] the candidate  ( ) its neighbours"

STATE_STYLES = {
    State.RUNNING: "cyan",
    State.DIVERGED: "yellow",
    State.CANCELLED: "yellow",
    State.FAILED: "bold red",
    State.HELD: "bold magenta",
    State.UNKNOWN: "magenta",
}

BRACKETS = {Mark.NONE: (" ", " "), Mark.CANDIDATE: ("[", "]"), Mark.NEIGHBOUR: ("(", ")")}

COLOURS = ("#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725")
"""Viridis, as in the report, the best last. Lightness grows throughout, so colour-blind users can read it too."""

DARK_COLOURS = 4
"""The first so many colours are dark: white text is legible on them, black on the others."""


DETAILS_WIDTH = 32
"""Characters that the lattice leaves for the details beside it, at least."""


@dataclass(frozen=True)
class Density:
    """Width and height of a cell in characters. The width is even, as rows are shifted by half of it."""

    width: int
    height: int

    @property
    def middle(self) -> int:
        """The line of a cell that has its score."""
        return (self.height - 1) // 2


# The smallest shows a sign only; from 6 characters on, scores fit.
DENSITIES = (
    *(Density(max(8, 3 * height // 2 * 2), height) for height in range(10, 1, -1)),
    *(Density(8, 1), Density(6, 1), Density(4, 1)),
)
"""Sizes of cells, the largest first."""


@dataclass(frozen=True)
class Window:
    """The part of a lattice that is drawn.

    Attributes:
        density: Size of a cell.
        i, j: First and last step in lr and in wd.
        labels: Width of the labels of wd.
    """

    density: Density
    i: tuple[int, int]
    j: tuple[int, int]
    labels: int

    @property
    def width(self) -> int:
        half = self.density.width // 2
        return self.labels + 1 + (self.i[1] - self.i[0] + 1) * 2 * half + (self.j[1] - self.j[0]) * half

    @property
    def height(self) -> int:
        return (self.j[1] - self.j[0] + 1) * self.density.height + 1


def fit_window(lattice_cells: LatticeCells, width: int, height: int) -> Window | None:
    """Return the window with the largest cells that holds the whole lattice, else a part of it around the focus.

    `width` and `height` are the available characters and lines. Without cells there is no window.
    """
    if (focus := lattice_cells.focus) is None:
        return None
    columns, rows = [cell.i for cell in lattice_cells.cells], [cell.j for cell in lattice_cells.cells]
    i, j = (min(columns), max(columns)), (min(rows), max(rows))
    labels = max(len("lr"), *(len(_wd_label(cell)) for cell in lattice_cells.cells))
    for density in DENSITIES:
        viewport = Window(density, i, j, labels)
        if viewport.width <= width and viewport.height <= height:
            return viewport
    # Rows first: each row shifts the others by half a cell, so fewer rows leave room for more columns.
    j = _centred_range(focus.j, j, max(1, height - 1))
    cells_width = width - labels - 1 - (j[1] - j[0]) * density.width // 2
    return Window(density, _centred_range(focus.i, i, max(1, cells_width // density.width)), j, labels)


def shows_all_cells(lattice_cells: LatticeCells, width: int, height: int) -> bool:
    """`True` if the whole lattice fits `width` characters and `height` lines."""
    viewport = fit_window(lattice_cells, width, height)
    return viewport is None or all(
        viewport.i[0] <= cell.i <= viewport.i[1] and viewport.j[0] <= cell.j <= viewport.j[1]
        for cell in lattice_cells.cells
    )


def _centred_range(centre: int, bounds: tuple[int, int], number: int) -> tuple[int, int]:
    """Return (first, last) of at most `number` steps around `centre` within `bounds`."""
    # Shift the window rather than cut it where it would leave the bounds.
    first = max(bounds[0], min(centre - number // 2, bounds[1] - number + 1))
    return first, min(bounds[1], first + number - 1)


def _wd_label(cell: Cell) -> str:
    return format_power(cell.point.wd, 3) if cell.point.has_wd else ""


def draw_lattice(lattice_cells: LatticeCells, width: int, height: int) -> list[Text]:
    """Return a lattice as lines of text, the highest wd first, the labels of lr last."""
    if (viewport := fit_window(lattice_cells, width, height)) is None:
        return []
    cells = {(cell.i, cell.j): cell for cell in lattice_cells.cells}
    lrs = {cell.i: format_power(cell.point.lr, 3) for cell in lattice_cells.cells}
    wds = {cell.j: _wd_label(cell) for cell in lattice_cells.cells}
    shade_by_point, half = shades(lattice_cells), viewport.density.width // 2
    columns = range(viewport.i[0], viewport.i[1] + 1)
    lines = []
    # From the top of the screen: the highest wd first.
    for j in range(viewport.j[1], viewport.j[0] - 1, -1):
        row = [cells.get((i, j)) for i in columns]
        for k in range(viewport.density.height):
            line = Text(
                f"{wds.get(j, '') if k == viewport.density.middle else '':>{viewport.labels}} ",
                style="dim",
                no_wrap=True,
            )
            # Each step in wd shifts the row by half a cell to the right.
            line.append(" " * (half * (j - viewport.j[0])))
            for cell in row:
                line.append_text(_cell_line(cell, k, viewport.density, lattice_cells.metric, shade_by_point))
            lines.append(line)
    lines.append(_lr_axis([lrs.get(i, "") for i in columns], viewport))
    return lines


def _lr_axis(labels: list[str], viewport: Window) -> Text:
    """Return the line with the labels of lr; if they are wider than cells, only every second or third one."""
    stride = -(-(max(map(len, labels)) + 1) // viewport.density.width)
    shown_labels = [label if k % stride == 0 else "" for k, label in enumerate(labels)]
    text = "".join(f"{label:^{stride * viewport.density.width}}" for label in shown_labels[::stride])
    if stride > 1:  # centred over several cells, a label could not be assigned to its own
        text = "".join(f"{label:<{stride * viewport.density.width}}" for label in shown_labels[::stride])
    return Text(f"{'lr':>{viewport.labels}} {text}"[: viewport.width], style="dim", no_wrap=True)


def _cell_line(
    cell: Cell | None, line: int, density: Density, metric: Metric, shade_by_point: Mapping[Point, float]
) -> Text:
    """Return a line of a cell: in the middle sign and score, below the numbers of finished and all runs."""
    width = density.width
    if cell is None:
        return Text(" " * width)
    style = cell_style(cell, shade_by_point)
    if line != density.middle:
        text = f"{cell.finished}/{cell.runs}" if line == density.middle + 1 else ""
        return Text.assemble((f"{text:^{width - 1}}", style), " ")
    left, right = BRACKETS[cell.mark]
    sign, score = STATE_SIGNS[cell.state], format_score(cell.score, metric)
    if width == 4:
        return Text.assemble((f"{left}{sign}{right}", style), " ")
    if width == 6:
        return Text(f"{left}{score or sign:^4}{right}", style=style)
    sign = " " if score and cell.state is State.DONE else sign  # a score says "finished" already
    text = f"{sign}{score:>4}" if score else f"{sign:^5}"
    return Text.assemble((f"{left}{text:^{width - 3}}{right}", style), " ")


def cell_style(cell: Cell, shade_by_point: Mapping[Point, float]) -> Style:
    """Return the style of a cell: the colour of its score or, without one, of its state."""
    # Points without a score, among them diverged ones.
    if cell.point not in shade_by_point:
        return Style.parse(STATE_STYLES.get(cell.state, "dim")) + Style(bold=cell.mark is Mark.CANDIDATE)
    k = round((len(COLOURS) - 1) * shade_by_point[cell.point])
    colour = "#ffffff" if k < DARK_COLOURS else "#000000"
    return Style(color=colour, bgcolor=COLOURS[k], bold=cell.mark is Mark.CANDIDATE)


class LatticeView(Widget):
    """The lattice of a family, as large as the screen allows."""

    lattice: reactive[LatticeCells | None] = reactive(None, layout=True)

    def get_content_width(self, container: Size, viewport: Size) -> int:
        """Return the width of the lattice beside the details."""
        window = self.lattice and fit_window(self.lattice, container.width - DETAILS_WIDTH, container.height)
        return window.width if window else 0

    def render(self) -> Text:
        """Return the lattice."""
        return Text("\n").join(draw_lattice(self.lattice, *self.size)) if self.lattice else Text()

    @property
    def is_whole(self) -> bool:
        """Whether all points are in view."""
        return self.lattice is None or shows_all_cells(self.lattice, *self.size)


def format_score(score: float | None, metric: Metric) -> str:
    """Format a score in at most four characters, accuracies in percent; "" for None."""
    if score is None:
        return ""
    value = 100 * score if metric.name.endswith("accuracy") else score
    if 0.01 <= abs(value) < 9999.5 or value == 0:  # the longest text that fits; 0.123 loses its leading zero
        texts = (f"{value:.{decimals}f}" for decimals in (3, 2, 1, 0))
        return next(short for text in texts if len(short := text[1:] if text.startswith("0.") else text) <= 4)
    # Scientific notation for the rest: 1e-4.
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"
