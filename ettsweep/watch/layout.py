"""How the lines of a screen are shared out: all parts at 24 lines, and more of each where there are more."""

from typing import NamedTuple

FRAME = 1
"""Lines that a part has above it."""

LEAST_RUNS, LEAST_EVENTS = 4, 2
"""Lines of the table of runs, its head included, and of events."""


class PanelHeights(NamedTuple):
    """Lines of each part, what is above it included."""

    families: int
    lattice: int
    runs: int
    events: int


def panel_heights(height: int, families: int, lattice: int, runs: int) -> PanelHeights:
    """Share out lines among a table of families, a lattice, a table of runs and events, given what they would take.

    The lattice comes first, then the families; runs and events share what is left, the runs no more than they take.
    """
    min_below = 2 * FRAME + LEAST_RUNS + LEAST_EVENTS
    min_families = FRAME + min(families, 3)
    middle = FRAME + max(3, min(lattice, height - min_below - min_families - FRAME))
    top = FRAME + max(2, min(families, height - min_below - middle - FRAME))
    remaining = height - top - middle
    table = max(FRAME + LEAST_RUNS, min(FRAME + runs, 2 * remaining // 3))
    return PanelHeights(top, middle, table, max(0, remaining - table))
