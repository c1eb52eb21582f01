"""A figure as it is drawn: one specification, which the page shows and files are made of."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """A complete Vega-Lite 6 specification, with its data sets by name.

    Attributes:
        kind: strategies, seeds, trajectories, map, curves or course.
        name: of its files in `figures/`, without suffix.
        spec: with top-level `datasets`; of several figures, data sets of one name are the same.
    """

    kind: str
    name: str
    title: str
    caption: str
    spec: dict[str, Any]
