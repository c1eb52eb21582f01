"""The map of a family's lattice: hexagons that touch those of their six neighbours."""

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import pandas as pd

from ettsweep.files import Json
from ettsweep.metric import Metric
from ettsweep.powers import axis_text
from ettsweep.report.figures.chart_data import (
    HEXAGON,
    STATE_SIGNS,
    Datasets,
    clipped_range,
    hover_layer,
    is_linear,
    nominal,
    origin_and_step,
    quantitative,
    significant_digits,
    suggestion_numbers,
    tooltip_frame,
    value_if,
)
from ettsweep.report.figures.line_map import line_map
from ettsweep.report.formats import axis_title_and_factor, cell_text
from ettsweep.report.theme import INK, ON_BEST

MAP_PIXELS, MAX_CELL_PIXELS = 600, 62
"""Limits: width of a map without its labels, and distance between hexagons."""

SCORE_PIXELS = 34
"""Least distance between hexagons for scores to be shown."""

EQUAL_CONTRAST = 0.435
"""Position on the colour scale, from its dark end, where black and white text have equal contrast, 4.5."""

Labels = list[tuple[float, float, str]]
"""x, y and text."""

NEIGHBOUR_STEPS = ((1, 0), (0, 1), (-1, 1), (-1, 0), (0, -1), (1, -1))
"""Steps to the six touching hexagons, counterclockwise by 60 degrees, the first to the right."""


def lattice(
    points: pd.DataFrame,
    fitted_curve: pd.DataFrame,
    optimum: pd.DataFrame,
    ranges: pd.DataFrame | None = None,
) -> Json:
    """Draw the map of one family: hexagons if both axes are free, scores along a line if one is.

    Hovering over a point shows its mean and error, seeds, state and runs.

    Args:
        points: the rows of `points_frame` of one family.
        fitted_curve: its rows of `fitted_curve_frame`, for a line.
        optimum: its rows of `optimum_frame`, for a line; none if there is no surface.
        ranges: `x_steps` and `y_steps` of two corners of the ranges that samplers searched.
    """
    placed = points.dropna(subset=["x_steps", "y_steps"])
    if placed["x_steps"].nunique() < 2 or placed["y_steps"].nunique() < 2:
        return line_map(placed, fitted_curve, optimum, ranges)
    return _HexagonMap(placed, ranges).spec()


