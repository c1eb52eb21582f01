"""How figures look: ink is the text's own colour, so that they follow the page into the dark."""

from typing import Any

CONFIG: dict[str, Any] = {
    "background": None,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "domainColor": "currentColor",
        "tickColor": "currentColor",
        "labelColor": "currentColor",
        "titleColor": "currentColor",
        "gridColor": "currentColor",
        "gridOpacity": 0.12,
    },
    "legend": {"labelColor": "currentColor", "titleColor": "currentColor"},
    "title": {"color": "currentColor", "subtitleColor": "currentColor"},
    "text": {"fill": "currentColor"},
    "rule": {"stroke": "currentColor"},
}
"""A Vega-Lite configuration."""
