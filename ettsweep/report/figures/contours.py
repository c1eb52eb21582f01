"""Contour lines of a surface given on a grid, by marching triangles."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

Side = tuple[int, int]
"""A side of a triangle: the numbers of the two grid points that it joins."""


def contours(x: Array, y: Array, values: Array, level: float) -> Iterator[Array]:
    """Yield the contour lines at a level as arrays [points, 2]; a closed line ends where it begins.

    The surface is linear on each of the two triangles of a cell: [i, j], [i, j + 1], [i + 1, j], and the other three
    corners.

    Args:
        x: x of the grid points, [rows, columns].
        y: y of the grid points, likewise.
        values: of the surface there; triangles with a NaN corner have no lines.
        level: the value along the lines.
    """
    number = np.arange(values.size).reshape(values.shape)
    corners = number[:-1, :-1], number[:-1, 1:], number[1:, :-1], number[1:, 1:]
    # Corners in ascending order, so that both triangles at a side give it one name.
    triangles = np.concatenate([np.stack(corners[k : k + 3], -1).reshape(-1, 3) for k in (0, 1)])
    position, value = np.stack([x, y], -1).reshape(-1, 2), values.ravel()
    above = value[triangles] >= level
    crossed = above.any(1) & ~above.all(1) & np.isfinite(value[triangles]).all(1)
    next_sides: dict[Side, list[Side]] = defaultdict(list)  # by side: the sides crossed before and after it
    for triangle in triangles[crossed].tolist():
        # Two sides in any case: one corner is on the other side of the level than the other two.
        entered, left = ((p, q) for p, q in combinations(triangle, 2) if (value[p] >= level) != (value[q] >= level))
        next_sides[entered].append(left)
        next_sides[left].append(entered)
    while next_sides:
        # Open lines first, from an end: started in the middle, one would be yielded as two.
        ends = (side for side, others in next_sides.items() if len(others) == 1)
        sides = list(_trace_line(next_sides, next(ends, None) or next(iter(next_sides))))
        p, q = np.array(sides).T
        # Linear interpolation along each side.
        share = (level - value[p]) / (value[q] - value[p])
        yield position[p] + share[:, None] * (position[q] - position[p])


def _trace_line(next_sides: dict[Side, list[Side]], first: Side) -> Iterator[Side]:
    """Remove and yield the sides of one line in order; a closed line repeats its first side."""
    side: Side | None = first
    while side:
        yield side
        others = next_sides.pop(side)
        side = next((other for other in others if other in next_sides), None)
    if len(others) == 2 and first in others:
        yield first
