"""Draw how often bounds held in simulated sweeps, beside the confidence that was stated: docs/verdicts.png.

    python -m bench.verdicts_figure results/benchmarks/verdicts.json docs/verdicts.png

It reads what `bench.verdicts --json` writes.
"""

import argparse
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
from PIL import Image

from ettsweep.report.theme import CONFIG

COLOURS = ("#0072b2", "#d55e00", "#009e73")
"""Of margins, the smallest first; told apart by any eye."""


def figure_of(rows: pd.DataFrame) -> Any:
    """Plot the share of bounds that held with what chance allows: worlds below each other, confidences in columns."""
    margins = [f"{margin:.0%}" for margin in sorted(rows["margin"].unique())]
    data = rows.assign(
        name=rows["world"].map(_name),
        asked=rows["margin"].map("{:.0%}".format),
        column=rows["stated"].map("{:.0%} stated".format),
    )
    colour = alt.Color(
        "asked:N", scale=alt.Scale(domain=margins, range=COLOURS[: len(margins)]), legend=alt.Legend(title="margin")
    )
    y = alt.Y("name:N", title=None, sort=list(dict.fromkeys(data["name"])), axis=alt.Axis(labelLimit=260, grid=True))
    apart = alt.YOffset("asked:N", scale=alt.Scale(domain=margins, paddingOuter=0.8))
    least = data["from"].min()
    x: dict[str, Any] = {"axis": alt.Axis(format="%", tickCount=5), "scale": alt.Scale(domain=[least, 1.0], nice=False)}
    base = alt.Chart(data)
    return (
        alt.layer(
            base.mark_rule(strokeWidth=2, opacity=0.4).encode(alt.X("mean(stated):Q", title="bounds that held", **x)),
            base.mark_rule(strokeWidth=1.5).encode(alt.X("from:Q", **x), alt.X2("to:Q"), y, apart, colour),
            base.mark_point(filled=True, size=30, opacity=1).encode(alt.X("holds:Q", **x), y, apart, colour),
        )
        .properties(width=190, height=alt.Step(15 / len(margins), **{"for": "offset"}))
        .facet(column=alt.Column("column:N", title=None))
    )


def _name(world: str) -> str:
    """Return what a world is called: `bowl .04` is a bowl with a noise of 4%."""
    surface, _, noise = world.rpartition(" ")
    return f"{surface}, noise {float(noise):.0%}" if noise.startswith(".") else world


def main() -> None:
    """Read the benchmark's rows, and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("json", type=Path)
    parser.add_argument("png", type=Path)
    options = parser.parse_args()
    rows = pd.DataFrame(json.loads(options.json.read_text())["rows"])
    drawing = rows[rows["stated"].notna() & rows["holds"].notna()]
    if drawing.empty:
        parser.error(f"{options.json} has no bounds")
    drawn = BytesIO()
    figure_of(drawing).configure(**CONFIG | {"background": "white"}).save(drawn, format="png", scale_factor=2)
    # With a palette, a tenth of the size.
    Image.open(drawn).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(options.png, optimize=True)
    print(f"{options.png}: {', '.join(map(str, sorted(drawing['sweeps'].unique())))} sweeps a point")


if __name__ == "__main__":
    main()
