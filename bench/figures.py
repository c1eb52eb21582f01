"""Draw two figures of docs: `python -m bench.figures`.

verdicts.png: how often bounds held in simulated sweeps, beside the confidence that was stated, from the rows that
`bench.verdicts --json results/benchmarks/verdicts.json` writes. means.png: how often each point of a recorded lattice has
the lowest mean of three seeds.
"""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from PIL import Image

from bench.recorded import Table, read_table
from ettsweep.powers import format_power
from ettsweep.report.theme import CONFIG

CHECKOUT = Path(__file__).parents[1]
COLOURS = ("#0072b2", "#d55e00", "#009e73")
"""Of margins, the smallest first; told apart by any eye."""


def verdicts_figure(rows: pd.DataFrame) -> Any:
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


SEEDS, DRAWS = 3, 10_000


def shares(table: Table) -> pd.DataFrame:
    """Return the share of draws of seeds in which each point has the best mean, and whether it is the best of all."""
    values = table.values.reshape(-1, table.seeds())
    rng, counts = np.random.default_rng(0), np.zeros(len(values))
    for _ in range(DRAWS):
        counts[values[:, rng.choice(table.seeds(), SEEDS, replace=False)].mean(1).argmin()] += 1
    points = [(2.0**lr, 2.0**wd) for lr in table.log2_lr for wd in table.log2_wd]
    frame = pd.DataFrame([(format_power(lr), format_power(wd)) for lr, wd in points], columns=["lr", "wd"])
    return frame.assign(share=counts / DRAWS, best=values.mean(1) == values.mean(1).min())


def means_figure(frame: pd.DataFrame) -> alt.LayerChart:
    """Plot the shares as a table of squares, the optimum of all seeds framed."""
    lr = alt.X("lr:N", sort=list(dict.fromkeys(frame["lr"])), title="lr", axis=alt.Axis(labelAngle=0))
    wd = alt.Y("wd:N", sort=list(dict.fromkeys(frame["wd"]))[::-1], title="wd")
    base, named = alt.Chart(frame).encode(lr, wd), alt.datum.share >= 0.005
    return alt.layer(
        base.mark_rect().encode(alt.Color("share:Q", scale=alt.Scale(range=["#ffffff", "#08519c"]), legend=None)),
        base.transform_filter(alt.datum.best).mark_rect(fill=None, stroke="#d55e00", strokeWidth=3),
        base.transform_filter(named)
        .mark_text(fontSize=13)
        .encode(
            alt.Text("share:Q", format=".0%"),
            color=alt.condition(alt.datum.share > 0.3, alt.value("white"), alt.value("black")),
        ),
    ).properties(width=alt.Step(52), height=alt.Step(36))


def save(figure: Any, path: Path) -> None:
    """Write a figure with a palette, which takes a tenth of the size."""
    drawn = BytesIO()
    figure.configure(**CONFIG | {"background": "white"}).save(drawn, format="png", scale_factor=2)
    Image.open(drawn).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    """Write both figures, and print what they hold."""
    rows = pd.DataFrame(json.loads((CHECKOUT / "results" / "benchmarks" / "verdicts.json").read_text())["rows"])
    drawing = rows[rows["stated"].notna() & rows["holds"].notna()]
    save(verdicts_figure(drawing), CHECKOUT / "docs" / "verdicts.png")
    print(f"verdicts.png: {', '.join(map(str, sorted(drawing['sweeps'].unique())))} sweeps a point")
    frame = shares(read_table(CHECKOUT / "results" / "lattices" / "digits-standard.csv"))
    save(means_figure(frame), CHECKOUT / "docs" / "means.png")
    right = float(frame.loc[frame["best"], "share"].sum())
    print(f"means.png: means of {SEEDS} seeds name the optimum in {right:.0%} of {DRAWS:,} draws")


if __name__ == "__main__":
    main()