class _HexagonMap:
    """Builds the layers of a map: lattice, scores, and tooltips."""

    def __init__(self, placed: pd.DataFrame, ranges: pd.DataFrame | None) -> None:
        self.points, self.ranges = placed, ranges
        self.data = Datasets()
        self.metric: Metric = placed["metric"].iloc[0]
        (self.i0, self.i1), (self.j0, self.j1) = _visible_ranges(placed, ranges)
        corners = [hexagon_xy(i, j) for i in (self.i0, self.i1) for j in (self.j0, self.j1)]
        (left, right), (bottom, top) = ((min(ends), max(ends)) for ends in zip(*corners, strict=True))
        self.unit = min(MAX_CELL_PIXELS, MAP_PIXELS / (right - left + 1))
        label_scale = MAX_CELL_PIXELS / self.unit  # text does not shrink with the hexagons
        # The margins hold the labels; units are hexagon widths.
        self.x, self.y = (
            (left - 0.6 - 1.1 * label_scale, right + 0.7),
            (bottom - 0.6 - 0.75 * label_scale, top + 0.7 + 0.2 * label_scale),
        )

    def spec(self) -> Json:
        hexagons, texts = self._scored_layers()
        layers = [self._empty_layer(), hexagons, *self._unscored_layers(), *self._outline_layers(), *texts]
        # The layer with tooltips is on top, else others would cover it.
        layers += [
            *self._search_layers(),
            *self._label_layers(),
            hover_layer(self._at_steps(tooltip_frame(self.points)), self._hexagon_look(0.92), self.points),
        ]
        width, height = (round((b - a) * self.unit) for a, b in (self.x, self.y))
        encoding = {
            name: quantitative(name, axis=None, scale={"domain": list(domain), "nice": False, "zero": False})
            for name, domain in (("x", self.x), ("y", self.y))
        }
        return self.data.attach_to(
            {
                "width": width,
                "height": height,
                "encoding": encoding,
                "layer": layers,
                "resolve": {"scale": {"color": "independent", "shape": "independent"}},
            }
        )

    def _at_steps(self, frame: pd.DataFrame) -> Json:
        """Return the data of rows at their positions on the lattice."""
        x, y = hexagon_xy(frame["x_steps"].astype(float), frame["y_steps"].astype(float))
        return self.data.add(frame.drop(columns=["x_steps", "y_steps"]).assign(x=x, y=y))

    def _hexagon_look(self, share: float = 1.0) -> Json:
        """Return the look of a hexagon, `share` times as large as that of the lattice."""
        # Vega scales a path by half the root of its size; the circumradius is the width / √3.
        return {"shape": HEXAGON, "size": 4 * (share * self.unit) ** 2 / 3, "opacity": 1}

    # --- points ---

    def _empty_layer(self) -> Json:
        # Every position of the bounding box, also those without a run.
        across = product(range(self.i0, self.i1 + 1), range(self.j0, self.j1 + 1))
        outline = {"filled": False, "stroke": INK, "strokeOpacity": 0.16, "strokeWidth": 0.8}
        return {
            "data": self._at_steps(pd.DataFrame(across, columns=["x_steps", "y_steps"])),
            "mark": {"type": "point", **self._hexagon_look(), **outline},
        }

    def _scored_layers(self) -> tuple[Json, list[Json]]:
        """Draw hexagons in the colours of their scores, and the scores of the candidate and its neighbours."""
        lower, scored = self.metric.mode == "min", self.points.dropna(subset=["score"])
        # Without any score, the colour scale still needs a range.
        low, high = clipped_range(scored["score"].tolist() or [0.0], lower)
        share = ((scored["score"] - low) / (high - low)).clip(0, 1)
        data = self._at_steps(
            scored[["x_steps", "y_steps", "score", "role"]].assign(
                mean=[cell_text(score, self.metric) for score in scored["score"]],
                pale=(1 - share if lower else share) > EQUAL_CONTRAST,
            )
        )
        scale = {"scheme": "viridis", "domain": [low, high], "clamp": True, "reverse": lower}
        title = f"{axis_title_and_factor(self.metric)[0]}, {'lower' if lower else 'higher'} is better"
        digits = significant_digits(pd.Series([low, high])) - 1
        labels = f".{digits}~g" if lower else f".{digits - 1}~%"
        legend = {"title": title, "orient": "bottom", "gradientLength": 240, "format": labels, "tickCount": 4}
        hexagons = {
            "data": data,
            "mark": {"type": "point", **self._hexagon_look(0.97), "filled": True, "stroke": None},
            "encoding": {"color": quantitative("score", scale=scale, legend=legend if len(scored) else None)},
        }
        # Only what a verdict compares has its number; a map full of numbers shows none.
        compared = {"filter": "datum.role != 'other'"}
        # Not INK: text has to stand out from its hexagon, whatever the theme.
        ink = value_if({"test": "datum.pale"}, "#000", "#fff")
        numbers = {
            "data": data,
            "transform": [compared],
            "mark": {"type": "text", "fontSize": 12},
            "encoding": {"text": nominal("mean"), "color": ink},
        }
        return hexagons, [numbers] if self.unit >= SCORE_PIXELS else []

    def _unscored_layers(self) -> Iterator[Json]:
        """Draw a sign and, if there is room, the state, for points that are unfinished or diverged."""
        others = self.points[self.points["score"].isna()]
        if others.empty:
            return
        data = self._at_steps(others[["x_steps", "y_steps", "state"]])
        dashed = {"filled": False, "stroke": INK, "strokeOpacity": 0.35, "strokeDash": [4, 3], "strokeWidth": 1.2}
        yield {"data": data, "mark": {"type": "point", **self._hexagon_look(0.86), **dashed}}
        states = [state for state in STATE_SIGNS if state in set(others["state"])]
        signs = {"domain": states, "range": [STATE_SIGNS[state] for state in states]}
        legend = {"title": None, "orient": "bottom", "symbolStrokeWidth": 1.6, "symbolSize": 90}
        look = {"filled": False, "stroke": INK, "strokeWidth": 1.8, "size": (0.28 * self.unit) ** 2, "opacity": 1}
        yield {
            "data": data,
            "mark": {"type": "point", **look},
            "encoding": {"shape": nominal("state", scale=signs, legend=legend)},
        }

    def _outline_layers(self) -> Iterator[Json]:
        for role, share, colour, width in (("neighbour", 0.93, INK, 1.5), ("candidate", 0.88, ON_BEST, 4)):
            rows = self.points[self.points["role"] == role]
            if len(rows):
                look = {**self._hexagon_look(share), "filled": False, "stroke": colour, "strokeWidth": width}
                yield {"data": self._at_steps(rows[["x_steps", "y_steps"]]), "mark": {"type": "point", **look}}

    # --- searched ranges, and labels ---

    def _search_layers(self) -> Iterator[Json]:
        """Draw the edge of the ranges that samplers searched, and the order of suggestions, each on a disc."""
        if self.ranges is not None:
            yield {
                "data": self.data.add(pd.DataFrame(self._range_sides(), columns=["x", "y", "x2", "y2"])),
                "mark": {"type": "rule", "stroke": INK, "strokeWidth": 2, "strokeOpacity": 0.6},
                "encoding": {"x2": {"field": "x2"}, "y2": {"field": "y2"}},
            }
        numbered = self.points.dropna(subset=["proposal"])
        if len(numbered) and self.unit >= SCORE_PIXELS:
            x, y = hexagon_xy(numbered["x_steps"].astype(float), numbered["y_steps"].astype(float))
            rows = pd.DataFrame({"x": x, "y": y + 0.43, "proposal": numbered["proposal"]})
            yield from suggestion_numbers(self.data.add(rows))

    def _range_sides(self) -> list[tuple[float, ...]]:
        """Return the visible sides between hexagons inside and outside of the searched ranges."""
        assert self.ranges is not None
        searched = _position_ranges(self.ranges)
        positions = product(range(self.i0, self.i1 + 1), range(self.j0, self.j1 + 1))
        return [
            self._side_ends(index, towards)
            for index, (towards, (di, dj)) in product(positions, enumerate(NEIGHBOUR_STEPS))
            if _is_within(index, searched) and not _is_within((index[0] + di, index[1] + dj), searched)
        ]

    def _side_ends(self, index: tuple[int, int], towards: int) -> tuple[float, ...]:
        """Return x, y, x2, y2 of the side shared with the neighbour in a direction of `NEIGHBOUR_STEPS`."""
        x, y = hexagon_xy(*index)
        turns = [math.radians(60 * towards + half) for half in (-30, 30)]
        corners = ((x + math.cos(turn) / math.sqrt(3), y + math.sin(turn) / math.sqrt(3)) for turn in turns)
        return tuple(xy for corner in corners for xy in corner)

    def _label_layers(self) -> Iterator[Json]:
        """Label rows at their left end, and columns at their lower end."""
        every = max(1, math.ceil(20 / self.unit))  # small hexagons: label every other, third, ... row
        left, low, names = self._labels(every)
        pale: Json = {"fill": INK, "fillOpacity": 0.7, "align": "right", "baseline": "middle", "fontSize": 11}
        bold: Json = {"fontSize": 13, "fontWeight": "bold"}
        for labels, look in ((left, {**pale, "angle": 0}), (low, {**pale, "angle": 300}), (names, bold)):
            yield {
                "data": self.data.add(pd.DataFrame(labels, columns=["x", "y", "label"])),
                "mark": {"type": "text", **look},
                "encoding": {"text": nominal("label")},
            }

    def _labels(self, every: int) -> tuple[Labels, Labels, Labels]:
        """Return the labels of rows, those of columns, and the names of both, each with its position."""
        rows = [j for j in range(self.j0, self.j1 + 1) if j % every == 0]
        columns = [i for i in range(self.i0, self.i1 + 1) if i % every == 0]
        _, below = hexagon_xy(self.i0, self.j0)
        x_name, y_name = self.points["axes"].iloc[0].split(", ")
        x_labels, y_labels = self._axis_labels("x", x_name, columns), self._axis_labels("y", y_name, rows)
        left = [(*hexagon_xy(self.i0 - 0.62, j), label) for j, label in zip(rows, y_labels, strict=True)]
        low = [(hexagon_xy(i, self.j0)[0], below - 0.64, label) for i, label in zip(columns, x_labels, strict=True)]
        left_end, right_end = (
            hexagon_xy(self.i0 - 0.62, self.j1 + 0.75),
            hexagon_xy(self.i1 + 1.2, self.j0 - 0.62),
        )
        return left, low, [(*left_end, y_name), (*right_end, x_name)]

    def _axis_labels(self, axis: str, name: str, positions: Sequence[int]) -> list[str]:
        """Return the values of positions as text, extrapolated where there is no point."""
        known = dict(zip(self.points[f"{axis}_steps"].astype(int), self.points[axis], strict=True))
        origin, step = origin_and_step(self.points, axis)
        places = {k: origin + step * k for k in positions if k not in known}
        known |= places if is_linear(self.points, axis) else {k: 2.0**place for k, place in places.items()}
        return [axis_text(name, known[k], 3) for k in positions]


