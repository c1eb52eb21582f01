"""Draw how often bounds held in simulated sweeps, against the confidence that was stated: docs/verdicts.png.

    python -m bench.verdicts_figure results/benchmarks/verdicts.json docs/verdicts.png

It reads what `bench.verdicts --json` writes.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator, PercentFormatter

from ettsweep.report.style import DPI, GREY, new_figure

COLOURS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#aa3f9c", "#8c6d1f", "#56b4e9", "#e69f00", "#555555")
MARKERS = "osD^vP*Xh"
APART = 0.0015
"""By how much the lines are set apart sideways, so that their errors can be told."""


def figure_of(rows: Sequence[dict[str, Any]]) -> Figure:
    """Plot the share of bounds that hold, with what chance allows, a line for each world."""
    worlds: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        worlds.setdefault(row["world"], []).append(row)
    figure = new_figure(4.8, 3.6)
    axes = figure.subplots()
    stated = sorted({row["stated"] for row in rows})
    axes.plot(stated, stated, color=GREY, linewidth=3, label="as stated", zorder=0)
    for number, (world, found) in enumerate(worlds.items()):
        found.sort(key=lambda row: row["stated"])
        x = [row["stated"] + APART * (number - (len(worlds) - 1) / 2) for row in found]
        held = [row["holds"] for row in found]
        errors = [[row["holds"] - row["from"] for row in found], [row["to"] - row["holds"] for row in found]]
        look: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
        axes.errorbar(x, held, errors, label=_name(world), markersize=4, linewidth=1.2, elinewidth=0.7, **look)
    axes.set_xticks(stated)
    axes.yaxis.set_major_locator(MultipleLocator(0.05))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xlabel("confidence that was stated", fontsize=8)
    axes.set_ylabel("bounds that held", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7, frameon=False, loc="lower right")
    return figure


def _name(world: str) -> str:
    """Return what a world is called: `bowl .04` is a bowl with a noise of 4%."""
    surface, _, noise = world.partition(" ")
    return f"{surface}, noise {float(noise):.0%}" if noise.startswith(".") else world


def main() -> None:
    """Read the benchmark's rows, and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("json", type=Path)
    parser.add_argument("png", type=Path)
    parser.add_argument("--margin", type=float, default=0.02, help="of the rows that are drawn")
    parser.add_argument("--only", nargs="*", default=[""], help="worlds whose names hold one of these")
    options = parser.parse_args()
    rows = json.loads(options.json.read_text())["rows"]
    asked = [row for row in rows if any(part in row["world"] for part in options.only)]
    drawn = [row for row in asked if row["stated"] and row["margin"] == options.margin]
    if not drawn:
        parser.error(f"{options.json} has no bounds with a margin of {options.margin:g}")
    figure_of(drawn).savefig(options.png, dpi=DPI)
    print(f"{options.png}: {', '.join(sorted({str(row['sweeps']) for row in drawn}))} sweeps a point")


if __name__ == "__main__":
    main()
