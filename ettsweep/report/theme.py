"""The look of figures: one Vega configuration, for the page and for files.

Ink is the page's text colour, light or dark.
"""

from typing import Any

INK = "currentColor"
"""The text colour around a figure, set by the page's style sheet; black in files."""

FONT = "Helvetica, Arial, Liberation Sans, sans-serif"

ON_BEST = "#111"
"""Colour of marks on the colour of the best score, which is bright in any theme."""

SPIKE = "#d55e00"

CONFIG: dict[str, Any] = {
    "aria": False,  # the page has a caption, and lists the points of a map, for screen readers
    "mark": {"aria": False},
    "background": "transparent",
    "font": FONT,
    "view": {"stroke": None},
    "padding": 12,
    "axis": {
        "labelColor": INK,
        "titleColor": INK,
        "domainColor": INK,
        "tickColor": INK,
        "gridColor": INK,
        "gridOpacity": 0.12,
        "domainOpacity": 0.5,
        "tickOpacity": 0.5,
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelOverlap": "greedy",
        "labelSeparation": 6,
    },
    "legend": {
        "labelColor": INK,
        "titleColor": INK,
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "labelLimit": 460,
        "titleLimit": 400,
    },
    "title": {
        "color": INK,
        "subtitleColor": INK,
        "anchor": "start",
        "fontSize": 13,
        "subtitleFontSize": 11,
        "fontWeight": "bold",
        "offset": 10,
    },
    "text": {"fill": INK},
}
"""Settings of all figures. A figure's own specification sets only the colours of its data."""
