"""Draw how often each point of a recorded lattice has the lowest mean of three seeds: docs/means.png.

python -m bench.means_figure results/lattices/digits-standard.csv docs/means.png
"""

import argparse
from io import BytesIO
from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd
from PIL import Image

from bench.recorded import Table, read_table
from ettsweep.powers import format_power
from ettsweep.report.theme import CONFIG

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


def figure_of(frame: pd.DataFrame) -> alt.LayerChart:
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


def main() -> None:
    """Draw seeds, write the figure, and print how often the optimum was named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("png", type=Path)
    options = parser.parse_args()
    frame = shares(read_table(options.table))
    drawn = BytesIO()
    figure_of(frame).configure(**CONFIG | {"background": "white"}).save(drawn, format="png", scale_factor=2)
    Image.open(drawn).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(options.png, optimize=True)
    right = float(frame.loc[frame["best"], "share"].sum())
    print(f"{options.png}: means of {SEEDS} seeds name the optimum in {right:.0%} of {DRAWS:,} draws")


if __name__ == "__main__":
    main()
