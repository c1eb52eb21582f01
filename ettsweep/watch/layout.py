"""Heights of the panels: a terminal of 24 lines shows all of them; more lines show more of each."""

from typing import NamedTuple

BORDER_LINES = 1
"""Lines of the border above a panel."""

MIN_RUN_LINES, MIN_EVENT_LINES = 4, 2
"""Minimum lines of the table of runs, including its header, and of the events."""


class PanelHeights(NamedTuple):
    """Lines of each panel, including the border above it."""

    families: int
    lattice: int
    runs: int
    events: int


def panel_heights(height: int, families: int, lattice: int, runs: int) -> PanelHeights:
    """Divide `height` lines among the panels.

    `families`, `lattice` and `runs` are the lines that these would fill. The lattice comes first, then the families;
    runs get up to two thirds of the rest, but no more than they fill, and events what remains.
    """
    min_below = 2 * BORDER_LINES + MIN_RUN_LINES + MIN_EVENT_LINES
    min_families = BORDER_LINES + min(families, 3)
    # At least three rows of the lattice, whatever else is on the screen.
    middle = BORDER_LINES + max(3, min(lattice, height - min_below - min_families - BORDER_LINES))
    top = BORDER_LINES + max(2, min(families, height - min_below - middle - BORDER_LINES))
    remaining = height - top - middle
    table = max(BORDER_LINES + MIN_RUN_LINES, min(BORDER_LINES + runs, 2 * remaining // 3))
    return PanelHeights(top, middle, table, max(0, remaining - table))
