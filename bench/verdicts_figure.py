"""Draw how often bounds held in simulated sweeps, against the confidence that was stated: docs/verdicts.png.

    python -m bench.verdicts_figure results/benchmarks/verdicts.json docs/verdicts.png

It reads what `bench.verdicts --json` writes.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from ettsweep.report.formats import GREY
from ettsweep.report.theme import CONFIG

COLOURS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#aa3f9c", "#8c6d1f", "#56b4e9", "#e69f00", "#555555")
APART = 0.0015
"""By how much the lines are set apart sideways, so that their errors can be told."""


def figure_of(rows: pd.DataFrame) -> Any:
    """Plot the share of bounds that hold, with what chance allows, a line for each world."""
    worlds = list(rows["world"].unique())
    apart = rows["world"].map(worlds.index) - (len(worlds) - 1) / 2
    assign_result = rows.assign(x=rows["stated"] + APART * apart, name=rows["world"].map(_name))
    unique_result = sorted(rows["stated"].unique())
    mapping = {
        "title": "bounds that held (grey: as stated)",
        "axis": alt.Axis(format="%", tickCount=8),
        "scale": alt.Scale(zero=False),
    }
    x = alt.X(
        "x:Q",
        title="confidence that was stated",
        axis=alt.Axis(values=unique_result, format="%"),
        scale=alt.Scale(zero=False),
    )
    names = [_name(world) for world in worlds]
    legend = alt.Legend(title=None, orient="bottom-right", symbolType="stroke")
    colour = alt.Color("name:N", scale=alt.Scale(domain=names, range=COLOURS[: len(names)]), legend=legend)
    shape = alt.Shape("name:N", scale=alt.Scale(domain=names), legend=None)
    as_stated = alt.Chart(pd.DataFrame({"x": unique_result})).mark_line(color=GREY, strokeWidth=4, opacity=0.6)
    base = alt.Chart(assign_result)
    return alt.layer(
        as_stated.encode(x, alt.Y("x:Q", **mapping)),
        base.mark_rule().encode(x, alt.Y("from:Q", **mapping), alt.Y2("to:Q"), colour),
        base.mark_line().encode(x, alt.Y("holds:Q", **mapping), colour),
        base.mark_point(filled=True, size=50, opacity=1).encode(x, alt.Y("holds:Q", **mapping), colour, shape),
    ).properties(width=400, height=300)


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
    rows = pd.DataFrame(json.loads(options.json.read_text())["rows"])
    requested = rows[[any(section in world for section in options.only) for world in rows["world"]]]
    drawing = requested[requested["stated"].notna() & (requested["margin"] == options.margin)]
    if drawing.empty:
        parser.error(f"{options.json} has no bounds with a margin of {options.margin:g}")
    figure_of(drawing).configure(**CONFIG | {"background": "white"}).save(options.png, scale_factor=2)
    print(f"{options.png}: {', '.join(map(str, sorted(drawing['sweeps'].unique())))} sweeps a point")


if __name__ == "__main__":
    main()
