"""The geometry of the map of a lattice: hexagons, each of which touches those of its six neighbours."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


def hexagon_xy(lr_steps: Any, wd_steps: Any) -> tuple[Any, Any]:
    """Return x and y of the centre of the hexagon at a lattice position.

    The unit vectors of lr and wd are 60 degrees apart, so that (+1, -1) has length 1 too. The six neighbours of a point
    are then the six hexagons that touch its own, and (+1, +1) does not touch it.
    """
    return lr_steps + wd_steps / 2, wd_steps * math.sqrt(3) / 2


def hexagon_xy_by_decay(lr_steps: Any, wd_steps: Any) -> tuple[Any, Any]:
    """Return x and y of a hexagon in the coordinates lr and lr * wd: rows have one lr * wd, if steps are equally long.

    Seen from (lr, wd) these coordinates are sheared, which in the plane of `hexagon_xy` is a turn by 60 degrees: the
    six neighbours of a point still touch it, and no others do.
    """
    return (lr_steps - wd_steps) / 2, (lr_steps + wd_steps) * math.sqrt(3) / 2


def nearest_positions(steps_ZD: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the lattice positions, [Z, 2], whose hexagons contain given ones, all as steps along lr and wd."""
    # The nearest centre is a corner of the lattice cell around the point.
    corner_4D = np.array([(0, 0), (0, 1), (1, 0), (1, 1)])
    around_Z4D = np.floor(steps_ZD)[:, None] + corner_4D
    x_Z4, y_Z4 = hexagon_xy(*np.moveaxis(around_Z4D - steps_ZD[:, None], -1, 0))
    return np.asarray(around_Z4D[np.arange(len(steps_ZD)), np.argmin(np.hypot(x_Z4, y_Z4), 1)])
