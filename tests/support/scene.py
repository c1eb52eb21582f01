"""What a figure draws: its marks as Vega places them, in pixels and in the units of its axes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import vl_convert

from ettsweep.files import Json
from ettsweep.report.figure_export import VEGA_LITE_VERSION
from ettsweep.report.figures.chart_data import FILE_WIDTH
from ettsweep.report.theme import CONFIG

TOLD = CONFIG | {"aria": True, "mark": {"aria": True}}
"""Has marks say what hovering them tells."""


@dataclass(frozen=True)
class Mark:
    """A symbol, text, rule, rect, line or area; of the last two, `items` are all that they go through."""

    kind: str
    items: tuple[Json, ...]

    def __getattr__(self, name: str) -> Any:
        """Return a property as Vega names it, such as `stroke`; None where there is none."""
        return self.items[0].get(name)

    @property
    def xy(self) -> tuple[float, float]:
        """Pixels from the left and from the top."""
        return self.items[0]["x"], self.items[0]["y"]

    @property
    def told(self) -> dict[str, str]:
        """What hovering says, by title."""
        pairs = (section.partition(": ") for section in (self.description or "").split("; "))
        return {name: value.replace("−", "-") for name, _, value in pairs}


Ends = tuple[tuple[float, float], tuple[float, float], bool]
"""Two pixels, each with what an axis has there, and whether it is logarithmic."""


@dataclass(frozen=True)
class Scene:
    """A drawn figure.

    Attributes:
        marks: the lowest first, without axes, legends and title.
        entries: of legends, by label.
        names: of axes, by x and y.
        scales: what maps pixels to the units of each axis.
    """

    marks: tuple[Mark, ...]
    entries: dict[str, Mark]
    names: dict[str, str]
    title: str
    scales: dict[str, Ends]

    @property
    def legend(self) -> list[str]:
        return list(self.entries)

    def of(self, kind: str, **look: object) -> list[Mark]:
        """Return the marks of a kind that are to be seen and look like this."""
        marks = (m for m in self.marks if m.kind == kind and m.opacity != 0 and m.text != "")
        return [mark for mark in marks if all(getattr(mark, name) == value for name, value in look.items())]

    def texts(self, **look: object) -> list[str]:
        return [str(mark.text) for mark in self.of("text", **look)]

    def at(self, mark: Mark, x: str = "x", y: str = "y") -> list[tuple[float, float]]:
        """Return where the items of a mark are in the units of the axes; `x2` and `y2` are the other ends."""
        return [
            (self.value("x", item.get(x, item["x"])), self.value("y", item.get(y, item["y"]))) for item in mark.items
        ]

    def value(self, axis: str, pixel: float) -> float:
        """Return what an axis has at a pixel."""
        (low, first), (high, last), log = self.scales[axis]
        share = (pixel - low) / (high - low)
        return float(first * (last / first) ** share if log else first + share * (last - first))


def scene(spec: Json, **params: object) -> Scene:
    """Draw a figure as wide as files have it, with some of its parameters set."""
    declared = {param["name"]: param for param in spec.get("params", [])}
    set_to = {name: declared[name] | {"value": value} for name, value in params.items()}
    width = FILE_WIDTH if spec["width"] == "container" else spec["width"]
    spec = spec | {"params": [*(declared | set_to).values()], "width": width}
    graph = vl_convert.vegalite_to_scenegraph(spec, vl_version=VEGA_LITE_VERSION, config=TOLD)
    leaves = list(_leaves(graph["scenegraph"], "", 0.0, 0.0))

    def texts(section: str, role: str) -> list[Json]:
        return [item for inside, at, _, items in leaves if (inside, at) == (section, role) for item in items]

    def joined(section: str, role: str) -> str:
        return " ".join(str(item["text"]) for item in texts(section, role))

    labels = [str(item["text"]) for item in texts("legend", "legend-label")]
    symbols = [Mark("symbol", (item,)) for item in texts("legend", "legend-symbol")]
    entries = dict(zip(labels[len(labels) - len(symbols) :], symbols, strict=True))
    marks = tuple(mark for _, role, kind, items in leaves if role == "mark" for mark in _marks(kind, items))
    names = {axis: joined(f"axis {side}", "axis-title") for axis, side in SIDES.items()}
    scales = {axis: _scale(spec, axis, texts(f"axis {side}", "axis-label")) for axis, side in SIDES.items()}
    return Scene(marks, entries, names, joined("title", "title-text"), scales)


SIDES = {"x": "bottom", "y": "left"}

Leaf = tuple[str, str, str, list[Json]]
"""Of which part of a figure, in which role, of which kind, and the items, in pixels from its upper left corner."""


def _leaves(node: Json, section: str, x: float, y: float) -> Iterator[Leaf]:
    role = node.get("role", "")
    if node["marktype"] != "group":
        moved = ("x", x), ("x2", x), ("y", y), ("y2", y)
        items = [item | {name: item[name] + by for name, by in moved if name in item} for item in node["items"]]
        yield section, role, node["marktype"], items
        return
    for group in node["items"]:
        part = f"axis {group.get('orient')}" if role == "axis" else role if role in ("legend", "title") else ""
        for child in group["items"]:
            yield from _leaves(child, section or part, x + group.get("x", 0), y + group.get("y", 0))


def _marks(kind: str, items: list[Json]) -> list[Mark]:
    return [Mark(kind, tuple(items))] if kind in ("line", "area") else [Mark(kind, (item,)) for item in items]


def _scale(spec: Json, axis: str, labels: list[Json]) -> Ends:
    """Return the ends that a figure declares, else those of its labels."""
    shared = spec.get("encoding", {}).get(axis, {})
    channels = [shared | layer.get("encoding", {}).get(axis, {}) for layer in spec["layer"]]
    scales = [channel.get("scale") or {} for channel in channels if channel.get("type") == "quantitative"]
    if declared := next((scale for scale in scales if "domain" in scale), None):
        (first, last), log = declared["domain"], declared.get("type") == "log"
        low, high = (0.0, float(spec["width"])) if axis == "x" else (float(spec["height"]), 0.0)
        return (low, first), (high, last), log
    texts = [(label[axis] - 0.5, str(label["text"]).replace("−", "-").replace(",", "")) for label in labels]
    values = [(pixel, float(text)) for pixel, text in texts if text.lstrip("-").replace(".", "", 1).isdigit()]
    return (values[0], values[-1], False) if values else ((0.0, 0.0), (1.0, 0.0), False)
