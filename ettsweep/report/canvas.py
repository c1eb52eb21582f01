"""An empty figure, its title, and its files."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ettsweep.files import write_atomic

DPI = 180


def new_figure(width_inch: float, height_inch: float) -> Figure:
    """Return an empty figure that lays itself out."""
    figure = Figure(figsize=(width_inch, height_inch), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def titled(figure: Figure, title: str, subtitle: str = "") -> None:
    """Put a title over a finished figure, and give all its axes the same look."""
    lines = [line for text in (title, subtitle) for line in textwrap.wrap(text, int(12 * figure.get_figwidth()))]
    text = figure.suptitle("\n".join(lines), fontsize=9)
    plain_text([text])
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(axes.get_label() == "<colorbar>")
        axes.tick_params(labelsize=7)
        axes.xaxis.label.set_fontsize(8)
        axes.yaxis.label.set_fontsize(8)


def plain_text(texts: Sequence[Any]) -> None:
    """Draw names as they are: a `$` in one starts no formula."""
    for text in texts:
        text.set_parse_math(False)


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and PDF; return both paths.

    Raises:
        StorageError: a file cannot be written.
    """
    png, pdf = folder / f"{name}.png", folder / f"{name}.pdf"
    write_atomic(png, lambda path: figure.savefig(path, format="png", dpi=DPI))
    write_atomic(pdf, lambda path: figure.savefig(path, format="pdf", metadata={"CreationDate": None}))
    return [png, pdf]
