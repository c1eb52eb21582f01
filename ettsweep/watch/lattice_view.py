"""A lattice drawn with characters: a row for each wd, moved half a cell a step, so that neighbours touch.

A cell says by a sign or by its score what it is, and by colour how good: it can be read without colours.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rich.style import Style
from rich.text import Text

from ettsweep.powers import power
from ettsweep.runs.state import State
from ettsweep.study.lattice import Point
from ettsweep.trainer.tasks.registry import Metric
from ettsweep.watch.lattice_cells import Cell, LatticeCells, Mark, shades

SIGNS = {
    State.DONE: "●",
    State.RUNNING: "▸",
    State.QUEUED: "○",
    State.MISSING: "·",
    State.INTERRUPTED: "·",
    State.DIVERGED: "×",
    State.PRUNED: "–",
    State.FAILED: "!",
    State.CANCELLED: "⊘",
    State.HELD: "!",
    State.UNKNOWN: "?",
}
LEGEND = "● finished  ▸ training  ○ queued  · to come  × diverged  – pruned  ⊘ cancelled  ! needs you  ? unknown"
MARKED = "[ ] the candidate  ( ) its neighbours"

STATE_STYLES = {
    State.RUNNING: "cyan",
    State.DIVERGED: "yellow",
    State.PRUNED: "yellow",
    State.CANCELLED: "yellow",
    State.FAILED: "bold red",
    State.HELD: "bold magenta",
    State.UNKNOWN: "magenta",
}

BRACKETS = {Mark.NONE: (" ", " "), Mark.CANDIDATE: ("[", "]"), Mark.NEIGHBOUR: ("(", ")")}

COLOURS = ("#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725")
"""Viridis, as in the report, the best last: it grows lighter all along, for those too who see few colours."""

WHITE_ON = 4
"""On so many of them, the dark ones, white is read best."""


@dataclass(frozen=True)
class Density:
    """Columns and lines of a cell; columns are even, for rows are moved by half of them."""

    width: int
    height: int


DENSITIES = (Density(8, 2), Density(8, 1), Density(6, 1), Density(4, 1))
"""The roomiest first."""


@dataclass(frozen=True)
class Window:
    """Which cells are drawn, and how: the first and last steps along both axes."""

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


def window(found: LatticeCells, width: int, height: int) -> Window | None:
    """Return the roomiest window with all cells; where there is no room for all, one around the focus."""
    if (focus := found.focus) is None:
        return None
    across, up = [cell.i for cell in found.cells], [cell.j for cell in found.cells]
    i, j = (min(across), max(across)), (min(up), max(up))
    labels = max(len(power(cell.point.wd, 3)) for cell in found.cells)
    for density in DENSITIES:
        whole = Window(density, i, j, labels)
        if whole.width <= width and whole.height <= height:
            return whole
    j = _around(focus.j, j, max(1, height - 1))
    room = width - labels - 1 - (j[1] - j[0]) * density.width // 2
    return Window(density, _around(focus.i, i, max(1, room // density.width)), j, labels)


def is_whole(found: LatticeCells, width: int, height: int) -> bool:
    """Say whether all of a lattice is drawn in so much room."""
    seen = window(found, width, height)
    return seen is None or all(
        seen.i[0] <= cell.i <= seen.i[1] and seen.j[0] <= cell.j <= seen.j[1] for cell in found.cells
    )


def _around(at: int, ends: tuple[int, int], number: int) -> tuple[int, int]:
    """Return the ends of up to so many steps around one, within the ends."""
    first = max(ends[0], min(at - number // 2, ends[1] - number + 1))
    return first, min(ends[1], first + number - 1)


def drawn(found: LatticeCells, width: int, height: int) -> list[Text]:
    """Return the lines of a lattice in so much room: the highest wd first, lr below."""
    if (seen := window(found, width, height)) is None:
        return []
    cells = {(cell.i, cell.j): cell for cell in found.cells}
    lrs = {cell.i: power(cell.point.lr, 3) for cell in found.cells}
    wds = {cell.j: power(cell.point.wd, 3) for cell in found.cells}
    shade, half = shades(found), seen.density.width // 2
    columns = range(seen.i[0], seen.i[1] + 1)
    lines = []
    for j in range(seen.j[1], seen.j[0] - 1, -1):
        row = [cells.get((i, j)) for i in columns]
        for k in range(seen.density.height):
            line = Text(f"{wds.get(j, '') if k == 0 else '':>{seen.labels}} ", style="dim", no_wrap=True)
            line.append(" " * (half * (j - seen.j[0])))
            for cell in row:
                line.append_text(_cell(cell, k, seen.density, found.metric, shade))
            lines.append(line)
    lines.append(_axis([lrs.get(i, "") for i in columns], seen))
    return lines


def _axis(labels: list[str], seen: Window) -> Text:
    """Return the line of lr below the lowest row; where labels are wide, some are left out."""
    each = -(-(max(map(len, labels)) + 1) // seen.density.width)
    told = [label if k % each == 0 else "" for k, label in enumerate(labels)]
    text = "".join(f"{label:^{each * seen.density.width}}" for label in told[::each])
    if each > 1:  # each label begins where its cell does
        text = "".join(f"{label:<{each * seen.density.width}}" for label in told[::each])
    return Text(f"{'lr':>{seen.labels}} {text}"[: seen.width], style="dim", no_wrap=True)


def _cell(cell: Cell | None, line: int, density: Density, metric: Metric, shade: Mapping[Point, float]) -> Text:
    """Return a line of a cell."""
    width = density.width
    if cell is None:
        return Text(" " * width)
    style = cell_style(cell, shade)
    if line:
        return Text.assemble((f"{f'{cell.finished}/{cell.runs}':^{width - 1}}", style), " ")
    left, right = BRACKETS[cell.mark]
    sign, score = SIGNS[cell.state], digits(cell.score, metric)
    if width == 4:
        return Text.assemble((f"{left}{sign}{right}", style), " ")
    if width == 6:
        return Text(f"{left}{score or sign:^4}{right}", style=style)
    sign = " " if score and cell.state is State.DONE else sign
    text = f"{sign}{score:>4}" if score else f"{sign:^5}"
    return Text.assemble((f"{left}{text}{right}", style), " ")


def cell_style(cell: Cell, shade: Mapping[Point, float]) -> Style:
    """Return how a cell looks: of a scored one its colour, of another that of its state."""
    if cell.point not in shade:
        return Style.parse(STATE_STYLES.get(cell.state, "dim")) + Style(bold=cell.mark is Mark.CANDIDATE)
    k = round((len(COLOURS) - 1) * shade[cell.point])
    colour = "#ffffff" if k < WHITE_ON else "#000000"
    return Style(color=colour, bgcolor=COLOURS[k], bold=cell.mark is Mark.CANDIDATE)


def digits(score: float | None, metric: Metric) -> str:
    """Return a score in four characters, an accuracy in percent; nothing where there is none."""
    if score is None:
        return ""
    value = 100 * score if metric.metric.endswith("accuracy") else score
    if 0.01 <= abs(value) < 9999.5 or value == 0:
        texts = (f"{value:.{decimals}f}" for decimals in (3, 2, 1, 0))
        return next(short for text in texts if len(short := text[1:] if text.startswith("0.") else text) <= 4)
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"
