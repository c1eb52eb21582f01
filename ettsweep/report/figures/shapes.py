"""Shapes of marks: hexagon, a sign for each state, as SVG paths within -1 to 1, and numbers of suggestions."""

import math

from ettsweep.files import Json
from ettsweep.report.figures.chart_data import quantitative

HEXAGON = "M" + "L".join(f"{math.sin(k * math.pi / 3):.5f},{math.cos(k * math.pi / 3):.5f}" for k in range(6)) + "Z"
"""It stands on a corner: its left and right sides are vertical."""

CROSS = "M-1,0L1,0M0,-1L0,1"

CIRCLE = "M-1,0A1,1,0,1,0,1,0A1,1,0,1,0,-1,0"

STATE_SIGNS = {
    "diverged": "M-1,-1L1,1M1,-1L-1,1",
    "failed": "M0,-1L0,0.4M0,0.8L0,1",
    "cancelled": f"{CIRCLE}M-0.7,0.7L0.7,-0.7",
    "running": "M-0.7,-1L1,0L-0.7,1Z",
    "queued": "M-0.5,-0.8L-0.5,0.8M0.5,-0.8L0.5,0.8",
    "held": "M-0.8,-0.8L0.8,-0.8L0.8,0.8L-0.8,0.8Z",
    "interrupted": "M-0.8,-1L0.8,-1L-0.8,1L0.8,1Z",
    "missing": CIRCLE,
    "unknown": "M0,-1L1,0L0,1L-1,0Z",
    "done": CIRCLE,
}
"""Signs of points without a score, by state; legends list them in this order."""


def suggestion_numbers(data: Json) -> list[Json]:
    """Draw the column `proposal` on white discs, which are legible on every colour."""
    # Not INK, which is light in the dark theme: the disc is white in both.
    disc = {"fill": "#fff", "stroke": "#1c1c1e", "strokeWidth": 0.7, "size": 190, "opacity": 1}
    number = {"fontSize": 8.5, "fontWeight": "bold", "fill": "#1c1c1e"}
    return [
        {"data": data, "mark": {"type": "circle", **disc}},
        {"data": data, "mark": {"type": "text", **number}, "encoding": {"text": quantitative("proposal")}},
    ]