PositionRanges = tuple[tuple[int, int], tuple[int, int]]
"""First and last position along both axes."""


def _position_ranges(frame: pd.DataFrame) -> PositionRanges:
    x, y = frame["x_steps"], frame["y_steps"]
    return (int(x.min()), int(x.max())), (int(y.min()), int(y.max()))


def _visible_ranges(placed: pd.DataFrame, ranges: pd.DataFrame | None) -> PositionRanges:
    """Return the visible part of the lattice: with the searched ranges, if hexagons then stay legible."""
    (i0, i1), (j0, j1) = ranges_searched = _position_ranges(placed if ranges is None else pd.concat([placed, ranges]))
    # Each row is half a hexagon further to the right, so steps of y add half their number to the width.
    return ranges_searched if (i1 - i0 + (j1 - j0) / 2 + 1) * SCORE_PIXELS <= MAP_PIXELS else _position_ranges(placed)


def _is_within(index: tuple[int, int], ends: PositionRanges) -> bool:
    return all(low <= k <= high for k, (low, high) in zip(index, ends, strict=True))


# --- geometry of the map ----------------------------------------------------------------------------------------------


def hexagon_xy(x_steps: Any, y_steps: Any) -> tuple[Any, Any]:
    """Return x and y of the centre of the hexagon at a lattice position.

    The unit vectors of the axes are 60 degrees apart, so (+1, -1) has length 1 too. The six neighbours of a point are
    then the six hexagons that touch it, and (+1, +1) does not.
    """
    return x_steps + y_steps / 2, y_steps * math.sqrt(3) / 2
