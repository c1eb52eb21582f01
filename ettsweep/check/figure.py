"""The figure of a check of a scaling: how activations change in the first steps of training, against the width."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ettsweep.check.outcome import Curves
from ettsweep.files import write_atomic
from ettsweep.report.style import short

DPI = 180
MOST_STEPS = 6
OUTPUTS = "#d55e00"
GUIDE = "#555555"
DARKEST, LIGHTEST = 0.0, 0.92
"""Part of the colour map that lines are drawn in: its end is too light for white paper."""


def coordinates_figure(about: str, widths: Sequence[int], curves: Sequence[Curves]) -> Figure:
    """Plot the rms change of activations against the width: a row for each strategy, a column for each of six steps.

    One line for each part of the forward pass, from dark (first) to light (last), and the outputs thick. Dashed lines
    have the slope that theory implies.
    """
    *hidden, outputs = curves[0].changes
    last = len(curves[0].changes[outputs]) - 1
    steps = sorted({round(step) for step in np.linspace(0, last, min(last + 1, MOST_STEPS))})
    size = (1.75 * len(steps) + 2.2, 2.15 * len(curves) + 0.9)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(curves), len(steps), sharex=True, sharey=True, squeeze=False)
    colours = ListedColormap(colormaps["viridis"](np.linspace(DARKEST, LIGHTEST, len(hidden))))
    for row, strategy in zip(panels, curves, strict=True):
        for step, panel in zip(steps, row, strict=True):
            for stage, colour in zip(hidden, colours.colors, strict=True):  # type: ignore[arg-type]
                panel.plot(widths, strategy.changes[stage][step], color=colour, linewidth=0.9)
            trained = strategy.changes[outputs][step]
            panel.plot(widths, trained, color=OUTPUTS, linewidth=2.2, marker="o", markersize=3)
            _guide(panel, widths, trained, strategy.output_power)
            _guide(panel, widths, strategy.changes[hidden[-1]][step], strategy.hidden_power)
        row[0].set_ylabel(f"{strategy.strategy}, lr {short(strategy.lr)}\nrms change")
    _dress(panels, widths, steps)
    _entitle(figure, about)
    _legend(figure, panels, colours, hidden)
    return figure


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and PDF; return both paths.

    Raises:
        StorageError: a file cannot be written.
    """
    png, pdf = folder / f"{name}.png", folder / f"{name}.pdf"
    write_atomic(png, lambda path: figure.savefig(path, format="png", dpi=DPI))
    write_atomic(pdf, lambda path: figure.savefig(path, format="pdf", metadata={"CreationDate": None}))
    return [png, pdf]


def _entitle(figure: Figure, about: str) -> None:
    """Say over a finished figure what it is and whose; a `$` in a name starts no formula."""
    texts = ("Change of activations in the first steps of training", *about.splitlines())
    lines = [line for text in texts for line in textwrap.wrap(text, int(12 * figure.get_figwidth()))]
    figure.suptitle("\n".join(lines), fontsize=9).set_parse_math(False)


def _guide(panel: Axes, widths: Sequence[int], values: Sequence[float], power: float | None) -> None:
    """Draw the implied power, if there is one, through the value at the widest."""
    if power is None:
        return
    line = values[-1] * (np.array(widths) / widths[-1]) ** power
    panel.plot(widths, line, color=GUIDE, linewidth=0.8, linestyle=(0, (4, 3)), zorder=4)


def _dress(panels: np.ndarray, widths: Sequence[int], steps: Sequence[int]) -> None:
    """Name steps and widths, and mark the widths that were measured alone."""
    for step, panel in zip(steps, panels[0], strict=True):
        panel.set_title(f"step {step + 1}", fontsize=8)
    for panel in panels.flat:
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(widths, [str(n) for n in widths], rotation=45 if widths[-1] >= 1000 else 0)
        panel.set_xticks([], minor=True)
        panel.grid(axis="y", linewidth=0.3, color="#dddddd")
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=7)
        panel.yaxis.label.set_fontsize(8)
    for panel in panels[-1]:
        panel.set_xlabel("width", fontsize=8)


def _legend(figure: Figure, panels: np.ndarray, colours: ListedColormap, hidden: Sequence[str]) -> None:
    """Say which colour is how deep, and what the other lines are."""
    bounds = BoundaryNorm(np.arange(len(hidden) + 1), len(hidden))
    bar = figure.colorbar(ScalarMappable(bounds, colours), ax=panels, aspect=35, pad=0.01, fraction=0.03)
    marked = sorted({round(i) for i in np.linspace(0, len(hidden) - 1, 6)})
    bar.set_ticks([i + 0.5 for i in marked], labels=[hidden[i] for i in marked])
    bar.ax.tick_params(length=0, which="both", labelsize=7)
    bar.ax.invert_yaxis()
    bar.ax.spines[:].set_visible(False)
    handles = [
        Line2D([], [], color=OUTPUTS, linewidth=2.2, marker="o", markersize=3, label="outputs that are trained"),
        Line2D([], [], color=GUIDE, linewidth=0.8, linestyle=(0, (4, 3)), label="slope that theory implies"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=7)
