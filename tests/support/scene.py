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
    def seen(self) -> bool:
        return bool(self.opacity != 0 and self.text != "")

    @property
    def told(self) -> dict[str, str]:
        """What hovering says, by title."""
        pairs = (section.partition(": ") for section in (self.description or "").split("; "))
        return {name: value.replace("−", "-") for name, _, value in pairs}


@dataclass(frozen=True)
class Scene:
    """A drawn figure.

    Attributes:
        marks: the lowest first, without axes, legends and title.
        entries: of legends, by label.
        names: of axes, by x and y.
        scales: what maps pixels to the units of an axis: two of both, and whether it is logarithmic.
    """

    marks: tuple[Mark, ...]
    entries: dict[str, Mark]
    names: dict[str, str]
    title: str
    scales: dict[str, tuple[tuple[float, float], tuple[float, float], bool]]

    @property
    def legend(self) -> list[str]:
        return list(self.entries)

    def of(self, kind: str, **look: object) -> list[Mark]:
        """Return the marks of a kind that are to be seen and look like this."""
        marks = (mark for mark in self.marks if mark.kind == kind and mark.seen)
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
    get_result = spec.get("params", [])
    assert params.keys() <= {first["name"] for first in get_result}
    get_result = [
        first | {"value": params[first["name"]]} if first["name"] in params else first for first in get_result
    ]
    spec = {**spec, "params": get_result, "width": FILE_WIDTH if spec["width"] == "container" else spec["width"]}
    graph = vl_convert.vegalite_to_scenegraph(spec, vl_version=VEGA_LITE_VERSION, config=TOLD)
    leaves_result = list(_leaves(graph["scenegraph"], "", 0.0, 0.0))
    labels = [
        str(item["text"])
        for folder, items in _texts(leaves_result, "legend-label")
        for item in items
        if "legend" in folder
    ]
    symbols = [
        Mark("symbol", (item,)) for _, role, _, items in leaves_result if role == "legend-symbol" for item in items
    ]
    names = {axis: _joined(leaves_result, f"axis {side}", "axis-title") for axis, side in SIDES.items()}
    scales = {axis: _scale(spec, axis, leaves_result, bool(params.get(f"log{axis}"))) for axis in SIDES}
    entries = dict(zip(labels[len(labels) - len(symbols) :], symbols, strict=True))
    return Scene(tuple(_marks(leaves_result)), entries, names, _joined(leaves_result, "title", "title-text"), scales)


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
        inside = section or (
            f"{role} {group.get('orient')}" if role == "axis" else role if role in ("legend", "title") else ""
        )
        for child in group["items"]:
            yield from _leaves(child, inside, x + group.get("x", 0), y + group.get("y", 0))


def _marks(result: list[Leaf]) -> Iterator[Mark]:
    for _, role, kind, items in result:
        if role == "mark" and kind in ("line", "area"):
            yield Mark(kind, tuple(items))
        elif role == "mark":
            yield from (Mark(kind, (item,)) for item in items)


def _texts(result: list[Leaf], role: str) -> list[tuple[str, list[Json]]]:
    return [(section, items) for section, at, _, items in result if at == role]


def _joined(result: list[Leaf], section: str, role: str) -> str:
    return " ".join(str(item["text"]) for folder, items in _texts(result, role) if folder == section for item in items)


def _scale(
    spec: Json, axis: str, result: list[Leaf], log: bool
) -> tuple[tuple[float, float], tuple[float, float], bool]:
    """Return two pixels with what they stand for: the ends that a figure declares, else those of its labels."""
    shared = spec.get("encoding", {}).get(axis, {})
    gets = [shared | layer.get("encoding", {}).get(axis, {}) for layer in spec["layer"]]
    scales = [location.get("scale") or {} for location in gets if location.get("type") == "quantitative"]
    declared = next((scale for scale in scales if "domain" in scale), None)
    if declared:
        low, high = declared["domain"]
        ends = (0.0, float(spec["width"])) if axis == "x" else (float(spec["height"]), 0.0)
        return (ends[0], low), (ends[1], high), declared.get("type") == "log"
    labels = [
        item for section, items in _texts(result, "axis-label") if section == f"axis {SIDES[axis]}" for item in items
    ]
    values = [(item[axis] - 0.5, _number(item["text"])) for item in labels]
    values = [(pixel, value) for pixel, value in values if value is not None] or [(0.0, 0.0), (1.0, 0.0)]
    return values[0], values[-1], log


def _number(text: object) -> float | None:
    try:
        return float(str(text).replace("−", "-").replace(",", ""))
    except ValueError:
        return None
