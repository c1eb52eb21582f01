"""The geometry of the map of a lattice: hexagons, each of which touches those of its six neighbours."""

import math
from typing import Any


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
